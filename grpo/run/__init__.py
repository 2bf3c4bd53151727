"""What surrounds the algorithm: the output directory, the log, checkpoints, and everything that keeps a run safe.

Read in this order:

- run.py: one invocation, with run_dir.py (its directory), checkpoint.py and signals.py (what may end it), and
  libraries.py (what it sets in torch and elsewhere, and puts back);
- resume.py: which checkpoint a run goes on from, and what may have changed; provenance.py: what a run is made from;
- cold_starts.py: finished cold starts of toy worlds, kept for the next run;
- metrics.py: the numbers of a step; log.py: where they go, with trackers.py; messages.py: what the user is told;
- guard.py: what protects a step;
- saved.py: the models that runs have written, read back.

A resumed run takes its directory and finishes what a kill left half done (run_dir.py, checkpoint.py). Run.restore
chooses the checkpoint and compares the run with it (resume.py), and loads the state; Trainer.restore sets the counters.
Log removes the lines of the steps that are made again, and Health.resume replays the others.

These files import the other folders of grpo/, rewards/ and knowledge/. Only guard.py knows the trainer.
"""

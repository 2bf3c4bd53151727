"""What surrounds the algorithm: the output directory, the log, checkpoints, and everything that keeps a run safe.

Read in this order:

- run.py: one invocation, with run_dir.py (its directory), checkpoint.py and signals.py (what may end it), and
  libraries.py (what it sets in torch and elsewhere, and puts back);
- start.py: what must be right before a run begins, with case.py (what these checks have found, and the model without
  weights);
- provenance.py: what a run is made from, and what of it may change when it resumes;
- metrics.py: the numbers of a step; log.py: where they go, with trackers.py; messages.py: what the user is told;
- diagnosis/: what the numbers of a run say;
- stage1.py: the stage 1 that a configuration of stage 2 names, and when it is used again; and the one that a model
  writes for itself;
- saved.py: the models that runs have written, read back.

A resumed run takes its directory and finishes what a kill left half done (run_dir.py, checkpoint.py). Trainer.restore
chooses the checkpoint (checkpoint.py), compares the run with it (provenance.py), and loads the state and the counters.
Log removes the lines of the steps that are made again, and Health.resume replays the others.

These files import the other folders of grpo/, rewards/ and knowledge/. The trainer (grpo/trainer.py) imports them.
"""

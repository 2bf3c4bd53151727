"""What surrounds the algorithm: the output directory, the log, checkpoints, and everything that keeps a run safe.

Read in this order:

- run.py: one invocation, with run_dir.py (its directory), checkpoint.py and alarm.py (a call after some time);
- resume.py: what a resumed run may change, with fingerprint.py (what a run is made of) and origin.py (stage 1);
- metrics.py: the numbers of a step; log.py: where they go, with trackers.py, step_bar.py and plot.py;
- guard.py, memory.py: what protects a step;
- saved.py: the models that runs have written, read back;
- toy.py: a small world made from scratch, for runs without a download.

These files import the other folders of grpo/, rewards/ and knowledge/. Only guard.py knows the trainer.
"""

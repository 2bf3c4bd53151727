"""What surrounds the algorithm: the output directory, the log, checkpoints, and everything that keeps a run safe.

Read in this order:

- run.py: one invocation, with run_dir.py, alarm.py, checkpoint.py and resume.py;
- metrics.py, evaluation.py, summary.py: the numbers of a step and of held-out questions;
- log.py: where they go, with glossary.py, trackers.py and plot.py;
- guard.py, health.py, memory.py: what protects a step;
- toy.py: a small world made from scratch, for runs without a download.

These files import the other rooms of grpo/, rewards/ and knowledge/. Only guard.py knows
the trainer, and only evaluation.py the rollout.
"""

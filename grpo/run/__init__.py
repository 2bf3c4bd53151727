"""What surrounds the algorithm: the configuration, the output directory, and everything that keeps a run safe.

Read in this order:

- options.py, config.py: every key, and how a file becomes a configuration (values.py and combinations.py check it);
- run.py: one invocation, with run_dir.py, checkpoint.py, resume.py and distributed.py;
- metrics.py, evaluation.py, summary.py: the numbers of a step and of held-out questions;
- log.py: where they go, with glossary.py, trackers.py and plot.py;
- guard.py, health.py, memory.py: what protects a step.

The first line imports nothing of grpo/ but its errors. The others may import grpo/model/, grpo/attention/ and
grpo/optim.py. Only guard.py knows a trainer.
"""

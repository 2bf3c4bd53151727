"""Checks of everything that can fail later in a run, without training: `python -m grpo.doctor CONFIG`.

A check takes a case (a configuration, and what earlier checks have found) and returns a text, or raises the error that
a run would end with; see case.py. __main__.py lists the checks of each stage and runs them. They are in machine.py,
data.py, model.py (with memory), rewards.py (with services) and plan.py (time and calls).
"""

"""Everything that can fail later in a run, checked without training: `python -m grpo.doctor CONFIG`.

A check is a function from a case (a configuration, and what earlier checks have found) to a text, or to the error that
a run would end with. command.py lists the checks of each stage and runs them. They are in machine.py, data.py,
model.py (with memory), rewards.py (with services) and plan.py (what a run takes).
"""

from grpo.doctor.command import main

__all__ = ["main"]

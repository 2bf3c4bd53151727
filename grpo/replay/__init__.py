"""A step of a run, made again: `python -m grpo.replay`. What each token did to it.

It makes the step with the trainer's own code, from the nearest checkpoint. Read in this order:

    again.py      makes the step again, with the grades that it got, and compares it with the run's record
    parts.py      looks at its gradient: the part of each answer and of each token
    __main__.py   the command: prints a table, or JSON
"""

"""Checks of everything that can fail later in a run, without training: `python -m grpo.doctor CONFIG`.

A check takes a case and returns a text, or raises the error that a run would end with. Read in this order:

    case.py      a case: a configuration, and what earlier checks have found
    sketch.py    its model without weights, and what that takes
    start.py     the checks that a run makes itself, before it loads or asks anything
    trial.py     those of weights, all data, services, memory and a few tokens
    estimate.py  time and calls, from a first step
    __main__.py  lists and shows them all
"""

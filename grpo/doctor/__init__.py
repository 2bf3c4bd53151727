"""Checks of everything that can fail later in a run, without training: `python -m grpo.doctor CONFIG`.

It makes the checks of a run's start (grpo/run/start.py, which says what a check is), and then in this order:

    trial.py     those of weights, all data, services, memory and a few tokens
    estimate.py  time and calls, from a first step
    __main__.py  lists and shows them all
"""

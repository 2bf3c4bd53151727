"""Checks of everything that can fail later in a run, without training: `python -m grpo.doctor CONFIG`.

A check takes a case (a configuration, and what earlier checks have found) and returns a text, or raises the error that
a run would end with. Read start.py (the checks that a run makes itself, before it loads or asks anything), trial.py
(weights, all data, services, memory, a few tokens), estimate.py (time and calls, from a first step), then __main__.py,
which lists and shows them.
"""

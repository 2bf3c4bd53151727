"""Does a dishonest answer earn as much as an honest one? The command `python -m rewards.audit`, and `trial.audit`.

It reads configurations and data as the trainer does, so only the doctor may import it. Read in this order:

    attacks.py    dishonest answers: a table
    cases.py      rows of data, with an honest answer to each and the form that it should have
    findings.py   the bars that honest texts set for dishonest ones, and who reaches them
    trial.py      lets each reward grade all texts
    __main__.py   the command
"""

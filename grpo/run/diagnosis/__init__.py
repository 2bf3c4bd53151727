"""What the numbers of a run say: while it trains, and when what it has written is read back. Read in this order:

glossary.py  every metric, defined once
reasons.py   why most completions earn little, and what helps
rules.py     one rule per known failure: what it looks like, what it means, what helps
health.py    the rules applied after every step of a run; ends one that cannot go on
record.py    a run directory, read back: metrics, answers, configuration

These files import grpo/base/ and the names of rewards. The run applies the rules as it goes; grpo/explain.py and
grpo/report/ apply them again.
"""

"""What the numbers of a run say: while it trains, and when what it has written is read back. Read in this order:

glossary.py  every metric, defined once
rules.py     one rule per known failure: what it looks like, what it means, what helps
health.py    the rules applied after every step of a run; ends one that cannot go on
record.py    a run directory, read back: metrics, answers, configuration

These files import grpo/base/ alone. The run applies them as it goes; grpo/explain.py and grpo/report/ apply them again.
"""

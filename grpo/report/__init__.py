"""A run as one page: `python -m grpo.report RUN [RUN2]`, made at the end of every run too.

findings.py says what went wrong and when; page.py gathers what the page shows; page.html lays it out. Both read what
grpo/run/record.py finds in the run directory, and nothing else.
"""

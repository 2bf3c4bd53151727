"""A run as one page: `python -m grpo.report RUN`, made at the end of every run too.

page.py gathers what the page shows, and page.html lays it out: answers.py compares the answers to held-out questions,
and picks those that changed most; grpo/explain.py says what went wrong and when, and charts.py draws the curves. All of
them read what grpo/run/diagnosis/record.py finds in the run directory. plot.py draws the loss of stage 1.
"""

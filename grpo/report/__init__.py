"""A run as one page: `python -m grpo.report RUN`, made at the end of every run too.

page.py gathers what the page shows, and page.html lays it out: the held-out answers that changed most, what went wrong
and when (grpo/explain.py), and the curves that charts.py draws. All of them read what grpo/run/diagnosis/record.py
finds in the run directory. plot.py draws the loss of stage 1.
"""

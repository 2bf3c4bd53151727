"""A run as one page: `python -m grpo.report RUN`, made at the end of every run too.

page.py gathers what the page shows, and page.html lays it out: before_after.py compares the answers to held-out
questions, grpo/explain.py says what went wrong and when, charts.py draws the curves, and answers.py picks completions
and the held-out answers that changed most. All of them read what grpo/run/diagnosis/record.py finds in the run
directory. plot.py draws the PNG files that runs leave.
"""

"""A run as one page: `python -m grpo.report RUN [RUN2]`, made at the end of every run too.

page.py gathers what the page shows, and page.html lays it out: grpo/explain.py says what went wrong and when,
before_after.py what training has changed on held-out questions, charts.py draws the curves, examples.py picks
completions, and flips.py questions whose answers have flipped. All of them read what grpo/diagnosis/record.py finds
in the run directory. plot.py draws the PNG files that runs leave.
"""

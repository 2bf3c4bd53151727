"""A run as one page: `python -m grpo.report RUN [RUN2]`, made at the end of every run too.

page.py gathers what the page shows, and page.html lays it out: explanation.py says what went wrong and when,
comparison.py what changed on held-out questions, charts.py draws the curves, answers.py picks completions. All of them
read what grpo/run/record.py finds in the run directory, and the passages in its knowledge base.
"""

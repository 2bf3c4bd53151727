"""From files to prompts and examples.

Read files.py (files to records), messages.py (their conversations), rows.py (records to rows, and their order;
benchmarks.py knows the usual files, count.py counts what is left out), then prompts.py (rows to tokens), then
questions.py, which joins them for stage 2 and adds the rewards; conversations.py does the same for stage 1, and
registry.py finds its files as LLaMA-Factory does. hub.py downloads models and data sets. worlds/ makes small worlds,
for runs without a download.

objects.py holds the rows and rewards that a program passes without files.

Only questions.py, objects.py and benchmarks.py import rewards/; questions.py and worlds/ import config/ and engine/.
"""

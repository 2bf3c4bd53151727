"""From files to prompts and examples.

Read rows.py (files to rows, and their order), then prompts.py (rows to tokens), then questions.py, which joins both for
stage 2 and adds the rewards; conversations.py does the same for stage 1. hub.py downloads; toy.py makes a small world
from scratch.

rows.py, prompts.py, conversations.py and hub.py import only grpo/schema.py and grpo/errors.py. questions.py and toy.py
also import grpo/run/, grpo/model/, rewards/ and knowledge/.
"""

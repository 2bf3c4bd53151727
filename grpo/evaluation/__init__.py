"""Evaluation of answers: during a training run, and by `python -m grpo.evaluate`. Read in this order:

task.py      the questions, their prompts, and the reward that grades; data/benchmarks.py recognises common files
answers.py   prompts to answers, and the records of answers that could not be graded
measures.py  graded answers to numbers: accuracy with its interval, the measures of papers, pass@k, calls of tools,
             stated confidences
table.py     these numbers as text
held_out.py  the held-out questions of a training run, before and after it, and its best policy
compare.py   two models on the same questions: exchange test, bootstrap interval
"""

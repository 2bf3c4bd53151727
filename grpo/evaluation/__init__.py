"""How well a model answers questions: during a training run, and by `python -m grpo.evaluate`. Read in this order:

task.py        which questions, asked how, graded by what; data/benchmarks.py knows the usual files
answers.py     prompts to graded answers, and the file they are kept in
measures.py    graded answers to numbers: accuracy with its interval, the measures of papers, pass@k
confidence.py  stated confidences against what came true: ECE, Brier score, risk-coverage curve
table.py       these numbers for people
held_out.py    the held-out questions of a training run, before and after it; best.py keeps the best policy
choices.py     given choices scored by their log-probs: MC1, MC2
compare.py     two models on the same questions: McNemar's test, bootstrap interval
"""

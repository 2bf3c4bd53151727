"""Is an answer right, wrong or a refusal? Rewards that value this outcome, and nothing else.

This folder may import `rewards.api`, `rewards.format`, `rewards.exact`, and `knowledge`. Read in this order:

    correctness.py      rules, then a judge: the outcome of an answer, and what that is worth
    refusal.py          which answers decline to answer, or list the alternatives that the question offers
    judge.py            compares answer and truth: a language model, or normalised equality
    grades.py           a judge's reply as a grade
"""

"""Is an answer right, wrong or a refusal? Rewards that value this outcome, and nothing else.

This folder may import `rewards.api`, `rewards.format`, `rewards.exact`, and `knowledge`. Read in this order:

    correctness.py      rules, then a judge: the outcome of an answer, and KnowRL's values for it
    refusal.py          which answers decline to answer
    choices.py          which answers list the alternatives that the question offers
    judge.py            a language model compares answer and truth    (offline_judge.py: normalised equality does)
    grades.py           a judge's reply as a grade
    values.py           other values for the outcome: TruthRL, abstention, karl, tiar, rlcr
    simpleqa.py         the judge's grade alone, as SimpleQA has it
"""

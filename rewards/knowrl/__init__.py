"""KnowRL's reward in three versions: `knowrl` is this project's, `knowrl_v1` and `knowrl_v2` are KnowRL's own.

Each version has that name in every file here; configurations and metrics know them as `combined`, `combined_v1` and
`combined_v2`. This folder may import `rewards.api`, `rewards.format`, `rewards.exact`, the word lists of
`rewards.mathematics`, and `knowledge`. Read in this order:

    reward.py           the three versions in one table: correctness, and factuality where it can matter
    correctness.py      is the answer right, wrong or a refusal?      (refusal.py: which answers decline to answer)
    judge.py            a language model compares answer and truth    (offline_judge.py: rules do)
    grades.py           a judge's reply as a grade, in all usual forms
    fact_checker.py     the configured knowledge base, decomposer and verifier at work
    factuality.py       how far does the knowledge base support the reasoning?   (verdict_queue.py: facts in batches)
    outcome.py          other values for the same grade: TruthRL, abstention, karl, tiar
    simpleqa.py         the judge's grade alone, as SimpleQA has it
"""

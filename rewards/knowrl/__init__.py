"""KnowRL's reward in three versions: `knowrl` is this project's, `knowrl_v1` and `knowrl_v2` are KnowRL's own.

Each has that name everywhere: in configurations, in metrics and here. This folder may import `rewards.outcome`,
`rewards.services`, `rewards.format`, and `knowledge`. Read in this order:

    reward.py           the versions in one table: correctness, and factuality where it can matter
    fact_checker.py     how far does the knowledge base support the reasoning?
    decomposer.py       what takes a text apart into facts: a model, or rules
"""

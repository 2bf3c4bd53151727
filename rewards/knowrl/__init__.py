"""KnowRL's reward in three versions: `knowrl` is this project's, `knowrl_v1` KnowRL's guide's, `knowrl_v2` its code's.

Each has that name everywhere: in configurations, in metrics and here. This folder may import `rewards.outcome`,
`rewards.api`, `rewards.format`, `rewards.exact`, and `knowledge`. Read in this order:

    reward.py           the versions in one table: correctness, and factuality where it can matter
    fact_checker.py     how far does the knowledge base support the reasoning, and who takes it apart into facts?
"""

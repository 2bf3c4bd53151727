"""KnowRL's reward: `knowrl` is this project's version, `knowrl_v2` is KnowRL's own code since October 2025.

Each has that name everywhere: in configurations, in metrics and here. This folder may import `rewards.outcome`,
`rewards.services`, `rewards.format`, and `knowledge`. Read in this order:

    reward.py           both versions in one table: correctness, and factuality where it can matter
    fact_checker.py     how far does the knowledge base support the reasoning?
"""

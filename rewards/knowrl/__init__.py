"""KnowRL's reward in three versions: `knowrl` is this project's, `knowrl_v1` and `knowrl_v2` are KnowRL's own.

Each version has that name everywhere: in configurations, in metrics and here. This folder may import `rewards.outcome`,
`rewards.api`, `rewards.format`, and `knowledge`. Read in this order:

    reward.py           the three versions in one table: correctness, and factuality where it can matter
    v1.py               the rules of KnowRL's guide about answers
    fact_checker.py     the configured knowledge base, decomposer and verifier at work
    factuality.py       how far does the knowledge base support the reasoning?
"""

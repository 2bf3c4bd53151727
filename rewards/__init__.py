"""Rewards: what a completion is worth, as a number or as "unscorable" with a reason, never an invented number.

    registry.py     names to rewards, user functions, TRL's signature
    scorer.py       rewards at work while other completions are still being generated
    format.py       one <think> block, one <answer> block, nothing else
    exact.py        the answer equals the truth after normalisation
    boxed.py        the last \\boxed{} equals the truth, mathematically          (mathematics/)
    overlong.py     DAPO's soft penalty for completions near the length limit
    score.py        `python -m rewards.score`: any reward on a file of completions
"""

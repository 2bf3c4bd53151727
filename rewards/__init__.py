"""Rewards: what a completion is worth, as a number or as "unscorable" with a reason, never an invented number.

registry.py     names to rewards, user functions, TRL's signature
scorer.py       rewards at work while other completions are still being generated
combined.py     KnowRL's reward, in three versions                       (correctness.py, factuality.py)
judge.py        a model compares answer and truth                        (offline_judge.py: rules do; refusal.py)
api.py          the one client for judge and decomposer                  (endpoint.py, connections.py, limits.py, reply.py, reply_cache.py)
format.py       one <think> block, one <answer> block, nothing else
exact.py        the answer equals the truth after normalisation
boxed.py        the last \\boxed{} equals the truth, mathematically          (mathematics/)
overlong.py     DAPO's soft penalty for completions near the length limit
score.py        `python -m rewards.score`: any reward on a file of completions
"""

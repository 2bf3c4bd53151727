"""Punish completions that come close to the length limit softly, as DAPO does (arXiv 2503.14476, Eq. 13 there)."""

from grpo.algorithm.schema import Score
from rewards.registry import Columns, Options, Reward


def grade(num_tokens: int, max_tokens: int, cache: int) -> Score:
    """Give 0 up to max_tokens - cache tokens, then go down in a straight line to -1 at max_tokens.

    >>> [grade(n, 100, 20).value for n in (80, 90, 100)]
    [0.0, -0.5, -1.0]
    """
    value = min(0.0, (max_tokens - cache - num_tokens) / cache)
    return Score(max(value, -1.0), f"{num_tokens} of {max_tokens} tokens")


def build(name: str, options: Options) -> Reward:
    """Build the reward `soft_overlong_punishment`, which counts the ids of a completion."""
    max_tokens = options["max_completion_length"]
    cache = options["soft_punish_cache"]

    def grade_ids(completion: str, columns: Columns) -> Score:
        return grade(len(columns["completion_ids"]), max_tokens, cache)

    return Reward(name, grade_ids)

"""DAPO's soft penalty for completions that come close to the length limit (2503.14476, Eq. 13 there)."""

from collections.abc import Mapping
from typing import Any

from grpo.schema import Score


def grade(num_tokens: int, max_tokens: int, cache: int) -> Score:
    """0 up to max - cache tokens, then down in a straight line to -1 at the limit.

    >>> [grade(n, 100, 20).value for n in (80, 90, 100)]
    [0.0, -0.5, -1.0]
    """
    value = min(0.0, (max_tokens - cache - num_tokens) / cache)
    return Score(max(value, -1.0), f"{num_tokens} of {max_tokens} tokens")


def from_columns(max_tokens: int, cache: int):
    """The reward for `columns`, which hold the completion's ids."""

    def graded(completion: str, columns: Mapping[str, Any]) -> Score:
        return grade(len(columns["completion_ids"]), max_tokens, cache)

    return graded

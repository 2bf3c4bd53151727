"""Micro-batches that fit: if memory runs out, the work is done again with smaller ones."""

from collections.abc import Callable
from dataclasses import replace
from typing import ParamSpec, TypeVar

from grpo.base.errors import is_out_of_memory
from grpo.engine.model.memory import Budget, halve, release

T = TypeVar("T")
P = ParamSpec("P")


class MemoryLimit:
    """How large micro-batches may be: `budget`, which becomes smaller once memory has run out.

    longest: tokens of the longest sequence; a micro-batch holds at least one. can_retry: whether this process may do
    its work again by itself (shards of one model cannot: the others are in the middle of the same micro-batch).
    """

    def __init__(self, budget: Budget, longest: int, can_retry: bool = True, say: Callable[[str], None] = print):
        self.budget, self.longest, self.can_retry, self.say = budget, longest, can_retry, say

    def use(self, tokens: int) -> None:
        """Let micro-batches have at most so many packed tokens, as in an earlier part of the run."""
        self.budget = replace(self.budget, tokens=tokens)

    def run(self, work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Run `work`; if memory runs out, run it again with smaller micro-batches, which give the same gradient.

        It makes its micro-batches from `budget` each time, and it may not communicate with other processes: those do
        not run theirs again. Raises the error of torch if it cannot be made smaller.
        """
        while True:
            try:
                return work(*arguments, **named)
            except Exception as error:
                smaller = halve(self.budget, self.longest) if self.can_retry else None
                if not is_out_of_memory(error) or smaller is None:
                    raise
                reason = str(error).partition("\n")[0]  # the error itself holds on to the tensors of its traceback
            self.budget = smaller
            release()
            self.say(
                f"note: out of memory ({reason}); from now on micro-batches have at most {smaller.tokens} packed tokens"
            )

"""What the protocols of calls share: where a completion pauses, and how a result becomes tokens.

A call stands among the tokens that a completion has drawn after its last result. A result is data: none of its tokens
is a special one.
"""

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from grpo.algorithm.schema import Completion
from grpo.data.prompts import ChatEncoder
from knowledge.text import printable

CHARS_PER_TOKEN = 32  # of a result; what goes beyond is not read
INCOMPLETE = "\ufffd"  # the bytes of a character may be spread over several tokens


@dataclass(frozen=True)
class Request:
    """A call that a completion makes. place: of its first character.

    arguments: by their names; None: the query is the only one. error: what answers a call that cannot be made.
    """

    tool: str
    query: str
    place: int
    arguments: dict[str, Any] | None = None
    error: str = ""


@dataclass
class Paused:
    """A completion up to its calls, these, and what they have given so far. room: for the tokens of their results."""

    completion: Completion
    requests: list[Request]
    room: int
    results: list[str] = field(default_factory=list)


class Protocol(ABC):
    """Finds the calls in a completion, and spells their results.

    max_calls: in a completion, or turns that are answered. Further ones are text, and so is a call whose result would
    not fit. max_tokens: of a result.
    """

    is_typed: bool  # a tool that raises answers with the error; else it ends its completion
    ends: Sequence[int]  # tokens with which a call may end, besides the end of a turn
    shown: str  # how tools are called: a call and its result as the model sees them
    dropped: Container[int]  # tokens that no result holds

    def __init__(self, encoder: ChatEncoder, max_calls: int, max_tokens: int):
        self.encoder = encoder
        self.max_calls = max_calls
        self.max_tokens = max_tokens
        self.decode = encoder.decode  # to the text in which calls are found
        self.as_data: Callable[[str], str] = printable  # makes the normal form of a result

    @abstractmethod
    def read(
        self,
        own: Sequence[int],
        has_ended: bool,
    ) -> tuple[int, list[Request]]:
        """Return the calls in a completion's own tokens, and how many tokens there are up to their end."""

    @abstractmethod
    def answer(
        self,
        requests: Sequence[Request],
        said: Sequence[str],
    ) -> list[int]:
        """Return the tokens that answer calls with these texts."""

    def find(self, completion: Completion, limit: int) -> Paused | None:
        """Return a completion up to its new calls; None if there are none. limit: of its tokens."""
        calls = completion.calls
        num_answered = sum(call.start < call.end for call in calls)
        if num_answered >= self.max_calls:
            return None
        start = calls[-1].end if calls else 0
        own = completion.ids[start:]
        count, found = self.read(own, completion.finish_reason == "stop")
        length = start + count
        room = limit - length - 1  # for a token after the results
        if not found or len(self.answer(found, [""] * len(found))) > room:
            return None
        kept = slice(length)
        begun = replace(
            completion,
            ids=completion.ids[kept],
            logps=completion.logps[kept],
            cuts=completion.cuts[kept],
        )
        requests = [replace(one, place=self._place(begun.ids, own[:count], one.place)) for one in found]
        return Paused(begun, requests, room)

    def given(self, paused: Paused) -> tuple[list[int], list[str]]:
        """Return the tokens that answer a completion's calls, and what they say of each."""
        requests = paused.requests
        nothing = self.answer(requests, [""] * len(requests))
        share = (paused.room - len(nothing)) // len(requests)
        each = min(self.max_tokens, share)
        while True:
            said = [self.cut(result, each) for result in paused.results]
            ids = self.answer(requests, said)
            if len(ids) <= paused.room or each <= 0:
                return ids, said
            each -= 1  # a tokenizer may make more of the whole than of its parts

    def cut(self, result: str, num_tokens: int) -> str:
        """Return a result as data, of so many tokens at most, as these spell it."""
        said = self.as_data(result[: CHARS_PER_TOKEN * self.max_tokens])
        text = None
        while text != said:
            text = said
            kept = [token for token in self.encoder.spelled(text) if token not in self.dropped]
            said = self.encoder.decode(kept[:num_tokens]).rstrip(INCOMPLETE)
        return said

    def count(self, ids: Sequence[int], begin: str) -> int:
        """Return how many tokens it takes to spell the beginning of their text.

        Its length would not do: several bytes, of which each is shown until the last has come, may be one character.
        """
        return bisect_left(range(len(ids)), True, key=lambda count: self.decode(ids[:count]).startswith(begin))

    def _place(self, ids: Sequence[int], own: Sequence[int], begin: int) -> int:
        """Return the character of a completion's text at which the character `begin` of its own tokens is.

        Counted from the end: some tokenizers drop a space from the start of what they decode.
        """
        text = self.decode(own)
        rest = own[self.count(own, text[:begin]) :]
        num_hidden = len(self.decode(rest)) - len(self.encoder.decode(rest))  # characters of special tokens
        behind = len(text) - begin - num_hidden
        return len(self.encoder.decode(ids)) - behind

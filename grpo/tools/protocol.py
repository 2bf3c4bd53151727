"""The protocol of tags: where a completion calls a tool, and how a result becomes tokens.

    <search>Mira Tolan</search><result>Mira Tolan was born in Velda.</result>

A call is the first such block of a tool among the tokens that a completion has drawn after its last result. The text
in it holds no tag of a tool. A result is data. None of its tokens holds `<` or `>`, so it closes no block and opens
none, in whatever way it spells one; none is a special token.
"""

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any

from grpo.algorithm.schema import Call, Completion
from grpo.base.errors import PREFLIGHT, UserError
from grpo.data.prompts import ChatEncoder
from rewards.own_words import RESULT

OPEN, CLOSE = f"<{RESULT}>", f"</{RESULT}>"
CHARS_PER_TOKEN = 32  # of a result; what goes beyond is not read
INCOMPLETE = "\ufffd"  # the bytes of a character may be spread over several tokens
_BRACKETS = str.maketrans("<>", "‹›")
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")  # a token of tokenizers that spell unknown characters by their bytes


@dataclass(frozen=True)
class Request:
    """A call that a completion makes. room: tokens that may be given for it; place: of its first character.

    length: tokens of the completion up to the end of the call. arguments: by their names; None: the query is the only
    one. error: what answers a call that cannot be made.
    """

    tool: str
    query: str
    length: int
    place: int
    room: int
    arguments: dict[str, Any] | None = None
    error: str = ""


class Protocol:
    """What both protocols share. max_tokens: of a result.

    max_calls: in a completion, or turns that are answered. Further ones are text, and so is a call whose result would
    not fit.
    """

    def __init__(self, encoder: ChatEncoder, max_calls: int, max_tokens: int):
        self.encoder = encoder
        self.max_calls = max_calls
        self.max_tokens = max_tokens
        self.max_chars = CHARS_PER_TOKEN * max_tokens

    def kept(self, spelled: Sequence[int], room: int, dropped: Container[int]) -> list[int]:
        """Return the tokens of a result without those that are dropped, `room` at most, up to a whole character."""
        kept = [token for token in spelled if token not in dropped]
        kept = kept[:room]
        while kept and self.encoder.decode(kept).endswith(INCOMPLETE):
            kept.pop()
        return kept


class ToolProtocol(Protocol):
    """Finds the calls of the tools with these names, and adds their results."""

    is_typed = False  # a tool that raises ends its completion

    def __init__(self, names: Sequence[str], encoder: ChatEncoder, max_calls: int, max_tokens: int):
        """UserError (exit 3) if a tag is a special token, of which nothing is left in the text of a completion."""
        added = encoder.tokenizer.added_tokens_decoder.values()
        special = {token.content for token in added if token.special}
        for tag in (f"<{name}>" for name in names):
            if tag in special or tag.replace("<", "</") in special:
                what = f"the tag {tag} is a special token of this tokenizer"
                raise UserError(what, "what a model says holds none of these", "give the tool another name", PREFLIGHT)
        super().__init__(encoder, max_calls, max_tokens)
        self.call = call_pattern(names)
        self.shown = f"<{names[0]}>a text</{names[0]}>{OPEN}what it gives{CLOSE}"  # as the model sees it
        self.answered = re.compile(rf"{self.call.pattern}(){OPEN}(.*?){CLOSE}", re.DOTALL)
        self.ends = holding(encoder.tokenizer, ">")
        starts = holding(encoder.tokenizer, "<")
        self.brackets = {*self.ends, *starts, *encoder.forbidden}
        self.open_ids = encoder.plain(OPEN)
        self.close_ids = encoder.plain(CLOSE)

    def find(self, completion: Completion, limit: int) -> list[Request]:
        """Return the first call after the last result; [] if there is none. limit: of the completion's tokens."""
        if len(completion.calls) >= self.max_calls:
            return []
        start = completion.calls[-1].end if completion.calls else 0
        own = completion.ids[start:]
        if not self._search(own):
            return []
        holds_call = lambda count: self._search(own[:count]) is not None  # noqa: E731
        count = bisect_left(range(len(own)), True, key=holds_call)  # the fewest tokens that hold it
        found = self._search(own[:count])
        length = start + count
        tags = len(self.open_ids) + len(self.close_ids)
        room = limit - length - tags - 1  # for a token after the result
        if room < 0:
            return []
        # Counted from the end: some tokenizers drop a space from the start of what they decode.
        text = self.encoder.decode(completion.ids[:length])
        from_call = found.string[found.start() :]
        place = len(text) - len(from_call)
        query = found[2].strip()
        room = min(room, self.max_tokens)
        return [Request(found[1], query, length, place, room)]

    def _search(self, ids: Sequence[int]) -> re.Match | None:
        """Return the first call in the text of these tokens."""
        return self.call.search(self.encoder.decode(ids))

    def block(self, result: str, room: int) -> list[int]:
        """Return the tokens of a result within its tags."""
        data = as_data(result[: self.max_chars])
        spelled = self.encoder.spelled(data)
        body = self.kept(spelled, room, self.brackets)
        return [*self.open_ids, *body, *self.close_ids]

    def written(self, text: str, before: str = "") -> tuple[list[int], list[Call]]:
        """Return the tokens of an answer of stage 1, end token included, and the calls whose results it holds.

        before: the prompt.
        """
        text = self.encoder.space + self.encoder.unopened(text)
        ids: list[int] = []
        calls = []
        done = 0  # characters
        for found in self.answered.finditer(text):
            tool, query, _, result = found.groups()
            end_of_call = found.end(3)
            ids += self.encoder.after(before, text[done:end_of_call])
            before = CLOSE
            start = len(ids)
            length = end_of_call - found.start()
            place = len(self.encoder.decode(ids)) - length
            ids += self.block(result, self.max_tokens)
            span = place, len(self.encoder.decode(ids))
            calls.append(Call(tool, query, result, start, len(ids), span))
            done = found.end()
        rest = self.encoder.after(before, text[done:])
        return [*ids, *rest, self.encoder.answer_end()], calls

    def given(
        self,
        requests: Sequence[Request],
        results: Sequence[str],
    ) -> tuple[list[int], list[str]]:
        """Return the tokens of the result of a call, and what they say."""
        ids = self.block(results[0], requests[0].room)
        text = self.encoder.decode(ids)
        said = text.removeprefix(OPEN).removesuffix(CLOSE)
        return ids, [said]


def call_pattern(names: Sequence[str]) -> re.Pattern:
    """Return the pattern of a call: the tool is its first group, and the query its second. It takes linear time."""
    any_name = "|".join(map(re.escape, names))
    return re.compile(rf"<({any_name})>((?:(?!</?(?:{any_name})>).)*)</\1>", re.DOTALL)


def as_data(text: str) -> str:
    """Return the normal form of a result: compatibility characters unified, on one line, and ‹ › for < >.

    >>> as_data("a\\n＜b＞\\x1b[0m")
    'a ‹b› [0m'
    """
    unified = unicodedata.normalize("NFKC", text)
    plain = printable(unified)
    words = plain.translate(_BRACKETS).split()
    return " ".join(words)


def printable(text: str, also: str = "") -> str:
    """Return a text with spaces for its control characters."""
    return "".join(char if char.isprintable() or char in also else " " for char in text)


def holding(tokenizer, char: str) -> list[int]:
    """Return the tokens whose text holds an ASCII character."""
    found = []
    for token, index in tokenizer.get_vocab().items():
        byte = _BYTE.fullmatch(token)
        text = chr(int(byte[1], 16)) if byte else token
        if char in text:
            found.append(index)
    return sorted(found)

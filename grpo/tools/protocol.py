"""The text protocol of tools: where a completion calls one, and how a result becomes tokens.

    <search>Mira Tolan</search><result>Mira Tolan was born in Velda.</result>

A call is the first such block of a tool among the tokens that a completion has drawn after its last result. The text
in it holds no tag of a tool. A result is data. None of its tokens holds `<` or `>`, so it closes no block and opens
none, in whatever way it spells one; none is a special token.
"""

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from grpo.algorithm.schema import Call, Completion
from grpo.data.prompts import ChatEncoder
from rewards.own_words import RESULT

OPEN, CLOSE = f"<{RESULT}>", f"</{RESULT}>"
CHARS_PER_TOKEN = 32  # of a result; what goes beyond is not read
INCOMPLETE = "\ufffd"  # the bytes of a character may be spread over several tokens
MAX_BYTES = 4  # of a character
_BRACKETS = str.maketrans("<>", "‹›")
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")  # a token of tokenizers that spell unknown characters by their bytes


@dataclass(frozen=True)
class Request:
    """A call that a completion makes. room: tokens that its result may take, tags apart; place: of its first character.

    length: tokens of the completion up to the end of the call.
    """

    tool: str
    query: str
    length: int
    place: int
    room: int


class Protocol:
    """Finds the calls of the tools with these names, and adds their results, of at most `max_tokens` tokens each.

    max_calls: in a completion. Further ones are text, and so is a call whose result would not fit.
    """

    def __init__(self, names: Sequence[str], encoder: ChatEncoder, max_calls: int, max_tokens: int):
        self.encoder, self.max_calls, self.max_tokens = encoder, max_calls, max_tokens
        self.max_chars = CHARS_PER_TOKEN * max_tokens
        self.call = call_pattern(names)
        self.answered = re.compile(rf"{self.call.pattern}(){OPEN}(.*?){CLOSE}", re.DOTALL)
        self.ends = holding(encoder.tokenizer, ">")
        self.brackets = {*self.ends, *holding(encoder.tokenizer, "<"), *encoder.forbidden}
        self.open_ids, self.close_ids = encoder.plain(OPEN), encoder.plain(CLOSE)

    def find(self, completion: Completion, limit: int) -> Request | None:
        """Return the first call after the last result; None if there is none. limit: of the completion's tokens."""
        if len(completion.calls) >= self.max_calls:
            return None
        start, decode = completion.calls[-1].end if completion.calls else 0, self.encoder.decode
        own = completion.ids[start:]
        if not self.call.search(decode(own)):
            return None
        ends_before = lambda count: self.call.search(decode(own[:count])) is not None  # noqa: E731
        count = bisect_left(range(len(own)), True, key=ends_before)
        said = decode(own[:count])
        found, length = self.call.search(said), start + count
        room = limit - length - len(self.open_ids) - len(self.close_ids) - 1  # for a token after the result
        if room < 0:
            return None
        # From the end: some tokenizers drop a space from the start of what they decode.
        place = len(decode(completion.ids[:length])) - len(said[found.start() :])
        return Request(found[1], found[2].strip(), length, place, min(room, self.max_tokens))

    def block(self, result: str, room: int) -> list[int]:
        """Return the tokens of a result within its tags."""
        spelled = self.encoder.spelled(as_data(result[: self.max_chars]))
        body = [token for token in spelled if token not in self.brackets][:room]
        for _ in range(MAX_BYTES):
            if body and self.encoder.decode(body).endswith(INCOMPLETE):
                body.pop()
        return [*self.open_ids, *body, *self.close_ids]

    def written(self, text: str) -> tuple[list[int], list[Call]]:
        """Return the tokens of an answer of stage 1, end token included, and the calls whose results it holds."""
        ids, calls, done, text = [], [], 0, self.encoder.unopened(text)
        for found in self.answered.finditer(text):
            ids += self.encoder.plain(text[done : found.end(3)])
            start, done = len(ids), found.end()
            ids += self.block(found[4], self.max_tokens)
            calls.append(Call(found[1], found[2], found[4], start, len(ids), found.span()))
        return [*ids, *self.encoder.plain(text[done:]), self.encoder.answer_end()], calls

    def answer(self, completion: Completion, request: Request, result: str, failure: str) -> None:
        """Add the result of a call to its completion, or end this because there is none."""
        start, given = len(completion.ids), [] if failure else self.block(result, request.room)
        completion.ids += given
        completion.logps += [0.0] * len(given)
        completion.cuts += [float("-inf")] * len(given)
        said = self.encoder.decode(given).removeprefix(OPEN).removesuffix(CLOSE)
        span = (request.place, len(self.encoder.decode(completion.ids)))
        end = start + len(given)
        completion.calls.append(Call(request.tool, request.query, said, start, end, span, failure))
        if failure:
            completion.finish_reason = "tool"


def call_pattern(names: Sequence[str]) -> re.Pattern:
    """Return the pattern of a call: the tool is its first group, and the query its second. It takes linear time."""
    any_name = "|".join(map(re.escape, names))
    return re.compile(rf"<({any_name})>((?:(?!</?(?:{any_name})>).)*)</\1>", re.DOTALL)


def as_data(text: str) -> str:
    """Return the normal form of a result: compatibility characters unified, on one line, and ‹ › for < >.

    >>> as_data("a\\n＜b＞\\x1b[0m")
    'a ‹b› [0m'
    """
    plain = "".join(char if char.isprintable() else " " for char in unicodedata.normalize("NFKC", text))
    return " ".join(plain.translate(_BRACKETS).split())


def holding(tokenizer, char: str) -> list[int]:
    """Return the tokens whose text holds an ASCII character."""
    found = []
    for token, index in tokenizer.get_vocab().items():
        byte = _BYTE.fullmatch(token)
        if char in (chr(int(byte[1], 16)) if byte else token):
            found.append(index)
    return sorted(found)

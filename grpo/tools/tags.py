"""The protocol of tags: calls with one text, for a model of any size.

    <search>Mira Tolan</search><result>Mira Tolan was born in Velda.</result>

A call is the first such block of a tool. The text in it holds no tag of a tool. No token of a result holds `<` or `>`,
so it closes no block and opens none, in whatever way it spells one.
"""

import re
import unicodedata
from collections.abc import Sequence

from grpo.algorithm.schema import Call
from grpo.base.errors import PREFLIGHT, UserError
from grpo.data.prompts import ChatEncoder
from grpo.tools.protocol import Protocol, Request
from knowledge.text import printable
from rewards.own_words import RESULT

OPEN, CLOSE = f"<{RESULT}>", f"</{RESULT}>"
_BRACKETS = str.maketrans("<>", "‹›")
_BYTE = re.compile(r"^<0x([0-9A-F]{2})>$")  # a token of tokenizers that spell unknown characters by their bytes


class TagProtocol(Protocol):
    """Finds the calls of the tools with these names, and adds their results."""

    is_typed = False

    def __init__(
        self,
        names: Sequence[str],
        encoder: ChatEncoder,
        max_calls: int,
        max_tokens: int,
    ):
        """UserError (exit 3) if a tag is a special token, of which nothing is left in the text of a completion."""
        super().__init__(encoder, max_calls, max_tokens)
        for tag in (f"{start}{name}>" for name in names for start in ("<", "</")):
            if encoder.tokenizer.convert_tokens_to_ids(tag) in encoder.forbidden:
                what = f"the tag {tag} is a special token of this tokenizer"
                raise UserError(what, "what a model says holds none of these", "give the tool another name", PREFLIGHT)
        self.call = call_pattern(names)
        self.shown = f"by tags: <{names[0]}>a text</{names[0]}>{OPEN}what it gives{CLOSE}"
        self.answered = re.compile(rf"{self.call.pattern}(){OPEN}(.*?){CLOSE}", re.DOTALL)
        self.ends = holding(encoder.tokenizer, ">")
        starts = holding(encoder.tokenizer, "<")
        self.as_data = as_data
        self.dropped = {*starts, *self.ends, *encoder.forbidden}
        self.open_ids = encoder.plain(OPEN)
        self.close_ids = encoder.plain(CLOSE)

    def read(
        self,
        own: Sequence[int],
        has_ended: bool,
    ) -> tuple[int, list[Request]]:
        text = self.decode(own)
        found = self.call.search(text)
        if not found:
            return 0, []
        request = Request(found[1], found[2].strip(), found.start())
        return self.count(own, text[: found.end()]), [request]

    def answer(
        self,
        requests: Sequence[Request],
        said: Sequence[str],
    ) -> list[int]:
        return [*self.open_ids, *self.encoder.spelled(said[0]), *self.close_ids]

    def written(
        self,
        text: str,
        before: str = "",
    ) -> tuple[list[int], list[Call]]:
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
            ids += self.answer([], [self.cut(result, self.max_tokens)])
            span = place, len(self.encoder.decode(ids))
            calls.append(Call(tool, query, result, start, len(ids), span))
            done = found.end()
        rest = self.encoder.after(before, text[done:])
        return [*ids, *rest, self.encoder.answer_end()], calls


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
    words = printable(unified).translate(_BRACKETS).split()
    return " ".join(words)


def holding(tokenizer, char: str) -> list[int]:
    """Return the tokens whose text holds an ASCII character."""
    spelled = lambda token: _BYTE.sub(lambda byte: chr(int(byte[1], 16)), token)  # noqa: E731
    return sorted(index for token, index in tokenizer.get_vocab().items() if char in spelled(token))

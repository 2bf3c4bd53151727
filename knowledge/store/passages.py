"""Cut documents into passages of complete sentences, up to 256 tokens each, and split a stored text into them again.

KnowRL stores a document as its passages joined by SEPARATOR. FActScore's file has the same layout, but a tokenizer cut
its passages anywhere, and left its markers <s> and </s> in the text, where they say nothing. Both are read here;
KnowRL's layout is written.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from knowledge.words import ABBREVIATIONS, MAY_END, OPENERS

SEPARATOR = "####SPECIAL####SEPARATOR####"
MAX_TOKENS = 256  # the default length of a passage
# English has 4.2 to 4.5 characters per token in the vocabularies of Qwen and DeBERTa, Chinese about 0.7 tokens per
# character of three bytes, so passages are a little shorter than asked. They stay below the 512 tokens of an entailment
# model, and no tokenizer is needed.
BYTES_PER_TOKEN = 4

# A sentence may end here: stops, closing quotes and brackets, white space. One leading character class keeps the scan
# fast.
_STOP = re.compile(r"""[.!?…。！？\n][.!?…。！？"'”’»)\]」』）]*\s*""")
_ENDS_AT_ONCE = re.compile("[。！？\n]").search  # Chinese and Japanese stops, line breaks
_ABBREVIATION = re.compile(rf"(?<!['’])\b(?:[A-Za-z]|{'|'.join(ABBREVIATIONS)})$").search  # Sana'a is none
_MAY_END = re.compile(rf"\b(?:[A-Z]|{'|'.join(map(re.escape, MAY_END))})$").search
_OPENER = re.compile(rf"(?:{'|'.join(OPENERS)})(?![\w.])").match  # the initial of "J. A. Smith" is none
_MAX_ABBREVIATION = 8  # characters that are searched for one


@dataclass(frozen=True)
class Passage:
    """A passage that was found.

    id: title#number, the same with and without an index. score: BM25, higher is better; compare it only within one
    result. A score of 0 means that no word is shared with the query, which happens only in a search within titles.
    """

    id: str
    title: str
    text: str
    score: float


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a text with the white space after them; joined, they are the text again."""
    start = 0
    for stop in _STOP.finditer(text):
        if _ends_sentence(stop):
            yield text[start : stop.end()]
            start = stop.end()
    if start < len(text):
        yield text[start:]


def _ends_sentence(stop: re.Match) -> bool:
    """Tell whether a sentence ends at this stop.

    A Latin stop needs white space after it, then no lower-case letter. The full stop of an abbreviation ends a sentence
    only if a word follows that opens one; of two full stops, the second is not the abbreviation's.
    """
    mark = stop.group()
    text = stop.string
    if _ENDS_AT_ONCE(mark):
        return True
    following = text[stop.end() : stop.end() + 1]
    if not mark[-1].isspace() or following.islower():
        return False
    before = max(0, stop.start() - _MAX_ABBREVIATION), stop.start()
    if mark[0] != "." or mark[1] == "." or not _ABBREVIATION(text, *before):
        return True
    return bool(_MAY_END(text, *before) and _OPENER(text, stop.end()))


def pack(text: str, max_tokens: int = MAX_TOKENS) -> list[str]:
    """Return the passages of a text, each with as many complete sentences as fit into `max_tokens`.

    The passages hold all of the text but the white space between them. Only a sentence that is longer than
    `max_tokens` by itself is cut, at a space where there is one.
    """
    limit = max_tokens * BYTES_PER_TOKEN
    passages = [b""]
    for sentence in sentences(text):
        raw = sentence.encode("utf-8", "replace")
        if len(passages[-1]) + len(raw) <= limit:
            passages[-1] += raw
        else:
            passages += _cut(raw, limit)
    stripped = [passage.decode().strip() for passage in passages]
    return [passage for passage in stripped if passage]


def _cut(raw: bytes, limit: int) -> list[bytes]:
    """Cut a sentence into pieces of at most `limit` bytes, each at its last space.

    If the last space lies before the middle, the piece is cut within a word.
    """
    pieces = []
    start = 0
    while len(raw) - start > limit:
        end = start + limit
        while raw[end] & 0xC0 == 0x80:  # a continuation byte: step back to the character's first one
            end -= 1
        space = raw.rfind(b" ", start + limit // 2, end)
        if space > 0:
            end = space + 1
        pieces.append(raw[start:end])
        start = end
    return [*pieces, raw[start:]]


def without_markers(text: str) -> str:
    """Return a text without FActScore's <s> and </s>."""
    return text.replace("<s>", " ").replace("</s>", " ")


def split_stored(text: str) -> list[str]:
    """Return the passages of a stored document, without blank ones."""
    parts = [part.strip() for part in without_markers(text).split(SEPARATOR)]
    return [part for part in parts if part]

"""Documents to passages: whole sentences packed up to 256 tokens, and back from a stored text to its passages.

KnowRL stores a document as its passages joined by SEPARATOR. FActScore's file has the same layout, but its passages
were cut anywhere by a tokenizer whose markers <s> and </s> are still in the text. Both are read here; ours are written
in KnowRL's layout.
"""

import re
from collections.abc import Iterable, Iterator

SEPARATOR = "####SPECIAL####SEPARATOR####"
MAX_TOKENS, MIN_TOKENS = 256, 4  # of a passage: the default, and the least that can be asked for
BYTES_PER_TOKEN = 4

# A sentence may end here: stops, closing quotes and brackets, white space. One leading character class keeps the scan
# fast.
_STOP = re.compile(r"""[.!?…。！？\n][.!?…。！？"'”’»)\]」』）]*\s*""")
_ENDS_AT_ONCE = re.compile("[。！？\n]").search  # Chinese and Japanese stops, line breaks
# Not an end: "Dr. ", "J. ", "U.S. ", "e.g. "
_ABBREVIATION = re.compile(
    r"(?:\b(?:[A-Za-z]|Mr|Mrs|Ms|Dr|St|Jr|Sr|Prof|Gen|Col|Lt|Sgt|Capt|Rev|Hon|Gov|Sen|Rep|Mt|Ft|vs|etc|cf|ca|approx|Vol|Fig|"
    r"Op|pp|Inc|Ltd|Co|Corp|Bros|Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec))$"
).search


def num_tokens(text: str) -> int:
    """Estimated model tokens: one per four bytes of UTF-8.

    English has 4.2 to 4.5 characters per token in the vocabularies of Qwen and DeBERTa, Chinese about 0.7 tokens per
    character of three bytes; so the estimate errs on the high side for both. It bounds passages against the 512 tokens
    of an entailment model and needs no tokenizer.
    """
    return -(-num_bytes(text) // BYTES_PER_TOKEN)


def num_bytes(text: str) -> int:
    """Length in UTF-8."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


def sentences(text: str) -> Iterator[str]:
    """The sentences of a text, with the white space that follows them: joined, they are the text again."""
    start = 0
    for stop in _STOP.finditer(text):
        if _is_end(text, stop.group(), stop.start(), stop.end()):
            yield text[start : stop.end()]
            start = stop.end()
    if start < len(text):
        yield text[start:]


def _is_end(text: str, mark: str, start: int, end: int) -> bool:
    """Is the mark at text[start:end] the end of a sentence? A Latin one needs white space, no lower-case letter after
    it, and for a full stop no abbreviation before it."""
    if _ENDS_AT_ONCE(mark):
        return True
    if not mark[-1].isspace() or text[end : end + 1].islower():
        return False
    return mark[0] != "." or not _ABBREVIATION(text, max(0, start - 8), start)


def pack(text: str, max_tokens: int = MAX_TOKENS) -> list[str]:
    """The passages of a text: as many whole sentences as fit into max_tokens, in order, nothing lost but white space at
    the seams.

    Only a sentence that is longer than max_tokens by itself is cut, at a space where there is one.
    """
    if max_tokens < MIN_TOKENS:
        raise ValueError(f"passages of {max_tokens} tokens: at least {MIN_TOKENS} are needed")
    limit = max_tokens * BYTES_PER_TOKEN
    passages, current, room = [], [], limit
    for sentence in sentences(text):
        size = num_bytes(sentence)
        if current and size > room:
            passages.append("".join(current))
            current, room = [], limit
        if size > limit:
            *whole, sentence = _cut(sentence, limit)
            passages += whole
            size = num_bytes(sentence)
        current.append(sentence)
        room -= size
    passages.append("".join(current))
    return [passage.strip() for passage in passages if passage.strip()]


def _cut(sentence: str, limit: int) -> list[str]:
    """Pieces of at most `limit` bytes: at the last space of each, or within a word where the last space is before the
    middle."""
    raw, pieces, start = sentence.encode("utf-8", "replace"), [], 0
    while len(raw) - start > limit:
        end = start + limit
        while raw[end] & 0xC0 == 0x80:  # a continuation byte: step back to the character's first one
            end -= 1
        space = raw.rfind(b" ", start + limit // 2, end)
        end = space + 1 if space > 0 else end
        pieces.append(raw[start:end].decode())
        start = end
    return [*pieces, raw[start:].decode()]


def passages_of(texts: Iterable[str], max_tokens: int = MAX_TOKENS) -> list[str]:
    """Passages of a source row: its paragraphs (or ready passages), joined by a line break and packed."""
    return pack("\n".join(texts).replace(SEPARATOR, "\n"), max_tokens)


def split_stored(text: str, markers: bool = False) -> list[str]:
    """The passages of a document as stored; markers: FActScore's <s> and </s> are in it. Blank passages are dropped."""
    if markers:
        text = text.replace("<s>", " ").replace("</s>", " ")
    return [passage for part in text.split(SEPARATOR) if (passage := part.strip())]

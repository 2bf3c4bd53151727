"""Define what a token is: the index, the queries and the scoring in Python share this definition.

    tokens("The Normans' cafés, 1,234 of them")  ->  ["norman", "caf", "1234"]
    tokens("黑豹队 NFL")                          ->  ["黑豹", "豹队", "nfl"]

Words are folded (case, width, Latin accents), stop words are dropped beside others, and the commonest endings of
English words are cut off, so that "bakeries" finds "bakery". Porter's rules find no more (bench/LOG.md). A script
written without spaces gives pairs of neighbouring characters, so that a search finds words of two characters, which
SQLite's trigram tokenizer cannot find. A character that stands alone is a token by itself. If you change anything
here, raise TOKENS_VERSION: an index of another version is refused.
"""

import re
from functools import lru_cache

from knowledge.text import fold
from knowledge.words import STOP_WORDS

TOKENS_VERSION = 3
MAX_TOKEN_CHARS = 64  # longer words are cut: base64 and URLs must not fill the vocabulary
MAX_CACHED_CHARS = 32  # of a piece between spaces

# Han, kana, Hangul, and the South-East Asian scripts
UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
)
INDIC = "\u0900-\u0963\u0966-\u0dff"  # `re` takes vowel signs for no letters, but they belong to the word
_NUMBER = r"\d{1,3}(?:,\d{3})+(?!\d)"  # 1,234,567 is one token, 1234567
_WORD = re.compile(f"{_NUMBER}|[\\w{UNSPACED}{INDIC}]+")
_RUNS = re.compile(f"[{UNSPACED}]+|[{INDIC}]+|[^_{UNSPACED}{INDIC}]+")  # one script each: 第3章abc -> 第, 3, 章, abc
_ENDING = re.compile("(?<=[a-z]{3})(?:ies|ied|ing|ed|es|s|(?<![aeiou])y|e)$")
_IS_UNSPACED = re.compile(f"[{UNSPACED}]").match
# For ASCII, the bulk of English: lower case, and a space for all but letters, digits and the comma that numbers need.
_ASCII_FOLD = re.sub("[^a-z0-9,]", " ", bytes(range(128)).decode().lower())


@lru_cache(1 << 18)  # about 70 MB; with it a text costs one look-up per piece, and takes a fifth of the time
def _tokens_of(piece: str) -> tuple[str, ...]:
    """Return the tokens of a piece of folded text between spaces: none of a stop word, several of unspaced script."""
    found: list[str] = []
    for word in _WORD.findall(piece):
        for run in _RUNS.findall(word):
            found += _tokens_of_run(run)
    return tuple(found)


def _tokens_of_run(run: str) -> tuple[str, ...]:
    """Return the tokens of a word or a part of one in one script."""
    if _IS_UNSPACED(run):
        pairs = [run[i : i + 2] for i in range(len(run) - 1)]
        return tuple(pairs) or (run,)
    if run in STOP_WORDS:
        return ()
    return (_ENDING.sub("", run.replace(",", "")[:MAX_TOKEN_CHARS]),)


def tokens(text: str) -> list[str]:
    """Return the tokens of a text, in order and with repetitions; of a text of stop words alone, these: The Who.

    Any string is allowed, also one with lone surrogates or NUL.
    """
    folded = text.translate(_ASCII_FOLD) if text.isascii() else fold(text)
    found: list[str] = []
    for piece in folded.split():
        found += _tokens_of(piece) if len(piece) <= MAX_CACHED_CHARS else _tokens_of.__wrapped__(piece)
    return found or [word for word in _WORD.findall(folded) if word in STOP_WORDS]

"""What a token is: the one definition that the index, the queries and the scoring in Python share.

    tokens("The Normans' cafés, 1,234 of them")  ->  ["norman", "cafe", "1234"]
    tokens("黑豹队 NFL")                          ->  ["黑豹", "豹队", "nfl"]

Words are folded (case, width, Latin accents), stop words dropped, English words stemmed. Scripts written without spaces give pairs of
neighbouring characters, so that two-character words are found (SQLite's trigram tokenizer cannot find them); a character that stands
alone is a token by itself. Change anything here and raise TOKENS_VERSION: an index of another version is refused.
"""

import re
import unicodedata
from itertools import chain

from knowledge.store.stem import stem

TOKENS_VERSION = 1
MAX_TOKEN_CHARS = 64  # longer words are cut: base64 and URLs must not fill the vocabulary

# Han, kana, Hangul, and the South-East Asian scripts
UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
)
INDIC = "\u0900-\u0963\u0966-\u0dff"  # vowel signs are no letters to `re`, but belong to the word
_NUMBER = r"\d{1,3}(?:,\d{3})+(?!\d)"  # 1,234,567 is one token, 1234567
_WORD = re.compile(f"{_NUMBER}|[\\w{UNSPACED}{INDIC}]+")
_RUNS = re.compile(f"[{UNSPACED}]+|[{INDIC}]+|[^_{UNSPACED}{INDIC}]+")  # one script each: 第3章abc -> 第, 3, 章, abc
_IS_UNSPACED = re.compile(f"[{UNSPACED}]").match
_ACCENTS = re.compile("[\u0300-\u036f]")
# For ASCII text, the bulk of English: lower case, and a space for all but letters, digits and the comma that numbers need.
_ASCII_FOLD = "".join(chr(code).lower() if chr(code).isalnum() or code == ord(",") else " " for code in range(128))

_STOP_TEXT = """
    a about after all also am an and any are as at be because been before being between both but by can could d did do does doing
    during each few for from had has have having he her hers herself him himself his how i if in into is it its itself ll m me more
    most my myself no nor not of on or other our ours over own re s same she should so some such t than that the their theirs them
    themselves then there these they this those through to too under until up ve very was we were what when where which while who
    whom whose why will with would you your yours
    aren couldn didn doesn don hadn hasn haven isn shouldn wasn weren wouldn"""
STOP_WORDS = frozenset(_STOP_TEXT.split())


def fold(text: str) -> str:
    """Case, full-width forms and Latin, Greek and Cyrillic accents removed: "Ｃａｆé" -> "cafe"; marks of other scripts stay."""
    if text.isascii():
        return text.lower()
    text = unicodedata.normalize("NFKD", text).casefold()
    return unicodedata.normalize("NFC", _ACCENTS.sub("", text))


class _Tokens(dict):
    """A piece of folded text between spaces -> its tokens: none for a stop word, several for a run of unspaced script.

    Filled as pieces are met: a text is then one split and one look-up per piece, five times faster than searching it for words.
    """

    MAX_PIECES, MAX_CHARS = (
        1 << 18,
        32,
    )  # about 70 MB when full; then it starts afresh, so memory stays bounded on any input

    def __missing__(self, piece: str) -> tuple[str, ...]:
        found: list[str] = []
        for word in _WORD.findall(piece):
            for run in (word,) if word.isalnum() and word.isascii() else _RUNS.findall(word):
                if _IS_UNSPACED(run):
                    found += [run[i : i + 2] for i in range(len(run) - 1)] or [run]
                elif run not in STOP_WORDS:
                    found.append(stem(run.replace(",", "")[:MAX_TOKEN_CHARS]))
        if len(self) >= self.MAX_PIECES:
            self.clear()
        if len(piece) <= self.MAX_CHARS:
            self[piece] = tuple(found)
        return tuple(found)


_TOKENS_OF = _Tokens()


def tokens(text: str) -> list[str]:
    """The tokens of a text, in order and with repetitions. Any string is allowed, lone surrogates and NUL included; never raises."""
    folded = text.translate(_ASCII_FOLD) if text.isascii() else fold(text)
    return list(chain.from_iterable(map(_TOKENS_OF.__getitem__, folded.split())))

"""Read what a language model replies: without its thoughts, out of its fence, and as a list of facts.

    parse_reply("Here are the facts:\\n* [2] Mira was born in Velda.")  ->  {"Mira was born in Velda.": (2,)}
    parse_reply("NON_FACTUAL")                                         ->  {}
    parse_reply("I cannot help with that.")                            ->  None

Read are lists with bullets or numbers, and lists of JSON; anything else is no list of facts, and is asked for again.
Any string is safe, in linear time.
"""

import json
import re
from itertools import chain
from typing import Any

from knowledge.store.tokens import UNSPACED

MIN_WORDS = 3  # in a fact, as num_words counts them
THOUGHTS = (  # what begins a model's thoughts, and what ends them
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<reasoning>", "</reasoning>"),
    ("◁think▷", "◁/think▷"),
    ("<|channel|>analysis", "<|channel|>final<|message|>"),
)
_FENCE = re.compile(r"```[\w-]*\s*?\n?(.*?)```", re.DOTALL)
_NUMBER = r"(?:[Ss](?:entences?)?\s?|第)?#?\d{1,3}句?"  # of a sentence
_LISTED = rf"\s{{0,3}}{_NUMBER}(?:\s{{0,3}}(?:[,，、;；&–-]|and|和)\s{{0,3}}{_NUMBER}){{0,99}}\s{{0,3}}"
_BRACKETS = rf"[\[【]{_LISTED}[\]】]"  # before or after a fact
_LABEL = r"(?:[Ff]act|[Cc]laim|[Ss]tatement|事实)\s*#?\d{0,3}\s*[.:：)]\s*"
_MARK = re.compile(
    r"(?:[*+]\s+|"  # Markdown: without the space, * begins a word in bold
    r"[-\u2010-\u2015−•·・‣⁃→➔-➾■-◿★☆✓✔✅🔹🔸]\ufe0f?(?:\s*\[[ xX]\])?\s*|[①-⑳]\s*|"
    r"[(（#]?\d{1,3}(?:[)）、．：\t]|:(?=\s)|\.(?!\d)|-(?=\s))\s*|"
    rf"(?={_BRACKETS}\s{{0,3}}\S))"
    rf"(?:{_LABEL})?|{_LABEL}"
)
_QUOTED = re.compile(r"[\"“]([^\"]*)[\"”]")
_NUMBERS = re.compile(
    rf"^(?:(?:{_BRACKETS}|[(（]{_LISTED}[)）])\s{{0,3}}){{1,8}}(?:[:：.]|[–-]\s)?|(?:{_BRACKETS}\s{{0,3}}){{1,8}}[.。]?$"
)
_RANGE = re.compile(r"(\d+)(?:\s*[–-]\s*(\d+))?")
_JSON = re.compile(r"\A[^\n\[{]*[\[{]|^[ \t]*[\[{]", re.MULTILINE)
_KEYS = "facts atomic_facts statements claims items fact atomic_fact text statement claim sentence content".split()
_NON_FACTUAL = re.compile(r"[\W_]*NON[_ -]?FACTUAL(?![A-Za-z])", re.IGNORECASE)
_FACTS = r"(?:\w+ ){0,2}fact(?:s|ual \w+)?\b[^\n]{0,80}"
_TEXT = r"(?:the|this) (?:\w+ ){0,2}(?:text|passage)"
_NO_FACTS = re.compile(
    "|".join(
        (
            "none|nothing|n/?a|无",
            rf"(?:there (?:are|is) )?no {_FACTS}",
            rf"{_TEXT} (?:\w+ )?(?:states?|contains?|has|gives|makes) no {_FACTS}",
            rf"{_TEXT} does(?: not|n['’]t) \w+ any {_FACTS}",
            r"(?:该|本|这段)?(?:文本|文|文字|段落)?中?(?:没有|未|无|并未|并没有)[^\n]{0,8}事实[^\n]{0,30}",
        )
    ),
    re.IGNORECASE,
)


def without_thoughts(reply: str) -> str:
    """Return what follows a model's thoughts; "" if they do not end.

    Some servers leave out the mark that begins the thoughts. Then the mark that ends them must stand on its own line.
    """
    text = reply.strip()
    for begin, end in THOUGHTS:
        before, found, after = text.rpartition(end)
        if text.startswith(begin):
            return after.strip() if found else ""
        if found and (before.endswith("\n") or after.startswith("\n")):
            return after.strip()
    return text


def parse_reply(reply: str) -> dict[str, tuple[int, ...]] | None:
    """Return each fact of a reply with the numbers of sentences that stand before or after it in brackets, {} if it
    says that there are no facts; None if it is no list of facts.

    A fact is a line with a mark of a list, or an entry of a JSON list, and has three words at least. All other lines
    are left out. A later repetition, whatever its case, adds its numbers to the first one.
    """
    text = without_thoughts(reply)
    fenced = _FENCE.findall(text)
    text = fenced[0].strip() if len(fenced) == 1 else text
    listed = _from_json(text)
    if listed is None:
        listed = _from_lines(text)
    if not listed:
        return None if listed is None else {}
    facts = [fact for fact in listed if not _says_none(_NUMBERS.sub("", fact))]
    if facts and len(facts) < len(listed):
        return None  # facts, and no facts: it cannot be both
    return _distinct(facts)


def without_last_line(reply: str) -> str:
    """Return a reply that was cut, without the line in which that happened."""
    return reply.rpartition("\n")[0]


def num_words(text: str) -> int:
    """Count words between spaces; each character of a script without spaces (Han, kana, Thai, ...) is one."""
    return len(re.sub(f"([{UNSPACED}])", r" \1 ", text).split())


def _from_json(text: str) -> list[str] | None:
    """Return the texts of a JSON value that begins a line, or ends the first one; None if there is no such list."""
    place = _JSON.search(text)
    if not place or any(_MARK.match(line.strip()) for line in text[: place.end() - 1].splitlines()):
        return None
    try:
        data, end = json.JSONDecoder().raw_decode(text, place.end() - 1)
    except (ValueError, RecursionError):
        return None
    return None if text[end:].lstrip().startswith(("{", "[")) else _texts(data)


def _texts(data: Any) -> list[str] | None:
    """Return the texts of a JSON value: a text, a list of values, or an object with one of _KEYS."""
    if isinstance(data, str):
        return [_plain(data)]
    if isinstance(data, dict):
        data = {key.lower(): value for key, value in data.items()}
        return next((_texts(data[key]) for key in _KEYS if key in data), None)
    if not isinstance(data, list):
        return None
    found = [_texts(entry) for entry in data]
    return None if None in found else list(chain(*found))


def _from_lines(text: str) -> list[str] | None:
    """Return the lines with a mark of a list; [] if the reply begins with the remark that there are no facts."""
    lines = [_plain(line.strip().removeprefix("> ")) for line in text.splitlines() if line.strip()]
    marks = [(line, _MARK.match(line)) for line in lines]
    listed = [_plain(line[mark.end() :]) for line, mark in marks if mark]
    says_none = bool(lines) and _says_none(lines[0])
    if listed:
        listed = [fact for fact in listed if not fact.endswith((":", "：")) or _says_none(fact)]
        return [*listed, lines[0]] if says_none else listed
    return [] if says_none else None


def _plain(text: str) -> str:
    """Return a text without Markdown's bold type, and without quotes around it."""
    text = text.replace("**", "").strip()
    quoted = _QUOTED.fullmatch(text)
    return quoted[1] if quoted else text


def _says_none(text: str) -> bool:
    """Tell whether a line says that the text states no facts."""
    return bool(_NON_FACTUAL.match(text) or _NO_FACTS.fullmatch(text.strip(" \t.。!*_-()（）")))


def _distinct(facts: list[str]) -> dict[str, tuple[int, ...]]:
    """Take the numbers off the facts, and join those of equal facts."""
    texts = {}
    numbers: dict[str, tuple[int, ...]] = {}
    for fact in facts:
        text = _NUMBERS.sub("", fact).strip()
        if num_words(text) >= MIN_WORDS:
            text = texts.setdefault(text.casefold(), text)
            found = _RANGE.findall(" ".join(_NUMBERS.findall(fact)))
            ranges = [range(int(first), int(last or first) + 1) for first, last in found]
            numbers[text] = (*numbers.get(text, ()), *chain(*ranges))
    return numbers

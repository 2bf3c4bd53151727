"""Read what a language model replies: without its thoughts, out of its fence, and as a list of facts.

    parse_reply("Here are the facts:\\n* [2] Mira was born in Velda.")  ->  {"Mira was born in Velda.": (2,)}
    parse_reply("NON_FACTUAL")                                         ->  {}
    parse_reply("I cannot help with that.")                            ->  None

The forms of a reply stand in tables. What fits none of them is no list of facts. Any string is safe, in linear time.
"""

import json
import re
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
_MARK = re.compile(
    r"[*+]\s+|"  # Markdown: without the space, * begins a word in bold
    r"[-\u2010-\u2015−•·・‣⁃→➔-➾■-◿★☆✓✔](?:\s*\[[ xX]\])?\s*|[①-⑳]\s*|"
    r"[一二三四五六七八九十]{1,3}、|"
    r"[(（]?\d{1,3}(?:[)）、．]|[:：](?=\s)|\.(?!\d)|-(?=\s))\s*|(?=\[\d{1,3}\])|[a-z][.)]\s+|"
    r"(?:[Ff]act|事实)\s*\d{1,3}\s*[.:：)]\s*"
)
_BRACKETS = r"\[\d{1,3}(?:\s*[,，、]\s*\d{1,3})*\]"  # the numbers of sentences, before or after a fact
_NUMBERS = re.compile(rf"^{_BRACKETS}[:：.]?|{_BRACKETS}[.。]?$")
_FACT_KEYS = ("fact", "text", "statement", "claim", "sentence", "content")
_LIST_KEYS = ("facts", "atomic_facts", "statements", "claims")
_NON_FACTUAL = re.compile(r"[\W_]*NON[_ -]?FACTUAL(?![A-Za-z])", re.IGNORECASE)
_FACTS = r"(?:\w+ ){0,2}fact(?:s|ual \w+)?\b[^\n]{0,80}"
_TEXT = r"(?:the|this) (?:\w+ ){0,2}(?:text|passage)"
_NO_FACTS = re.compile(
    "|".join(
        (
            "none|nothing|n/?a",
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


def unfenced(reply: str) -> str:
    """Return what stands in the reply's only fence of three backticks; the complete reply if there is not just one."""
    blocks = _FENCE.findall(reply)
    return blocks[0].strip() if len(blocks) == 1 else reply.strip()


def parse_reply(reply: str) -> dict[str, tuple[int, ...]] | None:
    """Return each fact of a reply with the numbers that stand before it in square brackets, {} if it says that there
    are no facts; None if it is no list of facts.

    A fact is a line with a mark of a list, or an entry of a JSON list, and has three words at least. All other lines
    are left out. A later repetition, whatever its case, adds its numbers to the first one.
    """
    text = unfenced(without_thoughts(reply))
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
    """Return the entries of a JSON list, with or without a line before it; None if there is no such list."""
    start = min((place for place in (text.find("["), text.find("{")) if place >= 0), default=-1)
    if start < 0 or "\n" in text[:start].strip() or _MARK.match(text):
        return None
    try:
        data, end = json.JSONDecoder().raw_decode(text, start)
        if isinstance(data, dict) and text[end:].lstrip().startswith("{"):  # an object per line
            data = [json.loads(line) for line in text[start:].splitlines() if line.strip()]
    except (ValueError, RecursionError):
        return None
    return _entries(data)


def _entries(data: Any) -> list[str] | None:
    """Return the texts of a JSON list, or of the list in a JSON object."""
    if isinstance(data, dict):
        if data and all(key.isdigit() for key in data):
            return _entries(list(data.values()))
        data = {key.lower(): value for key, value in data.items()}
        lists = [data[key] for key in _LIST_KEYS if isinstance(data.get(key), list)]
        if not lists:
            return [] if any(_says_none(key) for key in data) else None
        data = lists[0]
    if not isinstance(data, list):
        return None
    texts = [_entry(entry) for entry in data]
    return None if None in texts else [_plain(text) for text in texts]


def _entry(entry: Any) -> str | None:
    if isinstance(entry, dict):
        entry = {key.lower(): value for key, value in entry.items()}
        entry = next((entry[key] for key in _FACT_KEYS if key in entry), None)
    return entry if isinstance(entry, str) else None


def _from_lines(text: str) -> list[str] | None:
    """Return the lines with a mark of a list; [] if the reply begins with the remark that there are no facts."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return None
    listed = []
    for line in lines:
        mark = _MARK.match(line)
        if mark:
            listed.append(_plain(line[mark.end() :]))
    if listed:
        listed = [fact for fact in listed if not fact.endswith((":", "：")) or _says_none(fact)]
        return [*listed, lines[0]] if _says_none(lines[0]) else listed
    return [] if _says_none(lines[0]) else None


def _plain(text: str) -> str:
    return text.replace("**", "").strip()


def _says_none(text: str) -> bool:
    """Tell whether a line says that the text states no facts."""
    return bool(_NON_FACTUAL.match(text) or _NO_FACTS.fullmatch(text.strip(" \t.。!*_-()（）")))


def _distinct(facts: list[str]) -> dict[str, tuple[int, ...]]:
    """Take the numbers off the facts, and join those of equal facts."""
    texts: dict[str, str] = {}
    numbers: dict[str, tuple[int, ...]] = {}
    for fact in facts:
        text = _NUMBERS.sub("", fact).strip()
        if num_words(text) >= MIN_WORDS:
            text = texts.setdefault(text.casefold(), text)
            found = re.findall(r"\d+", " ".join(_NUMBERS.findall(fact)))
            numbers[text] = (*numbers.get(text, ()), *map(int, found))
    return numbers

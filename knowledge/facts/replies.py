"""Ask a language model, and read what it replies: without its thoughts, out of its fence, and as a list of facts.

    parse_reply("Here are the facts:\\n* [2] Mira was born in Velda.")  ->  {"Mira was born in Velda.": (2,)}
    parse_reply("NON_FACTUAL")                                         ->  {}
    parse_reply("I cannot help with that.")                            ->  None

A list has a mark before each fact, such as a bullet, a number or "Fact 2:". JSON is first written as such a list, also
if it is damaged or was cut. Anything else is no list of facts, and is asked for again. Any string is safe, in linear
time.
"""

import contextlib
import json
import re
from collections.abc import Awaitable, Callable
from itertools import chain
from typing import Any

from knowledge.store.tokens import UNSPACED

NUM_ASKED = 2  # how often a model is asked whose reply cannot be used
MAX_QUOTED = 200  # characters of such a reply that it is shown again
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
_NUMBER = r"(?:[Ss](?:entences?)?\s?|第)?\d{1,3}句?"
_BRACKETS = rf"[\[【]{_NUMBER}(?:\s?(?:[,，、;；–-]|and|和)\s?{_NUMBER}){{0,99}}[\]】]\s?"
_NUMBERS = re.compile(rf"^(?:{_BRACKETS}){{1,8}}[:：.]?|(?:{_BRACKETS}){{1,8}}[.。]?$")  # of the sentences of a fact
_BULLET = r"[*+]\s+|[-−‐-―•·‣⁃→➔➤■-◿★✓✔✅]\ufe0f?\s*(?:\[[ xX]\]\s*)?|[①-⑳]\s*"  # ■-◿ holds circles, too
_COUNTER = (
    r"[(（#]?\d{1,3}(?:[)）、．：]|\\?\.(?!\d)|[-:](?=\s))\s*|[一二三四五六七八九十]{1,3}、"
    r"|[(（]?(?:[a-z]|[ivx]{1,4})[.)）]\s+"
)
_LABEL = r"(?:[Ff]act|[Cc]laim|[Ss]tatement|事实)\s?#?\d{0,3}[.:：]\s*"
_MARK = re.compile(rf"(?:{_BULLET}|{_COUNTER}|(?={_BRACKETS}\S))(?:{_LABEL})?|{_LABEL}")  # of a list
_RANGE = re.compile(r"(\d+)(?:\s*[–-]\s*(\d+))?")
_NON_FACTUAL = re.compile(
    r"[\W_]*(?:NON[_ -]?FACTUAL(?![A-Za-z])"
    r"|(?:(?:there|it|(?:the|this) (?:\w+ ){0,2}(?:text|passage)) )?(?:(?:is|are|has|\w+s) )?no (?:\w+ )?facts\b"
    r"|(?:it|(?:the|this) (?:\w+ ){0,2}(?:text|passage)) does(?: not|n['’]t) \w+ any (?:\w+ )?facts\b"
    r"|(?:none|nothing|n/a|无)\W*$|(?:该|本|这段)?(?:文本|文|文字|段落)?中?(?:没有|未|无|并未|并没有)\w{0,8}事实)",
    re.IGNORECASE,
)
# JSON: where a value begins a line, or ends the first one; and its tokens, of which the last may be cut
_JSON = re.compile(r"(?:\A[^\n\[{]*|^[ \t]*)(?=[\[{]\s*[\"\[\]{])", re.MULTILINE)
_TOKEN = re.compile(r'"((?:[^"\\]|\\.)*+)(?:(")(\s*:)?|\Z)|(\d+)|(})', re.DOTALL)
_KEYS = (
    r"fact|claim|statement|item|事实|^#?\d*$",
    r"text|sentence|content",
)  # of facts; the second if none has a first


# ask(messages, *, max_tokens, prompt_version, read). Its reply has a `text`, which is None if there is none; then
# `reason` says why, and `cut` is what there is of a reply that did not come to its end.
Ask = Callable[..., Awaitable[Any]]


async def converse(
    ask: Ask, messages: list[dict[str, str]], read: Callable[[str], Any], again: str, **more: Any
) -> tuple[Any, list[Any]]:
    """Ask a model, and once more, in the words `again`, if `read` returns None for its reply.

    Return what was read of the last reply, and all replies. more: further arguments of `ask`.
    """
    replies = []
    for _ in range(NUM_ASKED):
        reply = await ask(messages, read=read, **more)
        replies.append(reply)
        value = None if reply.text is None else read(reply.text)
        if reply.text is None or value is not None:
            break
        said = {"role": "assistant", "content": reply.text[:MAX_QUOTED]}
        messages = [*messages, said, {"role": "user", "content": again}]
    return value, replies


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
    """Return each fact of a reply with the numbers of sentences that stand before or after it in brackets.

    {} if it says that there are no facts, None if it is no list. Equal facts and fragments of fewer than MIN_WORDS
    words are left out, and so is what stands around the list.
    """
    text = without_thoughts(reply)
    fenced = _FENCE.findall(text)
    text = fenced[0].strip() if len(fenced) == 1 else text
    lines = [line.strip().removeprefix("> ") for line in _without_json(text).splitlines()]
    lines = [_plain(line) for line in lines if line]
    marks = [(line, _MARK.match(line)) for line in lines]
    listed = [_plain(line[mark.end() :]) for line, mark in marks if mark]
    facts = [fact for fact in listed if not fact.endswith((":", "：")) and not _NON_FACTUAL.match(fact)]
    says_none = any(map(_NON_FACTUAL.match, [*lines[:1], *listed]))
    if says_none:
        return None if facts else {}  # facts, and no facts: it cannot be both
    return _distinct(facts) if listed else None


def without_last_line(reply: str) -> str:
    """Return a reply that was cut, without the fact in which that happened."""
    lines, _, _ = reply.rpartition("\n")
    return reply if _json_in(reply) else lines


def _json_in(text: str) -> re.Match | None:
    """Find where a JSON value begins; None if there is none, or if a list of lines comes first."""
    found = _JSON.search(text)
    is_line = found and any(_MARK.match(line.strip()) for line in text[: found.end()].splitlines())
    return None if is_line else found


def _without_json(text: str) -> str:
    """Write the facts of a JSON value as a list, with the numbers of their sentences: "- [2] Mira was born."."""
    begins = _json_in(text)
    if not begins:
        return text
    found: list[tuple[str, str]] = []  # keys and texts; a list in JSON has the key that stands before it
    key = ""
    numbers = ""
    first = 0
    for token in _TOKEN.finditer(text, begins.end()):
        string, is_whole, is_key, number, closes = token.groups()
        if is_key:
            key = string.lower()
        elif is_whole:
            found.append((key, _decoded(string)))
        elif number and "sentence" in key:
            numbers += f"[{number}]"
        elif closes:  # the object of one fact, and of the numbers of its sentences
            found[first:] = [(key, f"{numbers} {fact}".strip()) for key, fact in found[first:]]
            key = ""
            numbers = ""
            first = len(found)
    wanted = ([fact for key, fact in found if re.search(kind, key)] for kind in _KEYS)
    facts = next(filter(None, wanted), [])
    if not facts:
        return "NON_FACTUAL" if re.search(r"\[\s*\]", text[begins.end() :]) and not found else text
    return "\n".join(fact if _MARK.match(fact) else f"- {fact}" for fact in facts)


def _decoded(string: str) -> str:
    """Return what a string in JSON says, on one line."""
    with contextlib.suppress(ValueError):
        string = json.loads(f'"{string}"', strict=False)
    return " ".join(string.split())


def num_words(text: str) -> int:
    """Count words between spaces; each character of a script without spaces (Han, kana, Thai, ...) is one."""
    return len(re.sub(f"([{UNSPACED}])", r" \1 ", text).split())


def _plain(text: str) -> str:
    """Return a text without Markdown's bold type, and without quotes around it."""
    text = text.replace("**", "").strip()
    quoted = re.fullmatch('["“]([^"]*)["”]', text)
    return quoted[1] if quoted else text


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

"""Ask a language model, and read what it replies: without its thoughts, out of its fence, and as a list of facts.

    parse_reply("Here are the facts:\\n* [2] Mira was born in Velda.")  ->  {"Mira was born in Velda.": (2,)}
    parse_reply("NON_FACTUAL")                                         ->  {}
    parse_reply("I cannot help with that.")                            ->  None

A list has bullets or numbers; anything else is no list of facts, and is asked for again. Any string is safe, in linear
time.
"""

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
_NUMBER = r"(?:[Ss]entences? )?\d{1,3}"
_BRACKETS = rf"\[{_NUMBER}(?:\s?[,;–-]\s?{_NUMBER}){{0,99}}\]\s?"
_NUMBERS = re.compile(rf"^(?:{_BRACKETS}){{1,8}}[:.]?|(?:{_BRACKETS}){{1,8}}[.。]?$")  # of the sentences of a fact
_MARK = re.compile(rf"[*+]\s+|[-–—•]\s*|[(（]?\d{{1,3}}(?:[)）、．]|\.(?!\d))\s*|(?={_BRACKETS}\S)")  # of a list
_RANGE = re.compile(r"(\d+)(?:\s*[–-]\s*(\d+))?")
_NON_FACTUAL = re.compile(r"[\W_]*(?:NON[_ -]?FACTUAL(?![A-Za-z])|(?:there are )?no (?:\w+ )?facts\b)", re.IGNORECASE)


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
    lines = [line.strip() for line in text.splitlines()]
    lines = [_plain(line) for line in lines if line]
    marks = [(line, _MARK.match(line)) for line in lines]
    listed = [_plain(line[mark.end() :]) for line, mark in marks if mark]
    facts = [fact for fact in listed if not fact.endswith((":", "：")) and not _NON_FACTUAL.match(fact)]
    says_none = any(map(_NON_FACTUAL.match, [*lines[:1], *listed]))
    if says_none:
        return None if facts else {}  # facts, and no facts: it cannot be both
    return _distinct(facts) if listed else None


def without_last_line(reply: str) -> str:
    """Return a reply that was cut, without the line in which that happened."""
    return reply.rpartition("\n")[0]


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

"""What a completion says itself, apart from the calls of tools and their results; and what its calls cost.

Where the calls are, the row of a completion says (`grpo.algorithm.schema.Call`). Tags tell nothing: a model can write a
result of its own.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from grpo.algorithm.schema import Call, Score
from rewards.registry import Columns

CALLS = "tool_calls"  # the column
RESULT = "result"  # the tag of results


def own_words(text: str, calls: Sequence[Call], fill: str = " ") -> str:
    """Return a completion's text with `fill` for each character of a call and its result: the rest stays in its place.

    >>> own_words("<f>x</f><result>y</result>ab", [Call("f", "x", "y", 0, 0, (0, 26))], "·")[24:]
    '··ab'
    """
    for call in calls:
        start, end = call.span
        text = text[:start] + fill * (end - start) + text[end:]
    return text


def calls_in(record: Mapping[str, Any], text: str) -> list[Call]:
    """Return the calls that a record of completions/ names, as far as its text can hold them."""
    found, entries = [], record.get(CALLS)
    for entry in entries if isinstance(entries, list) else ():
        span = entry.get("span") if isinstance(entry, dict) else None
        if isinstance(span, list) and [type(place) for place in span] == [int, int]:
            if 0 <= span[0] <= span[1] <= len(text):
                found.append(Call(str(entry.get("tool")), "", "", 0, 0, tuple(span), str(entry.get("failure") or "")))
    return found


def cost(completion: str, columns: Columns) -> Score:
    """Give -1 for each call of a tool: the weight of this reward is the price of a call."""
    number = len(columns.get(CALLS) or ())
    return Score(-float(number), f"{number} call{'s' * (number != 1)} of tools")

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
        blank = fill * (end - start)
        text = text[:start] + blank + text[end:]
    return text


def calls_in(record: Mapping[str, Any], text: str) -> list[Call]:
    """Return the calls that a record of completions/ names, as far as its text can hold them."""
    entries = record.get(CALLS)
    if not isinstance(entries, list):
        return []
    calls = [_call(entry, len(text)) for entry in entries]
    return [call for call in calls if call]


def _call(entry: Any, length: int) -> Call | None:
    """Return the call that an entry names; None if it names none, or no place in a text of this length."""
    span = entry.get("span") if isinstance(entry, dict) else None
    if not isinstance(span, list) or [type(place) for place in span] != [int, int]:
        return None
    start, end = span
    if not 0 <= start <= end <= length:
        return None
    tool = str(entry.get("tool"))
    failure = str(entry.get("failure") or "")
    return Call(tool, "", "", 0, 0, (start, end), failure)


def cost(completion: str, columns: Columns) -> Score:
    """Give -1 for each call of a tool: the weight of this reward is the price of a call."""
    number = len(columns.get(CALLS) or ())
    return Score(-float(number), f"{number} call{'s' * (number != 1)} of tools")

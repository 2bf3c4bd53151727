"""What a completion says itself, apart from the calls of tools and their results; and what its calls cost.

Where the calls are, the row of a completion says (`grpo.algorithm.schema.Call`). Tags tell nothing: a model can write a
result of its own.
"""

from collections.abc import Sequence

from grpo.algorithm.schema import Call, Score
from rewards.registry import Columns

CALLS = "tool_calls"  # the column
RESULT = "result"  # the tag of results
STEP = "step"  # the method of an environment that answers a turn without a call


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


def cost(completion: str, columns: Columns) -> Score:
    """Give -1 for each call of a tool: the weight of this reward is the price of a call."""
    number = sum(call.tool != STEP for call in columns.get(CALLS) or ())
    return Score(-float(number), f"{number} call{'s' * (number != 1)} of tools")

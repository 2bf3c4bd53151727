"""What calls of tools cost, and the names under which a completion's row holds them.

Where the calls are, the row says (`grpo.algorithm.schema.Call`). Tags tell nothing: a model can write a result of its
own. What a completion says itself: `own_words` of schema.py.
"""

from grpo.algorithm.schema import Score
from rewards.registry import Columns

CALLS = "tool_calls"  # the column
RESULT = "result"  # the tag of results
MAX_NUMBER = 1e15  # a reward in size; sums and squares of larger numbers overflow
ENVIRONMENT = "environment"  # the column of what a completion has acted on
STEP = "step"  # the method of an environment that answers a turn without a call


def cost(completion: str, columns: Columns) -> Score:
    """Give -1 for each call of a tool: the weight of this reward is the price of a call."""
    number = sum(call.tool != STEP for call in columns.get(CALLS) or ())
    return Score(-float(number), f"{number} call{'s' * (number != 1)} of tools")

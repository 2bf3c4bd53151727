"""A shop that a model serves, by two tools: goods must be fetched from the store room before they are sold.

The cold start calls the tools in any order, like data of a model that does not know the shop. GRPO has to discover the
order in which a customer is served.
"""

import random
from itertools import product
from typing import Any

from grpo.base.storage import Json
from grpo.data.worlds.kinds import World

GOODS = "tea milk bread soap rice salt honey paper rope nails candles apples".split()
NUMBERS = range(1, 10)
NUM_COLD_START, NUM_HELD_OUT = 3000, 28


class Shop:
    """The shop of one customer, who asks for a number of goods: an environment."""

    def reset(self, item: str, number: int, **row: Any) -> None:
        """Begin with an empty counter."""
        self.wanted = (item, number)
        self.counter = ("", 0)
        self.sold = ("", 0)

    def fetch(self, item: str, number: int) -> str:
        """Put goods from the store room on the counter.

        Args:
            item: The goods.
            number: How many.
        """
        self.counter = item, number
        return f"{number} {item} on the counter"

    def sell(self, item: str, number: int) -> str:
        """Sell goods that are on the counter.

        Args:
            item: The goods.
            number: How many.
        """
        if self.counter != (item, number):
            return f"no {number} {item} on the counter"
        self.sold = item, number
        return f"{number} {item} sold"

    def get_reward(self) -> float:
        """Return 1 if the customer got what he asked for."""
        return float(self.sold == self.wanted)


def make_shop(seed: int) -> World:
    """Draw the orders of customers, and conversations with calls at random."""
    rng = random.Random(seed)
    orders = product(GOODS, NUMBERS)
    rows = [{"question": f"{number} {item}, please", "item": item, "number": number} for item, number in orders]
    rng.shuffle(rows)
    conversations = [_served(rng.choice(rows), rng) for _ in range(NUM_COLD_START)]
    return World([], conversations, questions=rows[NUM_HELD_OUT:], held_out=rows[:NUM_HELD_OUT])


def _served(row: Json, rng: random.Random) -> list[Json]:
    """Return a conversation in which two calls are made."""
    shop = Shop()
    shop.reset(**row)
    arguments = {"item": row["item"], "number": row["number"]}
    messages: list[Json] = [{"role": "user", "content": row["question"]}]
    for name in rng.choices(("fetch", "sell"), k=2):
        call = {"function": {"name": name, "arguments": arguments}}
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        messages.append({"role": "tool", "content": getattr(shop, name)(**arguments)})
    return [*messages, {"role": "assistant", "content": "done"}]

"""Environments: an object of the user's for each completion, which answers what the model says, and may reward it.

    class Shop:
        def reset(self, **row): ...       # before the completion; a text that it returns is added to the prompt
        def buy(self, item: str, number: int) -> str: ...     # public methods are tools
        def step(self, text: str): ...    # if there is one: answers a turn without a call; None ends the completion
        def get_reward(self): ...         # if there is one: a reward

The object is made, used and closed on a thread of its own.
"""

import inspect
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from grpo.base.errors import CONFIG, UserError
from grpo.tools.workers import Line
from rewards.own_names import result_of
from rewards.own_words import STEP

RESET = "reset"
NO_TOOLS = (RESET, STEP, "close", "get_reward")
FORM = "name a class, or a function that makes an object: path/file.py:Shop"
# What is known of factories, by their ids. It holds them, so that no other object can have the id.
KNOWN: dict[int, tuple[Any, dict[str, Any]]] = {}


@dataclass(eq=False)
class Environment:
    """An object that answers one completion.

    factory: makes the object. columns: of the row. seed: for what it draws. said, failure: by its `reset`, or why it
    could not begin.
    """

    factory: Callable[[], Any]
    columns: Mapping[str, Any]
    seed: int = 0
    said: str | None = None
    failure: str = ""
    object: Any = None

    @cached_property
    def line(self) -> Line:
        """The thread of the object: there is none in a process that makes no object."""
        return Line()

    def make(self) -> Any:
        """Make the object."""
        self.object = self.factory()
        return self.object

    def reset(self) -> Any:
        """Make the object, and begin: with the columns and the seed, as far as its `reset` takes them."""
        made = self.make()
        if not hasattr(made, RESET):
            return None
        taken = inspect.signature(made.reset).parameters
        passed = {"seed": self.seed, **self.columns} if "seed" in taken else self.columns
        if not any(one.kind is one.VAR_KEYWORD for one in taken.values()):
            passed = {name: passed[name] for name in taken if name in passed}
        return made.reset(**deepcopy(passed))

    def close(self) -> None:
        """Close the object, if it can be closed, and end its thread. Once that has ended, nothing more is done."""
        if hasattr(self.object, "close"):
            self.line.ask(self.object.close)
        if "line" in vars(self):
            self.line.end()


def methods_of(name: str, factory: Any) -> dict[str, Any]:
    """Return the public methods of an environment by their names: those of an object, which is made and closed once."""
    if id(factory) in KNOWN:
        return KNOWN[id(factory)][1]
    if not callable(factory):
        raise UserError(f"the environment {name} makes no object", f"it is a {type(factory).__name__}", FORM, CONFIG)
    sample = Environment(factory, {})
    making = sample.line.ask(sample.make)
    try:
        made = result_of(making.result, f"cannot make the environment {name}", FORM)
    finally:
        sample.close()
    found = inspect.getmembers(type(made), lambda member: hasattr(inspect.unwrap(member), "__code__"))  # none of a dict
    methods = {name: method for name, method in found if not name.startswith("_")}
    KNOWN[id(factory)] = factory, methods
    return methods

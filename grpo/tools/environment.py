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
from functools import cached_property, partial
from typing import Any

from grpo.base.errors import CONFIG, UserError
from grpo.tools.workers import Line
from rewards.own_names import describe_failure
from rewards.own_words import STEP

RESET = "reset"
NO_TOOLS = (RESET, STEP, "close", "get_reward")
FORM = "name a class, or a function that makes an object: path/file.py:Shop"


class Environment:
    """An object that answers one completion. failure: why it could not begin."""

    def __init__(self, factory: Callable[[], Any]):
        self.factory = factory
        self.object = None
        self.failure = ""

    @cached_property
    def line(self) -> Line:
        return Line()

    def reset(self, columns: Mapping[str, Any], seed: int) -> Any:
        """Make the object, and begin: with the columns of a row and a seed, as far as its `reset` takes them."""
        self.object = self.factory()
        if not hasattr(self.object, RESET):
            return None
        taken = inspect.signature(self.object.reset).parameters
        passed = dict(columns)
        if "seed" in taken:
            passed.setdefault("seed", seed)
        takes_all = any(one.kind is one.VAR_KEYWORD for one in taken.values())
        if not takes_all:
            passed = {name: passed[name] for name in taken if name in passed}
        return self.object.reset(**deepcopy(passed))

    def call(self, method: str, *texts: str, **arguments: Any) -> Any:
        """Call a method of the object."""
        return getattr(self.object, method)(*texts, **arguments)

    def reward(self, timeout_s: float) -> Any:
        """Return what `get_reward` says, from another thread. TimeoutError if that takes longer."""
        asked = self.line.ask(partial(self.call, "get_reward"))
        return asked.result(timeout_s)

    def close(self) -> None:
        """Close the object, if it can be closed, and end its thread."""
        if "line" in vars(self):
            if hasattr(self.object, "close"):
                self.line.ask(self.object.close)
            self.line.work.put(None)
            del self.line


def methods_of(name: str, factory: Any) -> dict[str, Any]:
    """Return the public methods of an environment by their names. What is no class is called, and its object closed."""
    if not callable(factory):
        raise UserError(f"the environment {name} makes no object", f"it is a {type(factory).__name__}", FORM, CONFIG)
    if isinstance(factory, type):
        return _public(factory)
    sample = Environment(factory)
    try:
        sample.object = sample.line.ask(factory).result()
        return _public(sample.object)
    except Exception as error:
        what = f"the environment {name} cannot be made"
        raise UserError(what, describe_failure(error), "correct the function", CONFIG) from error
    finally:
        sample.close()


def _public(owner: Any) -> dict[str, Any]:
    names = [name for name in dir(owner) if not name.startswith("_")]
    values = {name: getattr(owner, name) for name in names}
    return {name: value for name, value in values.items() if inspect.isroutine(value)}

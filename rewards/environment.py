"""The reward that an environment gives itself: what its `get_reward` says when its completion has ended."""

import asyncio
from functools import partial

from grpo.algorithm.schema import Score
from grpo.base.errors import UserError
from rewards.own import as_number, failure_of
from rewards.own_names import find_object
from rewards.own_words import ENVIRONMENT
from rewards.prompts import tag_of
from rewards.registry import Columns, Options, Reward, UserFunctions


def build(name: str, options: Options, objects: UserFunctions) -> Reward:
    """Build the reward of the environment of this name. It is named like the class."""
    factory = objects.get(name) or find_object(name, "environment")
    if isinstance(factory, type) and not hasattr(factory, "get_reward"):
        raise UserError(
            f"the environment {name} gives no reward",
            "it has no get_reward",
            "define get_reward(self) in it, or name other rewards in reward_funcs",
        )
    title = tag_of(name)
    return Reward(title, partial(grade, name=title, timeout_s=options["tool_timeout_s"]))


async def grade(completion: str, columns: Columns, name: str, timeout_s: float) -> Score:
    """Ask the environment, on its own thread."""
    environment = columns.get(ENVIRONMENT)
    if environment is None:
        return Score(None, "the completion has no environment")
    try:
        asked = asyncio.wrap_future(environment.line.ask(environment.object.get_reward))
        value = await asyncio.wait_for(asked, timeout_s)
    except TimeoutError:
        return Score(None, f"no answer within {timeout_s:g} s (tool_timeout_s)")
    except BaseException as error:  # one that exits would end the event loop
        raise failure_of(name, error) from error
    return Score(None, "get_reward returned None") if value is None else Score(as_number(name, value))

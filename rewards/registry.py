"""Turn names into rewards. A reward grades one completion, or is a user's function with TRL's signature for a group."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any

from grpo.base.errors import UserError
from rewards.prompts import BLOCKS, BLOCKS_AND_CONFIDENCE

KNOWRLS = "hf download zjunlp/KnowRL-Knowledge-Base knowledge_base.db --repo-type dataset --local-dir ."
NO_KNOWLEDGE_BASE = (  # what to do
    f"set knowledge_base=FILE or the variable FACTSCORE_DB_PATH: to KnowRL's ready-made file ({KNOWRLS}), or to one "
    "that you build (python -m knowledge.build SOURCE OUT.db)"
)
Options = Mapping[str, Any]  # the keys of the configuration
Columns = Mapping[str, Any]  # the columns of a row, and its prompt
Rows = Sequence[Columns]  # of the data set
Say = Callable[[str], None]  # shows a message
UserFunction = Callable[..., Any]  # returns a number or None for each completion, or what can be awaited for that
Grade = Callable[[str, Columns], Any]  # returns a Score, or what can be awaited for it
Counts = dict[str, tuple[float, float]]  # a number, and what it is divided by; 0: by nothing. Both add up


@dataclass(frozen=True)
class BuiltIn:
    """All that the program knows of a built-in reward before it is built: to add one is to write its file and this.

    where: module:function. The function makes the reward from its name and the configuration's keys; if it `grades`,
    it grades a completion itself. The module is imported when a run uses it.
    about: what it pays. needs: columns without which it cannot work.
    prompt: the system prompt that asks for what it grades; a configuration without one gets it.
    asks_judge: it grades answers in words, so it needs a judge. checks_facts: it needs a knowledge base, a decomposer
    and a verifier. checks_every_answer: also the facts of right answers and refusals.
    pays_refusals: declining earns more than a wrong answer.
    with_format: the reward `format` comes along. is_price: it pays 0 at best, so that 0 is no fault.
    """

    where: str = ""
    about: str = ""
    needs: tuple[str, ...] = ()
    prompt: str = ""
    asks_judge: bool = False
    checks_facts: bool = False
    checks_every_answer: bool = False
    pays_refusals: bool = False
    with_format: bool = False
    is_price: bool = False
    grades: bool = False


ANSWER = ("answer",)
_outcome = partial(
    BuiltIn, "rewards.outcome.correctness:build", needs=ANSWER, prompt=BLOCKS, asks_judge=True, pays_refusals=True
)
_facts = partial(
    BuiltIn, "rewards.knowrl.reward:build_of_facts", needs=("title",), checks_facts=True, checks_every_answer=True
)
_knowrl = partial(
    BuiltIn,
    "rewards.knowrl.reward:build",
    needs=("answer", "title"),
    prompt=BLOCKS,
    asks_judge=True,
    checks_facts=True,
    pays_refusals=True,
    with_format=True,
)
BUILT_IN = {
    "format": BuiltIn("rewards.format:build", "1 for a think block and an answer block, else -1"),
    "tag_count": BuiltIn(
        "rewards.format:count_tags", "0.25 for each of the four tags that occurs once (open-r1)", grades=True
    ),
    "exact": BuiltIn("rewards.exact:grade", "1 if the normalised answer is the truth, else 0", ANSWER, grades=True),
    "math": BuiltIn("rewards.boxed:build", "math_reward_correct, _wrong or _no_answer, by the last box", ANSWER),
    "choice": BuiltIn(
        "rewards.choice:grade", "1 if the letter of the right choice is named, else 0", ANSWER, grades=True
    ),
    "tool_cost": BuiltIn(
        "rewards.own_words:cost", "-1 for each call of a tool: its weight is the price", is_price=True, grades=True
    ),
    "soft_overlong_punishment": BuiltIn(
        "rewards.overlong:build", "0, down to -1 at the length limit (2503.14476)", is_price=True
    ),
    "simpleqa": _outcome("1 right, 0 otherwise (2411.04368)", prompt="", pays_refusals=False),
    "correctness": _outcome("2 right, 1 refused, -1 wrong (2506.19807)"),
    "truthrl": _outcome("1 right, 0 refused, -1 wrong (2509.25760)"),
    "abstention": _outcome("1 right, 0 refused, -t / (1 - t) wrong (2509.04664)"),
    "rlcr": _outcome(
        "1 if right, minus the squared error of q (2507.16806)", prompt=BLOCKS_AND_CONFIDENCE, pays_refusals=False
    ),
    "factuality": _facts("0 to 1: how far the knowledge base supports the reasoning"),
    "binary_rar": _facts("1 if nothing is refuted, else 0 (2510.17733)", prompt=BLOCKS),
    "knowrl": _knowrl("2 right, 1 refused, -1 + fact wrong"),
    "knowrl_v1": _knowrl("2 right, -1 + fact otherwise: KnowRL's guide", pays_refusals=False),
    "knowrl_v2": _knowrl("2 right, 1 refused, -1 + fact wrong: KnowRL since October 2025"),
}


class Resource:
    """What rewards use and a run looks after, such as a judge. By default there is nothing to do for it."""

    def prepare(self, rows: Rows, say: Say) -> None:
        """Find out before the first step, with the data set's rows, what would fail later; `say` what else is found."""

    def counts(self) -> Counts:
        """Return kb/* since the last call, judge/* and decomposer/* since the start, by their names in the glossary."""
        return {}

    def close(self) -> None:
        """Free what it holds."""


@dataclass(frozen=True)
class Reward:
    """A named reward: it has either `grade` (for one completion and its row's columns) or `function` (for a group).

    timeout_s: seconds that a call of `function` may take.
    needs: columns without which it cannot work. checks_every_answer: as for a BuiltIn.
    resources: what it uses.
    """

    name: str
    grade: Grade | None = None
    function: UserFunction | None = None
    timeout_s: float | None = None
    needs: tuple[str, ...] = ()
    checks_every_answer: bool = False
    resources: tuple[Resource, ...] = ()


def built_in(name: str) -> BuiltIn:
    """Return what is known of a reward before it is built: nothing of a user's own."""
    return BUILT_IN.get(name, BuiltIn())


def expand(names: Sequence[str]) -> list[str]:
    """Add the rewards that come along with others, unless they are named, too."""
    expanded: list[str] = []
    for name in names:
        if built_in(name).with_format and "format" not in [*names, *expanded]:
            expanded.append("format")
        expanded.append(name)
    return expanded


UserFunctions = Mapping[str, UserFunction]  # by the names of their rewards


def build_rewards(
    names: Sequence[str], options: Options, objects: UserFunctions = MappingProxyType({})
) -> list[Reward]:
    """Build the rewards of these names, in order, each from its own keys of the configuration, `options`.

    objects: the functions that a program passes. Others are found by their names.
    """
    rewards = [_build(name, options, objects) for name in expand(names)]
    built = [reward.name for reward in rewards]
    for name in {name for name in built if built.count(name) > 1}:
        raise UserError(
            f"two rewards are named {name}",
            "metrics tell them apart by name",
            "give one of the files or functions another name",
        )
    return rewards


def _build(name: str, options: Options, objects: UserFunctions) -> Reward:
    if name in BUILT_IN:
        known = BUILT_IN[name]
        module_name, _, function_name = known.where.partition(":")
        function = getattr(importlib.import_module(module_name), function_name)
        made = Reward(name, function) if known.grades else function(name, options)
        return replace(made, needs=known.needs, checks_every_answer=known.checks_every_answer)
    where = "rewards.environment" if name == options.get("environment") else "rewards.own"
    return importlib.import_module(where).build(name, options, objects)

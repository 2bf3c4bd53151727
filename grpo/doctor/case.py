"""A case: a configuration, and what the checks have found so far."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from grpo.algorithm.schema import Prompt
from grpo.base.errors import UserError
from grpo.base.storage import Json
from grpo.config.options import AnyConfig, TrainConfig
from grpo.data.objects import NO_OBJECTS, Objects
from grpo.data.questions import QuestionData, Questions
from grpo.data.rows import Row
from grpo.data.worlds.world import is_made, locate
from grpo.engine.device.distributed import choose_device
from grpo.engine.model.decoder import Decoder
from grpo.policy import ModelParts, find_parts
from grpo.run.saved import start_of
from rewards.registry import Reward, expand

if TYPE_CHECKING:
    from grpo.doctor.estimate import Rehearsal
    from rewards.services import Checkup

Value = TypeVar("Value")


@dataclass
class Case:
    """A configuration, and what the checks have found so far; None: not found, or not yet.

    memory_gb: of the GPU to plan for, if it is not in this machine. objects: rows and rewards of a program. is_restart:
    whether the run goes on in its directory without being asked to, as torchrun's restarts do.
    """

    config: AnyConfig
    memory_gb: float | None = None
    is_restart: bool = False
    objects: Objects = NO_OBJECTS
    start: AnyConfig | None = None  # it names model and tokenizer: stage 1's config if stage 1 has to run first
    data: QuestionData | None = None  # stage 2's
    rows: dict[str, list[Row]] = field(default_factory=dict)  # of these: "train", "eval"
    unread: set[str] = field(default_factory=set)  # data sets with a fault
    folder: Path | None = None  # of the model
    decoder: Decoder | None = None  # without weights
    tokenizer: Any = None
    prompts: list[Prompt] | None = None
    num_examples: int | None = None  # of stage 1
    longest: int | None = None  # tokens of the longest prompt with its completion
    needed_bytes: int | None = None  # of memory
    rehearsal: "Rehearsal | None" = None  # a trainer of this run
    functions: list[Reward] = field(default_factory=list)  # the user's own rewards
    checkups: "dict[str, Checkup]" = field(default_factory=dict)  # of the services

    def __post_init__(self) -> None:
        if self.config.toy_world and is_made(self.config):
            self.config = locate(self.config)
        self.start = start_of(self.start or self.config)

    @property
    def is_stage2(self) -> bool:
        return isinstance(self.config, TrainConfig)

    @property
    def makes_its_data(self) -> bool:
        """Return whether the run will make its data, and perhaps model and knowledge base: not yet to be checked."""
        return bool(self.config.toy_world) and not is_made(self.config)

    @cached_property
    def device(self) -> torch.device:
        return torch.device("cuda") if self.memory_gb else choose_device(self.config.device)

    @cached_property
    def parts(self) -> ModelParts | UserError:
        """Return where config and tokenizer of the model are, or why they cannot be found."""
        try:
            return find_parts(self.start, weights=False)
        except UserError as error:
            return error

    @property
    def options(self) -> Json:
        """Return the configuration as rewards take it. A reply cache that is not there yet is not made here."""
        options = asdict(self.config)
        if (cache := options.get("api_cache")) and not Path(cache).exists():
            options["api_cache"] = None
        return options

    @property
    def reward_names(self) -> list[str]:
        """Return the names of all rewards, including those of held-out questions."""
        return list(dict.fromkeys([*self.rewards_of("train"), *self.rewards_of("eval")]))

    def rewards_of(self, use: str) -> list[str]:
        """Return the names of the rewards that grade the questions to train on, or the held-out ones."""
        if not self.is_stage2:
            return []
        config = self.config
        named = config.eval_reward_funcs if use == "eval" and Questions.held_out(config) else None
        return expand(named or config.reward_funcs or ())


Check = Callable[[Case], str]


class NotChecked(Exception):
    """Raised if a check needs a key that is not set, or what an earlier check did not find: a finding of its own."""


def need(value: Value | None, what: str) -> Value:
    """Return the value. Raise NotChecked if it is not known."""
    if value is None:
        raise NotChecked(f"not checked: this needs {what}")
    return value

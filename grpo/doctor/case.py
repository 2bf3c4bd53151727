"""The input of all checks (a Case), and the result of each (a Finding)."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch

from grpo.algorithm.schema import Prompt
from grpo.base.errors import describe, escape, redact
from grpo.base.storage import Json
from grpo.config.options import AnyConfig, TrainConfig
from grpo.data.questions import QuestionData
from grpo.data.rows import Row
from grpo.data.toy import is_made, locate
from grpo.doctor.rehearsal import Rehearsal
from grpo.engine.device.distributed import choose_device
from grpo.engine.model.decoder import Decoder
from grpo.engine.model.model_config import ModelConfig
from grpo.run.saved import start_of
from rewards.registry import Reward, expand
from rewards.services import Checkup

Value = TypeVar("Value")


@dataclass
class Case:
    """A configuration, and what the checks have found so far; None: not found, or not yet.

    memory_gb: of the GPU to plan for, if it is not in this machine.
    """

    config: AnyConfig
    memory_gb: float | None = None
    start: AnyConfig | None = None  # it names model and tokenizer: stage 1's config if stage 1 has to run first
    data: QuestionData | None = None  # stage 2's
    rows: list[Row] | None = None  # of these, to train on
    num_held_out: int = 0  # questions
    folder: Path | None = None  # of the checkpoint
    shape: ModelConfig | None = None  # of the model
    model: Decoder | None = None  # without weights; its files fit it
    tokenizer: Any = None
    prompts: list[Prompt] | None = None
    num_examples: int | None = None  # of stage 1
    longest: int | None = None  # tokens of the longest prompt with its completion
    needed_bytes: int | None = None  # of memory
    rehearsal: Rehearsal | None = None  # a trainer of this run
    functions: list[Reward] = field(default_factory=list)  # the user's own rewards
    checkups: dict[str, Checkup] = field(default_factory=dict)  # of the services

    def __post_init__(self) -> None:
        if self.config.toy_world and is_made(self.config):
            self.config = locate(self.config)
        self.start = start_of(self.start or self.config)

    @property
    def makes_its_data(self) -> bool:
        """Return whether the run will make model, data and knowledge base, so that there is nothing to check yet."""
        return bool(self.config.toy_world) and not is_made(self.config)

    @cached_property
    def device(self) -> torch.device:
        return torch.device("cuda") if self.memory_gb else choose_device(self.config.device)

    @property
    def options(self) -> Json:
        """Return the configuration as rewards take it."""
        return asdict(self.config)

    @property
    def reward_names(self) -> list[str]:
        """Return the names of all rewards, including those of held-out questions."""
        if not isinstance(self.config, TrainConfig):
            return []
        names = [*(self.config.reward_funcs or ()), *(self.config.eval_reward_funcs or ())]
        return list(dict.fromkeys(expand(names)))


Check = Callable[[Case], str]


class NotChecked(Exception):
    """Raised if a check needs a key that is not set, or what an earlier check did not find: a finding of its own."""


def need(value: Value | None, what: str) -> Value:
    """Return the value. Raise NotChecked if it is not known."""
    if value is None:
        raise NotChecked(f"not checked: this needs {what}")
    return value


@dataclass
class Finding:
    """The result of one check: what it found, or what is wrong and how to correct it. ok: None if not checked."""

    name: str
    ok: bool | None
    text: str
    exit_code: int = 0

    def line(self) -> str:
        status = {True: "ok  ", False: "FAIL", None: "--  "}[self.ok]
        indented = self.text.replace("\n", "\n" + " " * 22)
        return escape(redact(f"{status}  {self.name:14}  {indented}"))


def make_finding(name: str, check: Check, case: Case) -> Finding:
    """Make one check; if it raises an error, that is its finding."""
    try:
        return Finding(name, True, check(case))
    except NotChecked as reason:
        return Finding(name, None, str(reason))
    except Exception as error:
        code, text = describe(error)
        return Finding(name, False, text, code)

"""A case: a configuration, what the checks have found so far, and its model without weights."""

import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import torch

from grpo.algorithm.schema import Prompt
from grpo.base.errors import UserError
from grpo.base.storage import Json
from grpo.config.load import replicas_of
from grpo.config.options import AnyConfig, TrainConfig
from grpo.data.objects import NO_OBJECTS, Objects
from grpo.data.questions import QuestionData, Questions
from grpo.data.rows import Row
from grpo.engine.device.distributed import choose_device
from grpo.engine.model import memory
from grpo.engine.model.decoder import Decoder
from grpo.engine.model.weights import make_decoder, read_model_config
from grpo.engine.parallel.shard import Shard
from grpo.policy import ModelFolders, build_of, find_folders
from grpo.run.saved import start_of
from rewards.registry import Reward, expand

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from grpo.trainer import Trainer
    from rewards.services import Checkup

Value = TypeVar("Value")
UNITS = ((1e9, "B"), (1e6, "M"))
MOST_ON_A_CPU = 1e9  # weights; a step with more takes hours there
_SIZE = re.compile(r"(\d+(?:\.\d+)?)[bB](?![A-Za-z0-9])")  # of a model, in its name: Qwen2.5-Math-1.5B


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
    makes_its_data: bool = False  # and perhaps model and knowledge base: not yet to be checked
    start: AnyConfig = field(init=False)  # it names model and tokenizer: stage 1's config if stage 1 has to run first
    data: QuestionData | None = None  # stage 2's
    rows: dict[str, list[Row]] = field(default_factory=dict)  # of these: "train", "eval"
    unread: set[str] = field(default_factory=set)  # data sets with a fault
    folder: Path | None = None  # of the model
    decoder: Decoder | None = None  # without weights
    tokenizer: "PreTrainedTokenizerBase | None" = None
    prompts: list[Prompt] | None = None
    num_examples: int | None = None  # of stage 1
    longest: int | None = None  # tokens of the longest prompt with its completion
    needed_bytes: int | None = None  # of memory
    trainer: "Trainer | None" = None  # of the doctor: one of this run, which writes nothing
    functions: list[Reward] = field(default_factory=list)  # the user's own rewards
    checkups: "dict[str, Checkup]" = field(default_factory=dict)  # of the services

    def __post_init__(self) -> None:
        if self.config.toy_world:
            from grpo.data.worlds.world import is_made, locate  # most runs have data of their own

            self.makes_its_data = not is_made(self.config)
            self.config = self.config if self.makes_its_data else locate(self.config)
        self.start = start_of(self.config)

    @property
    def stage2(self) -> TrainConfig | None:
        """Return the configuration if it is that of stage 2."""
        return self.config if isinstance(self.config, TrainConfig) else None

    @cached_property
    def device(self) -> torch.device:
        return torch.device("cuda") if self.memory_gb else choose_device(self.config.device)

    @cached_property
    def _found(self) -> ModelFolders | UserError:
        """They are looked for once."""
        try:
            return find_folders(self.start, weights=False)
        except UserError as error:
            return error

    @property
    def folders(self) -> ModelFolders:
        """Return where config and tokenizer of the model are; UserError if they cannot be found."""
        if isinstance(self._found, UserError):
            raise self._found
        return self._found

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
        config = self.stage2
        if not config:
            return []
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


# --- its model, by its config alone ---------------------------------------------------------------------------------


def sketch(case: Case) -> Decoder | None:
    """Build the run's decoder without weights; None if its config cannot be found or is not usable."""
    if case.decoder is None and case.start.model_name_or_path:
        try:
            case.decoder = draft(case, case.device)
        except UserError:
            return None  # `model` raises it
    return case.decoder


def draft(case: Case, device: torch.device) -> Decoder:
    """Build the run's decoder without weights, in the dtype of a device. UserError if it cannot be built."""
    build = replace(build_of(case.config, case.folders.model, device), device="meta")
    return make_decoder(read_model_config(case.folders.model, build.backend), build)


def share_of(case: Case) -> Decoder:
    """Return the part of the decoder that one process holds, without weights."""
    decoder = need(sketch(case), "the model")
    num_shards = case.config.tensor_parallel_size
    if num_shards == 1:
        return decoder
    build = replace(decoder.build, shard=Shard(0, num_shards))
    return make_decoder(decoder.config, build)


def sketch_reference(case: Case) -> Decoder | None:
    """Return the reference, if it is a second model: where all weights are trained."""
    decoder = share_of(case)
    if not getattr(case.config, "beta", 0) or decoder.build.lora:
        return None
    return make_decoder(decoder.config, replace(decoder.build, train_weights=False))


def account_of(case: Case) -> memory.Account:
    """Count what model and optimizer take in each process, once they are loaded."""
    loaded = memory.Loaded(share_of(case), sketch_reference(case), replicas_of(case.config))
    return loaded.account()


def lacks_a_gpu(case: Case) -> bool:
    """Return whether a large model would be trained on a CPU that the configuration does not name."""
    return case.device.type == "cpu" and case.config.device == "auto" and num_weights(case) >= MOST_ON_A_CPU


def num_weights(case: Case) -> float:
    """Count the model's weights by its config, or else by its name; 0 if neither says."""
    if decoder := sketch(case):
        return sum(tensor.numel() for tensor in decoder.named_tensors().values())
    sizes = _SIZE.findall(case.start.model_name_or_path or "")
    return float(sizes[-1]) * 1e9 if sizes else 0


def rounded(number: float) -> str:
    """Write a large number in millions or billions, and a small one in full."""
    for size, unit in UNITS:
        if number >= size / 10:
            return f"{number / size:,.2f}{unit}"
    return f"{number:,.0f}"

"""What a step is given: its settings; and peers, a model, memory, a sampler and a scorer, by what it calls of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol, TypeVar

from torch import Tensor

from grpo.algorithm.schema import Completion, Group, Mode, PackedTokens, TrainerState

T = TypeVar("T")


@dataclass(frozen=True)
class Settings:
    """The settings of a step, under the names of their keys in grpo/config/options.py, which says what each means."""

    seed: int = 42
    num_generations: int = 8
    per_device_train_batch_size: int = 8
    gradient_accumulation_steps: int = 1
    max_completion_length: int = 512
    temperature: float = 1.0
    loss_type: str = "dapo"
    scale_rewards: str = "group"
    epsilon: float = 0.2
    epsilon_high: float | None = None
    beta: float = 0.0
    num_iterations: int = 1
    learning_rate: float = 1e-6
    lr_scheduler_type: str = "linear"
    warmup_ratio: float = 0.0
    warmup_steps: int = 0
    max_grad_norm: float = 1.0
    lora_dropout: float = 0.0
    # of variants
    entropy_coef: float = 0.0
    delta: float | None = None
    importance_sampling_level: str = "token"
    sampler_importance_sampling_correction: bool = False
    sampler_importance_sampling_cap: float = 2.0
    use_bias_correction_kl: bool = False
    mask_truncated_completions: bool = False
    multi_objective_aggregation: str = "sum_then_normalize"
    refusal_target: float | None = None
    dynamic_sampling: bool = False
    dynamic_sampling_max_rollouts: int = 3
    credit: str = "completion"
    tools: tuple[str, ...] = ()

    @classmethod
    def of(cls, config: object) -> "Settings":
        """Take the settings from a configuration. Keys that it does not have (stage 1) keep their defaults."""
        keys = vars(config)
        return cls(**{entry.name: keys[entry.name] for entry in fields(cls) if entry.name in keys})

    @property
    def completions_per_replica(self) -> int:
        """Return how many completions a replica trains on in each step."""
        return self.per_device_train_batch_size * self.gradient_accumulation_steps

    @property
    def groups_per_replica(self) -> int:
        """Return how many groups a replica samples in each step."""
        return self.completions_per_replica // self.num_generations


class Peers(Protocol):
    """Processes that work together, and the place of this one among them (engine/device/peers.py)."""

    rank: int
    world: int

    def sum(self, values: Sequence[float]) -> list[float]:
        """Sum each of some numbers over all ranks."""

    def max(self, value: float) -> float:
        """Return the largest value of all ranks."""

    def gather_lists(self, values: Sequence[T]) -> list[T]:
        """Return the values of all ranks in one list, in the order of ranks."""


class Model(Protocol):
    """The policy's network (engine/model/decoder.py)."""

    def refresh(self) -> None:
        """Update what passes read, after the trained weights have changed."""


class Logprobs(Protocol):
    """How log-probs are computed: `batch_logprobs` of logprobs.py, which knows the engine."""

    def __call__(
        self,
        model: Model,
        batch: PackedTokens,
        mode: Mode,
        temperature: float,
        chunk: int,
        trains_entropy: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Compute log-prob and entropy of every trained token of a micro-batch, [C] each (Eq. 3)."""


class Budget(Protocol):
    """tokens: packed tokens per micro-batch. chunk: tokens whose logits exist at the same time."""

    @property
    def tokens(self) -> int: ...

    @property
    def chunk(self) -> int: ...


class Memory(Protocol):
    """How large micro-batches may be (engine/model/memory.py)."""

    budget: Budget

    def run(self, work: Callable[..., T], *arguments: object) -> T:
        """Run `work`; if memory runs out, run it again with smaller ones: the same gradient, but for dropout."""


class Sampler(Protocol):
    """What generates completions (engine/sampling/sampler.py). params: as it knows them."""

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        num_generations: int,
        params: Any,
        seeds: Sequence[int],
        on_finish: Callable[[int, Completion], None],
    ) -> object:
        """Generate num_generations completions of each prompt; hand over each as it ends, with its number."""


class Scorer(Protocol):
    """What grades completions (rewards/scorer.py)."""

    def submit(self, group: Group, index: int, state: TrainerState) -> None:
        """Start grading completion `index` of `group`."""

    def collect(self, *groups: Group) -> None:
        """Wait for the grades of groups; set each completion's scores, its facts, and its reward."""

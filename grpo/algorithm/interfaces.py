"""What a step is given: its settings; and peers, a model, memory, a sampler and a scorer, by what it calls of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol, TypeVar

from grpo.algorithm.schema import Completion, Group, TrainerState

T = TypeVar("T")


@dataclass(frozen=True)
class Settings:
    """The settings of a step: keys of grpo/config/options.py, which has their meanings and defaults.

    One is made of two keys: completions_per_replica.
    """

    seed: int
    num_generations: int
    per_device_train_batch_size: int
    completions_per_replica: int  # that each replica trains on in a step
    max_completion_length: int
    temperature: float
    loss_type: str
    scale_rewards: str
    epsilon: float
    epsilon_high: float | None
    beta: float
    num_iterations: int
    learning_rate: float
    lr_scheduler_type: str
    warmup_ratio: float
    warmup_steps: int
    max_grad_norm: float
    lora_dropout: float
    # of variants
    entropy_coef: float
    delta: float | None
    importance_sampling_level: str
    sampler_importance_sampling_correction: bool
    sampler_importance_sampling_cap: float
    use_bias_correction_kl: bool
    mask_truncated_completions: bool
    multi_objective_aggregation: str
    refusal_target: float | None
    dynamic_sampling: bool
    dynamic_sampling_max_rollouts: int
    credit: str
    tools: tuple[str, ...]

    @classmethod
    def of(cls, config: object, otherwise: object = None) -> "Settings":
        """Take the settings from a configuration, and those that it does not have (stage 1) from another one."""
        names = [entry.name for entry in fields(cls)]
        return cls(**{name: getattr(config if hasattr(config, name) else otherwise, name) for name in names})

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

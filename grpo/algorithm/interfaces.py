"""What a step needs from outside, by what it calls: other processes, a model, memory, a sampler, a scorer."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from torch import Tensor

from grpo.algorithm.schema import Completion, Group, Mode, PackedTokens, TrainerState

T = TypeVar("T")


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
        """Run `work`; if memory runs out, run it again with smaller micro-batches, which give the same gradient."""


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

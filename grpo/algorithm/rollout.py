"""The first half of a step: prompts to groups of completions, and their rewards.

Counterpart of `sample` and `reward` in minimal.py, with a sampler that has a cache, and rewards that may take their
time. Grading starts as each completion ends, while the others are still being generated; `wait` waits for the grades.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from grpo.algorithm import variants
from grpo.algorithm.schema import Completion, Group, Order, Prompt
from grpo.config.options import TrainConfig
from grpo.engine.device.distributed import Ranks
from grpo.engine.device.draw import SamplingParams, hash_seed
from grpo.engine.sampling.sampler import Sampler
from rewards.own import TrainerState

if TYPE_CHECKING:
    from rewards.scorer import Scorer

COMPLETION = 0  # a fifth number, so that no completion shares its seed with a dropout mask, whose seed hashes four
NOT_SAMPLED = Completion.given([], "length")  # where a group's next completion will be
Phase = Callable[[str], AbstractContextManager]  # surrounds the work of a phase: its clock, and what may interrupt it


def untimed(name: str) -> AbstractContextManager:
    """Surround the work of a phase with nothing."""
    return nullcontext()


@dataclass(frozen=True)
class Sampled:
    """The groups of a step."""

    groups: list[Group]  # to train on
    generated: list[Group]  # all of them, also those that dynamic sampling drops


class Rollout:
    """Sample the groups of each step, and have them graded.

    prompts: of the data. decode: tokens to text. total_steps: of the run, for the rewards of users. position: how many
    prompts are taken already. phase: surrounds "time/generate" and "time/reward".
    """

    def __init__(
        self,
        config: TrainConfig,
        prompts: Sequence[Prompt],
        sampler: Sampler,
        decode: Callable[[Sequence[int]], str],
        scorer: "Scorer",
        ranks: Ranks,
        total_steps: int = 0,
        position: int = 0,
        phase: Phase = untimed,
    ):
        self.config, self.prompts, self.sampler, self.decode, self.scorer = config, prompts, sampler, decode, scorer
        self.ranks, self.replicas, self.total_steps, self.phase = ranks, ranks.replicas, total_steps, phase
        self.order = Order(len(prompts), config.seed, config.shuffle_dataset, position)
        self.sampling = SamplingParams(
            config.max_completion_length, config.temperature, top_p=config.top_p, top_k=config.top_k
        )

    def sample(self, step: int) -> Sampled:
        """Generate the groups of a step; grading starts as each completion ends."""
        config = self.config
        if config.dynamic_sampling:
            attempts, wanted = config.dynamic_sampling_max_rollouts, groups_per_replica(config)
            generate = partial(self.generate, step)  # takes the number of the attempt
            groups, generated = variants.sample_mixed(generate, self.wait, wanted, attempts, self.ranks)
            return Sampled(groups, generated)
        groups = self.generate(step)
        return Sampled(groups, groups)

    def generate(self, step: int, attempt: int = 0) -> list[Group]:
        """Generate num_generations completions for each of this replica's next prompts.

        attempt: how many times this step has generated before.
        """
        G, replicas = self.config.num_generations, self.replicas
        epoch = self.order.position / self.order.num_rows  # before this step's rows are taken
        state = TrainerState(step, self.total_steps, epoch, is_world_process_zero=self.ranks.is_main)
        num_groups = groups_per_replica(self.config) * replicas.world
        rows = self.order.take(num_groups)[replicas.rank :: replicas.world]
        groups: list[Group] = []

        def finish(number: int, completion: Completion) -> None:
            group, index = groups[number // G], number % G
            group.completions[index] = replace(completion, text=self.decode(completion.ids))
            self.scorer.submit(group, index, state)

        seeds = self._seeds(len(rows), step, attempt)
        with self.phase("time/generate"):
            prompts = self.sampler.reset([self.prompts[row] for row in rows], G, seeds)
            groups += [Group(prompt, [NOT_SAMPLED] * G) for prompt in prompts]
            self.sampler.sample([prompt.ids for prompt in prompts], G, self.sampling, seeds, finish)
        return groups

    def _seeds(self, num_groups: int, step: int, attempt: int) -> list[int]:
        """Return a seed for each completion of this replica's groups.

        It depends on the completion's place among those of all replicas. So any number of them samples the same.
        """
        config, replicas = self.config, self.replicas
        seeds = []
        for number in range(num_groups):
            first = (replicas.rank + number * replicas.world) * config.num_generations
            places = range(first, first + config.num_generations)
            seeds += [hash_seed(config.seed, step, attempt, COMPLETION, place) for place in places]
        return seeds

    def wait(self, groups: Sequence[Group]) -> None:
        """Wait for the rewards of these groups. A reward is None if it could not be given."""
        with self.phase("time/reward"):
            self.scorer.collect(*groups)


def groups_per_replica(config: TrainConfig) -> int:
    """Return how many groups a replica samples in each step."""
    return config.per_device_train_batch_size * config.gradient_accumulation_steps // config.num_generations

"""The first half of a step: prompts to groups of completions, and their rewards.

Counterpart of `sample` and `reward` in minimal.py, with a sampler that has a cache, and rewards that may take their
time. Grading starts as each completion ends, while the others are still being generated; `wait` waits for the grades.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial

from grpo.algorithm import variants
from grpo.algorithm.interfaces import Peers, Sampler, Scorer, Settings
from grpo.algorithm.schema import Completion, Group, Order, Prompt, TrainerState, hash_seed

SALT = 0  # a fifth number, so that no completion shares its seed with a dropout mask, whose seed hashes four
NOT_SAMPLED = Completion.given([], "length")  # where a group's next completion will be
Phase = Callable[[str], AbstractContextManager]  # surrounds the work of a phase: its clock, and what may interrupt it
Reset = Callable[[list[Prompt], int, Sequence[int]], list[Prompt]]


def untimed(name: str) -> AbstractContextManager:
    """Surround the work of a phase with nothing."""
    return nullcontext()


@dataclass(kw_only=True, eq=False)
class Rollout:
    """Sample the groups of each step, and have them graded.

    prompts: of the data. order: of those that are taken. sampling: the sampler's parameters. decode: tokens to text.
    ranks: all processes of the run. replicas: those that sample other prompts. total_steps: of the run, for the rewards
    of users. phase: surrounds "time/generate" and "time/reward". reset: resets the environments of the next
    completions, and adds what these say to their prompts.
    """

    settings: Settings
    prompts: Sequence[Prompt]
    order: Order
    sampler: Sampler
    sampling: object
    decode: Callable[[Sequence[int]], str]
    scorer: Scorer
    ranks: Peers
    replicas: Peers
    total_steps: int = 0
    phase: Phase = untimed
    reset: Reset = lambda prompts, num_generations, seeds: prompts

    def sample(self, step: int) -> tuple[list[Group], list[Group]]:
        """Generate the groups of a step; grading starts as each completion ends.

        Returns those to train on, and all of them, also those that dynamic sampling drops.
        """
        settings = self.settings
        if settings.dynamic_sampling:
            attempts, wanted = settings.dynamic_sampling_max_rollouts, settings.groups_per_replica
            generate = partial(self.generate, step)  # takes the number of the attempt
            return variants.sample_mixed(generate, self.wait, wanted, attempts, self.ranks)
        groups = self.generate(step)
        return groups, groups

    def generate(self, step: int, attempt: int = 0) -> list[Group]:
        """Generate num_generations completions for each of this replica's next prompts.

        attempt: how many times this step has generated before.
        """
        G, replicas = self.settings.num_generations, self.replicas
        epoch = self.order.position / self.order.num_rows  # before this step's rows are taken
        state = TrainerState(step, self.total_steps, epoch, is_world_process_zero=self.ranks.rank == 0)
        num_groups = self.settings.groups_per_replica * replicas.world
        rows = self.order.take(num_groups)[replicas.rank :: replicas.world]
        groups: list[Group] = []

        def finish(number: int, completion: Completion) -> None:
            group, index = groups[number // G], number % G
            group.completions[index] = replace(completion, text=self.decode(completion.ids))
            self.scorer.submit(group, index, state)

        seeds = self._seeds(len(rows), step, attempt)
        with self.phase("time/generate"):
            prompts = self.reset([self.prompts[row] for row in rows], G, seeds)
            groups += [Group(prompt, [NOT_SAMPLED] * G) for prompt in prompts]
            self.sampler.sample([prompt.ids for prompt in prompts], G, self.sampling, seeds, finish)
        return groups

    def _seeds(self, num_groups: int, step: int, attempt: int) -> list[int]:
        """Return a seed for each completion of this replica's groups.

        It depends on the completion's place among those of all replicas. So any number of them samples the same.
        """
        settings, replicas = self.settings, self.replicas
        seeds = []
        for number in range(num_groups):
            first = (replicas.rank + number * replicas.world) * settings.num_generations
            places = range(first, first + settings.num_generations)
            seeds += [hash_seed(settings.seed, step, attempt, SALT, place) for place in places]
        return seeds

    def wait(self, groups: Sequence[Group]) -> None:
        """Wait for the rewards of these groups. A reward is None if it could not be given."""
        with self.phase("time/reward"):
            self.scorer.collect(*groups)

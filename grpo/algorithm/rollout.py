"""The first half of a step: prompts to groups of completions, and their rewards to advantages.

Grading starts as each completion ends, while the others are still being generated; `grade` waits for the grades.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from grpo.algorithm.advantages import group_advantages, normalize_then_sum, refusal_counts, refusal_shift, reward_std
from grpo.algorithm.credit import answer_start, judged_sentences
from grpo.algorithm.packing import Totals, count_trained
from grpo.algorithm.schema import Completion, Group, PackedBatch, completions_of
from grpo.base.storage import failpoint
from grpo.data.questions import QuestionData, Questions, load_prompts, num_steps
from grpo.data.rows import Order
from grpo.engine.device.draw import SamplingParams, hash_seed
from grpo.engine.model.policy import Policy
from grpo.engine.sampling.sampler import Sampler
from grpo.run.metrics import Clock, is_mixed, outcome_of
from grpo.run.run import Run
from rewards.calls import TrainerState
from rewards.scorer import Scorer


@dataclass(frozen=True)
class Shared:
    """What the advantages of a step have in common, on all ranks.

    batch_std: deviation of all its rewards, if the advantages need it. refusal_shift: added to the reward of declining
    (Eq. 20).
    """

    batch_std: float | None = None
    refusal_shift: float = 0.0


@dataclass
class Sampled:
    """The groups of a step."""

    step: int
    groups: list[Group]  # to train on
    generated: list[Group]  # all of them, also those that dynamic sampling drops
    totals: Totals  # what is trained, on all ranks
    shared: Shared | None = None  # known once grading has begun


class Rollout:
    """Sample the groups of each step, and turn their rewards into advantages."""

    def __init__(self, data: QuestionData, run: Run, policy: Policy, scorer: Scorer, clock: Clock):
        config = data.config
        self.config, self.run, self.policy, self.scorer, self.clock = config, run, policy, scorer, clock
        self.replicas = run.ranks.replicas
        loaded = load_prompts(data, policy, Questions.to_train(config), scorer.rewards)
        run.report_data("training data", loaded.count)
        self.prompts, self.data_hash = loaded.prompts, loaded.data_hash
        self.order = Order(len(self.prompts), config.seed, config.shuffle_dataset)
        completions_per_replica = config.per_device_train_batch_size * config.gradient_accumulation_steps
        self.groups_per_replica = completions_per_replica // config.num_generations
        groups_per_step = self.groups_per_replica * self.replicas.world
        self.total_steps = num_steps(config, len(self.prompts), groups_per_step)  # of the run
        self.sampling = SamplingParams(
            config.max_completion_length, config.temperature, top_p=config.top_p, top_k=config.top_k
        )
        self.longest = max(len(prompt.ids) for prompt in self.prompts) + config.max_completion_length
        self.sampler = Sampler(policy.model, policy.eos_ids)
        self.sampler.before_decoding = run.signals.stop_with_shards
        self.sampled: Sampled | None = None  # the last step

    @property
    def groups(self) -> list[Group]:
        """Return the groups of the last step to train on."""
        return self.sampled.groups

    def reserve(self, num_sequences: int) -> None:
        """Decode at most this many sequences together; on a GPU, allocate their cache now."""
        self.sampler.max_slots = num_sequences
        self.sampler.prepare(num_sequences, self.longest, self.config.max_completion_length)

    def sample(self, step: int) -> Sampled:
        """Generate the groups of a step to train on; grading starts as each completion ends.

        If a step is repeated, with smaller micro-batches, it gets the same groups again.
        """
        if self.sampled and self.sampled.step == step:
            return self.sampled
        dynamic = self.config.dynamic_sampling
        with self.run.signals.interruptible(together=not dynamic):
            if dynamic:
                groups, generated = self._sample_mixed(step)
            else:
                groups = generated = self._generate(step)
        self.sampled = Sampled(step, groups, generated, count_trained(groups, self.config, self.replicas))
        failpoint("step-sampled")
        return self.sampled

    def _sample_mixed(self, step: int) -> tuple[list[Group], list[Group]]:
        """Replace groups that are all right or all wrong by new ones: dynamic sampling (DAPO).

        After `dynamic_sampling_max_rollouts` attempts the step trains on the groups it has. Returns the groups to train
        on, and all generated groups.
        """
        generated, kept = [], []
        for attempt in range(self.config.dynamic_sampling_max_rollouts):
            groups = self._generate(step, attempt)
            with self.clock.timed("time/reward"):
                for group in groups:
                    self._collect(group)
            for completion in completions_of(groups):
                completion.advantage = 0.0  # the metrics need one for the groups that are dropped, too
            generated += groups
            kept += [group for group in groups if is_mixed(group)]
            most_missing = self.run.ranks.max(self.groups_per_replica - len(kept))
            if most_missing <= 0:
                break
        return kept[: self.groups_per_replica], generated

    def _generate(self, step: int, attempt: int = 0) -> list[Group]:
        """Generate num_generations completions for each of this replica's next prompts.

        attempt: how many times this step has generated before.
        """
        G, replicas = self.config.num_generations, self.replicas
        epoch = self.order.position / self.order.num_rows
        state = TrainerState(step, self.total_steps, epoch, is_world_process_zero=self.run.ranks.is_main)
        rows = self.order.take(self.groups_per_replica * replicas.world)[replicas.rank :: replicas.world]
        groups = [Group(self.prompts[row], [None] * G) for row in rows]
        # A completion's seed depends on its place among those of all replicas. So any number of them samples the same.
        # The 0 has no meaning; without it, recorded runs would draw other tokens.
        seeds = []
        for number in range(len(groups)):
            first = (replicas.rank + number * replicas.world) * G
            seeds += [hash_seed(self.config.seed, step, attempt, 0, place) for place in range(first, first + G)]

        def finish(number: int, completion: Completion) -> None:
            group, index = groups[number // G], number % G
            completion.text = self.policy.decode(completion.ids)
            group.completions[index] = completion
            self.scorer.submit(group, index, state)

        with self.clock.timed("time/generate"):
            self.sampler.sample([group.prompt.ids for group in groups], G, self.sampling, seeds, finish)
        return groups

    def grade(self, batch: PackedBatch) -> None:
        """Wait for the rewards of a micro-batch, and set its advantages."""
        self._grade([part.group for part in batch.parts])
        batch.set_advantages()

    def finish_grading(self) -> None:
        """Grade also the groups that are in no micro-batch. Every rank must call it, whatever it trains."""
        self._grade(self.sampled.groups)
        failpoint("step-graded")

    def _grade(self, groups: Sequence[Group]) -> None:
        """Wait for the rewards of these groups and set their advantages, with the bonus of each score.

        A signal may interrupt the wait, so no weight may have changed in this step.
        """
        with self.clock.timed("time/reward"), self.run.signals.interruptible():
            self.sampled.shared = self.sampled.shared or self._share()
            shared = self.sampled.shared
            for group in groups:
                rewards = self._rewards_of(group, shared.refusal_shift)
                advantages = group_advantages(rewards, self.config.scale_rewards, shared.batch_std)  # Eq. 1, 2
                weights = self.scorer.weights_of(group)
                for completion, advantage in zip(group.completions, advantages, strict=True):
                    bonus = sum(weight * completion.scores[name].bonus for name, weight in weights.items())
                    completion.advantage = advantage + bonus if completion.reward is not None else 0.0

    def _share(self) -> Shared:
        """Find what depends on the rewards of the complete step: wait for them, and share them with all ranks."""
        shift, std = 0.0, None
        if self.config.refusal_target is not None:
            counts = [[0.0] * 4]
            for group in self.sampled.groups:
                self._collect(group)
                rewards = [completion.reward for completion in group.completions]
                outcomes = [outcome_of(completion.scores) for completion in group.completions]
                counts.append(refusal_counts(rewards, outcomes))
            totals = self.replicas.sum([sum(column) for column in zip(*counts, strict=True)])
            shift = refusal_shift(*totals, self.config.refusal_target)  # Eq. 20
        if self.config.scale_rewards == "batch":
            mine = [reward for group in self.sampled.groups for reward in self._rewards_of(group, shift)]
            std = reward_std(self.replicas.gather_lists(mine))
        return Shared(std, shift)

    def _rewards_of(self, group: Group, shift: float) -> list[float | None]:
        """Wait for the rewards of a group. Return one per completion: summed, or normalized and then summed (GDPO).

        shift: what a sum gains if the completion declines (Eq. 20).
        """
        self._collect(group)
        if self.config.multi_objective_aggregation == "sum_then_normalize":
            return [_shifted(completion, shift) for completion in group.completions]
        weights = self.scorer.weights_of(group)
        values = [[completion.scores[name].value for completion in group.completions] for name in weights]
        return normalize_then_sum(values, list(weights.values()))  # Eq. 17

    def _collect(self, group: Group) -> None:
        """Wait for the rewards of a group, unless it has them; with `credit`, find the tokens that it is about."""
        if not group.pending:
            return
        self.scorer.collect(group)
        for completion in group.completions:
            if self.config.credit == "sentence":
                completion.sentences = judged_sentences(completion, self.policy.decode)
            elif self.config.credit == "answer":
                completion.credited_from = answer_start(completion, self.policy.decode)


def _shifted(completion: Completion, shift: float) -> float | None:
    """Return the reward of a completion, moved by Eq. 20 if it declines."""
    if completion.reward is None or outcome_of(completion.scores) != "refused":
        return completion.reward
    return completion.reward + shift

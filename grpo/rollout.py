"""The first half of a step: prompts to groups of completions, and their rewards to advantages.

Grading starts as each completion ends, while the others are still being generated; `graded` waits for the grades.
"""

import time
from collections.abc import Iterator, Sequence

from grpo.advantages import group_advantages, normalize_then_sum, refusal_counts, refusal_shift, reward_std
from grpo.base.schema import Completion, Group, PackedBatch, completions_of
from grpo.base.storage import failpoint
from grpo.credit import answer_start, judged_sentences
from grpo.data.questions import QuestionData, Questions, load_prompts, num_steps
from grpo.data.rows import Order
from grpo.device.draw import SamplingParams, hash_seed
from grpo.model.policy import Policy
from grpo.packing import Totals, count_trained
from grpo.run.metrics import Clock, is_mixed, outcome_of
from grpo.run.run import Run
from grpo.sampling.sampler import Sampler
from rewards.custom import TrainerState
from rewards.scorer import Scorer

POLL_SECONDS = 0.005


class Rollout:
    """Sample the groups of each step, and turn their rewards into advantages."""

    def __init__(self, data: QuestionData, run: Run, policy: Policy, scorer: Scorer, clock: Clock):
        config = data.config
        self.config, self.run, self.policy, self.scorer, self.clock = config, run, policy, scorer, clock
        self.replicas, self.shard = run.ranks.replicas, run.ranks.shard
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
        # Of the step that was sampled last:
        self.sampled_step = -1  # its number
        self.groups: list[Group] = []  # to train on
        self.generated: list[Group] = []  # all of them, also those that dynamic sampling drops
        self.totals = Totals(0, 0, 0)
        self.is_graded = False
        self.has_shared = False  # whether the ranks have shared their rewards, from which the next two come
        self.batch_std: float | None = None  # deviation of all its rewards
        self.refusal_shift = 0.0  # added to the reward of declining (Eq. 20)

    def reserve(self, num_sequences: int) -> None:
        """Decode at most this many sequences together; on a GPU, allocate their cache now."""
        self.sampler.max_slots = num_sequences
        self.sampler.prepare(num_sequences, self.longest, self.config.max_completion_length)

    def sample(self, step: int) -> list[Group]:
        """Generate the groups of a step to train on; grading starts as each completion ends.

        If a step is repeated, with smaller micro-batches, it gets the same groups again.
        """
        if step == self.sampled_step:
            return self.groups
        self.is_graded, self.has_shared, self.refusal_shift = False, False, 0.0
        dynamic = self.config.dynamic_sampling
        with self.run.signals.interruptible(together=not dynamic):
            if dynamic:
                self.groups, self.generated = self._sample_mixed(step)
            else:
                self.groups = self.generated = self._generate(step)
        self.totals = count_trained(self.groups, self.config, self.replicas)
        self.sampled_step = step
        failpoint("step-sampled")
        return self.groups

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

    def graded(self, batches: Sequence[PackedBatch]) -> Iterator[PackedBatch]:
        """Yield the micro-batches with their advantages; with slow rewards, in the order in which these arrive.

        The wait can be interrupted only in the first iteration. Later ones find all rewards there.
        """
        waiting = list(batches)
        while waiting:
            batch = waiting.pop(0) if self.is_graded else self._take_graded(waiting)
            batch.set_advantages()
            yield batch

    def finish_grading(self) -> None:
        """Wait for the rewards of the groups in no micro-batch. Every rank must call it, whatever it trains."""
        if not self.is_graded:
            with self.clock.timed("time/reward"), self.run.signals.interruptible():
                self._grade(self.groups)
            self.is_graded = True
            failpoint("step-graded")

    def _take_graded(self, waiting: list[PackedBatch]) -> PackedBatch:
        """Wait for the rewards of a micro-batch, and remove it from the waiting ones."""
        with self.clock.timed("time/reward"), self.run.signals.interruptible():
            # The first shard chooses, so that all take the same one.
            batch = waiting.pop(self.shard.of_first(lambda: self._first_ready(waiting)))
            self._grade([part.group for part in batch.parts])
        return batch

    def _first_ready(self, batches: Sequence[PackedBatch]) -> int:
        """Return the index of the micro-batch to train next: 0, or with slow rewards that of the first one graded."""
        if not self.scorer.slow or self.config.full_determinism or self._needs_all_rewards():
            return 0
        while True:
            for index, batch in enumerate(batches):
                if all(part.group.is_ready for part in batch.parts):
                    return index
            time.sleep(POLL_SECONDS)

    def _grade(self, groups: Sequence[Group]) -> None:
        """Wait for these groups' rewards and set their advantages (Eq. 1, 2, 17, 20), with the bonus of each score."""
        if self._needs_all_rewards() and not self.has_shared:
            self._share_rewards()
        for group in groups:
            self._collect(group)
            rewards = self._rewards_of(group)
            advantages = group_advantages(rewards, self.config.scale_rewards, self.batch_std)  # Eq. 1, 2
            weights = self.scorer.weights_of(group)
            for completion, advantage in zip(group.completions, advantages, strict=True):
                bonus = sum(weight * completion.scores[name].bonus for name, weight in weights.items())
                completion.advantage = advantage + bonus if completion.reward is not None else 0.0

    def _collect(self, group: Group) -> None:
        """Wait for the rewards of a group, unless it has them; with `credit: sentence`, find the judged sentences."""
        if not group.pending:
            return
        self.scorer.collect(group)
        if self.config.credit == "sentence":
            for completion in group.completions:
                completion.sentences = judged_sentences(completion, self.policy.decode)
        elif self.config.credit == "answer":
            for completion in group.completions:
                completion.credited_from = answer_start(completion, self.policy.decode)

    def _rewards_of(self, group: Group) -> list[float | None]:
        """Return the reward of each completion of a group: summed, or normalized and then summed (GDPO)."""
        if self.config.multi_objective_aggregation == "sum_then_normalize":
            return [self._shifted(completion) for completion in group.completions]
        weights = self.scorer.weights_of(group)
        values = [[completion.scores[name].value for completion in group.completions] for name in weights]
        return normalize_then_sum(values, list(weights.values()))  # Eq. 17

    def _shifted(self, completion: Completion) -> float | None:
        """Return the reward of a completion, moved by Eq. 20 if it declines."""
        if not self.refusal_shift or completion.reward is None or outcome_of(completion.scores) != "refused":
            return completion.reward
        return completion.reward + self.refusal_shift

    def _needs_all_rewards(self) -> bool:
        """Return whether an advantage depends on the rewards of the complete step."""
        return self.config.scale_rewards == "batch" or self.config.refusal_target is not None

    def _share_rewards(self) -> None:
        """Wait for all rewards of the step; find what depends on those of all ranks. Every rank must call it."""
        for group in self.groups:
            self._collect(group)
        if self.config.refusal_target is not None:
            counts = [[0.0] * 4]
            for group in self.groups:
                rewards = [completion.reward for completion in group.completions]
                outcomes = [outcome_of(completion.scores) for completion in group.completions]
                counts.append(refusal_counts(rewards, outcomes))
            totals = self.replicas.sum([sum(column) for column in zip(*counts, strict=True)])
            self.refusal_shift = refusal_shift(totals, self.config.refusal_target)  # Eq. 20
        if self.config.scale_rewards == "batch":
            mine = [reward for group in self.groups for reward in self._rewards_of(group)]
            self.batch_std = reward_std(self.replicas.gather_lists(mine))
        self.has_shared = True

"""The first half of a step in its parts: which prompts and seeds a rank takes, what dynamic sampling keeps, and how
rewards become advantages."""

import math
from contextlib import contextmanager

import pytest
from making import grade_groups, make_answers, make_completion, make_group, of_each

from grpo.algorithm.advantages import set_advantages
from grpo.algorithm.interfaces import Settings
from grpo.algorithm.rollout import Rollout
from grpo.algorithm.schema import Order, Prompt, Score, TrainerState
from grpo.algorithm.step import rewards_of
from grpo.config.options import TrainConfig
from grpo.engine.device.peers import Peers
from rewards.registry import Reward

KEYS = {
    "seed": 5,
    "num_generations": 2,
    "scale_rewards": "group",
    "dynamic_sampling_max_rollouts": 3,
    "shuffle_dataset": False,
    "max_completion_length": 4,
    "gradient_accumulation_steps": 1,
}


def replicas(rank=0, world=1, others=()):
    """The other replicas hold these values. `gathered` writes down what this one gives."""
    ranks = Peers(rank, world)
    ranks.max, ranks.gathered = float, []

    def gather_lists(mine):
        ranks.gathered.append(mine)
        return [value for values in (*others[:rank], mine, *others[rank:]) for value in values]

    ranks.gather_lists = gather_lists
    return ranks


def rollout(rank=0, world=1, groups_per_replica=2, **keys):
    """A rollout over ten prompts without a model. `phases` writes down which phases it had."""
    config = TrainConfig(**KEYS | {"per_device_train_batch_size": 2 * groups_per_replica} | keys)
    prompts = [Prompt(row, f"prompt {row}", (row,), {"question": str(row)}) for row in range(10)]
    recorder, phases = Recorder(), []

    @contextmanager
    def phase(name):
        phases.append(name)
        yield

    ranks, order = replicas(rank, world), Order(10, config.seed, config.shuffle_dataset)
    given = {"settings": Settings.of(config), "prompts": prompts, "order": order, "scorer": recorder, "phase": phase}
    given |= {"sampler": recorder, "sampling": None, "decode": lambda ids: f"text {ids[0]}"}
    made = Rollout(**given, ranks=ranks, replicas=ranks)
    made.phases = phases
    return made


class Recorder:
    """Sampler and scorer in one: completion n is the token n; it writes down what it is asked.

    outcomes: by the prompt's row, how many of its completions are right (1 unless told).
    """

    def __init__(self):
        self.seeds, self.submitted, self.collected, self.outcomes = [], [], [], {}
        self.under_way = set()

    def sample(self, prompts, num_generations, params, seeds, on_finish):
        self.seeds.append(seeds)
        for number in reversed(range(len(seeds))):  # the last one ends first
            on_finish(number, make_completion([number]))

    def submit(self, group, index, state):
        completion, row = group.completions[index], group.prompt.row
        self.submitted.append((row, index, completion.text, group.prompt.columns["question"]))
        self.state = state
        self.under_way.add(group)

    def collect(self, *groups):
        for group in [group for group in groups if group in self.under_way]:
            self.under_way.remove(group)
            row = group.prompt.row
            self.collected.append(row)
            right = self.outcomes.get(row, 1)
            for index, completion in enumerate(group.completions):
                completion.scores = {"r": Score(1.0, "", "correct" if index < right else "wrong")}
                completion.reward = float(row) + 2 * index


def rows_of(groups):
    return [group.prompt.row for group in groups]


def test_each_completion_goes_to_the_scorer_with_its_own_prompt_group_and_place():
    made = rollout()
    groups, generated = made.sample(0)
    assert groups is generated and rows_of(groups) == [0, 1]
    assert [of_each(group, "ids") for group in groups] == [[[0], [1]], [[2], [3]]]
    assert sorted(made.scorer.submitted) == [
        (0, 0, "text 0", "0"),
        (0, 1, "text 1", "0"),
        (1, 0, "text 2", "1"),
        (1, 1, "text 3", "1"),
    ]
    assert made.phases == ["time/generate"] and not made.scorer.collected
    assert made.scorer.state == TrainerState(0, 0, 0.0) and made.sample(1) and made.scorer.state.epoch == 0.2


def test_rewards_are_waited_for_once():
    made = rollout()
    groups, _ = made.sample(0)
    made.wait(groups)
    made.wait(groups)
    assert made.scorer.collected == [0, 1] and made.phases == ["time/generate", "time/reward", "time/reward"]


def test_ranks_share_out_what_one_would_take():
    """Prompts in turn; every completion has the seed that it would have in a single process."""
    alone = rollout(groups_per_replica=4)
    groups, _ = alone.sample(3)
    seeds = {group.prompt.row: alone.scorer.seeds[0][2 * n : 2 * n + 2] for n, group in enumerate(groups)}
    for rank, rows in ((0, [0, 2]), (1, [1, 3])):
        made = rollout(rank, 2)
        assert rows_of(made.sample(3)[0]) == rows and made.order.position == alone.order.position == 4
        assert made.scorer.seeds == [[seed for row in rows for seed in seeds[row]]]


def test_no_two_completions_share_a_seed():
    """Of different steps, batches of one step, groups and places."""
    made = rollout(dynamic_sampling=True)
    made.scorer.outcomes = dict.fromkeys(range(10), 0)  # all wrong: three batches a step
    for step in range(4):
        made.sample(step)
    seeds = [seed for batch in made.scorer.seeds for seed in batch]
    assert len(seeds) == len(set(seeds)) == 4 * 3 * 4
    other = rollout(seed=6)
    other.sample(0)
    assert not set(other.scorer.seeds[0]) & set(seeds)


def test_dynamic_sampling_goes_on_until_there_are_enough_groups_and_keeps_no_more():
    """Two groups are wanted. Of the first batch one is mixed (the other is all right), of the second both."""
    made = rollout(dynamic_sampling=True)
    made.scorer.outcomes = {0: 2, 1: 1, 2: 1, 3: 1}
    groups, generated = made.sample(0)
    assert rows_of(generated) == made.scorer.collected == [0, 1, 2, 3] and rows_of(groups) == [1, 2]
    assert [row for row, *_ in made.scorer.submitted] == [1, 1, 0, 0, 3, 3, 2, 2]
    assert made.phases == ["time/generate", "time/reward"] * 2  # the wait is not part of the time to generate


def test_dynamic_sampling_takes_what_there_is_in_the_end():
    made = rollout(dynamic_sampling=True)
    made.scorer.outcomes = {0: 2, 1: 0, 2: 2, 3: 0, 4: 1, 5: 0}
    groups, generated = made.sample(0)
    assert rows_of(groups) == [4] and len(generated) == 6


def test_every_rank_goes_on_until_the_last_has_enough():
    made = rollout(dynamic_sampling=True)
    made.ranks.max = lambda missing: max(missing, 1)  # another rank always lacks a group
    groups, generated = made.sample(0)
    assert rows_of(groups) == [0, 1] and len(generated) == 6


# --- rewards to advantages -------------------------------------------------------------------------------------------


def advance(*groups, ranks=None, weights=None, **keys):
    """Set the advantages of graded groups; return what declining earns more."""
    config = TrainConfig(**KEYS | keys)
    for group in groups:
        group.weights = weights or {}
    ranks = ranks or replicas()
    rewards, shift = rewards_of(groups, config, ranks)
    set_advantages(groups, rewards, config.scale_rewards, ranks)
    return shift


@pytest.mark.parametrize("scale", ["group", "batch"])
def test_a_rank_without_any_group_takes_part(scale):
    ranks = replicas()
    advance(ranks=ranks, scale_rewards=scale)
    assert ranks.gathered == ([[]] if scale == "batch" else [])


def scored(**values):
    """The scores of one completion, by reward."""
    return {name: Score(value) for name, value in values.items()}


GDPO = {"multi_objective_aggregation": "normalize_then_sum", "scale_rewards": "batch"}  # the configuration sets both


def test_rewards_normalized_one_by_one():
    """Two rewards, weights 1 and 2, over two groups: each in units of its own spread in the group, then the sum in
    units of its spread over all ranks."""
    ranks = replicas(0, 2, others=([-2.0, 2.0],))
    first, second = (make_group((1,), [5], [6], reward=reward) for reward in ([2.0, -0.8], [0.0, 0.0]))
    first.completions[0].scores = scored(wide=2.0, narrow=0.0)
    first.completions[1].scores = scored(wide=-1.0, narrow=0.1)
    for completion in second.completions:
        completion.scores = scored(wide=1.0, narrow=0.5)
    sum_ = 1.5 / (3 / math.sqrt(2) + 1e-4) - 2 * 0.05 / (0.1 / math.sqrt(2) + 1e-4)
    divisor = math.sqrt((2 * sum_**2 + 8) / 5) + 1e-4
    advance(first, second, ranks=ranks, weights={"wide": 1.0, "narrow": 2.0}, **GDPO)
    assert of_each(first, "advantage") == pytest.approx([sum_ / divisor, -sum_ / divisor], abs=1e-12)
    assert of_each(second, "advantage") == [0, 0]
    assert ranks.gathered == [pytest.approx([sum_, -sum_, 0, 0])]


def test_a_reward_that_does_not_apply_to_a_prompt_leaves_the_others_to_decide():
    """Also where each reward is normalised by itself: else its None would take the advantages of all completions."""
    rewards = [Reward("exact", lambda text, row: Score(float(text))), Reward("mine", function=lambda **_: [None, None])]
    group = make_answers({}, "1", "0")
    grade_groups(rewards, group)
    config = TrainConfig(**KEYS | GDPO)
    set_advantages([group], rewards_of([group], config, replicas())[0], config.scale_rewards, replicas())
    first, second = of_each(group, "advantage")
    assert first == -second > 0.5

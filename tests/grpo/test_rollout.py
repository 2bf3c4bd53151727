"""The first half of a step in its parts: which prompts and seeds a rank takes, what dynamic sampling keeps, and when
advantages are due."""

import math
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from making import make_completion, make_group, of_each, whole

from grpo.algorithm.packing import Totals, pack_batch
from grpo.algorithm.rollout import Rollout, Sampled
from grpo.algorithm.schema import Prompt, Score
from grpo.config.options import TrainConfig
from grpo.data.rows import Order
from grpo.engine.device.draw import SamplingParams
from grpo.run.metrics import Clock
from rewards.calls import TrainerState
from rewards.registry import Reward
from rewards.scorer import Scorer

KEYS = {
    "seed": 5,
    "num_generations": 2,
    "scale_rewards": "group",
    "dynamic_sampling": False,
    "dynamic_sampling_max_rollouts": 3,
}


def rollout(rank=0, world=1, groups_per_replica=2, others=(), **keys):
    """A rollout over ten prompts without a model. others: the rewards that the other ranks hold."""
    made = object.__new__(Rollout)
    made.config, made.clock = TrainConfig(**KEYS | keys), Clock()
    made.gathered = []

    def gather_lists(mine):
        made.gathered.append(mine)
        return [value for values in (*others[:rank], mine, *others[rank:]) for value in values]

    ranks = SimpleNamespace(rank=rank, world=world, max=lambda value: value, sum=list, gather_lists=gather_lists)
    ranks.is_main, made.replicas = rank == 0, ranks
    made.waits = []  # which stretches a signal may interrupt
    made.run = SimpleNamespace(ranks=ranks, signals=SimpleNamespace(interruptible=interruptible(made)))
    made.prompts = [Prompt(row, f"prompt {row}", (row,), {"question": str(row)}) for row in range(10)]
    made.order = Order(10, 0, shuffle=False)
    made.groups_per_replica, made.total_steps, made.sampling = groups_per_replica, 0, SamplingParams(4)
    made.policy = SimpleNamespace(decode=lambda ids: f"text {ids[0]}")
    made.scorer = made.sampler = Recorder()
    made.sampled = None
    return made


def graded(made, *groups):
    """The same groups, sampled and graded by a rollout."""
    made.sampled = Sampled(0, list(groups), list(groups), Totals(0, 0, 0))
    made.finish_grading()
    return groups


def interruptible(made):
    @contextmanager
    def record(together=False):
        made.waits.append((made.clock.phase, together))
        yield

    return record


class Recorder:
    """Sampler and scorer in one: completion n is the token n; it writes down what it is asked.

    outcomes: by the prompt's row, how many of its completions are right (1 unless told).
    """

    def __init__(self):
        self.seeds, self.submitted, self.collected, self.outcomes = [], [], [], {}
        self.weights = {"r": 1.0}

    def sample(self, prompts, num_generations, params, seeds, on_finish):
        self.seeds.append(seeds)
        for number in reversed(range(len(seeds))):  # the last one ends first
            on_finish(number, make_completion([number]))

    def submit(self, group, index, state):
        completion, row = group.completions[index], group.prompt.row
        self.submitted.append((row, index, completion.text, group.prompt.columns["question"]))
        self.state = state
        group.pending = [{}]

    def collect(self, group):
        assert group.pending
        row, group.pending = group.prompt.row, []
        self.collected.append(row)
        right = self.outcomes.get(row, 1)
        for index, completion in enumerate(group.completions):
            completion.scores = {"r": Score(1.0, "", "correct" if index < right else "wrong")}
            completion.reward = float(row) + 2 * index

    def weights_of(self, group):
        return self.weights


def rows_of(groups):
    return [group.prompt.row for group in groups]


def test_each_completion_goes_to_the_scorer_with_its_own_prompt_group_and_place():
    made = rollout()
    groups = made.sample(0).groups
    assert groups is made.sampled.generated and rows_of(groups) == [0, 1]
    assert [of_each(group, "ids") for group in groups] == [[[0], [1]], [[2], [3]]]
    assert sorted(made.scorer.submitted) == [
        (0, 0, "text 0", "0"),
        (0, 1, "text 1", "0"),
        (1, 0, "text 2", "1"),
        (1, 1, "text 3", "1"),
    ]
    assert made.waits == [("", True)]
    assert made.scorer.state == TrainerState(0, 0, 0.0) and made.sample(1) and made.scorer.state.epoch == 0.2


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_step_that_is_done_again_has_the_same_groups(dynamic):
    """After running out of memory: nothing is sampled again, and nothing asked of other ranks."""
    made = rollout(dynamic_sampling=dynamic)
    first, seeds = made.sample(7), list(made.scorer.seeds)
    made.run.ranks.sum = None
    assert made.sample(7) is first and made.scorer.seeds == seeds and made.order.position == 2
    made.run.ranks.sum = list
    assert rows_of(made.sample(8).groups) == [2, 3]


def test_ranks_share_out_what_one_would_take():
    """Prompts in turn; every completion has the seed that it would have in a single process."""
    alone = rollout(groups_per_replica=4)
    groups = alone.sample(3).groups
    seeds = {group.prompt.row: alone.scorer.seeds[0][2 * n : 2 * n + 2] for n, group in enumerate(groups)}
    for rank, rows in ((0, [0, 2]), (1, [1, 3])):
        made = rollout(rank, 2)
        assert rows_of(made.sample(3).groups) == rows and made.order.position == alone.order.position == 4
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
    sampled = made.sample(0)
    assert rows_of(sampled.generated) == made.scorer.collected == [0, 1, 2, 3] and rows_of(sampled.groups) == [1, 2]
    assert [row for row, *_ in made.scorer.submitted] == [1, 1, 0, 0, 3, 3, 2, 2]
    assert all(of_each(group, "advantage") == [0.0, 0.0] for group in sampled.generated)
    assert made.waits == [("", False)]  # a rank may be through before another
    assert made.clock.phases["time/reward"] > 0  # not part of the time to generate


def test_dynamic_sampling_takes_what_there_is_in_the_end():
    made = rollout(dynamic_sampling=True)
    made.scorer.outcomes = {0: 2, 1: 0, 2: 2, 3: 0, 4: 1, 5: 0}
    assert rows_of(made.sample(0).groups) == [4] and len(made.sampled.generated) == 6


def test_every_rank_goes_on_until_the_last_has_enough():
    made = rollout(dynamic_sampling=True)
    made.run.ranks.max = lambda missing: max(missing, 1)  # another rank always lacks a group
    assert rows_of(made.sample(0).groups) == [0, 1] and len(made.sampled.generated) == 6


def batch_of(group):
    return pack_batch(whole(group))


@pytest.mark.parametrize(("scale", "divisor"), [("group", math.sqrt(2) + 1e-4), ("none", 1.0)])
def test_advantages_of_the_groups_that_are_due(scale, divisor):
    """Rewards 0 and 2, 1 and 3: deviations -1 and 1, standard deviation sqrt(2). The others wait."""
    made = rollout(scale_rewards=scale)
    groups = made.sample(0).groups
    batch = batch_of(groups[0])
    made.grade(batch)
    assert batch.advantage_C.tolist() == pytest.approx([-1 / divisor, 1 / divisor])
    assert of_each(groups[0], "advantage") == pytest.approx([-1 / divisor, 1 / divisor], abs=1e-12)
    assert of_each(groups[1], "advantage") == [None, None] and made.scorer.collected == [0]
    made.grade(batch_of(groups[1]))
    assert made.scorer.collected == [0, 1]
    assert of_each(groups[1], "advantage") == of_each(groups[0], "advantage") and made.gathered == []


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_advantages_over_the_batch_of_all_ranks(rank):
    """Rewards 0 2 | 4 6 here, and 1 1 | 3 3 5 on the others: all have mean 25/9. Each group keeps its own mean. The
    ranks share their rewards once."""
    made = rollout(rank, 3, others=([1.0, 1.0], [3.0, 3.0, 5.0]), scale_rewards="batch")
    made.scorer.weights = {}  # no bonus
    groups = graded(made, *(make_group((1,), [5], [6], reward=reward) for reward in ([0.0, 2.0], [4.0, 6.0])))
    values = [0, 2, 4, 6, 1, 1, 3, 3, 5]
    divisor = math.sqrt(sum((value - 25 / 9) ** 2 for value in values) / 8) + 1e-4
    assert made.gathered == [[0.0, 2.0, 4.0, 6.0]]
    wanted = pytest.approx([-1 / divisor, 1 / divisor], abs=1e-12)
    assert [of_each(group, "advantage") for group in groups] == [wanted] * 2


def test_declining_earns_what_the_answers_beside_it_earn():
    """By hand: the first group declines once beside 1 and -1, the second twice beside 1: (0 + 2) / (2 + 2) more. 3 of 6
    decline, and 0.4 should. What is logged as the reward does not move."""
    made = rollout(scale_rewards="none", refusal_target=0.4)
    made.scorer.weights = {}
    outcomes = ["refused", "correct", "wrong"], ["refused", "refused", "correct"]
    rewards = [0.0, 1.0, -1.0], [0.0, 0.0, 1.0]
    groups = [make_group((1,), [5], [6], [7], reward=values) for values in rewards]
    for group, names in zip(groups, outcomes, strict=True):
        for completion, name in zip(group.completions, names, strict=True):
            completion.scores = {"abstention": Score(0.0, "", name)}
    first, second = graded(made, *groups)
    shift = 2 / 4 + math.log(0.4 / 0.6)
    assert made.sampled.shared.refusal_shift == pytest.approx(shift)
    assert of_each(first, "advantage") == pytest.approx([shift * 2 / 3, 1 - shift / 3, -1 - shift / 3])
    assert of_each(second, "advantage")[0] == pytest.approx(shift - (2 * shift + 1) / 3)
    assert [of_each(group, "reward") for group in groups] == list(rewards)


def scored(**values):
    """The scores of one completion, by reward."""
    return {name: Score(value) for name, value in values.items()}


GDPO = {"multi_objective_aggregation": "normalize_then_sum", "scale_rewards": "batch"}  # the configuration sets both


def test_rewards_normalized_one_by_one():
    """Two rewards, weights 1 and 2, over two groups: each in units of its own spread in the group, then the sum in
    units of its spread over all ranks."""
    made = rollout(0, 2, others=([-2.0, 2.0],), **GDPO)
    made.scorer.weights = {"wide": 1.0, "narrow": 2.0}
    first, second = (make_group((1,), [5], [6], reward=reward) for reward in ([2.0, -0.8], [0.0, 0.0]))
    first.completions[0].scores = scored(wide=2.0, narrow=0.0)
    first.completions[1].scores = scored(wide=-1.0, narrow=0.1)
    for completion in second.completions:
        completion.scores = scored(wide=1.0, narrow=0.5)
    sum_ = 1.5 / (3 / math.sqrt(2) + 1e-4) - 2 * 0.05 / (0.1 / math.sqrt(2) + 1e-4)
    divisor = math.sqrt((2 * sum_**2 + 8) / 5) + 1e-4
    graded(made, first, second)
    assert of_each(first, "advantage") == pytest.approx([sum_ / divisor, -sum_ / divisor], abs=1e-12)
    assert of_each(second, "advantage") == [0, 0]
    assert made.gathered == [pytest.approx([sum_, -sum_, 0, 0])]


@pytest.mark.parametrize("weight", [1.0, 2.0, 0.0])
def test_a_bonus_is_added_to_the_advantage_and_an_unscorable_completion_has_none(weight):
    made = rollout(scale_rewards="none")
    made.scorer.weights = {"r": weight}
    group = make_group((1,), [5], [6], [7], reward=[0.0, 2.0, None])
    for completion in group.completions:
        completion.scores = {"r": Score(1.0, bonus=0.25)}
    graded(made, group)
    assert of_each(group, "advantage") == [0.25 * weight - 1, 0.25 * weight + 1, 0.0]


def test_a_reward_that_does_not_apply_to_a_prompt_leaves_the_others_to_decide():
    """Also where each reward is normalised by itself: else its None would take the advantages of all completions."""
    made = rollout(**GDPO)
    rewards = [Reward("exact", lambda text, row: Score(float(text))), Reward("mine", function=lambda **_: [None, None])]
    made.scorer = Scorer(rewards)
    group = make_group((1,), [5], [6])
    for completion, text in zip(group.completions, "10", strict=True):
        completion.text = text
    made.scorer.grade([group])
    made.scorer.close()
    graded(made, group)
    first, second = of_each(group, "advantage")
    assert first == -second > 0.5


@pytest.mark.parametrize("scale", ["group", "batch"])
def test_groups_in_no_micro_batch_are_graded_too_and_a_rank_without_any_takes_part(scale):
    """Of two groups one is trained. The ranks share their rewards once."""
    made = rollout(scale_rewards=scale)
    groups = made.sample(0).groups
    batch = batch_of(groups[1])
    made.grade(batch)
    assert made.scorer.collected == ([1] if scale == "group" else [0, 1]) and batch.advantage_C is not None
    made.finish_grading()
    assert sorted(made.scorer.collected) == [0, 1]
    assert of_each(groups[0], "advantage") == of_each(groups[1], "advantage")
    assert len(made.gathered) == (scale == "batch")
    assert made.waits == [("", True), ("time/reward", False), ("time/reward", False)]
    made.grade(batch)  # done again, after running out of memory
    assert sorted(made.scorer.collected) == [0, 1] and len(made.gathered) == (scale == "batch")
    alone = rollout(scale_rewards=scale)
    graded(alone)
    assert alone.gathered == ([[]] if scale == "batch" else [])

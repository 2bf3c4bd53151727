"""The first half of a step in its parts: which prompts and seeds a rank takes, what dynamic sampling keeps, and when
advantages are due."""

import math
from types import SimpleNamespace

import pytest

from grpo.data.rows import Order
from grpo.device.draw import SamplingParams
from grpo.rollout import Rollout
from grpo.schema import Completion, Group, Prompt, Score

KEYS = {
    "seed": 5,
    "num_generations": 2,
    "scale_rewards": True,
    "dynamic_sampling": False,
    "dynamic_sampling_max_rollouts": 3,
    "full_determinism": False,
}


def rollout(rank=0, world=1, groups_per_rank=2, others=(), **keys):
    """A rollout over ten prompts without a model. others: the rewards that the other ranks hold."""
    made = object.__new__(Rollout)
    made.config = SimpleNamespace(**KEYS | keys)
    made.run = SimpleNamespace(
        ranks=SimpleNamespace(
            rank=rank,
            world=world,
            max=lambda value: value,
            gather=lambda mine: [*others[:rank], mine, *others[rank:]],
        )
    )
    made.prompts = [Prompt(row, f"prompt {row}", (row,), {"question": str(row)}) for row in range(10)]
    made.order = Order(10, 0, shuffle=False)
    made.groups_per_rank, made.sampling = groups_per_rank, SamplingParams(4)
    made.policy = SimpleNamespace(decode=lambda completion: f"text {completion.ids[0]}")
    made.scorer = Recorder()
    made.sampler = made.scorer
    return made


class Recorder:
    """Sampler and scorer in one: completion n is the token n; it writes down what it is asked."""

    slow = True

    def __init__(self):
        self.seeds, self.submitted, self.collected, self.outcomes = [], [], [], {}

    def begin(self):
        self.submitted, self.collected = [], []

    def sample(self, prompts, num_generations, sampling, seeds, on_finish):
        self.seeds.append(seeds)
        done = [Completion([number], [0.0], [-math.inf], "stop") for number in range(len(seeds))]
        for number in reversed(range(len(seeds))):  # the last one ends first
            on_finish(number, done[number])
        return [done[start : start + num_generations] for start in range(0, len(done), num_generations)]

    def submit(self, group, index, size, prompt, completion, columns):
        self.submitted.append((group, index, size, prompt, completion.text, columns["question"]))

    def collect(self, number, group):
        self.collected.append(number)
        right = self.outcomes.get(number, 1)
        group.scores = [{"r": Score(1.0, "", "correct" if i < right else "wrong")} for i in range(2)]
        group.rewards = [float(number), float(number) + 2]

    def ready(self, number, size):
        return number in self.outcomes


def test_each_completion_goes_to_the_scorer_with_its_own_prompt_group_and_place():
    made = rollout()
    groups, generated = made.sample(0)
    assert groups is generated and [group.prompt.row for group in groups] == [0, 1]
    assert [[completion.ids for completion in group.completions] for group in groups] == [[[0], [1]], [[2], [3]]]
    assert sorted(made.scorer.submitted) == [
        (0, 0, 2, "prompt 0", "text 0", "0"),
        (0, 1, 2, "prompt 0", "text 1", "0"),
        (1, 0, 2, "prompt 1", "text 2", "1"),
        (1, 1, 2, "prompt 1", "text 3", "1"),
    ]


def test_ranks_share_out_what_one_would_take():
    """Prompts in turn; every completion has the seed that it would have in a single process."""
    alone = rollout(groups_per_rank=4)
    groups, _ = alone.sample(3)
    seeds = {group.prompt.row: alone.scorer.seeds[0][2 * n : 2 * n + 2] for n, group in enumerate(groups)}
    for rank, rows in ((0, [0, 2]), (1, [1, 3])):
        made = rollout(rank, 2)
        mine, _ = made.sample(3)
        assert [group.prompt.row for group in mine] == rows and made.order.position == alone.order.position == 4
        assert made.scorer.seeds == [[seed for row in rows for seed in seeds[row]]]


def test_no_two_completions_share_a_seed():
    """Of different steps, batches of one step, groups and places."""
    made = rollout(dynamic_sampling=True)
    made.scorer.outcomes = dict.fromkeys(range(6), 0)  # all wrong: three batches a step
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
    kept, generated = made.sample(0)
    assert [group.prompt.row for group in generated] == [0, 1, 2, 3] and made.scorer.collected == [0, 1, 2, 3]
    assert [group.prompt.row for group in kept] == [1, 2]
    assert [group for group, *_ in made.scorer.submitted] == [1, 1, 0, 0, 3, 3, 2, 2]
    assert all(group.advantages == [0.0, 0.0] for group in generated)


def test_dynamic_sampling_takes_what_there_is_in_the_end():
    made = rollout(dynamic_sampling=True)
    made.scorer.outcomes = {0: 2, 1: 0, 2: 2, 3: 0, 4: 1, 5: 0}
    kept, generated = made.sample(0)
    assert [group.prompt.row for group in kept] == [4] and len(generated) == 6


def graded(rewards):
    return [Group(Prompt(0, "", (), {}), [Completion([1], [], [], "stop")] * 2, rewards=list(r)) for r in rewards]


@pytest.mark.parametrize(
    ("scale", "divisor"), [(True, math.sqrt(2) + 1e-4), ("group", math.sqrt(2) + 1e-4), (False, 1.0), ("none", 1.0)]
)
def test_advantages_of_the_groups_that_are_due(scale, divisor):
    """Rewards 4 and 6: deviations -1 and 1, standard deviation sqrt(2). The others wait."""
    made, groups = rollout(scale_rewards=scale), graded([[0.0, 0.0], [4.0, 6.0], []])
    assert made.finish(groups, [1]) == [1]
    assert groups[1].advantages == pytest.approx([-1 / divisor, 1 / divisor])
    assert groups[0].advantages == groups[2].advantages == made.scorer.collected == []
    made.finish(groups, [2])
    assert made.scorer.collected == [2] and groups[2].advantages == groups[1].advantages


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_advantages_over_the_batch_of_all_ranks(rank):
    """Rewards 0 2 | 4 6 here, and 1 1 | 3 3 5 on the others: all have mean 25/9. Each group keeps its own mean."""
    made = rollout(rank, 3, others=([[1.0, 1.0]], [[3.0, 3.0, 5.0]]), scale_rewards="batch")
    groups = graded([[0.0, 2.0], [4.0, 6.0]])
    assert list(made.finish(groups, [0])) == [0, 1]
    values = [0, 2, 4, 6, 1, 1, 3, 3, 5]
    divisor = math.sqrt(sum((value - 25 / 9) ** 2 for value in values) / 8) + 1e-4
    assert [group.advantages for group in groups] == [pytest.approx([-1 / divisor, 1 / divisor])] * 2


def test_which_micro_batch_is_next():
    """The first whose rewards are all there; simply the first where the order must not depend on time."""
    batches, groups = [[0, 1], [1, 2], [2, 3]], graded([[], [], [1.0, 2.0], []])
    made = rollout()
    made.scorer.outcomes = {1: 1}  # arrived; group 2 is graded already, 0 and 3 are pending
    assert made.first_ready(batches, groups) == 1
    assert made.first_ready([[0], [3], [2]], groups) == 2
    for keys in ({"full_determinism": True}, {"scale_rewards": "batch"}):
        assert rollout(**keys).first_ready(batches, groups) == 0
    made.scorer.slow = False
    assert made.first_ready(batches, groups) == 0

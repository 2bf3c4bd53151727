"""Packing: the worked example of the schema, the shift by one, the token budget, and what each loss type's weights sum
to."""

from types import SimpleNamespace

import pytest
import torch

from grpo.config.options import TrainConfig
from grpo.packing import Denominators, pack, plan, row_weights, step_weights, with_advantages
from grpo.schema import Completion, Group, Layout, Prompt


def group(prompt, *completions):
    return Group(
        Prompt(0, "", tuple(prompt), {}),
        [Completion(list(c), [-0.5] * len(c), [float("-inf")] * len(c), "stop") for c in completions],
    )


def test_the_worked_example_of_the_schema():
    batch = pack([group((5, 9, 6), (7, 2), (8, 8, 2))], [(0, 0), (0, 1)], [[0.5, 0.25]])
    assert batch.ids_T.tolist() == [5, 9, 6, 7, 8, 8]
    assert batch.positions_T.tolist() == [0, 1, 2, 3, 3, 4]
    assert batch.targets_C.tolist() == [7, 2, 8, 8, 2]
    assert batch.source_C.tolist() == [2, 3, 2, 4, 5]
    assert batch.row_C.tolist() == [0, 0, 1, 1, 1]
    assert batch.weight_C.tolist() == [0.5, 0.5, 0.25, 0.25, 0.25]
    assert batch.layout == Layout(((3, (1, 2)),)) and batch.layout.num_tokens == 6


def test_every_target_follows_its_source():
    """Trap 2: a completion's first token is predicted from the prompt's last, every other from the one before it."""
    groups = [group((1, 2, 3), (10, 11, 12), (20,)), group((4,), (30, 31))]
    batch = pack(groups, [(0, 0), (0, 1), (1, 0)], [[1, 1], [1]])
    sources = batch.ids_T[batch.source_C].tolist()
    assert list(zip(sources, batch.targets_C.tolist(), strict=True)) == [
        (3, 10),
        (10, 11),
        (11, 12),
        (3, 20),
        (4, 30),
        (30, 31),
    ]


@pytest.mark.parametrize("budget", [1, 6, 9, 12, 20, 100])
def test_plan_keeps_every_completion_once_and_within_the_budget(budget):
    groups = [
        group(range(4), range(3), range(5), range(2)),
        group(range(2), range(6), range(1)),
        group(range(5), range(2), range(2)),
    ]
    weights = [[1, 1, 0], [1, 1], [1, 1]]
    batches = plan(groups, weights, budget)
    assert [row for rows in batches for row in rows] == [
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
        (2, 0),
        (2, 1),
    ]  # (0, 2) has no weight
    for rows in batches:
        size = pack(groups, rows, weights).layout.num_tokens
        assert size <= budget or len(rows) == 1


def test_a_group_that_fits_is_not_split():
    """Sizes 2 + 2 and 4 + 3 + 3: the second group's first completion would fit beside the first group."""
    groups = [group(range(2), range(3)), group(range(4), range(4), range(4))]
    assert plan(groups, [[1], [1, 1]], 12) == [[(0, 0)], [(1, 0), (1, 1)]]


def test_groups_that_fit_exactly():
    """Sizes 1 + 1 and 2 + 3 + 3, in a budget for the second alone, for both, and for all but one token of it."""
    groups, weights = [group((1,), (2, 3)), group(range(2), range(4), range(4))], [[1], [1, 1]]
    assert plan(groups, weights, 8) == [[(0, 0)], [(1, 0), (1, 1)]]
    assert plan(groups, weights, 10) == [[(0, 0), (1, 0), (1, 1)]]
    assert plan(groups, weights, 7) == [[(0, 0), (1, 0)], [(1, 1)]]  # it must be split anyway, and fills the room


def test_a_completion_without_weight_takes_no_room():
    """Sizes 1 + 1 and 2 + 3 (+ 3 that do not count)."""
    groups = [group((1,), (2, 3)), group(range(2), range(4), range(4))]
    assert plan(groups, [[1], [1, 0]], 7) == [[(0, 0), (1, 0)]]
    assert plan(groups, [[0], [0, 0]], 7) == []


def test_a_prompt_that_is_repeated_takes_room_again():
    """Sizes 3 + 2 + 2 + 2 in a budget of 7: the last completion needs the prompt again, 5 tokens of which 2 are left,
    too few for the 1 + 2 of the next group."""
    groups = [group(range(3), range(3), range(3), range(3)), group((1,), range(3))]
    assert plan(groups, [[1, 1, 1], [1]], 7) == [[(0, 0), (0, 1)], [(0, 2)], [(1, 0)]]
    assert plan(groups, [[1, 1, 1], [1]], 8) == [[(0, 0), (0, 1)], [(0, 2), (1, 0)]]


# Five completions in micro-batches of two, the second of them truncated.
STEP = [group((1,), range(3), range(5)), group((1,), range(1), range(7), range(4))]
STEP[0].completions[1].finish_reason = "length"
ALONE = SimpleNamespace(sum=list)


def weights_of_step(loss_type, masked, ranks=ALONE, groups=STEP):
    config = TrainConfig(
        loss_type=loss_type,
        mask_truncated_completions=masked,
        per_device_train_batch_size=2,
        max_completion_length=10,
    )
    return [weight for group in step_weights(groups, config, ranks) for weight in group]


@pytest.mark.parametrize(
    ("loss_type", "divisors"),
    [
        ("grpo", [5 * 3, 5 * 5, 5 * 1, 5 * 7, 5 * 4]),
        ("dapo", [20] * 5),
        ("dr_grpo", [5 * 10] * 5),
        ("bnpo", [3 * 8, 3 * 8, 3 * 8, 3 * 8, 3 * 4]),  # three micro-batches, of 3 + 5, 1 + 7 and 4 tokens
    ],
)
def test_step_weights(loss_type, divisors):
    assert weights_of_step(loss_type, False) == pytest.approx([1 / divisor for divisor in divisors])


# 4 completions with 15 tokens count; a second rank has 1 more with 5 tokens, in 1 more micro-batch.
MASKED = [
    ("grpo", 4, [3, 1, 7, 4]),
    ("dapo", 15, [1, 1, 1, 1]),
    ("dr_grpo", 4, [10, 10, 10, 10]),
    ("bnpo", 3, [3, 8, 8, 4]),
]


@pytest.mark.parametrize(("loss_type", "total", "divisors"), MASKED)
def test_step_weights_without_the_truncated(loss_type, total, divisors):
    """It leaves the denominators too: of 5 completions 4 count, of 20 tokens 15."""
    first, *others = (1 / (total * divisor) for divisor in divisors)
    assert weights_of_step(loss_type, True) == pytest.approx([first, 0.0, *others])


@pytest.mark.parametrize(("loss_type", "total", "divisors"), MASKED)
def test_step_weights_share_denominators_over_ranks(loss_type, total, divisors):
    ranks = SimpleNamespace(sum=lambda values: [mine + other for mine, other in zip(values, (1, 5, 1), strict=True)])
    total += 5 if loss_type == "dapo" else 1
    first, *others = (1 / (total * divisor) for divisor in divisors)
    assert weights_of_step(loss_type, True, ranks) == pytest.approx([first, 0.0, *others])


@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "dr_grpo", "bnpo"])
def test_a_step_of_which_nothing_counts_has_no_weights(loss_type):
    """Truncated, or without tokens."""
    groups = [group((1,), range(3), ())]
    groups[0].completions[0].finish_reason = "length"
    assert weights_of_step(loss_type, True, groups=groups) == [0.0, 0.0]


def test_weights_sum_to_what_they_average_over():
    """With weights that sum to 1 the loss is a mean; dr_grpo's sum is the share of the longest possible length that was
    used."""
    groups = [group((1,), range(3), range(5)), group((1,), range(1), range(7))]
    total = Denominators(4, 16)

    def sums(loss_type):
        weights = row_weights(groups, loss_type, total, 10, 2, 2, False)
        return sum(
            w * len(c.ids)
            for g, ws in zip(groups, weights, strict=True)
            for c, w in zip(g.completions, ws, strict=True)
        )

    assert sums("grpo") == pytest.approx(1) and sums("dapo") == pytest.approx(1) and sums("bnpo") == pytest.approx(1)
    assert sums("dr_grpo") == pytest.approx(16 / 40)


def test_bnpo_weighs_by_its_micro_batch():
    groups = [group((1,), range(3), range(5)), group((1,), range(1), range(7))]
    assert row_weights(groups, "bnpo", Denominators(4, 16), 10, 2, 2, False) == [[1 / 16, 1 / 16], [1 / 16, 1 / 16]]
    groups = [group((1,), range(3), range(1)), group((1,), range(1), range(7))]
    assert row_weights(groups, "bnpo", Denominators(4, 12), 10, 2, 2, False) == [[1 / 8, 1 / 8], [1 / 16, 1 / 16]]


def test_pack_moves_to_the_device_it_is_given():
    assert pack([group((1, 2), (3,))], [(0, 0)], [[1.0]], "meta").ids_T.device == torch.device("meta")


def test_each_token_has_the_advantage_of_its_completion():
    """Also where a micro-batch begins within a group."""
    groups = [group((1,), range(2), range(3)), group((1,), range(1), range(2))]
    groups[0].advantages, groups[1].advantages = [1.0, 2.0], [3.0, 4.0]
    batch = with_advantages(pack(groups, [(0, 1), (1, 0), (1, 1)], [[1, 1], [1, 1]]), groups)
    assert batch.advantage_C.tolist() == [2.0, 2.0, 2.0, 3.0, 4.0, 4.0] and batch.rows == ((0, 1), (1, 0), (1, 1))


def test_what_was_recorded_while_sampling_stays_with_its_token():
    one = group((1,), range(2), range(1))
    one.completions[0].logps, one.completions[0].cuts = [-0.25, -0.5], [-4.0, float("-inf")]
    one.completions[1].logps, one.completions[1].cuts = [-1.0], [-2.0]
    batch = pack([one], [(0, 0), (0, 1)], [[1, 1]])
    assert batch.sampler_logp_C.tolist() == [-0.25, -0.5, -1.0]
    assert batch.cut_C.tolist() == [-4.0, float("-inf"), -2.0]

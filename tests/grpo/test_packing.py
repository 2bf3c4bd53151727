"""Packing: the worked example of the schema, the shift by one, the token budget, and what each loss type's weights sum
to."""

import pytest
import torch

from grpo.packing import Denominators, pack, plan, row_weights
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
    groups = [group(range(4), range(4)), group(range(4), range(4), range(4))]
    assert plan(groups, [[1], [1, 1]], 12) == [[(0, 0)], [(1, 0), (1, 1)]]


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

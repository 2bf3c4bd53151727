"""Packing: the worked example of the schema, the shift by one, the token budget, and what each loss type's weights sum
to."""

from math import inf
from types import SimpleNamespace

import pytest
from making import ALONE, fill, make_group, of_each, whole

from grpo.algorithm.loss_weights import set_loss_weights
from grpo.algorithm.packing import pack_batch, split_into_micro_batches
from grpo.algorithm.schema import Layout
from grpo.config.options import TrainConfig


def test_the_worked_example_of_the_schema():
    batch = pack_batch(whole(make_group((5, 9, 6), (7, 2), (8, 8, 2), loss_weight=[0.5, 0.25], advantage=[1.0, -1.0])))
    assert batch.ids_T.tolist() == [5, 9, 6, 7, 8, 8]
    assert batch.positions_T.tolist() == [0, 1, 2, 3, 3, 4]
    assert batch.targets_C.tolist() == [7, 2, 8, 8, 2]
    assert batch.source_C.tolist() == [2, 3, 2, 4, 5]
    assert batch.completion_C.tolist() == [0, 0, 1, 1, 1]
    assert batch.weight_C.tolist() == [0.5, 0.5, 0.25, 0.25, 0.25]
    assert batch.advantage_C.tolist() == [1.0, 1.0, -1.0, -1.0, -1.0]
    assert batch.layout == Layout.of((3, (1, 2))) and batch.layout.num_tokens == 6


SPLITS = [  # groups a, b: tokens of the prompt: of its completions, in brackets without weight; budget; micro-batches
    # sizes 2 + 2 and 4 + 3 + 3: a group that fits is not split, though its first completion would fit beside the first
    ("2: 3 | 4: 4 4", 12, "a1 | b1 b2"),
    # sizes 1 + 1 and 2 + 3 + 3, in a budget for the second alone, for both, and for all but one token of it
    ("1: 2 | 2: 4 4", 8, "a1 | b1 b2"),
    ("1: 2 | 2: 4 4", 10, "a1 b1 b2"),
    ("1: 2 | 2: 4 4", 7, "a1 b1 | b2"),  # it must be split, and fills the room
    # a completion without weight takes no room
    ("1: 2 | 2: 4 (4)", 7, "a1 b1"),
    ("1: (2) | 2: (4) (4)", 7, ""),
    # a prompt that is repeated takes room again: 5 tokens, of which 2 are left, too few for the 1 + 2 of the next group
    ("3: 3 3 3 | 1: 3", 7, "a1 a2 | a3 | b1"),
    ("3: 3 3 3 | 1: 3", 8, "a1 a2 | a3 b1"),
]


@pytest.mark.parametrize(("text", "budget", "batches"), SPLITS)
def test_where_a_step_is_split(text, budget, batches):
    """All but the last token of a completion are packed."""
    groups, names = [], {}
    for letter, group in zip("ab", text.split(" | "), strict=True):
        prompt, *lengths = group.replace(":", "").split()
        ids = [range(int(length.strip("()"))) for length in (prompt, *lengths)]
        groups.append(make_group(*ids, loss_weight=[float("(" not in length) for length in lengths]))
        names |= {id(one): f"{letter}{place}" for place, one in enumerate(groups[-1].completions, 1)}
    found = split_into_micro_batches(groups, budget)
    assert (
        " | ".join(" ".join(names[id(one)] for part in parts for one in part.completions) for parts in found) == batches
    )
    for parts in found:
        assert all(one in part.group.completions for part in parts for one in part.completions)
        assert len({id(part.group) for part in parts}) == len(parts)  # a group's prompt is there once


# Five completions in micro-batches of two, the second of them truncated.
STEP = [
    make_group((1,), range(3), range(5), finish_reason=["stop", "length"]),
    make_group((1,), range(1), range(7), range(4)),
]


def weights_of_step(loss_type, masked, ranks=ALONE, groups=STEP):
    config = TrainConfig(
        loss_type=loss_type,
        mask_truncated_completions=masked,
        per_device_train_batch_size=2,
        max_completion_length=10,
    )
    for group in groups:
        fill(group, loss_weight=[9.0] * len(group.completions))  # what was there before does not matter
    set_loss_weights(groups, config, ranks)
    return [weight for group in groups for weight in of_each(group, "loss_weight")]


OTHER_RANK = SimpleNamespace(sum=lambda values: [mine + other for mine, other in zip(values, (1, 5, 1), strict=True)])
WEIGHTS = [  # loss type, whether the truncated are masked, ranks, the divisor of each completion's weight
    # a masked completion leaves the denominators too: 4 completions with 15 tokens count
    ("grpo", True, ALONE, [4 * 3, inf, 4 * 1, 4 * 7, 4 * 4]),
    ("dapo", True, ALONE, [15, inf, 15, 15, 15]),
    ("dr_grpo", True, ALONE, [4 * 10, inf, 4 * 10, 4 * 10, 4 * 10]),
    ("bnpo", True, ALONE, [3 * 3, inf, 3 * 8, 3 * 8, 3 * 4]),
    # a second rank has 1 completion with 5 tokens, in 1 more micro-batch
    ("grpo", True, OTHER_RANK, [5 * 3, inf, 5 * 1, 5 * 7, 5 * 4]),
    ("dapo", True, OTHER_RANK, [20, inf, 20, 20, 20]),
    ("dr_grpo", True, OTHER_RANK, [5 * 10, inf, 5 * 10, 5 * 10, 5 * 10]),
    ("bnpo", True, OTHER_RANK, [4 * 3, inf, 4 * 8, 4 * 8, 4 * 4]),
]


@pytest.mark.parametrize(("loss_type", "masked", "ranks", "divisors"), WEIGHTS)
def test_loss_weights(loss_type, masked, ranks, divisors):
    assert weights_of_step(loss_type, masked, ranks) == pytest.approx([1 / divisor for divisor in divisors])


@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "dr_grpo", "bnpo"])
def test_a_step_of_which_nothing_counts_has_no_weights(loss_type):
    """Truncated, or without tokens."""
    groups = [make_group((1,), range(3), (), finish_reason=["length", "stop"])]
    assert weights_of_step(loss_type, True, groups=groups) == [0.0, 0.0]


def test_bnpo_counts_a_micro_batch_of_which_nothing_is_trained():
    """Of two, the second is all truncated: the mean over both has its 0."""
    reasons = {"finish_reason": ["stop", "stop"]}, {"finish_reason": ["length", "length"]}
    groups = [make_group((1,), range(3), range(5), **keys) for keys in reasons]
    assert weights_of_step("bnpo", True, groups=groups) == [1 / 16, 1 / 16, 0, 0]


def test_an_advantage_that_is_not_known_is_refused():
    """It must not pass for 0."""
    with pytest.raises((AssertionError, TypeError, RuntimeError)):
        pack_batch(whole(make_group((1,), range(2), range(3), advantage=[1.0, None])))


def test_what_was_recorded_while_sampling_stays_with_its_token():
    recorded = {"logps": [[-0.25, -0.5], [-1.0]], "cuts": [[-4.0, float("-inf")], [-2.0]]}
    batch = pack_batch(whole(make_group((1,), range(2), range(1), advantage=[0.0, 0.0], **recorded)))
    assert batch.sampler_logp_C.tolist() == [-0.25, -0.5, -1.0]
    assert batch.cut_C.tolist() == [-4.0, float("-inf"), -2.0]
    assert pack_batch(whole(make_group((1,), range(2), advantage=[0.0]))).cut_C is None  # nothing was cut

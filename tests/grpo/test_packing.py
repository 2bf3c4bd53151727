"""Packing: the worked example of the schema, the shift by one, the token budget, and what each loss type's weights sum
to."""

from math import inf, prod
from types import SimpleNamespace

import pytest
from making import ALONE, cases, fill, make_group, of_each, whole

from grpo.algorithm.loss_weights import set_loss_weights
from grpo.algorithm.packing import pack_batch, split_into_micro_batches
from grpo.algorithm.schema import Layout
from grpo.config.options import TrainConfig


def test_the_worked_example_of_the_schema():
    """What was recorded while sampling stays with its token."""
    recorded = {"logps": [[-0.25, -0.5], [-1.0, -1.25, -1.5]], "cuts": [[-4.0, -inf], [-2.0] * 3]}
    group = make_group((5, 9, 6), (7, 2), (8, 8, 2), loss_weight=[0.5, 0.25], advantage=[1.0, -1.0], **recorded)
    batch = pack_batch(whole(group))
    for name, numbers in cases(__file__, "worked example"):
        assert getattr(batch, name).tolist() == list(map(float, numbers.split())), name
    assert batch.layout == Layout.of((3, (1, 2))) and batch.layout.num_tokens == 6
    assert pack_batch(whole(make_group((1,), range(2), advantage=[0.0]))).cut_C is None  # nothing was cut


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


def weights_of_step(loss_type, ranks=ALONE, groups=STEP):
    config = TrainConfig(
        loss_type=loss_type,
        mask_truncated_completions=True,
        per_device_train_batch_size=2,
        max_completion_length=10,
    )
    for group in groups:
        fill(group, loss_weight=[9.0] * len(group.completions))  # what was there before does not matter
    set_loss_weights(groups, config, ranks)
    return [weight for group in groups for weight in of_each(group, "loss_weight")]


OTHER_RANK = SimpleNamespace(sum=lambda values: [mine + other for mine, other in zip(values, (1, 5, 1), strict=True)])


@pytest.mark.parametrize(("loss_type", "ranks", "divisors"), cases(__file__, "loss weights"))
def test_loss_weights(loss_type, ranks, divisors):
    wanted = [1 / prod(map(float, divisor.split("*"))) for divisor in divisors.split()]
    assert weights_of_step(loss_type, OTHER_RANK if ranks == "two" else ALONE) == pytest.approx(wanted)


@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "dr_grpo", "bnpo"])
def test_a_step_of_which_nothing_counts_has_no_weights(loss_type):
    """Truncated, or without tokens."""
    groups = [make_group((1,), range(3), (), finish_reason=["length", "stop"])]
    assert weights_of_step(loss_type, groups=groups) == [0.0, 0.0]


def test_bnpo_counts_a_micro_batch_of_which_nothing_is_trained():
    """Of two, the second is all truncated: the mean over both has its 0."""
    reasons = {"finish_reason": ["stop", "stop"]}, {"finish_reason": ["length", "length"]}
    groups = [make_group((1,), range(3), range(5), **keys) for keys in reasons]
    assert weights_of_step("bnpo", groups=groups) == [1 / 16, 1 / 16, 0, 0]


def test_an_advantage_that_is_not_known_is_refused():
    """It must not pass for 0."""
    with pytest.raises((AssertionError, TypeError, RuntimeError)):
        pack_batch(whole(make_group((1,), range(2), range(3), advantage=[1.0, None])))

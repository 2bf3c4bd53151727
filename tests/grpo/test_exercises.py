"""The answers to those exercises of grpo/algorithm/MATH.md that no other test gives."""

import itertools
from fractions import Fraction

import pytest
import torch
from making import ALONE, make_group, of_each

from grpo.algorithm.loss import k3
from grpo.algorithm.loss_weights import set_loss_weights
from grpo.config.options import TrainConfig
from grpo.engine.device.draw import inverse_cdf

REWARDS = torch.tensor([1.0, 0.0, 5.0], dtype=torch.float64)  # of three possible answers
LOGITS = torch.tensor([0.3, -0.7, 0.1], dtype=torch.float64)


def score_function(logits):
    """Row i: the gradient of log π(i) with respect to the logits, onehot - softmax."""
    return torch.eye(len(logits), dtype=logits.dtype) - logits.softmax(0)


def test_a_baseline_leaves_the_expected_gradient():
    p, gradients = LOGITS.softmax(0), score_function(LOGITS)
    wanted = (p * REWARDS) @ gradients
    torch.testing.assert_close((p * (REWARDS - 17.0)) @ gradients, wanted)
    G, expected = 3, torch.zeros(3, dtype=torch.float64)
    for group in itertools.product(range(3), repeat=G):  # every group of three answers, with its probability
        members = list(group)
        advantages = REWARDS[members] - REWARDS[members].mean()
        expected += p[members].prod() * (advantages @ gradients[members]) / G
    torch.testing.assert_close(expected, wanted * (G - 1) / G)


def test_k3_is_unbiased_but_its_gradient_is_not():
    reference = torch.tensor([-0.2, 0.9, 0.0], dtype=torch.float64).log_softmax(0)
    logits = LOGITS.clone().requires_grad_()
    logp = logits.log_softmax(0)
    divergence = (logp.exp() * (logp - reference)).sum()
    (wanted,) = torch.autograd.grad(divergence, logits, retain_graph=True)
    p = logp.detach().exp()
    estimate = k3(reference - logp)
    torch.testing.assert_close((p * estimate).sum(), divergence)
    (plain,) = torch.autograd.grad((p * estimate).sum(), logits, retain_graph=True)
    assert (plain - wanted).abs().max() > 0.05
    ratio = (logp - logp.detach()).exp()
    (corrected,) = torch.autograd.grad((p * ratio * estimate).sum(), logits)
    torch.testing.assert_close(corrected, wanted)


def test_what_a_long_wrong_answer_counts():
    """100 tokens beside three answers of 10: all tokens of the step are 130."""

    def weights(loss_type):
        config = TrainConfig(loss_type=loss_type, max_completion_length=200, per_device_train_batch_size=4)
        group = make_group([1], *([5] * n for n in (100, 10, 10, 10)))
        set_loss_weights([group], config, ALONE)
        return of_each(group, "loss_weight")[:2]

    assert weights("grpo") == pytest.approx([1 / 400, 1 / 40])  # each answer counts the same, its tokens little
    assert weights("dapo") == pytest.approx([1 / 130] * 2)  # each token counts the same
    assert weights("dr_grpo") == pytest.approx([1 / 800] * 2)


def test_inverse_cdf_gives_each_token_its_share():
    uniforms = torch.arange(0.05, 1.0, 0.1, dtype=torch.float64)
    weights = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64).expand(10, -1)
    ids, total = inverse_cdf(weights, uniforms)
    assert ids.tolist() == [0] * 5 + [1] * 3 + [2] * 2
    assert total.tolist() == pytest.approx([1.0] * 10)


def test_what_bf16_keeps_of_a_small_update():
    """Eq. 15 with an update of 2^-10 of the base term, between 1 and 2. On the left the sum rounds back to the base; on
    the right there is one rounding, which keeps the update on average (of a layer: kernels/test_small_updates.py)."""
    base = torch.linspace(1, 2, 100_000, dtype=torch.float64)
    update = base / 2**10
    left, right = base.bfloat16() + update.bfloat16(), (base + update).bfloat16()
    assert torch.equal(left, base.bfloat16())
    assert float((right.double() - base).mean() / update.mean()) == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("case", ["0 1 2/3", "1 1 1/2", "1/2 1 3/5", "1/2 0 1/5"])
def test_when_answering_pays(case):
    """A case: what the facts of a wrong answer earn, what declining earns, and the least chance of being right."""
    fact, declining, threshold = map(Fraction, case.split())

    def value_of_answering(p):
        return 2 * p + (-1 + fact) * (1 - p)

    assert value_of_answering(threshold) == declining
    assert value_of_answering(threshold - Fraction(1, 100)) < declining

"""The loss: hand-worked numbers, a slow twin, finite differences, identities, TRL's own numbers, and the traps of real
trainers."""

import math
import random
from dataclasses import replace

import pytest
import torch
from making import ALONE, fill, loss_batch, make_group, whole

from grpo.algorithm.loss import k3, policy_loss
from grpo.algorithm.loss_weights import set_loss_weights
from grpo.algorithm.packing import pack_batch, split_into_micro_batches
from grpo.algorithm.schema import Sentence, completions_of
from grpo.config.options import TrainConfig

LENGTHS = [[3, 5, 1, 2], [4, 4, 2, 7]]
LOSSES = ["grpo", "dapo", "dr_grpo", "bnpo"]
OPTIONS = [
    {},
    {"epsilon_high": 0.28},
    {"delta": 1.5},
    {"beta": 0.1},
    {"beta": 0.1, "use_bias_correction_kl": True},
    {"importance_sampling_level": "sequence"},
    {"importance_sampling_level": "sequence", "beta": 0.04},
    {"importance_sampling_level": "sequence", "beta": 0.1, "use_bias_correction_kl": True},
]


EACH_LOSS = pytest.mark.parametrize("loss_type", LOSSES)
CREDIT = pytest.mark.parametrize("judged", [False, True], ids=["completion", "sentence"])


# --- the slow twins ------------------------------------------------------------------------------------------------


def slow_advantages(advantage, verdicts):
    """Give each token of a completion its advantage. Twin of schema.Completion.token_advantages.

    verdicts: whether the sentence of each token is true, or None. This is FSPO's own wording of the rule: an advantage
    is kept if its sign agrees with the verdict, and otherwise changes its sign.
    """
    agrees = [verdict is None or (advantage > 0) == verdict for verdict in verdicts]
    return [advantage if is_kept else -advantage for is_kept in agrees]  # Eq. 13


def slow_loss(logp, old, ref, advantages, counts, config, rows_per_micro_batch):
    """Compute the loss of a step from plain floats, token by token.

    Completion i has the log-probs logp[i], old[i], ref[i] and the advantages[i] of its tokens. It is left out of the
    loss and of every denominator unless counts[i]. Micro-batches of rows_per_micro_batch completions matter only for
    bnpo. Twin of loss_weights.set_loss_weights and loss.policy_loss.
    """
    epsilon_high = config.epsilon_high or config.epsilon
    counted = [i for i, is_counted in enumerate(counts) if is_counted]
    total = 0.0
    for i in counted:
        num_tokens = len(logp[i])
        log_ratios = [new - before for new, before in zip(logp[i], old[i], strict=True)]  # Eq. 4
        if config.importance_sampling_level == "sequence":
            log_ratios = [sum(log_ratios) / num_tokens] * num_tokens  # Eq. 9
        completion_sum = 0.0
        for t in range(num_tokens):
            advantage = advantages[i][t]
            ratio = math.exp(log_ratios[t])
            bounded = ratio if config.delta is None else min(ratio, config.delta)  # Eq. 10
            clipped = min(max(ratio, 1 - config.epsilon), 1 + epsilon_high)
            surrogate = min(bounded * advantage, clipped * advantage)  # Eq. 5
            d = ref[i][t] - logp[i][t]
            kl = math.exp(d) - d - 1  # Eq. 6
            if config.use_bias_correction_kl:
                kl *= ratio
            completion_sum += config.beta * kl - surrogate  # Eq. 7
        micro_batch = [j for j in counted if j // rows_per_micro_batch == i // rows_per_micro_batch]
        num_micro_batches = math.ceil(len(counts) / rows_per_micro_batch)
        denominators = {  # Eq. 8
            "grpo": len(counted) * num_tokens,
            "dapo": sum(len(logp[j]) for j in counted),
            "dr_grpo": len(counted) * config.max_completion_length,
            "bnpo": num_micro_batches * sum(len(logp[j]) for j in micro_batch),
        }
        total += completion_sum / denominators[config.loss_type]
    return total


def make_groups(lengths=LENGTHS, judged=False):
    """judged: the first half of each completion is a true sentence, and the token after it a false one."""
    rng = random.Random(0)
    groups = []
    for g, group in enumerate(lengths):
        made = make_group(range(1, 4 + g), *([rng.randrange(50) for _ in range(n)] for n in group))
        groups.append(fill(made, advantage=[rng.gauss(0, 1) for _ in group]))
        if judged:
            halves = [n // 2 for n in group]
            fill(made, sentences=[[Sentence("", 0, n, True), Sentence("", n, n + 1, False)] for n in halves])
    return groups


def verdicts(num_tokens, judged):
    """The verdict on the sentence of each token, as make_groups makes them."""
    half = num_tokens // 2
    return [True] * half + [False] + [None] * (num_tokens - half - 1) if judged else [None] * num_tokens


def weighted(groups, loss_type, **keys):
    """The configuration; the groups have their loss weights by it."""
    keys = {"max_completion_length": 16, "per_device_train_batch_size": 4} | keys
    config = TrainConfig(loss_type=loss_type, **keys)
    set_loss_weights(groups, config, ALONE)
    return config


def tables(groups):
    """Log-probs of each completion under the new, the old and the reference policy."""
    rng = random.Random(1)
    return [[[rng.uniform(-3, -0.1) for _ in c.ids] for c in completions_of(groups)] for _ in range(3)]


def trainable(rows):
    return [torch.tensor(row, dtype=torch.float64, requires_grad=True) for row in rows]


def fast_loss(groups, logps, config, parts=None):
    """The loss through pack_batch and policy_loss; logps are lists per completion, or tensors."""
    parts = parts or whole(*groups)
    order = [completions_of(groups).index(completion) for completion in completions_of(parts)]
    new, old, ref = (torch.cat([torch.as_tensor(table[row], dtype=torch.float64) for row in order]) for table in logps)
    batch = replace(pack_batch(parts, dtype=torch.float64), old_logp_C=old, ref_logp_C=ref)
    return policy_loss(batch, new, config)


def test_hand_worked_grpo():
    """Two completions of 1 and 2 tokens, ratios 1.5 (clipped to 1.2, A = 1) and 0.5, 1 (A = -1): the first contributes
    -1.2 / (2 * 1), the second -(min(-0.5, -0.8) - 1) / (2 * 2) = 1.8 / 4. Loss = -0.6 + 0.45 = -0.15."""
    log = torch.log(torch.tensor([1.5, 0.5, 1.0]))
    batch = loss_batch([0.5, 0.25, 0.25], [1.0, -1.0, -1.0], old=[0.0] * 3, rows=[0, 1, 1])
    loss, stats = policy_loss(batch, log, TrainConfig())
    assert float(loss) == pytest.approx(-0.15, abs=1e-6)
    assert stats["clipped_high"].tolist() == [True, False, False]
    assert stats["clipped_low"].tolist() == [False, True, False]


@EACH_LOSS
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("truncated", [(), (1, 7)], ids=["whole", "truncated"])
@CREDIT
def test_equals_the_slow_twin(loss_type, options, truncated, judged):
    groups = make_groups(judged=judged)
    completions, logps = completions_of(groups), tables(groups)
    for place in truncated:
        completions[place].finish_reason = "length"
    config = weighted(groups, loss_type, mask_truncated_completions=True, **options)
    loss, _ = fast_loss(groups, logps, config)
    wanted = slow_loss(
        *logps,
        [slow_advantages(c.advantage, verdicts(len(c.ids), judged)) for c in completions],
        [place not in truncated for place in range(len(completions))],
        config,
        rows_per_micro_batch=4,
    )
    assert float(loss) == pytest.approx(wanted, rel=1e-6)  # weights and advantages are float32


@EACH_LOSS
@pytest.mark.parametrize("options", OPTIONS[3:], ids=str)
@pytest.mark.parametrize("delta", [None, 2.0])
@CREDIT
def test_gradient_by_finite_differences(loss_type, options, delta, judged):
    """Corrected KL terms have the same value without the ratio's gradient, and are wrong here."""
    groups = make_groups([[2, 3], [1, 2]], judged=judged)
    new, old, ref = tables(groups)
    rows = trainable(new)
    config = weighted(groups, loss_type, epsilon_high=0.28, delta=delta, **options)
    assert torch.autograd.gradcheck(lambda *rows: fast_loss(groups, (rows, old, ref), config)[0], rows)


def test_what_a_sequences_ratio_is():
    """GSPO. Log-ratios 0.3 and −0.1 in the first completion, mean 0.1; 0.2 in the second. Nothing is clipped: each
    token's gradient is −w A r / n, where the sum over the tokens of a row gives back n."""
    new = torch.tensor([-1.0, -1.0, -1.0], dtype=torch.float64, requires_grad=True)
    batch = loss_batch([0.25, 0.25, 0.5], [2.0, 2.0, -1.0], old=[-1.3, -0.9, -1.2], rows=[0, 0, 1])
    loss, stats = policy_loss(batch, new, TrainConfig(epsilon=0.3, importance_sampling_level="sequence"))
    first, second = math.exp(0.1), math.exp(0.2)
    assert stats["ratio"].tolist() == pytest.approx([first, first, second])
    assert loss.item() == pytest.approx(-0.5 * first * 2 + 0.5 * second)
    loss.backward()
    assert new.grad.tolist() == pytest.approx([-0.25 * 2 * first, -0.25 * 2 * first, 0.5 * second])


@EACH_LOSS
@pytest.mark.parametrize("level", ["token", "sequence"])
@CREDIT
def test_any_split_into_micro_batches_gives_the_same_gradient(loss_type, level, judged):
    """Denominators per micro-batch. Here they are the step's, so the number and order of micro-batches is of no
    matter."""
    groups = make_groups(judged=judged)
    logps = tables(groups)
    config, results = weighted(groups, loss_type, beta=0.1, importance_sampling_level=level), []
    for budget in (1, 9, 14, 25, 1000):
        new = trainable(logps[0])
        for parts in reversed(split_into_micro_batches(groups, budget)):
            fast_loss(groups, (new, *logps[1:]), config, parts)[0].backward()
        results.append(torch.cat([row.grad for row in new]))
    assert all((r - results[0]).abs().max() < 1e-12 for r in results)
    assert results[0].abs().max() > 1e-3


def test_on_policy_identity():
    """At θ = θ_old with β = 0 the grpo loss is -mean Â, and its gradient -Â / (N n_i) for each token."""
    groups = make_groups()
    new = trainable(tables(groups)[0])
    old = [row.detach() for row in new]
    loss, _ = fast_loss(groups, (new, old, old), weighted(groups, "grpo"))
    advantages = [completion.advantage for completion in completions_of(groups)]
    assert loss.item() == pytest.approx(-sum(advantages) / len(advantages), rel=1e-6)
    loss.backward()
    for row, advantage in zip(new, advantages, strict=True):
        assert row.grad.tolist() == pytest.approx([-advantage / (len(advantages) * len(row))] * len(row), rel=1e-5)


@pytest.mark.parametrize(
    "log_ratio, advantage, ratio",
    [(100, 1.0, 1.3), (100, -1.0, math.exp(20)), (-100, 1.0, math.exp(-20)), (-100, -1.0, 0.8)],
)
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_an_enormous_ratio_leaves_loss_and_gradient_finite(log_ratio, advantage, ratio, level):
    """E^100 is infinite in float32. The ratio is held within e^±20; where it is clipped the loss does not
    depend on it."""
    new = torch.tensor([log_ratio - 1.0], requires_grad=True)
    batch = loss_batch([0.5], [advantage], old=[-1.0])
    loss, _ = policy_loss(batch, new, TrainConfig(epsilon_high=0.3, importance_sampling_level=level))
    loss.backward()
    assert loss.item() == pytest.approx(-0.5 * advantage * ratio, rel=1e-5)
    assert new.grad.tolist() == [0.0]


def test_what_counts_as_clipped():
    """Only where the clip changes the objective: the ratio too high for A > 0, too low for A < 0, and never for A = 0.
    The two sides have widths of their own."""
    ratios = [1.2, 1.35, 1.35, 1.35, 0.85, 0.85, 0.85, 0.95]
    advantages = [1.0, 1.0, 0.0, -1.0, -1.0, 0.0, 1.0, -1.0]
    log = torch.tensor(ratios).log()
    batch = loss_batch([0.1] * 8, advantages, old=[0.0] * 8, ref=log + 0.5)
    _, stats = policy_loss(batch, log, TrainConfig(epsilon=0.1, epsilon_high=0.3, beta=0.1))
    assert stats["clipped_high"].nonzero().flatten().tolist() == [1]
    assert stats["clipped_low"].nonzero().flatten().tolist() == [4]
    assert stats["ratio"].tolist() == pytest.approx(ratios)
    assert stats["kl"].tolist() == pytest.approx([math.exp(0.5) - 1.5] * 8, rel=1e-5)


@pytest.mark.parametrize("distance, clamped", [(1e4, 20), (-30, -20), (0.7, 0.7), (-0.7, -0.7), (0, 0)])
def test_k3_by_hand(distance, clamped):
    """Exp(1e4) would make the whole gradient NaN."""
    d = torch.tensor(float(distance), dtype=torch.float64, requires_grad=True)
    k3(d).backward()
    assert k3(d).item() == pytest.approx(math.exp(clamped) - clamped - 1) and d.grad.isfinite()


def test_sampler_correction_weighs_the_policy_gradient_alone():
    """Eq. 11: min(π_train / π_sampler, w_max) multiplies the surrogate, not the KL term, and carries no gradient."""
    new = torch.tensor([-1.0, -1.0, -4.0], requires_grad=True)
    sampler = [-1.0 - 0.5, -1.0 - 3.0, -4.0 + 3.0]  # ratios e^0.5; e^3, capped at 2; e^-3, which has no floor
    batch = loss_batch([0.5, 0.5, 0.5], [1.0, 1.0, 1.0], [-1.0, -1.0, -4.0], [-1.5, -1.5, -4.5], sampler)
    keys = {"sampler_importance_sampling_correction": True, "sampler_importance_sampling_cap": 2.0}
    loss, stats = policy_loss(batch, new, TrainConfig(beta=0.1, **keys))
    wanted = -0.5 * (math.exp(0.5) + 2.0 + math.exp(-3)) + 0.1 * 0.5 * float(stats["kl"].sum())
    assert loss.item() == pytest.approx(wanted, rel=1e-6)


TRL = {  # what GRPOTrainer._compute_loss of TRL 1.16 made of these log-probs, with the first seven OPTIONS
    "grpo": [1.5212989, 1.5159892, 0.6272681, 1.7247949, 1.7522334, 0.9394155, 1.0208139],
    "dapo": [1.8469649, 1.8402578, 0.8625705, 1.9694424, 2.0248893, 1.2532055, 1.3021965],
    "dr_grpo": [0.3655451, 0.3642177, 0.1707171, 0.3897855, 0.4007593, 0.2480303, 0.2577264],
    "bnpo": [1.8469649, 1.8402578, 0.8625705, 1.9694424, 2.0248893, 1.2532055, 1.3021965],
}


@EACH_LOSS
def test_equals_trl(loss_type):
    groups = make_groups([[3, 5, 1, 2, 4, 4]])
    for wanted, options in zip(TRL[loss_type], OPTIONS, strict=False):
        config = weighted(groups, loss_type, per_device_train_batch_size=6, **options)
        assert float(fast_loss(groups, tables(groups), config)[0]) == pytest.approx(wanted, abs=1e-6), options

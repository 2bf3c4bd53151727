"""The objective: a pure function of tensors, one line per equation (MATH.md).

Counterpart of Eq. 4 to 7 in minimal.py, for packed tokens of any weight. The loss is a weighted sum; grpo, dapo,
dr_grpo and bnpo differ only in `weight_C` (loss_weights.py). Without a KL term (`beta: 0`) there is no reference. Any
other line `if settings. ...` is a variant of GRPO; variants.py lists them.
"""

import torch
from torch import Tensor

from grpo.algorithm import variants
from grpo.algorithm.interfaces import Settings
from grpo.algorithm.schema import PackedBatch

LossAndStats = tuple[Tensor, dict[str, Tensor]]  # of a micro-batch, a scalar; and statistics of its tokens, [C]
MAX_LOG_RATIO = 20.0  # nats; a larger one means no more than this, and its exp may overflow


def policy_loss(batch: PackedBatch, logp_C: Tensor, settings: Settings) -> LossAndStats:
    """Compute the loss of a micro-batch, a scalar to minimise.

    logp_C: log-probs under the policy being trained, in nats, with gradient. `batch` holds those under the policy that
    sampled (old_logp_C; None: this is that policy) and under the frozen reference (ref_logp_C, needed if beta is not
    0), the advantages, and the weights.

    Also returns, detached, for every token: ratio, kl, clipped_low, clipped_high.
    """
    advantage_C = batch.advantage_C
    old_logp_C = logp_C.detach() if batch.old_logp_C is None else batch.old_logp_C

    log_ratio_C = logp_C - old_logp_C  # Eq. 4
    if settings.importance_sampling_level == "sequence":
        log_ratio_C = variants.sequence_log_ratio(log_ratio_C, batch.completion_C)  # Eq. 9
    ratio_C = log_ratio_C.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()  # Eq. 4

    if settings.loss_type == "cispo":
        assert settings.epsilon_high is not None
        low, high = 0.0, settings.epsilon_high
        surrogate_C = variants.cispo(ratio_C, high, advantage_C, logp_C)  # Eq. 21
    else:
        low = 1 - settings.epsilon
        high = 1 + (settings.epsilon if settings.epsilon_high is None else settings.epsilon_high)
        bounded_C = ratio_C if settings.delta is None else variants.two_sided(ratio_C, settings.delta)  # Eq. 10
        clipped_C = ratio_C.clamp(low, high)
        surrogate_C = torch.minimum(bounded_C * advantage_C, clipped_C * advantage_C)  # Eq. 5
    if settings.sampler_importance_sampling_correction:
        drift_C = (old_logp_C - batch.sampler_logp_C).clamp(max=MAX_LOG_RATIO)
        surrogate_C = variants.sampler_weight(drift_C, settings.sampler_importance_sampling_cap) * surrogate_C  # Eq. 11

    kl_C = torch.zeros_like(logp_C)
    if settings.beta:
        assert batch.ref_logp_C is not None
        kl_C = k3(batch.ref_logp_C - logp_C)  # Eq. 6
        if settings.use_bias_correction_kl:
            kl_C = ratio_C * kl_C

    loss = ((settings.beta * kl_C - surrogate_C) * batch.weight_C).sum()  # Eq. 7, 8
    return loss, {
        "ratio": ratio_C.detach(),
        "kl": kl_C.detach(),
        "clipped_low": (ratio_C.detach() < low) & (advantage_C < 0),
        "clipped_high": (ratio_C.detach() > high) & (advantage_C > 0),
    }


def k3(log_ratio: Tensor) -> Tensor:
    """Estimate KL(θ ‖ ref) from samples of θ: e^d − d − 1 ≥ 0 for d = ℓ_ref − ℓ_θ, Schulman's k3, unbiased.

    d is clamped to ±20; outside of that range the gradient is 0.
    """
    d = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return d.exp() - d - 1

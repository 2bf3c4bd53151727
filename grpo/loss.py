"""The objective: a pure function of tensors, one line per equation (MATH.md).

What distinguishes grpo, dapo, dr_grpo and bnpo is only how `weight_C` was filled (packing.py): the loss is a weighted
sum.
"""

from dataclasses import dataclass

import torch

MAX_LOG_RATIO = 20.0  # nats; exp of more than this says nothing and overflows


@dataclass(frozen=True)
class LossConfig:
    """epsilon, epsilon_high: clip range [1 − ε, 1 + ε_high] of the ratio. delta: upper bound of the ratio for negative
    advantages too (two-sided clipping, 2505.07291); None for none. beta: weight of the KL term.
    importance_sampling_level: "token", or "sequence" (GSPO, 2507.18071). sampler_cap: C of truncated importance
    sampling; None for none. use_bias_correction_kl: multiply the KL estimate by the ratio, whose gradient then is that
    of the KL (TRL)."""

    epsilon: float = 0.2
    epsilon_high: float = 0.2
    delta: float | None = None
    beta: float = 0.0
    importance_sampling_level: str = "token"
    sampler_cap: float | None = None
    use_bias_correction_kl: bool = False


def policy_loss(
    logp_C: torch.Tensor,
    old_logp_C: torch.Tensor,
    ref_logp_C: torch.Tensor | None,
    advantage_C: torch.Tensor,
    weight_C: torch.Tensor,
    row_C: torch.Tensor,
    config: LossConfig,
    sampler_logp_C: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The loss of a micro-batch (a scalar, minimised) and, per scored token, detached: ratio, clipped_low,
    clipped_high, kl.

    logp_C under the policy being trained (with gradient), old_logp_C under the one that sampled, ref_logp_C under the
    frozen reference (None if beta is 0), all in nats. weight_C = mask / denominator, row_C = completion of each token.
    A token with weight 0 has no influence, whatever its log-probs.
    """
    used_C = weight_C != 0
    log_ratio_C = _masked(logp_C - old_logp_C, used_C)  # Eq. 4
    if config.importance_sampling_level == "sequence":
        log_ratio_C = _row_mean(log_ratio_C, used_C, row_C)  # Eq. 9, GSPO
    ratio_C = log_ratio_C.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    bounded_C = ratio_C if config.delta is None else ratio_C.clamp(max=config.delta)  # Eq. 10, two-sided
    clipped_C = ratio_C.clamp(1 - config.epsilon, 1 + config.epsilon_high)
    surrogate_C = torch.minimum(bounded_C * advantage_C, clipped_C * advantage_C)  # Eq. 5
    if config.sampler_cap is not None:
        correction_C = (
            _masked(old_logp_C - sampler_logp_C, used_C).clamp(max=MAX_LOG_RATIO).exp().clamp(max=config.sampler_cap)
        )
        surrogate_C = correction_C.detach() * surrogate_C  # Eq. 11, truncated IS
    loss_C = -surrogate_C
    kl_C = torch.zeros_like(logp_C)
    if config.beta:
        kl_C = k3(_masked(ref_logp_C - logp_C, used_C))  # Eq. 6
        kl_C = ratio_C * kl_C if config.use_bias_correction_kl else kl_C
        loss_C = loss_C + config.beta * kl_C
    loss = (loss_C * weight_C).sum()  # Eq. 7, 8
    return loss, {
        "ratio": ratio_C.detach(),
        "kl": kl_C.detach(),
        "clipped_low": used_C & (ratio_C.detach() < 1 - config.epsilon) & (advantage_C < 0),
        "clipped_high": used_C & (ratio_C.detach() > 1 + config.epsilon_high) & (advantage_C > 0),
    }


def k3(log_ratio: torch.Tensor) -> torch.Tensor:
    """e^d − d − 1 ≥ 0 for d = ℓ_ref − ℓ_θ: Schulman's unbiased, non-negative estimate of KL(θ ‖ ref) from samples of θ.

    d is clamped to ±20, where the estimate's gradient ends.
    """
    d = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return d.exp() - d - 1


def _masked(values_C: torch.Tensor, used_C: torch.Tensor) -> torch.Tensor:
    """0 where a token does not count: before any exp, so that nothing infinite can reach the sum or its gradient."""
    return torch.where(used_C, values_C, torch.zeros_like(values_C))


def _row_mean(values_C: torch.Tensor, used_C: torch.Tensor, row_C: torch.Tensor) -> torch.Tensor:
    """Each token gets the mean over the tokens of its row."""
    num_rows = int(row_C.max()) + 1
    sums_N = values_C.new_zeros(num_rows).index_add(0, row_C, values_C)
    counts_N = values_C.new_zeros(num_rows).index_add(0, row_C, used_C.to(values_C.dtype))
    return (sums_N / counts_N.clamp_min(1))[row_C]

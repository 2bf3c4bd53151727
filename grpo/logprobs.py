"""Hidden states to log-probabilities of given tokens, in chunks: never tokens x vocabulary in memory.

For a scored token with hidden state h, temperature τ and logits z = h Wᵀ / τ over the kept vocabulary K:

    ℓ = z_target − log Σ_{v∈K} exp z_v                                                           Eq. 3
    dℓ/dh = (onehot(target) − softmax_K(z)) W / τ

K is everything, unless the sampler cut the distribution off (top-k, top-p): then a token belongs to K if its log-prob
in the full distribution reaches the threshold `cut_C` that was recorded when it was drawn. Scoring what was sampled
from keeps the ratio of Eq. 4 at 1 on-policy; it is the sampling mask of DeepSeek-V3.2 (2512.02556) in one number per
token.

dℓ/dh does not depend on the loss: the forward pass computes it while the logits are there, the backward pass multiplies
it by dL/dℓ. So a token costs two products with W, where recomputing costs three. Only a gradient of W itself needs the
logits again.
"""

from collections.abc import Iterator

import torch

from grpo.attention.select import exact_logits, fused
from grpo.model.linear import linear

NO_CUT = float("-inf")
CACHE_BYTES = 8 << 20  # of float32 logits that a CPU works on at a time, so that they stay in its cache


def token_logprobs(
    hidden_CD: torch.Tensor,
    head_VD: torch.Tensor,
    targets_C: torch.Tensor,
    temperature: float,
    cut_C: torch.Tensor | None = None,
    chunk: int = 1024,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-prob of each target (Eq. 3) and the entropy of the distribution it comes from, both [C] in nats.

    The log-softmax is float32 at least. The log-probs have gradients to `hidden_CD` and `head_VD` (if it requires one);
    the entropy has none. chunk: rows whose logits exist at the same time. Slow twin: kernels/reference.py
    `token_logprobs`.
    """
    if cut_C is not None and bool((cut_C == NO_CUT).all()):
        cut_C = None
    return _TokenLogprobs.apply(hidden_CD, head_VD, targets_C, temperature, cut_C, chunk)


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden_CD, head_VD, targets_C, temperature, cut_C, chunk):
        exact = torch.promote_types(hidden_CD.dtype, torch.float32)
        logp_C, entropy_C = (torch.empty(len(targets_C), dtype=exact, device=hidden_CD.device) for _ in range(2))
        slope_CD = torch.empty_like(hidden_CD) if ctx.needs_input_grad[0] else None
        for rows, logp_X, entropy_X, slope_XV in _chunks(hidden_CD, head_VD, targets_C, temperature, cut_C, chunk):
            logp_C[rows], entropy_C[rows] = logp_X, entropy_X
            if slope_CD is not None:
                slope_CD[rows] = linear(slope_XV, head_VD.T)  # τ dℓ/dh
        again = (hidden_CD, head_VD, targets_C, cut_C) if ctx.needs_input_grad[1] else ()
        ctx.save_for_backward(slope_CD, *again)
        ctx.temperature, ctx.chunk = temperature, chunk
        ctx.mark_non_differentiable(entropy_C)
        return logp_C, entropy_C

    @staticmethod
    def backward(ctx, grad_C, _):
        slope_CD, *again = ctx.saved_tensors
        scale_C1 = (grad_C / ctx.temperature)[:, None]
        dhidden_CD = None if slope_CD is None else slope_CD * scale_C1.to(slope_CD.dtype)
        return (
            dhidden_CD,
            _head_gradient(scale_C1, *again, ctx.temperature, ctx.chunk) if again else None,
            None,
            None,
            None,
            None,
        )


def _head_gradient(scale_C1, hidden_CD, head_VD, targets_C, cut_C, temperature, chunk) -> torch.Tensor:
    dhead_VD = torch.zeros(head_VD.shape, dtype=scale_C1.dtype, device=head_VD.device)
    for rows, _, _, slope_XV in _chunks(hidden_CD, head_VD, targets_C, temperature, cut_C, chunk):
        dhead_VD += slope_XV.T @ (hidden_CD[rows] * scale_C1[rows].to(hidden_CD.dtype))
    return dhead_VD.to(head_VD.dtype)


def _chunks(
    hidden_CD, head_VD, targets_C, temperature, cut_C, chunk
) -> Iterator[tuple[slice, torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Of each chunk: its rows, log-probs, entropies, and onehot - softmax [X, V]."""
    for start in range(0, len(targets_C), chunk):
        rows = slice(start, min(start + chunk, len(targets_C)))
        logits_XV = exact_logits(hidden_CD[rows], head_VD)
        cut_X = None if cut_C is None else cut_C[rows]
        if fused(logits_XV):
            from grpo.kernels.log_softmax_rows import log_softmax_rows

            logp_X, entropy_X, slope_XV = log_softmax_rows(
                logits_XV, targets_C[rows], temperature, hidden_CD.dtype, cut_X
            )
        else:
            logp_X, entropy_X = row_epilogue(logits_XV, targets_C[rows], temperature, cut_X)
            slope_XV = logits_XV.to(hidden_CD.dtype)
        yield rows, logp_X, entropy_X, slope_XV


def row_epilogue(
    logits_XV: torch.Tensor, targets_X: torch.Tensor, temperature: float, cut_X: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-prob of the target and entropy of each row; overwrites the logits (before the temperature) with onehot -
    softmax."""
    exact = torch.promote_types(logits_XV.dtype, torch.float32)
    logp_X, entropy_X = (torch.empty(len(targets_X), dtype=exact, device=logits_XV.device) for _ in range(2))
    size = (
        max(1, CACHE_BYTES // (logits_XV.shape[1] * exact.itemsize))
        if logits_XV.device.type == "cpu"
        else len(targets_X)
    )
    for part in (slice(start, start + size) for start in range(0, len(targets_X), size)):
        logits_RV = logits_XV[part].to(exact)
        logits_RV = logits_RV if temperature == 1 else logits_RV / temperature
        logp_RV = _log_softmax(logits_RV, targets_X[part, None], None if cut_X is None else cut_X[part, None])
        logp_X[part] = logp_RV.gather(1, targets_X[part, None])[:, 0]
        p_RV = logp_RV.exp()
        kept_RV = logp_RV if cut_X is None else logp_RV.clamp_min_(torch.finfo(exact).min)  # 0 · -inf
        entropy_X[part] = -torch.bmm(p_RV[:, None], kept_RV[:, :, None])[:, 0, 0]
        logits_XV[part] = p_RV.neg_().scatter_add_(1, targets_X[part, None], torch.ones_like(p_RV[:, :1]))
    return logp_X, entropy_X


def _log_softmax(logits_RV: torch.Tensor, targets_R1: torch.Tensor, cut_R1: torch.Tensor | None) -> torch.Tensor:
    """Over the whole vocabulary, or over what is left of it after the cut."""
    logp_RV = logits_RV.log_softmax(dim=-1)
    if cut_R1 is None:
        return logp_RV
    dropped_RV = (logp_RV < cut_R1).scatter_(1, targets_R1, False)  # a drawn token was kept
    return logp_RV.masked_fill_(dropped_RV, NO_CUT).log_softmax(dim=-1)

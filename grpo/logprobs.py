"""Hidden states to log-probabilities of given tokens, in chunks: never tokens x vocabulary in memory.

For a scored token with hidden state h, temperature τ and logits z = h Wᵀ / τ over the kept vocabulary K:

    ℓ = z_target − log Σ_{v∈K} exp z_v                                                           Eq. 3
    dℓ/dh = (onehot(target) − softmax_K(z)) W / τ

K is everything, unless the sampler cut the distribution off (top-k, top-p): then a token belongs to K if its log-prob in
the full distribution reaches the threshold `cut_C` that was recorded when it was drawn. Scoring what was sampled from
keeps the ratio of Eq. 4 at 1 on-policy; it is the sampling mask of DeepSeek-V3.2 (2512.02556) in one number per token.
"""

import torch

NO_CUT = float("-inf")


def token_logprobs(hidden_CD: torch.Tensor, head_VD: torch.Tensor, targets_C: torch.Tensor, temperature: float,
                   cut_C: torch.Tensor | None = None, chunk: int = 1024) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-prob of each target (Eq. 3) and the entropy of the distribution it comes from, both [C] in nats.

    The log-softmax is float32 at least. The log-probs have gradients to `hidden_CD` and `head_VD` (if it requires one); the
    entropy has none. chunk: rows whose logits exist at the same time. Slow twin: kernels/reference.py `token_logprobs`.
    """
    if cut_C is not None and bool((cut_C == NO_CUT).all()):
        cut_C = None
    return _TokenLogprobs.apply(hidden_CD, head_VD, targets_C, temperature, cut_C, chunk)


class _TokenLogprobs(torch.autograd.Function):

    @staticmethod
    def forward(ctx, hidden_CD, head_VD, targets_C, temperature, cut_C, chunk):
        ctx.save_for_backward(hidden_CD, head_VD, targets_C)
        ctx.temperature, ctx.cut_C, ctx.chunk = temperature, cut_C, chunk
        exact = torch.promote_types(hidden_CD.dtype, torch.float32)
        logp_C, entropy_C = (torch.empty(len(targets_C), dtype=exact, device=hidden_CD.device) for _ in range(2))
        for rows in _chunks(len(targets_C), chunk):
            logp_XV = _log_softmax(hidden_CD[rows], head_VD, temperature, targets_C[rows], _part(cut_C, rows))
            logp_C[rows] = logp_XV.gather(1, targets_C[rows, None])[:, 0]
            entropy_C[rows] = -(logp_XV.exp() * logp_XV.clamp_min(torch.finfo(exact).min)).sum(dim=-1)
        ctx.mark_non_differentiable(entropy_C)
        return logp_C, entropy_C

    @staticmethod
    def backward(ctx, grad_C, _):
        hidden_CD, head_VD, targets_C = ctx.saved_tensors
        dhidden_CD = torch.empty_like(hidden_CD)
        dhead_VD = torch.zeros(head_VD.shape, dtype=grad_C.dtype, device=head_VD.device) if ctx.needs_input_grad[1] else None
        for rows in _chunks(len(targets_C), ctx.chunk):
            dlogits_XV = _log_softmax(hidden_CD[rows], head_VD, ctx.temperature, targets_C[rows], _part(ctx.cut_C, rows))
            scale_X1 = grad_C[rows, None] / ctx.temperature
            dlogits_XV = dlogits_XV.exp_().mul_(-scale_X1).scatter_add_(1, targets_C[rows, None], scale_X1).to(head_VD.dtype)
            dhidden_CD[rows] = dlogits_XV @ head_VD
            if dhead_VD is not None:
                dhead_VD += (dlogits_XV.T @ hidden_CD[rows]).to(dhead_VD.dtype)
        return dhidden_CD, None if dhead_VD is None else dhead_VD.to(head_VD.dtype), None, None, None, None


def _log_softmax(hidden_XD: torch.Tensor, head_VD: torch.Tensor, temperature: float, targets_X: torch.Tensor,
                 cut_X: torch.Tensor | None) -> torch.Tensor:
    exact = torch.promote_types(hidden_XD.dtype, torch.float32)
    logp_XV = ((hidden_XD @ head_VD.T).to(exact) / temperature).log_softmax(dim=-1)
    if cut_X is None:
        return logp_XV
    dropped_XV = (logp_XV < cut_X[:, None]).scatter_(1, targets_X[:, None], False)     # a drawn token was kept
    return logp_XV.masked_fill_(dropped_XV, NO_CUT).log_softmax(dim=-1)


def _chunks(length: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]


def _part(values: torch.Tensor | None, rows: slice) -> torch.Tensor | None:
    return None if values is None else values[rows]

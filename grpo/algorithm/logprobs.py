"""Log-probabilities of given tokens, in chunks: never tokens x vocabulary in memory.

For a trained token with hidden state h, temperature τ and logits z = h Wᵀ / τ over the tokens that are kept:

    ℓ = z_target − log Σ_{v kept} exp z_v                                                         Eq. 3
    dℓ/dh = (onehot(target) − softmax(z)) W / τ

All tokens are kept, unless the sampler truncated them (top-k, top-p). Then a token is kept if its log-prob in the full
distribution reaches the threshold `cut_C` that the sampler recorded. So the scored distribution is the one that was
sampled from. This is the sampling mask of DeepSeek-V3.2 (2512.02556), in one number per token. Counterpart of
`logprobs` in minimal.py, which keeps the logits of all tokens.

dℓ/dh does not depend on the loss: the forward pass computes it while the logits are there, and the backward pass
multiplies it by dL/dℓ. So a token costs two products with W instead of the three of recomputation. Only a gradient of W
itself needs the logits again. An entropy bonus wants dH/dh as well (variants.py), which is one more product.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from grpo.algorithm.schema import POLICY, Mode, PackedTokens
from grpo.algorithm.variants import entropy_slope
from grpo.engine.attention.choice import packed_attention
from grpo.engine.device.ops import RowSettings, exact_logits, log_softmax_rows
from grpo.engine.device.products import linear, weight_gradient
from grpo.engine.model.decoder import Decoder

LogSoftmaxRows = Callable[[Tensor, *RowSettings], tuple[Tensor, Tensor, Tensor | None]]  # `ops.log_softmax_rows`


def batch_logprobs(
    model: Decoder,
    batch: PackedTokens,
    mode: Mode = POLICY,
    temperature: float = 1.0,
    chunk: int = 1024,
    trains_entropy: bool = False,
) -> tuple[Tensor, Tensor]:
    """Compute log-prob and entropy of every trained token of a micro-batch, [C] each, in nats.

    chunk: tokens whose logits exist at the same time. trains_entropy: the entropy has a gradient. See `token_logprobs`.
    """
    attend = packed_attention(model, batch.layout)
    hidden_TD = model(batch.ids_T, batch.positions_T, attend, mode)
    hidden_CD = _Sources.apply(hidden_TD, batch.source_C)
    head_VD, log_softmax = model.head(), model.log_softmax_rows
    return token_logprobs(
        hidden_CD, head_VD, batch.targets_C, temperature, batch.cut_C, chunk, log_softmax, trains_entropy
    )  # Eq. 3


def token_logprobs(
    hidden_CD: Tensor,
    head_VD: Tensor,
    targets_C: Tensor,
    temperature: float,
    cut_C: Tensor | None = None,
    chunk: int = 1024,
    log_softmax: LogSoftmaxRows = log_softmax_rows,
    trains_entropy: bool = False,
) -> tuple[Tensor, Tensor]:
    """Compute the log-prob of each target (Eq. 3) and the entropy of its distribution, both [C] in nats.

    The log-softmax is float32 at least. The log-probs have gradients to `hidden_CD` and `head_VD` (if it requires one);
    the entropy has them if `trains_entropy`. chunk: tokens whose logits exist at the same time. log_softmax: of
    a chunk; that of a shard gets its part of the vocabulary, as head_VD is, and hidden_CD gets the gradients of that
    part. Slow twin: kernels/twins.py `log_softmax_rows`.
    """
    chunks = _Chunks(temperature, chunk, log_softmax, trains_entropy)
    return _TokenLogprobs.apply(hidden_CD, head_VD, targets_C, cut_C, chunks)


class _Sources(torch.autograd.Function):
    """The hidden state that predicts each target. A prompt's last one predicts the first token of every completion.

    So its gradient is a sum over the group, made in float32: in bf16, a GPU would round at each addition.
    """

    @staticmethod
    def forward(ctx, hidden_TD, source_C):
        ctx.save_for_backward(source_C)
        ctx.num_tokens = len(hidden_TD)
        return hidden_TD.index_select(0, source_C)

    @staticmethod
    def backward(ctx, grad_CD):
        (source_C,) = ctx.saved_tensors
        exact_dtype = torch.promote_types(grad_CD.dtype, torch.float32)
        sum_TD = torch.zeros(ctx.num_tokens, grad_CD.shape[1], dtype=exact_dtype, device=grad_CD.device)
        sum_TD.index_add_(0, source_C, grad_CD.to(exact_dtype))
        return sum_TD.to(grad_CD.dtype), None


@dataclass(frozen=True)
class _Chunks:
    """How tokens are scored, some at a time. size: tokens of a chunk. The others are those of `token_logprobs`."""

    temperature: float
    size: int
    log_softmax: LogSoftmaxRows
    trains_entropy: bool

    def of(
        self, hidden_CD, head_VD, targets_C, cut_C, wants_slope: bool = True
    ) -> Iterator[tuple[slice, Tensor, Tensor, list[Tensor]]]:
        """Yield for each chunk its rows, log-probs, entropies, and slopes [X, V].

        Slopes are those that are wanted: dℓ/dz = onehot - softmax, and dH/dz.
        """
        slope_dtype = hidden_CD.dtype if wants_slope else None
        for start in range(0, len(targets_C), self.size):
            rows = slice(start, min(start + self.size, len(targets_C)))
            logits_XV = exact_logits(hidden_CD[rows], head_VD)
            cut_X = None if cut_C is None else cut_C[rows]
            logp_X, entropy_X, slope_XV = self.log_softmax(
                logits_XV, targets_C[rows], self.temperature, slope_dtype, cut_X
            )
            slopes = [] if slope_XV is None else [slope_XV]
            if slopes and self.trains_entropy:
                slopes.append(entropy_slope(slopes[0], entropy_X))
            yield rows, logp_X, entropy_X, slopes


class _TokenLogprobs(torch.autograd.Function):
    """ℓ and the entropy H. It keeps τ dℓ/dh and τ dH/dh for the backward pass. A gradient of W needs logits again."""

    @staticmethod
    def forward(ctx, hidden_CD, head_VD, targets_C, cut_C, chunks):
        for_hidden, for_head, *_ = ctx.needs_input_grad
        exact_dtype = torch.promote_types(hidden_CD.dtype, torch.float32)
        logp_C = torch.empty(len(targets_C), dtype=exact_dtype, device=hidden_CD.device)
        entropy_C = torch.empty_like(logp_C)
        num_slopes = (1 + chunks.trains_entropy) if for_hidden else 0
        kept = [torch.empty_like(hidden_CD) for _ in range(num_slopes)]  # τ dℓ/dh, τ dH/dh
        for rows, logp_X, entropy_X, slopes in chunks.of(hidden_CD, head_VD, targets_C, cut_C, for_hidden):
            logp_C[rows] = logp_X
            entropy_C[rows] = entropy_X
            for kept_CD, slope_XV in zip(kept, slopes, strict=True):
                kept_CD[rows] = linear(slope_XV, head_VD.T)
        for_logits = (hidden_CD, head_VD, targets_C, cut_C) if for_head else ()
        ctx.save_for_backward(*kept, *for_logits)
        ctx.chunks, ctx.num_slopes = chunks, num_slopes
        if not chunks.trains_entropy:
            ctx.mark_non_differentiable(entropy_C)
        return logp_C, entropy_C

    @staticmethod
    def backward(ctx, *grads):
        kept, for_logits = ctx.saved_tensors[: ctx.num_slopes], ctx.saved_tensors[ctx.num_slopes :]
        scales = [(grad_C / ctx.chunks.temperature)[:, None] for grad_C in grads]  # dL/dℓ / τ, dL/dH / τ
        dhidden_CD = None
        for kept_CD, scale_C1 in zip(kept, scales, strict=False):
            term_CD = kept_CD * scale_C1.to(kept_CD.dtype)
            dhidden_CD = term_CD if dhidden_CD is None else dhidden_CD + term_CD
        dhead_VD = _head_gradient(scales, ctx.chunks, *for_logits) if for_logits else None
        return dhidden_CD, dhead_VD, None, None, None


def _head_gradient(scales: list[Tensor], chunks: _Chunks, hidden_CD, head_VD, targets_C, cut_C) -> Tensor:
    """Return dL/dW, for which the logits are computed again. scales: dL/dℓ / τ and dL/dH / τ, [C, 1] each."""
    dhead_VD = torch.zeros(head_VD.shape, dtype=scales[0].dtype, device=head_VD.device)
    for rows, _, _, slopes in chunks.of(hidden_CD, head_VD, targets_C, cut_C):
        for slope_XV, scale_C1 in zip(slopes, scales, strict=False):
            scaled_XD = hidden_CD[rows] * scale_C1[rows].to(hidden_CD.dtype)
            dhead_VD += weight_gradient(slope_XV, scaled_XD)
    return dhead_VD.to(head_VD.dtype)

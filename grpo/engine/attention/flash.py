"""Packed attention by torch's FlashAttention-2, which reads each prompt's keys once for all of its completions.

A completion's token sees its prompt and the tokens before it. Attention to each part is computed in place: one launch
is causal inside every prompt and every completion, another takes a group's completions as one run of queries over their
prompt's keys. With the log-sum-exps l₁, l₂ of the two parts, l = log(e^l₁ + e^l₂) and

    out = e^(l₁ - l) out₁ + e^(l₂ - l) out₂

The gradient of each part is FlashAttention's own backward pass. It gets `out` and l of the merged attention instead of
the part's own: then its probabilities are exp(score - l), and its row sums are ⟨dout, out⟩, as they should be. No key
is copied per completion, nothing is padded, and a prompt's gradient is summed over its group in float32. Slow twin:
kernels/twins.py `attention`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate

import torch
from torch import Tensor

from grpo.algorithm.schema import Layout
from grpo.engine.attention.packed import MicroBatchAttention
from grpo.engine.device.ops import merge_attention


def launch(queries: list[int], keys: list[int], is_causal: bool, device: torch.device | str) -> tuple:
    """Return the arguments by which torch lets each run of queries see the run of keys of the same number.

    queries, keys: the lengths of the runs. There is no dropout.
    """
    query_starts = torch.tensor([0, *accumulate(queries)], dtype=torch.int32, device=device)
    key_starts = torch.tensor([0, *accumulate(keys)], dtype=torch.int32, device=device)
    longest = max(queries, default=0), max(keys, default=0)
    return query_starts, key_starts, *longest, 0.0, is_causal


class FlashPackedAttention(MicroBatchAttention):
    """`packed.PackedAttention` for half precision on a GPU. flash_…: torch's operations, which tests replace."""

    def __init__(
        self,
        layout: Layout,
        device: torch.device | str,
        flash_forward: Callable = torch.ops.aten._flash_attention_forward,
        flash_backward: Callable = torch.ops.aten._flash_attention_backward,
    ):
        self.flash_forward, self.flash_backward = flash_forward, flash_backward
        pieces: list[int] = []  # lengths of all prompts and completions
        prompts, completions = [], []  # lengths of each group's prompt, and of its completions together
        prompt_rows: list[int] = []
        completion_rows: list[int] = []
        start = 0
        for group in layout.groups:
            middle = start + group.prompt_length
            end = middle + sum(group.completion_lengths)
            pieces += filter(None, (group.prompt_length, *group.completion_lengths))
            if start < middle < end:
                prompts.append(middle - start)
                completions.append(end - middle)
                prompt_rows += range(start, middle)
                completion_rows += range(middle, end)
            start = end
        self.within = launch(pieces, pieces, True, device)
        self.across = launch(completions, prompts, False, device)
        self.prompt_rows = torch.tensor(prompt_rows, dtype=torch.int64, device=device)
        self.completion_rows = torch.tensor(completion_rows, dtype=torch.int64, device=device)

    def attend(self, q_THE: Tensor, k_TKE: Tensor, v_TKE: Tensor) -> Tensor:
        return _SharedPrompts.apply(q_THE, k_TKE, v_TKE, self)


class _SharedPrompts(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q_THE, k_TKE, v_TKE, attend):
        rows, prompt_rows = attend.completion_rows, attend.prompt_rows
        out_THE, lse_HT, *rng_state = attend.flash_forward(q_THE, k_TKE, v_TKE, *attend.within, False)
        if len(rows):
            q_XHE, k_XKE, v_XKE = q_THE[rows], k_TKE[prompt_rows], v_TKE[prompt_rows]
            cross_XHE, cross_HX, *_ = attend.flash_forward(q_XHE, k_XKE, v_XKE, *attend.across, False)
            merge_attention(out_THE, lse_HT, cross_XHE, cross_HX, rows)
        ctx.save_for_backward(q_THE, k_TKE, v_TKE, out_THE, lse_HT, *rng_state[:2])
        ctx.attend = attend
        return out_THE

    @staticmethod
    def backward(ctx, dout_THE):
        q_THE, k_TKE, v_TKE, out_THE, lse_HT, *rng_state = ctx.saved_tensors
        attend = ctx.attend
        rows, prompt_rows = attend.completion_rows, attend.prompt_rows
        dout_THE = dout_THE.contiguous()
        with _repeatable():
            grads = attend.flash_backward(dout_THE, q_THE, k_TKE, v_TKE, out_THE, lse_HT, *attend.within, *rng_state)
        if len(rows):
            q_XHE, k_XKE, v_XKE = q_THE[rows], k_TKE[prompt_rows], v_TKE[prompt_rows]
            dout_XHE, out_XHE = dout_THE[rows], out_THE[rows]
            lse_HX = lse_HT[:, rows].contiguous()
            with _repeatable():
                across = *attend.across, *rng_state
                parts = attend.flash_backward(dout_XHE, q_XHE, k_XKE, v_XKE, out_XHE, lse_HX, *across)
            places = (rows, prompt_rows, prompt_rows)
            for grad, place, part in zip(grads, places, parts, strict=True):
                grad.index_copy_(0, place, grad[place] + part)
        return *grads, None


@contextmanager
def _repeatable() -> Iterator[None]:
    """Turn "warn only" into deterministic algorithms, which FlashAttention's backward pass needs to repeat its bits."""
    if not torch.is_deterministic_algorithms_warn_only_enabled():
        yield
        return
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(True, warn_only=True)

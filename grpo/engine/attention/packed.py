"""Attention inside a micro-batch of packed tokens, by torch's scaled_dot_product_attention.

Counterpart of the mask of `Block.attention` in minimal.py: completions share their prompt, and nothing is padded.

torch's function scales by 1/sqrt(E) and shares key-value heads among grouped queries. In bfloat16 on a CPU, dense.py
computes the same faster; on a GPU, flash.py does.
"""

from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

from grpo.algorithm.schema import Layout
from grpo.engine.attention import dense
from grpo.engine.device.ops import CosSin, rotate

UNSEEN = 1 << 30  # the position of padding: it is after every token


class MicroBatchAttention:
    """Attention inside a micro-batch, as the decoder calls it in each layer. A subclass has `attend`."""

    def __call__(self, layer: int, q_THE: Tensor, k_TKE: Tensor, v_TKE: Tensor, cos_sin: CosSin) -> Tensor:
        q_THE = rotate(q_THE, cos_sin)
        k_TKE = rotate(k_TKE, cos_sin)
        return self.attend(q_THE, k_TKE, v_TKE)

    def attend(self, q_THE: Tensor, k_TKE: Tensor, v_TKE: Tensor) -> Tensor:
        """Attend with queries and keys that are rotated already."""
        raise NotImplementedError


class PackedAttention(MicroBatchAttention):
    """Causal attention inside a micro-batch: a prompt attends to itself, a completion to its prompt and to itself.

    Tokens are packed everywhere else; only this class pads them, on the right: the prompts to [P, width], and the
    completions to [N, width], with a copy of their prompt's keys in front of their own. So a prompt's projections are
    computed once per group, and padding costs time only in attention, never in a GEMM.
    """

    def __init__(self, layout: Layout, dtype: torch.dtype, device: torch.device | str):
        prompt_lengths = [group.prompt_length for group in layout.groups]
        completion_lengths = [length for group in layout.groups for length in group.completion_lengths]
        self.prompt_shape = len(prompt_lengths), max(prompt_lengths, default=0)
        self.completion_shape = len(completion_lengths), max(completion_lengths, default=0)
        self.prompt_places = prod(self.prompt_shape)
        self.num_places = self.prompt_places + prod(self.completion_shape)
        places: list[int] = []  # of each token in the padded layout: prompts first, then completions
        prompt_of_completion: list[int] = []
        for prompt, group in enumerate(layout.groups):
            start = prompt * self.prompt_shape[1]
            places += range(start, start + group.prompt_length)
            for length in group.completion_lengths:
                start = self.prompt_places + len(prompt_of_completion) * self.completion_shape[1]
                places += range(start, start + length)
                prompt_of_completion.append(prompt)
        self.place_T = torch.tensor(places, dtype=torch.int64, device=device)
        self.prompt_N = torch.tensor(prompt_of_completion, dtype=torch.int64, device=device)
        lengths = [prompt_lengths[prompt] for prompt in prompt_of_completion]
        if len(set(prompt_lengths)) == 1:
            lengths = prompt_lengths[:1]  # one mask serves all completions
        first_N1 = torch.tensor(lengths, dtype=torch.int64, device=device)[:, None]
        self.prompt_1X = torch.arange(self.prompt_shape[1], device=device)[None]  # positions
        self.own_NS = first_N1 + torch.arange(self.completion_shape[1], device=device)
        before_NX = torch.where(self.prompt_1X < first_N1, self.prompt_1X, UNSEEN)
        self.key_NX = torch.cat([before_NX, self.own_NS], dim=1)
        self.mask = additive_mask(self.key_NX[:, None] <= self.own_NS[:, :, None], dtype)

    def attend(self, q_THE: Tensor, k_TKE: Tensor, v_TKE: Tensor) -> Tensor:
        q_PSHE, q_NSHE = self._pad(q_THE)
        k_PSKE, k_NSKE = self._pad(k_TKE)
        v_PSKE, v_NSKE = self._pad(v_TKE)
        out = self.attend_padded(q_PSHE, k_PSKE, v_PSKE, None)  # right padding is never attended to
        if self.completion_shape[1]:
            k_NXKE = self._after_prompts(k_PSKE, k_NSKE)
            v_NXKE = self._after_prompts(v_PSKE, v_NSKE)
            out_NSHE = self.attend_padded(q_NSHE, k_NXKE, v_NXKE, self.mask)
            of_prompts = out.flatten(0, 1)
            of_completions = out_NSHE.flatten(0, 1)
            out = torch.cat([of_prompts, of_completions])
        padded = out.reshape(self.num_places, *q_THE.shape[1:])
        return _Unpad.apply(padded, self.place_T)

    def attend_padded(self, q_NSHE: Tensor, k_NXKE: Tensor, v_NXKE: Tensor, mask: Tensor | None) -> Tensor:
        """Attend to prompts causally (mask: None), or to completions with their mask."""
        if dense.usable(q_NSHE):
            if mask is None:
                mask = additive_mask(self.prompt_1X[:, None] <= self.prompt_1X[:, :, None], q_NSHE.dtype)
            return dense.DenseAttention.apply(q_NSHE, k_NXKE, v_NXKE, mask)
        out_NHSE = F.scaled_dot_product_attention(
            q_NSHE.transpose(1, 2),
            k_NXKE.transpose(1, 2),
            v_NXKE.transpose(1, 2),
            mask,
            is_causal=mask is None,
            enable_gqa=q_NSHE.shape[2] != k_NXKE.shape[2],
        )
        return out_NHSE.transpose(1, 2)

    def _pad(self, x_T: Tensor) -> tuple[Tensor, Tensor]:
        """Return the tokens of the prompts [P, width, …] and of the completions [N, width, …]."""
        features = x_T.shape[1:]
        empty = x_T.new_zeros(self.num_places, *features)
        padded = empty.index_copy(0, self.place_T, x_T)
        prompts, completions = padded.tensor_split([self.prompt_places])
        return prompts.unflatten(0, self.prompt_shape), completions.unflatten(0, self.completion_shape)

    def _after_prompts(self, x_PSKE: Tensor, x_NSKE: Tensor) -> Tensor:
        """Put a copy of its prompt in front of each completion."""
        prompt_of_NSKE = x_PSKE.index_select(0, self.prompt_N)
        return torch.cat([prompt_of_NSKE, x_NSKE], dim=1)


class _Unpad(torch.autograd.Function):
    """padded[place_T]. Places are distinct, so the gradient can be copied back; autograd would add it row by row."""

    @staticmethod
    def forward(ctx, padded, place_T):
        ctx.save_for_backward(place_T)
        ctx.num_places = padded.shape[0]
        return padded.index_select(0, place_T)

    @staticmethod
    def backward(ctx, grad_T):
        (place_T,) = ctx.saved_tensors
        grad_padded = grad_T.new_zeros(ctx.num_places, *grad_T.shape[1:])
        return grad_padded.index_copy_(0, place_T, grad_T), None


def additive_mask(sees_NSX: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the mask [N, 1, S, X] of attention: 0 where a token sees a key, else -inf."""
    mask_NSX = sees_NSX.new_zeros(sees_NSX.shape, dtype=dtype)
    mask_NSX.masked_fill_(~sees_NSX, float("-inf"))
    return mask_NSX[:, None]

"""Attention inside a micro-batch of packed tokens, by torch's scaled_dot_product_attention.

Counterpart of the mask of `Block.attention` in minimal.py: completions share their prompt, and nothing is padded.

torch's function scales by 1/sqrt(E) and shares key-value heads among grouped queries. In bfloat16 on a CPU, dense.py
computes the same faster; on a GPU, flash.py does.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from grpo.algorithm.schema import Layout
from grpo.engine.attention import dense
from grpo.engine.device.ops import CosSin, rotate


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
        completion_lengths: list[int] = []
        prompt_of_completion: list[int] = []
        for prompt, group in enumerate(layout.groups):
            completion_lengths += group.completion_lengths
            prompt_of_completion += [prompt] * len(group.completion_lengths)
        self.num_prompts = len(prompt_lengths)
        self.prompt_width = max(prompt_lengths, default=0)
        self.num_completions = len(completion_lengths)
        self.completion_width = max(completion_lengths, default=0)
        self.prompt_places = self.num_prompts * self.prompt_width
        self.num_places = self.prompt_places + self.num_completions * self.completion_width
        self.place_T = torch.tensor(self._places(layout), dtype=torch.int64, device=device)
        self.prompt_N = torch.tensor(prompt_of_completion, dtype=torch.int64, device=device)
        lengths = [prompt_lengths[prompt] for prompt in prompt_of_completion]
        if len(set(prompt_lengths)) == 1:
            lengths = prompt_lengths[:1]  # one mask serves all completions
        self.length_N = torch.tensor(lengths, dtype=torch.int64, device=device)
        self.mask = _completion_mask(self.length_N, self.prompt_width, self.completion_width, dtype, device)

    def _places(self, layout: Layout) -> list[int]:
        """Return for each token of the micro-batch its place in the padded layout: prompts first, then completions."""
        places: list[int] = []
        prompt_start, completion_start = 0, self.prompt_places
        for group in layout.groups:
            places += range(prompt_start, prompt_start + group.prompt_length)
            prompt_start += self.prompt_width
            for length in group.completion_lengths:
                places += range(completion_start, completion_start + length)
                completion_start += self.completion_width
        return places

    def attend(self, q_THE: Tensor, k_TKE: Tensor, v_TKE: Tensor) -> Tensor:
        q_PSHE, q_NSHE = self._pad(q_THE)
        k_PSKE, k_NSKE = self._pad(k_TKE)
        v_PSKE, v_NSKE = self._pad(v_TKE)
        out = self.attend_padded(q_PSHE, k_PSKE, v_PSKE, None)  # right padding is never attended to
        if self.completion_width:
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
                no_prompt_N = torch.zeros(1, dtype=torch.int64, device=q_NSHE.device)
                mask = _completion_mask(no_prompt_N, 0, q_NSHE.shape[1], q_NSHE.dtype, q_NSHE.device)
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
        x_PS = prompts.view(self.num_prompts, self.prompt_width, *features)
        x_NS = completions.view(self.num_completions, self.completion_width, *features)
        return x_PS, x_NS

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


def _completion_mask(
    lengths_N: Tensor,
    prompt_width: int,
    completion_width: int,
    dtype: torch.dtype,
    device: torch.device | str,
) -> Tensor:
    """Return the mask [N or 1, 1, completion_width, prompt_width + completion_width], 0 or -inf.

    It lets every token of a completion see the complete prompt, and its own completion causally.
    """
    position_X = torch.arange(prompt_width, device=device)
    is_prompt_NX = position_X < lengths_N[:, None]
    all_SS = torch.ones(completion_width, completion_width, dtype=torch.bool, device=device)
    causal_SS = all_SS.tril()
    prompt_NSX = is_prompt_NX[:, None].expand(-1, completion_width, -1)
    own_NSS = causal_SS.expand(len(lengths_N), -1, -1)
    allowed = torch.cat([prompt_NSX, own_NSS], dim=-1)
    mask = torch.zeros(allowed.shape, dtype=dtype, device=device)
    mask.masked_fill_(~allowed, float("-inf"))
    return mask[:, None]

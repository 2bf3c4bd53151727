"""Attention as two products with all scores between them, a few sequences at a time: for bfloat16 on a CPU.

torch's CPU kernel works on small blocks, and such small products are slow. In bf16 the products over complete rows of
scores take half its time. For the backward pass only q, k, v and the output are kept; it computes the scores again.
"""

import torch
from torch import Tensor

SCORES_BYTES = 4 << 20  # of scores at a time, so that they stay in the CPU's cache


def usable(x: Tensor) -> bool:
    """Return whether this code is the faster one for tensors like x."""
    return x.device.type == "cpu" and x.dtype == torch.bfloat16


def decode(q_BKJE: Tensor, k_BKSE: Tensor, v_BKSE: Tensor, mask_BK1S: Tensor) -> Tensor:
    """Attend with one query position per row. If k, v or mask have gaps between rows, they are copied."""
    scale = q_BKJE.shape[-1] ** -0.5
    q_XJE = (q_BKJE * scale).flatten(0, 1)  # X: all pairs of a row and a key-value head
    k_XSE = k_BKSE.flatten(0, 1)
    v_XSE = v_BKSE.flatten(0, 1)
    mask_X1S = mask_BK1S.flatten(0, 1)
    k_XES = k_XSE.transpose(1, 2)
    scores_XJS = torch.baddbmm(mask_X1S, q_XJE, k_XES)
    p_XJS = scores_XJS.softmax(dim=-1)
    out_XJE = torch.bmm(p_XJS, v_XSE)
    return out_XJE.view_as(q_BKJE)


class DenseAttention(torch.autograd.Function):
    """softmax(q kᵀ / sqrt(E) + mask) v, for N rows of S queries and X keys.

    mask: additive, [N or 1, 1, S, X].
    """

    @staticmethod
    def forward(ctx, q_NSHE, k_NXKE, v_NXKE, mask):
        num_kv_heads = k_NXKE.shape[2]
        q_NKJSE = _grouped(q_NSHE, num_kv_heads)
        k_NKXE = _heads_first(k_NXKE)
        v_NKXE = _heads_first(v_NXKE)
        out_NKJSE = torch.empty_like(q_NKJSE)
        for rows in _few_rows(q_NKJSE, k_NKXE):
            mask_of_rows = _mask_of(rows, mask)
            p_NKSX = _probabilities(q_NKJSE[rows], k_NKXE[rows], mask_of_rows)
            out_NKSE = _one_axis(out_NKJSE[rows])
            torch.matmul(p_NKSX, v_NKXE[rows], out=out_NKSE)
        ctx.save_for_backward(q_NKJSE, k_NKXE, v_NKXE, out_NKJSE, mask)
        return _ungrouped(out_NKJSE)

    @staticmethod
    def backward(ctx, dout_NSHE):
        q_NKJSE, k_NKXE, v_NKXE, out_NKJSE, mask = ctx.saved_tensors
        dout_NKJSE = _grouped(dout_NSHE, k_NKXE.shape[1])
        dq_NKJSE = torch.empty_like(q_NKJSE)
        dk_NKXE = torch.empty_like(k_NKXE)
        dv_NKXE = torch.empty_like(v_NKXE)
        scale = q_NKJSE.shape[-1] ** -0.5
        for rows in _few_rows(q_NKJSE, k_NKXE):
            k_rows = k_NKXE[rows]
            v_rows = v_NKXE[rows]
            mask_of_rows = _mask_of(rows, mask)
            p_NKSX = _probabilities(q_NKJSE[rows], k_rows, mask_of_rows)
            q_NKSE = _one_axis(q_NKJSE[rows])
            out_NKSE = _one_axis(out_NKJSE[rows])
            dout_NKSE = _one_axis(dout_NKJSE[rows])
            dq_NKSE = _one_axis(dq_NKJSE[rows])
            torch.matmul(p_NKSX.mT, dout_NKSE, out=dv_NKXE[rows])
            dp_NKSX = torch.matmul(dout_NKSE, v_rows.mT)
            dscore_NKSX = _softmax_gradient(dp_NKSX, p_NKSX, dout_NKSE, out_NKSE).mul_(scale)
            torch.matmul(dscore_NKSX, k_rows, out=dq_NKSE)
            torch.matmul(dscore_NKSX.mT, q_NKSE, out=dk_NKXE[rows])
        dq_NSHE = _ungrouped(dq_NKJSE)
        dk_NXKE = dk_NKXE.transpose(1, 2)
        dv_NXKE = dv_NKXE.transpose(1, 2)
        return dq_NSHE, dk_NXKE, dv_NXKE, None


def _probabilities(q_NKJSE: Tensor, k_NKXE: Tensor, mask: Tensor) -> Tensor:
    """Return the softmax of the scores, [N, K, S, X], with S over all queries of a group."""
    scale = q_NKJSE.shape[-1] ** -0.5
    scaled_NKSE = _one_axis(q_NKJSE * scale)
    score_NKSX = torch.matmul(scaled_NKSE, k_NKXE.mT)
    score_NKJSX = score_NKSX.view(*q_NKJSE.shape[:4], -1)
    score_NKJSX.add_(mask[:, None])
    p_NKJSX = score_NKJSX.softmax(dim=-1)
    return _one_axis(p_NKJSX)


def _softmax_gradient(dp_NKSX: Tensor, p_NKSX: Tensor, dout_NKSE: Tensor, out_NKSE: Tensor) -> Tensor:
    """Return p (dp - Σ p dp), in the memory of dp. The sum is ⟨dout, out⟩."""
    products_NKSE = dout_NKSE.float() * out_NKSE
    mean_NKS1 = products_NKSE.sum(dim=-1, keepdim=True)
    mean_NKS1 = mean_NKS1.to(p_NKSX.dtype)
    return dp_NKSX.sub_(mean_NKS1).mul_(p_NKSX)


def _one_axis(x_NKJSE: Tensor) -> Tensor:
    """View J and S as one axis, which is S from then on: the queries of a group stand below one another."""
    return x_NKJSE.flatten(2, 3)


def _grouped(x_NSHE: Tensor, num_kv_heads: int) -> Tensor:
    """Return [N, K, J, S, E], contiguous: the queries that share a key-value head side by side."""
    x_NSKJE = x_NSHE.unflatten(2, (num_kv_heads, -1))
    return x_NSKJE.permute(0, 2, 3, 1, 4).contiguous()


def _ungrouped(x_NKJSE: Tensor) -> Tensor:
    x_NSKJE = x_NKJSE.permute(0, 3, 1, 2, 4)
    return x_NSKJE.flatten(2, 3)


def _heads_first(x_NXKE: Tensor) -> Tensor:
    return x_NXKE.transpose(1, 2).contiguous()


def _few_rows(q_NKJSE: Tensor, k_NKXE: Tensor) -> list[slice]:
    """Split the rows so that the scores of each slice fit into SCORES_BYTES."""
    _, _, J, S, _ = q_NKJSE.shape
    num_rows, K, X, _ = k_NKXE.shape
    row_bytes = K * J * S * X * q_NKJSE.itemsize
    size = max(1, SCORES_BYTES // row_bytes)
    starts = range(0, num_rows, size)
    return [slice(start, start + size) for start in starts]


def _mask_of(rows: slice, mask: Tensor) -> Tensor:
    """Return the mask of these rows; a single mask serves all rows."""
    return mask if len(mask) == 1 else mask[rows]

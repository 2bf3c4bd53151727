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

    Q: the queries of all heads that share a key-value head, J · S of them. mask: additive, [N or 1, 1, S, X].
    """

    @staticmethod
    def forward(ctx, q_NSHE, k_NXKE, v_NXKE, mask):
        q_NKQE = _grouped(q_NSHE, k_NXKE.shape[2])
        k_NKXE = k_NXKE.transpose(1, 2).contiguous()
        v_NKXE = v_NXKE.transpose(1, 2).contiguous()
        out_NKQE = torch.empty_like(q_NKQE)
        for rows in _few_rows(q_NKQE, k_NKXE):
            p_NKQX = _probabilities(q_NKQE, k_NKXE, mask, rows)
            torch.matmul(p_NKQX, v_NKXE[rows], out=out_NKQE[rows])
        ctx.save_for_backward(q_NKQE, k_NKXE, v_NKXE, out_NKQE, mask)
        return _ungrouped(out_NKQE, q_NSHE.shape[1])

    @staticmethod
    def backward(ctx, dout_NSHE):
        q_NKQE, k_NKXE, v_NKXE, out_NKQE, mask = ctx.saved_tensors
        dout_NKQE = _grouped(dout_NSHE, k_NKXE.shape[1])
        dq_NKQE = torch.empty_like(q_NKQE)
        dk_NKXE = torch.empty_like(k_NKXE)
        dv_NKXE = torch.empty_like(v_NKXE)
        scale = q_NKQE.shape[-1] ** -0.5
        for rows in _few_rows(q_NKQE, k_NKXE):
            q_rows = q_NKQE[rows]
            k_rows = k_NKXE[rows]
            v_rows = v_NKXE[rows]
            out_rows = out_NKQE[rows]
            dout_rows = dout_NKQE[rows]
            p_NKQX = _probabilities(q_NKQE, k_NKXE, mask, rows)
            torch.matmul(p_NKQX.mT, dout_rows, out=dv_NKXE[rows])
            dp_NKQX = torch.matmul(dout_rows, v_rows.mT)
            products_NKQE = dout_rows.float() * out_rows
            mean_NKQ1 = products_NKQE.sum(dim=-1, keepdim=True)  # Σ p dp is ⟨dout, out⟩
            mean_NKQ1 = mean_NKQ1.to(p_NKQX.dtype)
            dscore_NKQX = dp_NKQX.sub_(mean_NKQ1).mul_(p_NKQX)
            dscore_NKQX.mul_(scale)
            torch.matmul(dscore_NKQX, k_rows, out=dq_NKQE[rows])
            torch.matmul(dscore_NKQX.mT, q_rows, out=dk_NKXE[rows])
        dq_NSHE = _ungrouped(dq_NKQE, dout_NSHE.shape[1])
        dk_NXKE = dk_NKXE.transpose(1, 2)
        dv_NXKE = dv_NKXE.transpose(1, 2)
        return dq_NSHE, dk_NXKE, dv_NXKE, None


def _probabilities(q_NKQE: Tensor, k_NKXE: Tensor, mask: Tensor, rows: slice) -> Tensor:
    """Return the softmax of the scores of some rows, [N, K, Q, X]. A single mask serves all rows."""
    scale = q_NKQE.shape[-1] ** -0.5
    scaled_NKQE = q_NKQE[rows] * scale
    k_rows = k_NKXE[rows]
    score_NKQX = torch.matmul(scaled_NKQE, k_rows.mT)
    mask_of_rows = mask if len(mask) == 1 else mask[rows]
    S = mask.shape[2]
    score_NKJSX = score_NKQX.unflatten(2, (-1, S))
    score_NKJSX.add_(mask_of_rows[:, None])
    return score_NKQX.softmax(dim=-1)


def _grouped(x_NSHE: Tensor, num_kv_heads: int) -> Tensor:
    """Return [N, K, Q, E], contiguous: the queries that share a key-value head below one another."""
    x_NSKJE = x_NSHE.unflatten(2, (num_kv_heads, -1))
    x_NKJSE = x_NSKJE.permute(0, 2, 3, 1, 4)
    return x_NKJSE.flatten(2, 3).contiguous()


def _ungrouped(x_NKQE: Tensor, S: int) -> Tensor:
    x_NKJSE = x_NKQE.unflatten(2, (-1, S))
    x_NSKJE = x_NKJSE.permute(0, 3, 1, 2, 4)
    return x_NSKJE.flatten(2, 3)


def _few_rows(q_NKQE: Tensor, k_NKXE: Tensor) -> list[slice]:
    """Split the rows so that the scores of each slice fit into SCORES_BYTES."""
    num_rows, K, X, _ = k_NKXE.shape
    row_bytes = K * q_NKQE.shape[2] * X * q_NKQE.itemsize
    size = max(1, SCORES_BYTES // row_bytes)
    starts = range(0, num_rows, size)
    return [slice(start, start + size) for start in starts]

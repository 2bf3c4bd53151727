"""Attention as two products with all scores between them, a few sequences at a time: for bfloat16 on a CPU.

torch's CPU kernel works on small blocks, and such small products are slow. In bf16 the products over complete rows of
scores take half its time. For the backward pass only q, k, v and the output are kept; it computes the scores again.
"""

import torch

SCORES_BYTES = 4 << 20  # of scores at a time, so that they stay in the CPU's cache


def usable(x: torch.Tensor) -> bool:
    """Return whether this code is the faster one for tensors like x."""
    return x.device.type == "cpu" and x.dtype == torch.bfloat16


def decode(q_BKGE: torch.Tensor, k_BKSE: torch.Tensor, v_BKSE: torch.Tensor, mask_BK1S: torch.Tensor) -> torch.Tensor:
    """Attend with one query position per row. If k, v or mask have gaps between rows, they are copied."""
    scaled_BKGE = q_BKGE * q_BKGE.shape[-1] ** -0.5
    q_XGE, k_XSE, v_XSE, mask_X1S = (x.flatten(0, 1) for x in (scaled_BKGE, k_BKSE, v_BKSE, mask_BK1S))
    scores_XGS = torch.baddbmm(mask_X1S, q_XGE, k_XSE.transpose(1, 2))
    return torch.bmm(scores_XGS.softmax(dim=-1), v_XSE).view_as(q_BKGE)


class DenseAttention(torch.autograd.Function):
    """softmax(q kᵀ / sqrt(E) + mask) v, for N rows of S queries and X keys.

    mask: additive, [N or 1, 1, S, X].
    """

    @staticmethod
    def forward(ctx, q_NSHE, k_NXKE, v_NXKE, mask):
        q_NKGSE = _grouped(q_NSHE, k_NXKE.shape[2])
        k_NKXE, v_NKXE = _heads_first(k_NXKE), _heads_first(v_NXKE)
        out_NKGSE = torch.empty_like(q_NKGSE)
        for rows in _few_rows(q_NKGSE, k_NKXE):
            p_NKGSX = _probabilities(q_NKGSE[rows], k_NKXE[rows], _mask_of(rows, mask))
            torch.matmul(p_NKGSX.flatten(2, 3), v_NKXE[rows], out=out_NKGSE[rows].flatten(2, 3))
        ctx.save_for_backward(q_NKGSE, k_NKXE, v_NKXE, out_NKGSE, mask)
        return _ungrouped(out_NKGSE)

    @staticmethod
    def backward(ctx, dout_NSHE):
        q_NKGSE, k_NKXE, v_NKXE, out_NKGSE, mask = ctx.saved_tensors
        dout_NKGSE, scale = _grouped(dout_NSHE, k_NKXE.shape[1]), q_NKGSE.shape[-1] ** -0.5
        dq_NKGSE, dk_NKXE, dv_NKXE = (torch.empty_like(x) for x in (q_NKGSE, k_NKXE, v_NKXE))
        for rows in _few_rows(q_NKGSE, k_NKXE):
            p_NKGSX = _probabilities(q_NKGSE[rows], k_NKXE[rows], _mask_of(rows, mask))
            # From here on G and S are one axis: the queries of a group stand below one another.
            q, dout, dq = (x_NKGSE[rows].flatten(2, 3) for x_NKGSE in (q_NKGSE, dout_NKGSE, dq_NKGSE))
            p = p_NKGSX.flatten(2, 3)
            torch.matmul(p.transpose(-1, -2), dout, out=dv_NKXE[rows])
            dp = torch.matmul(dout, v_NKXE[rows].transpose(-1, -2))
            mean = (dout.float() * out_NKGSE[rows].flatten(2, 3)).sum(dim=-1, keepdim=True).to(p.dtype)  # Σ p dp
            dscore = dp.sub_(mean).mul_(p).mul_(scale)
            torch.matmul(dscore, k_NKXE[rows], out=dq)
            torch.matmul(dscore.transpose(-1, -2), q, out=dk_NKXE[rows])
        return _ungrouped(dq_NKGSE), dk_NKXE.transpose(1, 2), dv_NKXE.transpose(1, 2), None


def _probabilities(q_NKGSE: torch.Tensor, k_NKXE: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the softmax of the scores, [N, K, G, S, X]."""
    scaled = (q_NKGSE * q_NKGSE.shape[-1] ** -0.5).flatten(2, 3)
    score_NKGSX = torch.matmul(scaled, k_NKXE.transpose(-1, -2)).view(*q_NKGSE.shape[:4], -1)
    return score_NKGSX.add_(mask[:, None]).softmax(dim=-1)


def _grouped(x_NSHE: torch.Tensor, num_kv_heads: int) -> torch.Tensor:
    """Return [N, K, G, S, E], contiguous: the queries that share a key-value head side by side."""
    return x_NSHE.unflatten(2, (num_kv_heads, -1)).permute(0, 2, 3, 1, 4).contiguous()


def _ungrouped(x_NKGSE: torch.Tensor) -> torch.Tensor:
    return x_NKGSE.permute(0, 3, 1, 2, 4).flatten(2, 3)


def _heads_first(x_NXKE: torch.Tensor) -> torch.Tensor:
    return x_NXKE.transpose(1, 2).contiguous()


def _few_rows(q_NKGSE: torch.Tensor, k_NKXE: torch.Tensor) -> list[slice]:
    """Split the rows so that the scores of each slice fit into SCORES_BYTES."""
    num_scores = q_NKGSE[0, ..., 0].numel() * k_NKXE.shape[2]
    size = max(1, SCORES_BYTES // (num_scores * q_NKGSE.itemsize))
    return [slice(start, start + size) for start in range(0, len(q_NKGSE), size)]


def _mask_of(rows: slice, mask: torch.Tensor) -> torch.Tensor:
    """Return the mask of these rows; a single mask serves all rows."""
    return mask if len(mask) == 1 else mask[rows]

"""Attention as two products with all scores between them, a few rows of the batch at a time: for bfloat16 on a CPU.

torch's CPU kernel goes through small blocks, each product too small to be fast: in bf16 these products over whole rows
take half its time. Nothing but q, k, v and the output is kept for the backward pass; scores are computed again there.
"""

import torch

SCORES_BYTES = 4 << 20  # of scores at a time, so that they stay in the cache


def usable(x: torch.Tensor) -> bool:
    return x.device.type == "cpu" and x.dtype == torch.bfloat16


def decode(q_BKGE: torch.Tensor, k_BKSE: torch.Tensor, v_BKSE: torch.Tensor, mask_B11S: torch.Tensor) -> torch.Tensor:
    """One query position per row; k and v should have no gaps between their rows, or they are copied."""
    scores_BKGS = torch.matmul(q_BKGE * q_BKGE.shape[-1] ** -0.5, k_BKSE.transpose(-1, -2))
    return torch.matmul((scores_BKGS + mask_B11S).softmax(dim=-1), v_BKSE)


class DenseAttention(torch.autograd.Function):
    """softmax(q kᵀ / sqrt(E) + mask) v.  q: [N, S, H, E]; k, v: [N, T, K, E]; mask: additive [N or 1, 1, S, T]; result as q."""

    @staticmethod
    def forward(ctx, q_NSHE, k_NTKE, v_NTKE, mask):
        q, k, v = _grouped(q_NSHE, k_NTKE.shape[2]), _heads_first(k_NTKE), _heads_first(v_NTKE)
        out = torch.empty_like(q)
        for rows in _parts(q, k):
            torch.matmul(
                _probabilities(q[rows], k[rows], _of(mask, rows)).flatten(2, 3), v[rows], out=out[rows].flatten(2, 3)
            )
        ctx.save_for_backward(q, k, v, out, mask)
        return _ungrouped(out)

    @staticmethod
    def backward(ctx, g_NSHE):
        q, k, v, out, mask = ctx.saved_tensors
        g, scale = _grouped(g_NSHE, k.shape[1]), q.shape[-1] ** -0.5
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        for rows in _parts(q, k):
            p_nKGST = _probabilities(q[rows], k[rows], _of(mask, rows))
            g_rows = g[rows].flatten(2, 3)
            torch.matmul(p_nKGST.flatten(2, 3).transpose(-1, -2), g_rows, out=dv[rows])
            dp_nKGST = torch.matmul(g_rows, v[rows].transpose(-1, -2)).view_as(p_nKGST)
            mean_nKGS1 = (g[rows].float() * out[rows]).sum(dim=-1, keepdim=True).to(q.dtype)
            ds = dp_nKGST.sub_(mean_nKGS1).mul_(p_nKGST).mul_(scale).flatten(2, 3)
            torch.matmul(ds, k[rows], out=dq[rows].flatten(2, 3))
            torch.matmul(ds.transpose(-1, -2), q[rows].flatten(2, 3), out=dk[rows])
        return _ungrouped(dq), dk.transpose(1, 2), dv.transpose(1, 2), None


def _probabilities(q_nKGSE: torch.Tensor, k_nKTE: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """[n, K, G, S, T]."""
    scores = torch.matmul((q_nKGSE * q_nKGSE.shape[-1] ** -0.5).flatten(2, 3), k_nKTE.transpose(-1, -2))
    return scores.view(*q_nKGSE.shape[:4], -1).add_(mask[:, None]).softmax(dim=-1)


def _grouped(x_NSHE: torch.Tensor, num_kv_heads: int) -> torch.Tensor:
    """[N, K, G, S, E], without gaps: the queries that share a key-value head side by side."""
    return x_NSHE.unflatten(2, (num_kv_heads, -1)).permute(0, 2, 3, 1, 4).contiguous()


def _ungrouped(x_NKGSE: torch.Tensor) -> torch.Tensor:
    return x_NKGSE.permute(0, 3, 1, 2, 4).flatten(2, 3)


def _heads_first(x_NTKE: torch.Tensor) -> torch.Tensor:
    return x_NTKE.transpose(1, 2).contiguous()


def _parts(q_NKGSE: torch.Tensor, k_NKTE: torch.Tensor) -> list[slice]:
    per_row = q_NKGSE[0, ..., 0].numel() * k_NKTE.shape[2] * q_NKGSE.itemsize
    size = max(1, SCORES_BYTES // per_row)
    return [slice(start, start + size) for start in range(0, len(q_NKGSE), size)]


def _of(mask: torch.Tensor, rows: slice) -> torch.Tensor:
    return mask if len(mask) == 1 else mask[rows]

"""Slow twins: every fast path of this program, once more, straight from its formula, one row at a time, in float64.

Nothing here is used in training. Each function names the equation (grpo/MATH.md) it transcribes and the fast path it judges.
They share no code with what they judge.
"""

import math

import torch


def lora_linear(x_TI: torch.Tensor, W_OI: torch.Tensor, b_O: torch.Tensor | None, A_RI: torch.Tensor, B_OR: torch.Tensor, scale: float) -> torch.Tensor:
    """Eq. 12, left-hand side. Twin of lora.LoraLinear for one projection; differentiable by autograd."""
    y_TO = x_TI.double() @ W_OI.double().T + scale * (x_TI.double() @ A_RI.double().T) @ B_OR.double().T
    return y_TO if b_O is None else y_TO + b_O.double()


def token_logprobs(hidden_CD: torch.Tensor, head_VD: torch.Tensor, targets_C: torch.Tensor, temperature: float,
                   cut_C: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Eq. 3, row by row. Twin of logprobs.token_logprobs; differentiable by autograd."""
    logps, entropies = [], []
    for row, target in enumerate(targets_C.tolist()):
        logits_V = head_VD.double() @ hidden_CD[row].double() / temperature
        full_V = logits_V - torch.logsumexp(logits_V, 0)
        kept_V = torch.ones_like(full_V, dtype=torch.bool) if cut_C is None else full_V >= cut_C[row].double()
        kept_V[target] = True
        kept = full_V[kept_V] - torch.logsumexp(full_V[kept_V], 0)
        logps.append(full_V[target] - torch.logsumexp(full_V[kept_V], 0))
        entropies.append(-(kept.exp() * kept).sum())
    return torch.stack(logps), torch.stack(entropies).detach()


def draw(logits_V: torch.Tensor, uniform: float, temperature: float, top_p: float, top_k: int) -> tuple[int, float]:
    """Token and log-prob by a single running sum over the kept entries, in order of their index. Twin of draw.draw."""
    if temperature == 0:
        return int(logits_V.argmax()), 0.0
    p_V = torch.softmax(logits_V.double() / temperature, 0)
    by_probability = sorted(range(len(p_V)), key=lambda v: -p_V[v])
    if top_k:
        by_probability = by_probability[:top_k]
    total, mass, kept = float(p_V[by_probability].sum()) if top_k else 1.0, 0.0, []
    for v in by_probability:
        if mass >= top_p * total and kept:
            break
        kept.append(v)
        mass += float(p_V[v])
    kept.sort()
    target, running = uniform * mass, 0.0
    for v in kept:
        running += float(p_V[v])
        if running > target:
            break
    return v, math.log(float(p_V[v]) / mass)


def attention(q_THE: torch.Tensor, k_TKE: torch.Tensor, v_TKE: torch.Tensor, visible_TT: torch.Tensor) -> torch.Tensor:
    """softmax(q kᵀ / sqrt(E)) v over the visible keys, head by head. Twin of attention.PackedAttention and DecodeAttention.
    visible_TT[i, j]: whether token i sees token j."""
    heads, group = [], q_THE.shape[1] // k_TKE.shape[1]
    for h in range(q_THE.shape[1]):
        scores_TT = q_THE[:, h].double() @ k_TKE[:, h // group].double().T / math.sqrt(q_THE.shape[2])
        heads.append(torch.softmax(scores_TT.masked_fill(~visible_TT, float("-inf")), -1) @ v_TKE[:, h // group].double())
    return torch.stack(heads, dim=1)


def policy_loss(logp: list[list[float]], old: list[list[float]], ref: list[list[float]], advantages: list[float], counts: list[bool], *,
                loss_type: str = "grpo", epsilon: float = 0.2, epsilon_high: float = 0.2, delta: float | None = None, beta: float = 0.0,
                use_bias_correction_kl: bool = False, sequence_level: bool = False, max_length: int = 1, rows_per_micro_batch: int = 1) -> float:
    """Eq. 4 to 10 over whole completions, with plain floats and loops. Twin of packing.row_weights and loss.policy_loss."""
    used = [i for i, counted in enumerate(counts) if counted]
    total = 0.0
    for i in used:
        n = len(logp[i])
        mean = sum(a - b for a, b in zip(logp[i], old[i], strict=True)) / n
        row = 0.0
        for t in range(n):
            ratio = math.exp(mean if sequence_level else logp[i][t] - old[i][t])
            bounded = ratio if delta is None else min(ratio, delta)
            clipped = min(max(ratio, 1 - epsilon), 1 + epsilon_high)
            d = ref[i][t] - logp[i][t]
            kl = (math.exp(d) - d - 1) * (ratio if use_bias_correction_kl else 1)
            row += -min(bounded * advantages[i], clipped * advantages[i]) + beta * kl
        start = i // rows_per_micro_batch * rows_per_micro_batch
        chunk = [j for j in used if start <= j < start + rows_per_micro_batch]
        num_chunks = math.ceil(len(counts) / rows_per_micro_batch)
        total += row / {"grpo": len(used) * n, "dapo": sum(len(logp[j]) for j in used), "dr_grpo": len(used) * max_length,
                        "bnpo": num_chunks * sum(len(logp[j]) for j in chunk)}[loss_type]
    return total

"""Slow twins: every fast path of this program, once more, straight from its formula, one row at a time, in float64.

Nothing here is used in training. Each function names the equation (grpo/MATH.md) it transcribes and the fast path it
judges. They share no code with what they judge.
"""

import math

import torch


def lora_linear(
    x_TI: torch.Tensor,
    W_OI: torch.Tensor,
    b_O: torch.Tensor | None,
    A_RI: torch.Tensor,
    B_OR: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """Eq. 12, left-hand side. Twin of lora.LoraLinear for one projection; differentiable by autograd."""
    y_TO = x_TI.double() @ W_OI.double().T + scale * (x_TI.double() @ A_RI.double().T) @ B_OR.double().T
    return y_TO if b_O is None else y_TO + b_O.double()


def token_logprobs(
    hidden_CD: torch.Tensor,
    head_VD: torch.Tensor,
    targets_C: torch.Tensor,
    temperature: float,
    cut_C: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
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
    """softmax(q kᵀ / sqrt(E)) v over the visible keys, head by head. Twin of attention.PackedAttention and
    DecodeAttention. visible_TT[i, j]: whether token i sees token j."""
    heads, group = [], q_THE.shape[1] // k_TKE.shape[1]
    for h in range(q_THE.shape[1]):
        scores_TT = q_THE[:, h].double() @ k_TKE[:, h // group].double().T / math.sqrt(q_THE.shape[2])
        heads.append(
            torch.softmax(scores_TT.masked_fill(~visible_TT, float("-inf")), -1) @ v_TKE[:, h // group].double()
        )
    return torch.stack(heads, dim=1)


def log_softmax_rows(
    logits_XV: torch.Tensor, targets_X: torch.Tensor, temperature: float, cut_X: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Eq. 3 from logits: log-prob, entropy, and onehot - softmax. Twin of log_softmax_rows.log_softmax_rows."""
    logps, entropies, slopes = [], [], []
    for row, (logits_V, target) in enumerate(zip(logits_XV.double(), targets_X.tolist(), strict=True)):
        logp_V = logits_V / temperature - torch.logsumexp(logits_V / temperature, 0)
        if cut_X is not None:
            kept_V = (logp_V >= cut_X[row]).index_fill(0, targets_X[row], True)
            logp_V = logp_V.masked_fill(~kept_V, float("-inf")) - torch.logsumexp(logp_V[kept_V], 0)
        logps.append(logp_V[target])
        entropies.append(-torch.where(logp_V > float("-inf"), logp_V.exp() * logp_V, 0.0).sum())
        slopes.append(torch.nn.functional.one_hot(torch.tensor(target), len(logp_V)).to(logp_V.device) - logp_V.exp())
    return torch.stack(logps), torch.stack(entropies), torch.stack(slopes)


def uniform(seed: int, position: int) -> float:
    """SplitMix64 of (seed, position) in Python's integers. Twin of draw.uniforms and of what inverse_cdf.draw_rows
    draws with."""
    x = (seed + position * 0x9E3779B97F4A7C15) % 2**64
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
    return (((x ^ x >> 31) >> 12) + 0.5) / 2**52


def rms_norm(
    x_TD: torch.Tensor, weight_D: torch.Tensor, eps: float, residual_TD: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Twin of model.RMSNorm and rms_norm.rms_norm; differentiable by autograd."""
    h_TD = x_TD.double() if residual_TD is None else x_TD.double() + residual_TD.double()
    return h_TD / (h_TD.square().mean(-1, keepdim=True) + eps).sqrt() * weight_D.double(), h_TD


def swiglu(gate_TF: torch.Tensor, up_TF: torch.Tensor) -> torch.Tensor:
    """Twin of swiglu.swiglu; differentiable by autograd."""
    return gate_TF.double() / (1 + (-gate_TF.double()).exp()) * up_TF.double()


def rotate(x_THE: torch.Tensor, cos_T1E: torch.Tensor, sin_T1E: torch.Tensor) -> torch.Tensor:
    """Each pair (e, e + E/2) as a complex number times that of its angle. Twin of rope.rotate and rotary.rotate;
    differentiable by autograd."""
    half = x_THE.shape[-1] // 2
    turned = torch.complex(x_THE[..., :half].double(), x_THE[..., half:].double()) * torch.complex(
        cos_T1E[..., :half].double(), sin_T1E[..., :half].double()
    )
    return torch.cat([turned.real, turned.imag], -1)


def decode_attention(
    q_BHE: torch.Tensor, k_BKSE: torch.Tensor, v_BKSE: torch.Tensor, lengths_B: torch.Tensor
) -> torch.Tensor:
    """One new token per row over the first lengths_B[b] positions of its slot, row by row; nothing visible gives zeros.
    Twin of decode_attention.decode_attention and of every backend in backends.py."""
    rows = []
    for q_HE, k_KSE, v_KSE, length in zip(q_BHE, k_BKSE, v_BKSE, lengths_B.tolist(), strict=True):
        group = len(q_HE) // len(k_KSE)
        k_HSE, v_HSE = (x_KSE[:, :length].double().repeat_interleave(group, 0) for x_KSE in (k_KSE, v_KSE))
        p_HS = torch.softmax((k_HSE @ q_HE.double()[..., None])[..., 0] / math.sqrt(q_HE.shape[1]), -1)
        rows.append((p_HS[:, None] @ v_HSE)[:, 0])
    return torch.stack(rows)


def policy_loss(
    logp: list[list[float]],
    old: list[list[float]],
    ref: list[list[float]],
    advantages: list[float],
    counts: list[bool],
    *,
    loss_type: str = "grpo",
    epsilon: float = 0.2,
    epsilon_high: float = 0.2,
    delta: float | None = None,
    beta: float = 0.0,
    use_bias_correction_kl: bool = False,
    sequence_level: bool = False,
    max_length: int = 1,
    rows_per_micro_batch: int = 1,
) -> float:
    """Eq. 4 to 10 over whole completions, with plain floats and loops. Twin of packing.set_loss_weights and
    loss.policy_loss."""
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
        total += (
            row
            / {
                "grpo": len(used) * n,
                "dapo": sum(len(logp[j]) for j in used),
                "dr_grpo": len(used) * max_length,
                "bnpo": num_chunks * sum(len(logp[j]) for j in chunk),
            }[loss_type]
        )
    return total

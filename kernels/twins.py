"""Slow twins: every fast path of this program, written a second time from its formula, for tests to compare with.

Training never calls these functions. They share no code with the fast paths, compute in float64, loop wherever a loop
is clearer, and leave their gradients to autograd. Equation numbers are those of grpo/algorithm/MATH.md.
"""

import math
import statistics

import torch
from torch import Tensor


def lora_linear(x_TI: Tensor, W_OI: Tensor, b_O: Tensor | None, A_RI: Tensor, B_OR: Tensor, scale: float) -> Tensor:
    """Apply a linear layer with a LoRA adapter (Eq. 15, left-hand side). Twin of lora.Linear."""
    base_TO = x_TI.double() @ W_OI.double().T
    adapter_TO = (x_TI.double() @ A_RI.double().T) @ B_OR.double().T
    y_TO = base_TO + scale * adapter_TO  # Eq. 15
    return y_TO if b_O is None else y_TO + b_O.double()


def int8_rows(W_OI: Tensor) -> Tensor:
    """Round each row to whole multiples of its step, the largest number / 127. The step is kept in float32.

    Twin of quantised.QuantisedRows, as nf4_rows is.
    """
    rounded = []
    for W_I in W_OI.double():
        step = (W_I.abs().max() / 127).float().double()
        rounded.append(torch.round(W_I / step) * step if step > 0 else W_I)
    return torch.stack(rounded)


def nf4_rows(W_OI: Tensor) -> Tensor:
    """Round each number to the nearest of nf4's 16 levels times the largest number of its block of 64 (2305.14314).

    Of the normal distribution's quantiles, divided by the last one, 8 are above zero, 7 below, and zero is a level. A
    width that 64 does not divide has blocks of their common divisor. Levels and scales are kept in float32.
    """
    most = 1 - (1 / 30 + 1 / 32) / 2
    middle = 0.5
    quantile = statistics.NormalDist().inv_cdf
    above = [quantile(most + (middle - most) * step / 8) for step in range(8)]
    below = [-quantile(most + (middle - most) * step / 7) for step in range(7)]
    largest = max(above)
    levels = torch.tensor([*above, *below, 0.0])
    levels = levels.double() / largest
    levels = levels.float().double()
    width = W_OI.shape[1]
    block = math.gcd(64, width)
    rounded = []
    for W_X in W_OI.double().reshape(-1, block):
        scale = W_X.abs().max()
        scale = scale.float().double()
        held = levels * scale
        distance = W_X[:, None] - held
        nearest = distance.abs().argmin(dim=1)
        rounded.append(held[nearest])
    return torch.stack(rounded).view(W_OI.shape)


def rms_norm(x_TD: Tensor, weight_D: Tensor, eps: float, residual_TD: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Add the residual, if there is one, and normalize. Return both. Twin of decoder.RMSNorm and rms_norm.rms_norm."""
    h_TD = x_TD.double()
    if residual_TD is not None:
        h_TD = h_TD + residual_TD.double()
    mean_square_T1 = h_TD.square().mean(-1, keepdim=True)
    rms_T1 = (mean_square_T1 + eps).sqrt()
    y_TD = h_TD / rms_T1 * weight_D.double()
    return y_TD, h_TD


def swiglu(gate_TF: Tensor, up_TF: Tensor) -> Tensor:
    """Compute silu(gate) * up. Twin of swiglu.swiglu."""
    gate_TF = gate_TF.double()
    silu_TF = gate_TF / (1 + (-gate_TF).exp())
    return silu_TF * up_TF.double()


def append_product(x_TI: Tensor, A_RI: Tensor, copies: int) -> list[Tensor]:
    """Append to each copy of x its part of x Aᵀ. Twin of append_product.append_product."""
    h_TR = x_TI.double() @ A_RI.double().T
    return [torch.cat([x_TI.double(), h_TX], dim=-1) for h_TX in h_TR.chunk(copies, dim=-1)]


def rotate(x_THE: Tensor, cos_T1E: Tensor, sin_T1E: Tensor) -> Tensor:
    """Rotate each pair of features (e, e + E/2) by its angle. Twin of ops.rotate and rotary.rotate."""
    half = x_THE.shape[-1] // 2
    first, second = x_THE.double().split(half, dim=-1)
    pairs = torch.complex(first, second)
    cos = cos_T1E[..., :half].double()
    sin = sin_T1E[..., :half].double()
    rotated = pairs * torch.complex(cos, sin)
    return torch.cat([rotated.real, rotated.imag], -1)


def attention(q_THE: Tensor, k_TKE: Tensor, v_TKE: Tensor, visible_TT: Tensor) -> Tensor:
    """Compute softmax(q kᵀ / sqrt(E)) v over the visible keys, head by head. Twin of the attentions used in training.

    visible_TT[i, j] says whether token i sees token j.
    """
    _, H, E = q_THE.shape
    heads_per_kv_head = H // k_TKE.shape[1]
    out_of_head = []
    for head in range(H):
        q_TE = q_THE[:, head].double()
        k_TE = k_TKE[:, head // heads_per_kv_head].double()
        v_TE = v_TKE[:, head // heads_per_kv_head].double()
        scores_TT = q_TE @ k_TE.T / math.sqrt(E)
        scores_TT = scores_TT.masked_fill(~visible_TT, -math.inf)
        out_of_head.append(torch.softmax(scores_TT, -1) @ v_TE)
    return torch.stack(out_of_head, dim=1)


def decode_attention(q_BHE: Tensor, k_BKSE: Tensor, v_BKSE: Tensor, lengths_B: Tensor) -> Tensor:
    """Attend from one new token per sequence to the first lengths_B[b] positions of its slot in the cache.

    A length of 0 gives zeros. Twin of decode_attention.decode_attention and of every other decode attention.
    """
    out_of_row = []
    for q_HE, k_KSE, v_KSE, length in zip(q_BHE, k_BKSE, v_BKSE, lengths_B.tolist(), strict=True):
        k_SKE = k_KSE[:, :length].transpose(0, 1)
        v_SKE = v_KSE[:, :length].transpose(0, 1)
        all_visible_1S = torch.ones(1, length, dtype=torch.bool, device=q_HE.device)
        out_1HE = attention(q_HE[None], k_SKE, v_SKE, all_visible_1S)
        out_of_row.append(out_1HE[0])
    return torch.stack(out_of_row)


def log_softmax_rows(
    logits_CV: Tensor, targets_C: Tensor, temperature: float, cut_C: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return log-probs and entropies from logits, and onehot - softmax. Twin of log_softmax_rows.log_softmax_rows.

    onehot - softmax is the gradient of the log-prob with respect to the logits divided by the temperature.
    """
    logps, entropies, slopes = [], [], []
    for token, target in enumerate(targets_C.tolist()):
        logits_V = logits_CV[token].double() / temperature
        logp_V = logits_V - torch.logsumexp(logits_V, 0)
        if cut_C is not None:
            kept_V = logp_V >= cut_C[token]
            kept_V[target] = True
            log_mass = torch.logsumexp(logp_V[kept_V], 0)
            logp_V = logp_V.masked_fill(~kept_V, -math.inf) - log_mass
        onehot_V = torch.zeros_like(logp_V)
        onehot_V[target] = 1
        p_V = logp_V.exp()
        terms_V = p_V * logp_V.masked_fill(logp_V == -math.inf, 0.0)  # 0 log 0 = 0
        logps.append(logp_V[target])  # Eq. 3
        entropies.append(-terms_V.sum())
        slopes.append(onehot_V - p_V)
    return torch.stack(logps), torch.stack(entropies), torch.stack(slopes)


def draw(logits_V: Tensor, uniform: float, temperature: float, top_p: float, top_k: int) -> tuple[int, float]:
    """Draw a token by inverse CDF from those that top-k, then top-p keep; return it and its log-prob.

    Twin of draw.draw.
    """
    if temperature == 0:
        best = float(logits_V.max())
        return int(logits_V.argmax()), best - best  # 0, or NaN if the logits are not finite
    p_V = torch.softmax(logits_V.double() / temperature, 0)
    kept = kept_tokens(logits_V, temperature, top_p, top_k)
    mass = float(p_V[kept].sum())
    running_sum = 0.0
    for token in kept:
        running_sum += float(p_V[token])
        if running_sum > uniform * mass:
            break
    return token, math.log(float(p_V[token]) / mass)


def kept_tokens(logits_V: Tensor, temperature: float, top_p: float, top_k: int) -> list[int]:
    """List the tokens that top-k, then top-p keep. Equal logits are kept or dropped together.

    Twin of draw._threshold and of nucleus.thresholds.
    """
    p_V = torch.softmax(logits_V.double() / temperature, 0)
    p, logits = p_V.tolist(), logits_V.tolist()
    likeliest = sorted(range(len(p)), key=lambda token: -logits[token])
    if top_k:
        last = logits[likeliest[:top_k][-1]]
        likeliest = [token for token in likeliest if logits[token] >= last]
    if top_p == 1:
        return sorted(likeliest)
    total = math.fsum(p[token] for token in likeliest)
    kept, mass = [], 0.0
    for token in likeliest:
        if mass >= top_p * total and logits[token] < logits[kept[-1]]:
            break
        kept.append(token)
        mass += p[token]
    return sorted(kept)


def uniform(seed: int, position: int) -> float:
    """Hash (seed, position) to a number in (0, 1) by SplitMix64. Twin of draw.uniforms and of inverse_cdf._uniform."""
    x = (seed + position * 0x9E3779B97F4A7C15) % 2**64
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
    x = x ^ x >> 31
    return ((x >> 12) + 0.5) / 2**52

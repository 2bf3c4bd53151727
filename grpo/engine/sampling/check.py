"""The check of a model of transformers when it is loaded: does it compute here what transformers computes?

64 tokens are scored twice, by the pass that trains, packed with a shared prompt, and by the pass that samples, from our
cache. If either differs from transformers' own log-probs by more than rounding, the model is refused. So what runs is
right, and no list of families has to be.
"""

import torch
from torch import Tensor

from grpo.algorithm.schema import Layout
from grpo.base.errors import PREFLIGHT, UserError, explained
from grpo.engine.attention.choice import packed_attention
from grpo.engine.attention.decode import DecodeAttention
from grpo.engine.model.transformers_model import PROMPT, TransformersModel, narrow, probe, probe_logps
from grpo.engine.sampling.cache import KVCache
from grpo.engine.sampling.sampler import prefill

# Mean difference in nats that rounding may make; what is computed wrongly differs by far more.
ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 0.03, torch.bfloat16: 0.15}


@torch.inference_mode()
def check_model(model: TransformersModel) -> None:
    """Raise UserError (exit 3) if log-probs differ from transformers' by more than rounding."""
    family, bound = model.config.family, ROUNDING[model.build.dtype]
    fix = "use another model: README names families that pass"
    kinds = (RuntimeError, ValueError, TypeError, AttributeError, IndexError)
    errors = []
    with narrow(model.net), explained(kinds, f"{family} cannot be computed here", fix):
        for logits_CV in (packed_logits(model), decoded_logits(model)):
            errors.append(float((probe_logps(logits_CV) - model.expected).abs().mean()))
    if not max(errors) <= bound:
        raise UserError(
            f"{family} is computed differently here than by transformers",
            f"log-probs of 64 tokens differ by {errors[0]:.2g} nats when packed for training, and by {errors[1]:.2g} "
            f"when decoded; rounding makes {bound:g} at most",
            fix,
            PREFLIGHT,
        )


def packed_logits(model: TransformersModel) -> Tensor:
    """Return the logits that predict the completions of `probe`, as training computes them: with a shared prompt."""
    row_2S = probe(model.config.vocab_size).to(model.build.device)
    position_S = torch.arange(row_2S.shape[1], device=row_2S.device)
    id_T = torch.cat([row_2S[0], row_2S[1, PROMPT:]])
    position_T = torch.cat([position_S, position_S[PROMPT:]])
    length = len(position_S) - PROMPT
    attend = packed_attention(model, Layout.of((PROMPT, (length, length))))
    hidden_TD = model(id_T, position_T, attend)
    last = slice(PROMPT - 1, PROMPT)  # of the prompt
    first_XD, second_XD = hidden_TD[PROMPT:].split(length)
    hidden_CD = torch.cat([hidden_TD[last], first_XD[:-1], hidden_TD[last], second_XD[:-1]])
    return model.logits(hidden_CD, model.head())


def decoded_logits(model: TransformersModel) -> Tensor:
    """Return the same logits as decoding computes them, from the cache: each token in a slot of its own."""
    row_2S = probe(model.config.vocab_size).to(model.build.device)
    id_B = row_2S[:, PROMPT - 1 : -1].flatten()
    length = len(id_B) // 2
    cache = KVCache(torch.stack(prefill(model, row_2S.tolist()), dim=2).repeat_interleave(length, dim=2))
    position_B = torch.arange(PROMPT - 1, PROMPT - 1 + length, device=id_B.device).repeat(2)
    attend = DecodeAttention.over_used_positions(cache, position_B, cache.num_positions)
    with model.sampling() as head_VD:
        return model.logits(model(id_B, position_B, attend), head_VD)

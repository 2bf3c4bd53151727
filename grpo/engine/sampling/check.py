"""The check of a model of transformers when it is loaded: does it compute here what transformers computes?

64 tokens are scored twice, by the pass that trains, packed with a shared prompt, and by the pass that samples, from our
cache. If either differs from transformers' own log-probs by more than rounding, the model is refused. So what runs is
right, and no list of families has to be.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from grpo.algorithm.schema import Group, Layout
from grpo.base.errors import PREFLIGHT, UserError, explained
from grpo.engine.attention.choice import packed_attention
from grpo.engine.attention.decode import DecodeAttention
from grpo.engine.device.capture import no_waiting
from grpo.engine.model.decoder import Decoder
from grpo.engine.model.transformers_model import PROMPT, TransformersModel, narrow, probe, probe_logps
from grpo.engine.sampling.cache import KVCache
from grpo.engine.sampling.sampler import prefill

# Mean difference in nats that rounding may make; what is computed wrongly differs by far more.
ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 0.03, torch.bfloat16: 0.15}

COMPARED = 64  # tokens whose routers are compared


@torch.inference_mode()
def check_model(model: Decoder) -> None:
    """Raise UserError (exit 3) if log-probs differ from transformers' by more than rounding."""
    assert isinstance(model, TransformersModel)
    family = model.config.family
    bound = ROUNDING[model.build.dtype]
    fix = "use another model: README names families that pass"
    kinds = (RuntimeError, ValueError, TypeError, AttributeError, IndexError)
    row_2S = probe(model.config.vocab_size).to(model.build.device)
    errors = []
    with narrow(model.net), explained(kinds, f"{family} cannot be computed here", fix):
        for logits_of in (packed_logits, decoded_logits):
            logits_CV = logits_of(model, row_2S, PROMPT)
            error_C = probe_logps(logits_CV) - model.expected
            errors.append(float(error_C.abs().mean()))
    if not max(errors) <= bound:
        raise UserError(
            f"{family} is computed differently here than by transformers",
            f"log-probs of 64 tokens differ by {errors[0]:.2g} nats when packed for training, and by {errors[1]:.2g} "
            f"when decoded; rounding makes {bound:g} at most",
            fix,
            PREFLIGHT,
        )


def packed_logits(model: TransformersModel, row_NS: Tensor, first: int) -> Tensor:
    """Return the logits that predict what follows the `first` tokens of each row, as training computes them.

    The rows begin with the same tokens, which are computed once.
    """
    num_rows, end = row_NS.shape
    length = end - first
    position_S = torch.arange(end, device=row_NS.device)
    shared_S = row_NS[0, :first]
    own_NX = row_NS[:, first:]
    id_T = torch.cat([shared_S, own_NX.flatten()])
    position_T = torch.cat([position_S[:first], position_S[first:].repeat(num_rows)])
    layout = Layout.of((first, (length,) * num_rows))
    attend = packed_attention(model, layout)
    hidden_TD = model(id_T, position_T, attend)
    own_NXD = hidden_TD[first:].unflatten(0, (num_rows, length))
    last_N1D = hidden_TD[first - 1].expand(num_rows, 1, -1)
    hidden_NXD = torch.cat([last_N1D, own_NXD[:, :-1]], dim=1)
    return model.logits(hidden_NXD.flatten(0, 1), model.head())


def decoded_logits(model: TransformersModel, row_NS: Tensor, first: int) -> Tensor:
    """Return the same logits as decoding computes them, from the cache: each token in a slot of its own."""
    num_rows, end = row_NS.shape
    length = end - first
    of_rows = prefill(model, row_NS.tolist())
    kv_L2NKSE = torch.stack(of_rows, dim=2)
    cache = KVCache(kv_L2NKSE.repeat_interleave(length, dim=2))
    id_B = row_NS[:, first - 1 : -1].flatten()
    position_B = torch.arange(first - 1, end - 1, device=id_B.device).repeat(num_rows)
    attend = DecodeAttention.over_used_positions(cache, position_B, cache.num_positions)
    if id_B.is_cuda:
        model.can_be_captured = _never_waits(lambda: model(id_B, position_B, attend))
    with model.sampling() as head_VD:
        return model.logits(model(id_B, position_B, attend), head_VD)


def _never_waits(work: Callable[[], object]) -> bool:
    """Return whether the host need not wait for the GPU in this work, so that a CUDA graph can record it."""
    try:
        with no_waiting():
            work()
    except RuntimeError:
        return False
    return True


@torch.inference_mode()
def router_changes(model: Decoder, group: Group) -> dict[str, float]:
    """Return the metric of routers: how many choices of experts differ when a completion is decoded and when packed.

    Of the first completion's first tokens. A model without routers has none.
    """
    ids = [*group.prompt.ids, *group.completions[0].ids[:COMPARED]]
    first = len(group.prompt.ids)
    if not isinstance(model, TransformersModel) or not model.routers or len(ids) == first:
        return {}
    row_1S = torch.tensor([ids], device=model.build.device)
    with model.recording_routers() as packed:
        packed_logits(model, row_1S, first)
    with model.recording_routers() as decoded:
        decoded_logits(model, row_1S, first)
    num_layers = len(packed)  # decoding comes after a pass over the prompts
    changed = 0.0
    for packed_TX, decoded_BX in zip(packed, decoded[-num_layers:], strict=True):
        differs_BX = packed_TX[first - 1 : -1] != decoded_BX
        changed += float(differs_BX.any(dim=-1).float().mean())
    return {"router_changed_frac": changed / num_layers}

"""The check of a model of transformers when it is loaded: does it compute here what transformers computes?

64 tokens are scored twice, by the pass that trains, packed with a shared prompt, and by the pass that samples, from our
cache. If either differs from transformers' own log-probs by more than rounding, the model is refused. So what runs is
right, and no list of families has to be.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import torch
from torch import Tensor

from grpo.algorithm.schema import Group, Layout
from grpo.base.errors import PREFLIGHT, UserError, explained
from grpo.engine.attention.choice import no_waiting, packed_attention
from grpo.engine.attention.decode import DecodeAttention
from grpo.engine.model.decoder import Decoder
from grpo.engine.model.transformers_model import ANOTHER, PROMPT, TransformersModel, probe, probe_logps
from grpo.engine.sampling.decode_step import KVCache
from grpo.engine.sampling.prefill import prefill

# Mean difference in nats that rounding may make; what is computed wrongly differs by far more.
ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 0.03, torch.bfloat16: 0.15}

COMPARED = 64  # tokens whose routers are compared


@torch.inference_mode()
def check_model(model: Decoder) -> None:
    """Raise UserError (exit 3) if log-probs differ from transformers' by more than rounding."""
    assert isinstance(model, TransformersModel)
    family = model.config.family
    bound = ROUNDING[model.build.dtype]
    errors = []
    with explained(Exception, f"{family} cannot be computed here: it does not fit our attention or cache", ANOTHER):
        for logits_CV in both_ways(model, probe(model.config.vocab_size), PROMPT):
            error_C = probe_logps(logits_CV) - model.expected
            errors.append(float(error_C.abs().mean()))
    if not max(errors) <= bound:
        raise UserError(
            f"{family} is computed differently here than by transformers",
            f"log-probs of 64 tokens differ by {errors[0]:.2g} nats when packed for training, and by {errors[1]:.2g} "
            f"when decoded; rounding makes {bound:g} at most",
            ANOTHER,
            PREFLIGHT,
        )


def both_ways(model: TransformersModel, row_NS: Tensor, first: int) -> Iterator[Tensor]:
    """Yield the logits after each token of these rows but the `first` ones, as training computes them and as decoding.

    The rows begin with the same tokens. Training computes these once; decoding has each token in a slot of its own.
    """
    row_NS = row_NS.to(model.build.device)
    num_rows, end = row_NS.shape
    length = end - first
    position_S = torch.arange(end, device=row_NS.device)
    id_B = row_NS[:, first:].flatten()
    position_B = position_S[first:].repeat(num_rows)

    id_T = torch.cat([row_NS[0, :first], id_B])
    position_T = torch.cat([position_S[:first], position_B])
    layout = Layout.of((first, (length,) * num_rows))
    hidden_TD = model(id_T, position_T, packed_attention(model, layout))
    yield model.logits(hidden_TD[first:], model.head())

    of_rows = prefill(model, row_NS.tolist())
    kv_L2NKSE = torch.stack(of_rows, dim=2)
    cache = KVCache.of(model, len(id_B), end)
    cache.kv_L2BKSE.unflatten(2, (num_rows, length)).copy_(kv_L2NKSE[:, :, :, None])
    attend = DecodeAttention.over_used_positions(cache, position_B, end)
    if id_B.is_cuda:
        model.can_be_captured = _never_waits(lambda: model(id_B, position_B, attend))
    with model.sampling() as head_VD:
        yield model.logits(model(id_B, position_B, attend), head_VD)


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
    first = len(group.prompt.ids)
    own = group.completions[0].ids[:COMPARED]
    if not isinstance(model, TransformersModel) or not model.experts or not own:
        return {}
    chosen: list[Tensor] = []

    def record(_: object, inputs: tuple[Tensor, ...]) -> None:
        _, expert_TX, *_ = inputs
        chosen.append(expert_TX.sort(dim=-1).values)

    with ExitStack() as recording:
        for experts in model.experts:
            recording.enter_context(experts.register_forward_pre_hook(record))
        for _ in both_ways(model, torch.tensor([[*group.prompt.ids, *own]]), first):
            pass
    num_layers = len(model.experts)
    both = zip(chosen[:num_layers], chosen[-num_layers:], strict=True)
    differs_LB = torch.stack([(packed_TX[first:] != decoded_BX).any(dim=-1) for packed_TX, decoded_BX in both])
    return {"router_changed_frac": float(differs_LB.float().mean())}

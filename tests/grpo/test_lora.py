"""LoRA as one augmented product: forward, gradients, and what bf16 keeps of a small update."""

import pytest
import torch
from grpo.kernels.twins import lora_linear
from making import (
    error_of_gradients,
    from_transformers,
    load,
    refused,
    scored,
    scored_by_rows,
    write_checkpoint,
)

from grpo.algorithm.schema import POLICY, REFERENCE, Mode
from grpo.engine.device.quantised import FORMATS
from grpo.engine.model.adapter import save_adapter, trained_adapter
from grpo.engine.model.build import ALL_PROJECTIONS, Build, LoraSpec
from grpo.engine.model.lora import Linear, few_zeros
from grpo.engine.model.weight import dense

PARTS = {"q_proj": 12, "k_proj": 6, "v_proj": 6}


def make_layer(targets=("q_proj", "v_proj"), dropout=0.0, separate=False, held=None, dtype=torch.float64):
    """A layer whose parts are one product, or one each."""
    generator = torch.Generator().manual_seed(0)
    build = Build(LoraSpec(3, 6, dropout, targets), False, dtype, "cpu", FORMATS.get(held))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("grpo.engine.model.lora.MAX_ZERO_SHARE", 0.0 if separate else 1.0)
        layer = Linear(10, PARTS, True, build)
    assert len(layer.products) == (len(PARTS) if separate else 1)
    for tensors in (*map(layer.base, PARTS), *map(layer.adapter, targets)):
        for tensor in tensors:
            tensor.copy_(torch.randn(tensor.shape, generator=generator))
    layer.refresh()
    return layer


def joined(layer, x, mode=POLICY):
    return torch.cat(layer(x, mode), dim=-1)


ALL = tuple(PARTS)
LAYERS = [
    (("q_proj", "v_proj"), False),
    (ALL, False),
    (("k_proj",), False),
    (ALL, True),
    (("q_proj", "v_proj"), True),
    ((), False),
]


def twin(layer, x, adapters):
    """What the layer computes with these adapters, by its slow twin."""
    outputs = []
    for part, size in PARTS.items():
        weight, bias = layer.base(part)
        A, B = adapters.get(part, (torch.zeros(1, 10), torch.zeros(size, 1)))
        outputs.append(lora_linear(x, dense(weight), bias, A, B, 2.0))
    return torch.cat(outputs, dim=-1)


@pytest.mark.parametrize("held", [None, "int8", "nf4"])
@pytest.mark.parametrize("targets, separate", LAYERS)
def test_forward_and_gradients_equal_the_twin(targets, separate, held):
    """Also without the adapters, prepacked for decoding, and merged as it is in float32. Without a seed nothing is
    dropped, nor is it in the reference."""
    layer = make_layer(targets, 0.3, separate, held)
    x = torch.randn(7, 10, dtype=torch.float64, requires_grad=True)
    upstream = torch.randn(7, 24, dtype=torch.float64)
    adapters = {part: [half.clone().requires_grad_() for half in layer.adapter(part)] for part in targets}
    wanted, base = twin(layer, x, adapters), twin(layer, x, {})
    leaves = [x, *(half for pair in adapters.values() for half in pair)]
    dx, *gradients = torch.autograd.grad(wanted, leaves, upstream)
    for given in (x, x.detach())[: 1 + bool(targets)]:  # nobody may need dL/dx
        layer.zero_grad()
        joined(layer, given).backward(upstream)
        for part, dA, dB in zip(targets, gradients[::2], gradients[1::2], strict=True):
            assert (layer.A.master.grad[layer.rank_slices[part]] - dA).abs().max() < 1e-11
            assert (layer.B[part].grad - dB).abs().max() < 1e-11
    assert (x.grad - dx).abs().max() < 1e-11
    with torch.no_grad():
        assert (joined(layer, x) - wanted).abs().max() < 1e-12
        with layer.sampling():
            assert (joined(layer, x) - wanted).abs().max() < 1e-12
        assert (joined(layer, x, Mode(False, 3)) - base).abs().max() < 1e-12
        merged = make_layer(targets, separate=separate, dtype=torch.float32)
        with merged.sampling():
            assert held or (joined(merged, x.float()) - wanted).abs().max() < 1e-4


def test_every_layer_and_seed_drops_other_inputs():
    """Neighbouring layers and neighbouring seeds, too: a mask is the set of inputs that have no effect on h."""
    layer, x = make_layer(dropout=0.5), torch.randn(50, 10, dtype=torch.float64)
    outputs = []
    for seed in 2 * [*range(4)]:
        for layer.number in range(4):
            outputs.append(joined(layer, x, Mode(dropout_seed=seed)).flatten())
    assert torch.equal(torch.stack(outputs[:16]), torch.stack(outputs[16:]))
    assert len(torch.stack(outputs).unique(dim=0)) == 16


def test_no_two_layers_of_a_model_drop_the_same_inputs(checkpoint):
    numbers = [layer.number for layer in load(checkpoint, rank=4, dropout=0.5).lora_linears()]
    assert len(numbers) == len(set(numbers)) == 8


def test_dropout_keeps_its_share_and_the_mean():
    """p = 0.3. One input at a time: its effect is gone in 3 of 10 masks and 1/0.7 as large in the others, so the mean
    over masks is the effect without dropout. 20,000 masks: the share's standard error is 0.0032."""
    layer = make_layer(targets=("q_proj",), dropout=0.3)
    x = torch.zeros(20_000, 10, dtype=torch.float64)
    x[:, 4] = 1.0
    base, whole, dropped = (layer(x, mode)[0] for mode in (REFERENCE, POLICY, Mode(dropout_seed=1)))
    share = (dropped - base) / (whole - base)
    gone = share.abs() < 1e-9
    assert torch.equal(gone.any(dim=1), gone.all(dim=1))
    assert (share[~gone] - 1 / 0.7).abs().max() < 1e-9
    assert abs(float(gone.double().mean()) - 0.3) < 0.013


@pytest.mark.parametrize("targets, separate", LAYERS[:-1])
@pytest.mark.parametrize("held", [None, "int8", "nf4"])
def test_gradients_with_dropout_by_finite_differences(targets, separate, held):
    """By x, A and every B, with p = 0.3. y is linear in each of them, so that the difference of any step is exact."""
    layer = make_layer(targets, dropout=0.3, separate=separate, held=held)
    x = torch.randn(4, 10, dtype=torch.float64, requires_grad=True)
    upstream = torch.randn(4, 24, dtype=torch.float64)

    def loss():
        layer.refresh()
        return (joined(layer, x, Mode(dropout_seed=3)) * upstream).sum()

    loss().backward()
    leaves = [x, layer.A.master, *layer.B.values()]
    for leaf in leaves:
        step = torch.randn(leaf.shape, dtype=torch.float64)
        with torch.no_grad():
            before = loss()
            leaf += step
            difference = float(loss() - before)
            leaf -= step
        assert 0 != difference == pytest.approx(float((leaf.grad * step).sum()), abs=1e-9)


def test_a_new_adapter_changes_nothing_and_has_the_spread_of_pefts():
    """A uniform in ±1/sqrt(I), whose standard deviation is 1/sqrt(3 I): 0.0361 for I = 256; B zero."""
    layer = Linear(256, PARTS, False, Build(LoraSpec(64, 128), False, torch.float32, "cpu"))
    for part in PARTS:
        layer.adapter(part)[1].fill_(1.0)
    layer.init_adapter(torch.Generator().manual_seed(0))
    A = torch.cat([layer.adapter(part)[0] for part in PARTS])
    assert A.abs().max() <= 1 / 16 and abs(float(A.mean())) < 1e-3
    assert float(A.std()) == pytest.approx(0.0361, rel=0.02) and len(A.unique()) > 0.99 * A.numel()
    x = torch.randn(5, 256)
    assert torch.equal(joined(layer, x), joined(layer, x, REFERENCE))


QKV_7B = {"q_proj": 3584, "k_proj": 512, "v_proj": 512}


@pytest.mark.parametrize(
    "inputs, parts, rank, targets, products",
    [
        (3584, {"gate_proj": 18944, "up_proj": 18944}, 256, ALL_PROJECTIONS, 2),  # 7 % zeros
        (3584, QKV_7B, 128, ALL_PROJECTIONS, 3),  # (1024 + 4096 + 4096) x 128 of 4608 x 3584 are 7.1 %
        (3584, QKV_7B, 64, ALL_PROJECTIONS, 1),  # 3.6 %
        (3584, QKV_7B, 512, ("k_proj",), 3),  # 4096 x 512
        (3584, QKV_7B, 256, ("q_proj",), 1),  # 1024 x 256
    ],
)
def test_projections_split_when_zeros_would_cost_too_much(inputs, parts, rank, targets, products):
    """Each adapter leaves zeros at the outputs of the others."""
    layer = Linear(inputs, parts, False, Build(LoraSpec(rank, 1, targets=targets), False, torch.float32, "meta"))
    assert len(layer.products) == products


def test_on_a_gpu_zeros_are_counted_in_bytes():
    """Rank 256 on the 7B model: q, k and v hold 2.4M zeros (4.7 MB in bfloat16), gate and up 9.7M (19 MB)."""
    attention, mlp = (256 * (1024 + 4096 + 4096), 4608 * 3584), (256 * 2 * 18944, 2 * 18944 * 3584)
    assert few_zeros(*attention, torch.bfloat16, "cuda")
    assert not few_zeros(*attention, torch.bfloat16, "cpu")
    assert not few_zeros(*attention, torch.float32, "cuda")
    assert not few_zeros(*mlp, torch.bfloat16, "cuda")


def test_split_and_joint_projections_have_the_same_masters():
    """As a checkpoint holds them: it may be read where zeros are counted otherwise."""
    layers = [make_layer(ALL, separate=separate) for separate in (True, False)]
    for joint, split in zip(*(layer.parameters() for layer in layers), strict=True):
        assert torch.equal(joint, split)


@pytest.mark.parametrize("layers", [(), (2,), (0, -1)])
def test_layers_that_are_not_there_are_refused(tmp_path, layers):
    write_checkpoint(tmp_path)
    refused(lambda: load(tmp_path, rank=4, layers=layers), "lora_layers_to_transform", "0 to 1")


@pytest.mark.parametrize(
    "family, lora",
    [("qwen2", {}), ("llama", {}), ("llama", {"layers": (1,)}), ("qwen2", {"targets": ("q_proj", "down_proj")})],
)
def test_packed_log_probs_and_gradients_equal_pefts_row_by_row(tmp_path, family, lora):
    """One row with shared prompts against transformers + PEFT, which reads our adapter: the same log-probs and adapter
    gradients to 5e-6."""
    peft = pytest.importorskip("peft")
    base = write_checkpoint(tmp_path / "base", family)
    ours = load(base, rank=4, alpha=6, **lora)
    save_adapter(trained_adapter(ours, None, str(base)), tmp_path / "adapter", lora_alpha=6)
    theirs = peft.PeftModel.from_pretrained(from_transformers(base), tmp_path / "adapter", is_trainable=True)
    logp, weights = scored(ours, temperature=0.8)
    assert (logp - scored_by_rows(theirs, weights, 0.8)).abs().max() <= 2e-5
    assert error_of_gradients(ours, theirs) <= 5e-6
    adapted = [part for linear, part in ours.projections().values() if part in linear.rank_slices]
    assert len(adapted) == len(lora.get("targets", ALL_PROJECTIONS)) * len(lora.get("layers", "01"))

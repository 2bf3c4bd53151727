"""LoRA as one augmented product: forward, gradients, and what bf16 keeps of a small update."""

import pytest
import torch
from grpo.kernels.reference import lora_linear
from making import load, make_group, randomise_adapter, whole, write_checkpoint

from grpo.attention.packed import PackedAttention
from grpo.base.errors import UserError
from grpo.logprobs import token_logprobs
from grpo.model.adapter import save_adapter, trained_adapter
from grpo.model.lora import POLICY, REFERENCE, Build, JointLinear, Linear, LoraLinear, LoraSpec, Mode, few_zeros
from grpo.packing import pack_batch

PARTS = {"q_proj": 12, "k_proj": 6, "v_proj": 6}


def make_layer(targets=("q_proj", "v_proj"), dtype=torch.float64, dropout=0.0, rank=3, seed=0, apart=False):
    generator = torch.Generator().manual_seed(seed)
    layer = LoraLinear(10, PARTS, True, Build(LoraSpec(rank, 6, dropout, targets), False, dtype, "cpu"), apart)
    for part in PARTS:
        for tensor in layer.base(part):
            tensor.copy_(torch.randn(tensor.shape, generator=generator))
    for part in layer.rank_slices:
        for tensor in layer.adapter(part):
            tensor.copy_(torch.randn(tensor.shape, generator=generator))
    layer.refresh()
    return layer


ALL = tuple(PARTS)


@pytest.mark.parametrize(
    ("targets", "apart"), [(("q_proj", "v_proj"), False), (ALL, False), (("k_proj",), False), (ALL, True)]
)
def test_forward_and_gradients_equal_the_twin(targets, apart):
    layer = make_layer(targets, apart=apart)
    x = torch.randn(7, 10, dtype=torch.float64, requires_grad=True)
    upstream = torch.randn(7, 24, dtype=torch.float64)
    y = layer(x)
    (dx,) = torch.autograd.grad(y, x, upstream, retain_graph=True)
    y.backward(upstream)
    twins, leaves = [], {}
    for part in PARTS:
        A, B = (
            (t.clone().requires_grad_() for t in layer.adapter(part))
            if part in targets
            else (torch.zeros(1, 10), torch.zeros(PARTS[part], 1))
        )
        leaves[part] = (A, B)
        twins.append(lora_linear(x, *layer.base(part), A, B, layer.lora.scale))
    wanted = torch.cat(twins, dim=-1)
    assert (y - wanted).abs().max() < 1e-12
    wanted.backward(upstream)
    assert (dx - x.grad + dx).abs().max() < 1e-11  # x.grad holds both passes' gradients
    for part, rows in layer.rank_slices.items():
        assert (layer.A.master.grad[rows] - leaves[part][0].grad).abs().max() < 1e-11
        assert (layer.B[part].grad - leaves[part][1].grad).abs().max() < 1e-11


@pytest.mark.parametrize("apart", [False, True])
def test_reference_mode_is_the_base_alone(apart):
    layer, x = make_layer(ALL, apart=apart), torch.randn(7, 10, dtype=torch.float64)
    base = torch.cat([x @ layer.base(part)[0].T + layer.base(part)[1] for part in PARTS], dim=-1)
    assert (layer(x, REFERENCE) - base).abs().max() < 1e-12
    assert (layer(x, POLICY) - base).abs().max() > 0.1


def test_every_layer_and_seed_drops_other_inputs():
    """Neighbouring layers and neighbouring seeds, too: a mask is the set of inputs that have no effect on h."""
    layer, x = make_layer(dropout=0.5), torch.randn(50, 10, dtype=torch.float64)
    outputs = []
    for seed in range(4):
        for layer.number in range(4):
            outputs.append(layer(x, Mode(dropout_seed=seed)))
            assert torch.equal(outputs[-1], layer(x, Mode(dropout_seed=seed)))
    assert len(torch.unique(torch.stack(outputs).flatten(1), dim=0)) == 16


def test_no_two_layers_of_a_model_drop_the_same_inputs(checkpoint):
    """Those of one width, given one weight and one input, differ by their masks alone."""
    model, x = load(checkpoint, rank=4, dropout=0.5), torch.randn(50, 32)
    randomise_adapter(model)
    layers = [layer for layer in model.lora_linears() if layer.in_features == 32 and len(layer.out_slices) == 1]
    for layer in layers:
        layer.load_state_dict(layers[0].state_dict())
        layer.refresh()
    whole, dropped = (torch.stack([layer(x, mode) for layer in layers]) for mode in (POLICY, Mode(dropout_seed=1)))
    assert len(layers) == 2 and torch.equal(whole[0], whole[1]) and not torch.equal(dropped[0], dropped[1])


def test_without_a_seed_or_in_the_reference_nothing_is_dropped():
    with_dropout, without = make_layer(dropout=0.3), make_layer()
    x = torch.randn(6, 10, dtype=torch.float64)
    assert torch.equal(with_dropout(x), without(x))
    assert torch.equal(with_dropout(x, Mode(False, 3)), without(x, REFERENCE))
    assert torch.equal(without(x, Mode(dropout_seed=3)), without(x))


def test_dropout_keeps_its_share_and_the_mean():
    """p = 0.3. One input at a time: its effect is gone in 3 of 10 masks and 1/0.7 as large in the others, so the mean
    over masks is the effect without dropout. 20,000 masks: the share's standard error is 0.0032."""
    layer = make_layer(targets=("q_proj",), dropout=0.3)
    x = torch.zeros(20_000, 10, dtype=torch.float64)
    x[:, 4] = 1.0
    base, whole, dropped = (layer(x, mode)[:, :12] for mode in (REFERENCE, POLICY, Mode(dropout_seed=1)))
    share = (dropped - base) / (whole - base)
    gone = share.abs() < 1e-9
    assert torch.equal(gone.any(dim=1), gone.all(dim=1))
    assert (share[~gone] - 1 / 0.7).abs().max() < 1e-9
    assert abs(float(gone.double().mean()) - 0.3) < 0.013


@pytest.mark.parametrize(("targets", "apart"), [(("q_proj", "v_proj"), False), (("k_proj",), False), (ALL, True)])
@pytest.mark.parametrize("seed", [None, 3])
def test_gradients_by_finite_differences(targets, apart, seed):
    """By x, A and every B, with dropout (p = 0.3) and without. y is linear in each of them, so that differences of a
    large step are exact."""
    layer = make_layer(targets, dropout=0.3, apart=apart)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(4, 10, generator=generator, dtype=torch.float64, requires_grad=True)
    upstream = torch.randn(4, 24, generator=generator, dtype=torch.float64)

    def loss():
        layer.refresh()
        return (layer(x, Mode(dropout_seed=seed)) * upstream).sum()

    loss().backward()
    leaves = [x, layer.A.master, *layer.B.values()]
    assert len(leaves) == 2 + len(targets)
    for leaf in leaves:
        gradient, flat = leaf.grad.flatten(), leaf.data.view(-1)
        for place in range(len(flat)):
            original, values = float(flat[place]), []
            for step in (0.5, -0.5):
                flat[place] = original + step
                with torch.no_grad():
                    values.append(float(loss()))
            flat[place] = original
            assert float(gradient[place]) == pytest.approx(values[0] - values[1], abs=1e-9)
        assert gradient.abs().min() < gradient.abs().max()


def test_a_new_adapter_changes_nothing_and_has_the_spread_of_pefts():
    """A uniform in ±1/sqrt(I), whose standard deviation is 1/sqrt(3 I): 0.0361 for I = 256; B zero."""
    layer = LoraLinear(256, PARTS, False, Build(LoraSpec(64, 128), False, torch.float32, "cpu"))
    for part in PARTS:
        layer.adapter(part)[1].fill_(1.0)
    layer.reset(torch.Generator().manual_seed(0))
    seen = []
    for part in PARTS:
        A, B = layer.adapter(part)
        assert A.shape == (64, 256) and not B.any()
        assert 0.99 / 16 < A.max() <= 1 / 16 and 0.99 / 16 < -A.min() <= 1 / 16
        assert abs(float(A.mean())) < 1.5e-3 and float(A.std()) == pytest.approx(0.0361, rel=0.02)
        seen.append(A.clone())
    assert not torch.equal(seen[0], seen[1]) and not torch.equal(seen[1], seen[2])
    x = torch.randn(5, 256)
    assert torch.equal(layer(x), layer(x, REFERENCE))
    layer.reset(torch.Generator().manual_seed(0))
    assert all(torch.equal(layer.adapter(part)[0], A) for part, A in zip(PARTS, seen, strict=True))


def test_a_changed_master_counts_from_the_refresh_on():
    """s = alpha / rank = 6 / 3 times B, in the columns of its own part."""
    layer, x = make_layer(("q_proj", "v_proj")), torch.randn(7, 10, dtype=torch.float64)
    before = layer(x)
    A, B = layer.adapter("v_proj")
    B += 1.0
    assert torch.equal(layer(x), before)
    A *= 2.0
    layer.refresh()
    change = layer(x) - before
    assert not change[:, :18].any()
    wanted = 2.0 * (x @ A.T) @ B.T - 2.0 * (x @ (A / 2).T) @ (B - 1).T
    assert (change[:, 18:] - wanted).abs().max() < 1e-12


def products_of(joint):
    """The number of products of each layer."""
    return [len(getattr(layer, "product_rows", "1")) for layer in joint.linears]


def test_projections_split_when_zeros_would_cost_too_much():
    """At rank 256 on a 7B model a joint gate-up product would read 7 % zeros; at rank 16 on the 1.5B it reads 1 %.
    Apart they have no zeros, and still one A."""
    build = {rank: Build(LoraSpec(rank, 1), False, torch.float32, "meta") for rank in (16, 256)}
    large = JointLinear(3584, {"gate_proj": 18944, "up_proj": 18944}, False, build[256])
    small = JointLinear(1536, {"gate_proj": 8960, "up_proj": 8960}, False, build[16])
    assert products_of(large) == [2] and large.linears[0].weight.shape == (2 * 18944, 3584 + 256)
    assert products_of(small) == [1] and small.linears[0].weight.shape == (2 * 8960, 1536 + 32)
    assert large.linears[0].A.value.shape == (512, 3584)


def test_the_zeros_of_a_joint_product_are_counted():
    """q, k and v of the 7B model: 3584 + 512 + 512 outputs of 3584 inputs. Each adapter leaves zeros at the outputs of
    the others: (1024 + 4096 + 4096) x 128 of 4608 x 3584 are 7.1 %, for rank 64 3.6 %; k's alone of
    rank 256 leaves 4096 x 256 (6.3 %), q's 1024 x 256 (1.6 %). Above the limit, those without an adapter are a layer of
    their own."""
    parts = {"q_proj": 3584, "k_proj": 512, "v_proj": 512}
    found = {}
    for rank, targets in (
        (128, tuple(parts)),
        (64, tuple(parts)),
        (256, ("k_proj",)),
        (256, ("q_proj",)),
        (512, ("k_proj",)),
    ):
        spec = LoraSpec(rank, 1, targets=targets)
        joint = JointLinear(3584, parts, False, Build(spec, False, torch.float32, "meta"))
        found[rank, len(targets)] = products_of(joint)
        assert [type(layer) for layer in joint.linears] == [LoraLinear, Linear][: len(joint.linears)]
    assert found == {(128, 3): [3], (64, 3): [1], (256, 1): [1], (512, 1): [1, 1]}


def test_on_a_gpu_zeros_are_counted_in_bytes():
    """Rank 256 on the 7B model: q, k and v hold 2.4M zeros (4.7 MB in bfloat16), gate and up 9.7M (19 MB)."""
    attention, mlp = (256 * (1024 + 4096 + 4096), 4608 * 3584), (256 * 2 * 18944, 2 * 18944 * 3584)
    assert few_zeros(*attention, torch.bfloat16, "cuda") and not few_zeros(*attention, torch.bfloat16, "cpu")
    assert not few_zeros(*attention, torch.float32, "cuda")
    assert not few_zeros(*mlp, torch.bfloat16, "cuda")


@pytest.mark.parametrize("targets", [ALL, ("k_proj",)])
def test_split_and_joint_projections_compute_the_same(monkeypatch, targets):
    """Prepacked too. And the masters, as a checkpoint holds them, are the same: it may be read where zeros are counted
    otherwise."""
    outputs, masters, x = [], [], torch.randn(5, 10)
    for limit in (0.0, 1.0):
        monkeypatch.setattr("grpo.model.lora.MAX_ZERO_SHARE", limit)
        build = Build(LoraSpec(3, 6, targets=targets), False, torch.float32, "cpu")
        joint = JointLinear(10, PARTS, True, build)
        generator = torch.Generator().manual_seed(1)
        for part in PARTS:
            layer = next(linear for linear in joint.linears if part in linear.out_slices)
            tensors = [*layer.base(part), *(layer.adapter(part) if part in targets else ())]
            for tensor in tensors:
                tensor.copy_(torch.randn(tensor.shape, generator=generator))
            if part in targets:
                layer.refresh()
        outputs.append(torch.cat(joint(x), dim=-1))
        for layer in joint.linears:
            layer.prepack()
        outputs.append(torch.cat(joint(x), dim=-1))
        masters.append(torch.cat([master.flatten() for master in joint.parameters()]))
    assert products_of(joint) == [1] and all((output - outputs[0]).abs().max() < 1e-5 for output in outputs)
    assert torch.equal(*masters)


def test_below_the_first_adapted_layer_nothing_needs_a_gradient(tmp_path):
    write_checkpoint(tmp_path, "llama")
    model, seen = load(tmp_path, rank=4, layers=(1,)), []
    for block in model.blocks:
        block.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].requires_grad))
    batch = pack_batch(whole(make_group((5, 9), [7, 3], [8, 2])))
    hidden = model(batch.ids_T, batch.positions_T, PackedAttention(batch.layout, torch.float32, "cpu"))
    assert seen == [False, False] and hidden.requires_grad


@pytest.mark.parametrize("layers", [(), (2,), (0, -1)])
def test_layers_that_are_not_there_are_refused(tmp_path, layers):
    write_checkpoint(tmp_path)
    with pytest.raises(UserError, match="lora_layers_to_transform") as error:
        load(tmp_path, rank=4, layers=layers)
    assert error.value.exit_code == 3 and "0 to 1" in error.value.why


@pytest.mark.parametrize(("family", "layers"), [("qwen2", None), ("llama", None), ("llama", (1,))])
def test_packed_gradients_equal_peft_on_padded_rows(tmp_path, family, layers):
    """One row with shared prompts against transformers + PEFT on padded rows: the same adapter gradients to 5e-6."""
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM

    write_checkpoint(tmp_path / "base", family)
    ours = load(tmp_path / "base", rank=4, alpha=8, layers=layers)
    randomise_adapter(ours)
    save_adapter(trained_adapter(ours, None, str(tmp_path / "base")), tmp_path / "adapter", lora_alpha=8)
    groups = [
        make_group((5, 9, 6, 11), [7, 3, 2], [8, 8, 4, 4, 1, 2], [9], loss_weight=[0.1, 0.2, 0.3]),
        make_group((15, 19), [17, 2], [30, 31, 32], loss_weight=[0.15, 0.25]),
    ]
    batch = pack_batch(whole(*groups))
    hidden = ours(batch.ids_T, batch.positions_T, PackedAttention(batch.layout, torch.float32, "cpu"))
    logp, _ = token_logprobs(hidden.index_select(0, batch.source_C), ours.head(), batch.targets_C, 0.8)
    (logp * batch.weight_C).sum().backward()

    theirs = peft.PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(tmp_path / "base"), tmp_path / "adapter", is_trainable=True
    )
    rows = [
        (group.prompt.ids, completion.ids, completion.loss_weight)
        for group in groups
        for completion in group.completions
    ]
    width = max(len(p) + len(c) for p, c, _ in rows)
    ids = torch.tensor([[*p, *c] + [0] * (width - len(p) - len(c)) for p, c, _ in rows])
    mask = torch.tensor([[1] * (len(p) + len(c)) + [0] * (width - len(p) - len(c)) for p, c, _ in rows])
    all_logps = (
        (theirs(ids, attention_mask=mask).logits[:, :-1].float() / 0.8)
        .log_softmax(-1)
        .gather(2, ids[:, 1:, None])[..., 0]
    )
    total = sum(w * all_logps[r, len(p) - 1 : len(p) + len(c) - 1].sum() for r, (p, c, w) in enumerate(rows))
    total.backward()
    gradients = {name: p.grad for name, p in theirs.named_parameters() if p.grad is not None}
    compared = 0
    for layer_number, block in enumerate(ours.blocks):
        for linear in block.modules():
            if isinstance(linear, LoraLinear):
                for part, rows_of_A in linear.rank_slices.items():
                    where = f"layers.{layer_number}.{'self_attn' if part[0] in 'qkvo' else 'mlp'}.{part}"
                    a = next(g for n, g in gradients.items() if f"{where}.lora_A" in n)
                    b = next(g for n, g in gradients.items() if f"{where}.lora_B" in n)
                    assert (linear.A.master.grad[rows_of_A] - a).abs().max() <= 5e-6
                    assert (linear.B[part].grad - b).abs().max() <= 5e-6
                    compared += 1
    assert compared == len(gradients) / 2 == 7 * len(layers or (0, 1))

"""Adapters with unlike ranks, scales and settings, in and out, with PEFT as judge."""

import json
import math
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from making import load, refused, write_chat_checkpoint, write_checkpoint
from safetensors.torch import load_file, save_file

from grpo import policy
from grpo.config.options import TrainConfig
from grpo.engine.model.adapter import Adapter, load_adapter, save_adapter, trained_adapter
from grpo.engine.model.weights import save_checkpoint
from grpo.export import export, main

Q, V, DOWN = "model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.v_proj", "model.layers.1.mlp.down_proj"


def make(ranks: dict[str, int]) -> Adapter:
    generator, sizes = torch.Generator().manual_seed(0), {Q: (32, 32), V: (16, 32), DOWN: (32, 48)}
    return Adapter(
        {
            module: (
                torch.randn(rank, sizes[module][1], generator=generator) * 0.1,
                torch.randn(sizes[module][0], rank, generator=generator) * 0.1,
            )
            for module, rank in ranks.items()
        },
        "base",
    )


@pytest.mark.parametrize("lora_alpha", [None, 1.0, 6.0, 32.0])
def test_pairs_of_unlike_ranks_come_back_and_mean_the_same_to_peft(tmp_path, lora_alpha):
    """Ranks 4, 4 and 2: PEFT reads each projection's own rank and alpha from two patterns."""
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM

    base, adapter = write_checkpoint(tmp_path / "base"), make({Q: 4, V: 2, DOWN: 4})
    save_adapter(adapter, tmp_path / "adapter", lora_alpha)
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert config["r"] == 4 and config["lora_alpha"] == (4 if lora_alpha is None else lora_alpha)
    again = load_adapter(tmp_path / "adapter")
    assert again.base_model == "base" and again.pairs.keys() == adapter.pairs.keys()
    for module, (A, B) in adapter.pairs.items():
        assert torch.equal(again.pairs[module][0], A) and torch.allclose(again.pairs[module][1], B, rtol=1e-6)
    merged = load(base, adapter=again)
    theirs = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), tmp_path / "adapter")
    theirs = dict(theirs.merge_and_unload().named_parameters())
    for module, (linear, part) in merged.projections().items():
        assert (theirs[module + ".weight"] - linear.base(part)[0]).abs().max() <= 1e-6


def test_an_adapter_names_the_revision_of_its_base(tmp_path, monkeypatch):
    """It is loaded onto that revision again, also after an export."""
    base, fetched = write_chat_checkpoint(tmp_path / "base"), []

    def fetch(name, revision="main", kind="model", weights=True):
        is_base = name == "owner/base"
        fetched.append(revision) if is_base else None
        return base if is_base else Path(name)

    monkeypatch.setattr("grpo.data.hub.fetch_model", fetch)
    config = TrainConfig(model_name_or_path="owner/base", model_revision="v2", lora_r=4, torch_dtype="float32")
    cpu = torch.device("cpu")
    policy.load_policy(config, cpu).save(tmp_path / "first")
    on_top = replace(config, model_name_or_path=str(tmp_path / "first"), model_revision="main")
    policy.load_policy(on_top, cpu).save(tmp_path / "second")
    export(tmp_path / "second", tmp_path / "third", False, "auto")
    for name in ("first", "second", "third"):
        written = json.loads((tmp_path / name / "adapter_config.json").read_text())
        assert (written["base_model_name_or_path"], written["revision"]) == ("owner/base", "v2")
    assert set(fetched) == {"v2"}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"use_rslora": True},
        {"alpha_pattern": {"v_proj": 3}},
        {"alpha_pattern": {"layers.1.self_attn.v_proj": 3}},
        {"alpha_pattern": {r"layers\.[01]\..*_proj": 3, "q_proj": 5}},
        {"rank_pattern": {r".*\.(q|v)_proj": 2}, "alpha_pattern": {"(q|o)_proj": 5}},
        {"alpha_pattern": {"v_proj": 3}, "rank_pattern": {"v_proj": 2}},
        {"alpha_pattern": {"v_proj": 3}, "rank_pattern": {"v_proj": 2, "q_proj": 8}, "use_rslora": True},
        {"alpha_pattern": {"eq_proj": 8, "proj": 8, "k_proj": 8}},
    ],
    ids=str,
)
def test_pefts_scales_are_read(tmp_path, options):
    """alpha / r, or alpha / sqrt(r) with rslora, each with the projection's own alpha and r."""
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM

    base = write_checkpoint(tmp_path / "base")
    torch.manual_seed(0)
    settings = {"r": 4, "lora_alpha": 12, "target_modules": ["q_proj", "v_proj"], "init_lora_weights": False}
    theirs = peft.get_peft_model(
        AutoModelForCausalLM.from_pretrained(base), peft.LoraConfig(task_type="CAUSAL_LM", **settings, **options)
    )
    theirs.save_pretrained(tmp_path / "adapter")
    model = load(base, adapter=load_adapter(tmp_path / "adapter"))
    theirs = dict(theirs.merge_and_unload().named_parameters())
    for module, (linear, part) in model.projections().items():
        assert (theirs[f"{module}.weight"] - linear.base(part)[0]).abs().max() <= 1e-5, module


def test_an_adapter_of_another_module_is_refused_by_its_name(checkpoint, tmp_path):
    """PEFT saves the module's own weight as well, if it is the head."""
    save_adapter(make({Q: 4}), tmp_path)
    tensors = load_file(tmp_path / "adapter_model.safetensors")
    head = "base_model.model.lm_head"
    tensors |= {f"{head}.lora_A.weight": torch.ones(4, 8), f"{head}.lora_B.weight": torch.ones(9, 4)}
    save_file(tensors | {f"{head}.base_layer.weight": torch.ones(9, 8)}, tmp_path / "adapter_model.safetensors")
    refused(lambda: load(checkpoint, adapter=load_adapter(tmp_path)), "changes lm_head", "q_proj")


NOT_PLAIN = {  # values with which an adapter is more than W + s B A, or its base was changed; the last line is hostile
    "peft_type": ("IA3", None),
    "bias": ("lora_only", "all"),
    "init_lora_weights": ("pissa", "pissa_niter_16", "olora", "corda", "loftq", "lora_ga", ["pissa"]),
    **dict.fromkeys(("use_dora", "fan_in_fan_out", "lora_bias", "use_qalora"), (True,)),
    **dict.fromkeys(("modules_to_save", "target_parameters"), (["lm_head"],)),
    **dict.fromkeys(("trainable_token_indices", "alora_invocation_tokens"), ([1, 2],)),
    **dict.fromkeys(("use_bdlora", "arrow_config", "megatron_config", "kasa_config"), ({"a": 1},)),
    "layer_replication": ([[0, 2], [1, 2]],),
    "a_key_of_next_year": ("x",),
    "lora_alpha": ("much", [1], None, math.inf, math.nan, 10**400, 1e300),
    "r": (8,),
    "rank_pattern": ({"q_proj": 2},),
    "alpha_pattern": (["q_proj"], {"(": 1}, {"q_proj": None}),
}


@pytest.mark.parametrize("setting", [(key, value) for key, values in NOT_PLAIN.items() for value in values], ids=str)
def test_what_would_be_merged_wrongly_is_refused(tmp_path, setting):
    save_adapter(make({Q: 4}), tmp_path)
    path = tmp_path / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **dict([setting])}))
    refused(lambda: load_adapter(tmp_path), "not a plain LoRA adapter")
    path.write_text("[" * 100_000)
    refused(lambda: load_adapter(tmp_path), "not a plain LoRA adapter")


@pytest.mark.parametrize("start", [True, "eva"])
def test_an_adapter_as_the_installed_peft_configures_it_is_plain(tmp_path, start):
    """No key that PEFT sets by default is mistaken for a feature; EVA chooses A alone, and keeps the base weights."""
    peft = pytest.importorskip("peft")
    save_adapter(make({Q: 4}), tmp_path)
    eva = {"init_lora_weights": "eva", "eva_config": peft.EvaConfig(rho=2.0)} if start == "eva" else {}
    peft.LoraConfig(r=4, task_type="CAUSAL_LM", target_modules=["q_proj"], **eva).save_pretrained(tmp_path)
    assert load_adapter(tmp_path).pairs.keys() == {Q}


NO_PAIRS = {
    "no rank": {"A": torch.ones(0, 32), "B": torch.ones(32, 0)},
    "two ranks": {"A": torch.ones(4, 32), "B": torch.ones(32, 3)},
    "no matrices": {"A": torch.ones(4), "B": torch.ones(32)},
    "NaN": {"A": torch.full((4, 32), torch.nan), "B": torch.ones(32, 4)},
    "infinite": {"A": torch.ones(4, 32), "B": torch.full((32, 4), torch.inf)},
    "half": {"A": torch.ones(4, 32)},
    "nothing": {},
    "another": {"A": torch.ones(4, 32), "B": torch.ones(32, 4), "magnitude_vector": torch.ones(2)},
}


@pytest.mark.parametrize("name", NO_PAIRS)
def test_tensors_that_are_no_pairs_of_finite_numbers_are_refused(tmp_path, name):
    save_adapter(make({Q: 4}), tmp_path)
    tensors = {f"base_model.model.{Q}.lora_{half}.weight": tensor for half, tensor in NO_PAIRS[name].items()}
    save_file(tensors, tmp_path / "adapter_model.safetensors")
    refused(lambda: load_adapter(tmp_path), "no pairs lora_A, lora_B")


@pytest.mark.parametrize(("dtype", "size"), [("float32", 1e19), ("bfloat16", 1e19), ("float16", 200.0)])
def test_nothing_infinite_is_merged_or_written(tmp_path, dtype, size):
    """All factors are finite, and their product is not, or it is not in the dtype of the model or of the export."""
    base, dtype = write_chat_checkpoint(tmp_path / "base"), getattr(torch, dtype)
    huge = Adapter({Q: (torch.full((4, 32), size), torch.full((32, 4), size))}, str(base))
    save_adapter(huge, tmp_path / "adapter")
    refused(lambda: load(base, dtype=dtype, adapter=huge), f"{Q}, merged with its adapter, would hold")
    words = [str(tmp_path / "adapter"), str(tmp_path / "out"), "--merge", "--dtype", str(dtype).removeprefix("torch.")]
    refused(lambda: main(words), "would hold numbers that are not finite")
    assert not (tmp_path / "out").exists()
    trained = load(base, rank=4, dtype=dtype)
    linear, part = trained.projections()[Q]
    for half in linear.adapter(part):
        half.data.fill_(size)
    refused(lambda: save_checkpoint(trained, tmp_path / "out"), f"{Q}.weight would hold")
    refused(lambda: save_adapter(huge, tmp_path / "other", lora_alpha=1e-38), "lora_B of", "would hold")


def test_an_adapter_of_a_larger_model_is_refused_though_its_names_fit(tmp_path):
    base = write_checkpoint(tmp_path)
    for pair in ((torch.ones(2, 48), torch.ones(32, 2)), (torch.ones(2, 32), torch.ones(48, 2))):
        refused(lambda pair=pair: load(base, adapter=Adapter({Q: pair}, "base")), "belongs to another model")
    beyond = {Q.replace("layers.0", "layers.9"): (torch.ones(2, 32), torch.ones(32, 2))}
    refused(lambda: load(base, adapter=Adapter(beyond, "base")), "belongs to another model")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("is_trained", [True, False])
def test_merging_adds_in_float32_and_rounds_once(tmp_path, dtype, is_trained):
    """Weights that are trained are float32, and what is computed with is rounded from them. The file is in float32."""
    base, adapter = write_checkpoint(tmp_path), make({Q: 4, DOWN: 2})
    model = load(base, dtype=dtype, train_weights=is_trained, adapter=adapter)
    before = load_file(base / "model.safetensors")
    for module, (A, B) in adapter.pairs.items():
        linear, part = model.projections()[module]
        wanted = before[f"{module}.weight"] + B @ A
        assert torch.equal(linear.base(part)[0], wanted if is_trained else wanted.to(dtype))
        if is_trained:
            assert torch.equal(linear.weight.value[linear.out_slices[part]], wanted.to(dtype))


@pytest.mark.parametrize("alpha", [2.0, 8.0])
def test_an_export_of_an_adapter_adds_in_float32_and_rounds_once(tmp_path, alpha):
    """W + s B A with s = alpha / 4; what has no adapter is copied."""
    base = write_checkpoint(tmp_path / "base", dtype=torch.bfloat16)
    model = load(base, rank=4, alpha=alpha, dtype=torch.bfloat16, targets=("q_proj", "down_proj"))
    for dtype in (torch.bfloat16, torch.float32):
        save_checkpoint(model, tmp_path / str(dtype), dtype)
        saved, before = (load_file(folder / "model.safetensors") for folder in (tmp_path / str(dtype), base))
        for module, (A, B) in trained_adapter(model, None, "base").pairs.items():
            name = module + ".weight"
            wanted = (before.pop(name).float() + B @ A).to(dtype)
            assert torch.allclose(saved[name].float(), wanted.float(), rtol=1e-6, atol=1e-7), name
        assert all(torch.equal(saved[name], before[name].to(dtype)) for name in before)


def test_a_stack_is_the_sum_of_both(tmp_path):
    """Projections with one adapter alone keep it; the others add up."""
    base = write_checkpoint(tmp_path)
    start, model = make({Q: 3, DOWN: 2}), load(base, rank=4, targets=("q_proj", "k_proj"))
    both, own = (trained_adapter(model, first, "base").pairs for first in (start, None))
    for module, (A, B) in both.items():
        parts = [pairs[module] for pairs in (start.pairs, own) if module in pairs]
        assert len(A) == B.shape[1] == sum(len(a) for a, _ in parts)
        assert torch.allclose(B @ A, sum(b @ a for a, b in parts), atol=1e-6)
    assert both.keys() == {*start.pairs, *own} and len(own) == 4


def test_an_adapter_in_a_pickle_is_refused_with_a_command_that_converts_it(tmp_path):
    """As LLaMA-Factory and older versions of PEFT wrote it; the command yields the same numbers."""
    save_adapter(make({Q: 4, V: 2}), tmp_path / "a")
    wanted = load_adapter(tmp_path / "a").pairs
    torch.save(load_file(tmp_path / "a/adapter_model.safetensors"), tmp_path / "a/adapter_model.bin")
    (tmp_path / "a/adapter_model.safetensors").unlink()
    error = refused(lambda: load_adapter(tmp_path / "a"), "adapter_model.bin", "pickle")
    command = error.fix.partition("if you trust it: ")[2].replace("python", shlex.quote(sys.executable), 1)
    subprocess.run(command, shell=True, check=True)
    found = load_adapter(tmp_path / "a").pairs
    assert all(torch.equal(a, b) for name in wanted for a, b in zip(found[name], wanted[name], strict=True))

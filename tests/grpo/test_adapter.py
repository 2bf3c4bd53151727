"""Adapters with unlike ranks, scales and settings, in and out, with PEFT as judge."""

import json
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from making import cases, load, refused, write_chat_checkpoint, write_checkpoint
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from grpo import policy
from grpo.base.storage import read_json, write_json
from grpo.config.options import TrainConfig
from grpo.engine.model.adapter import Adapter, load_adapter, save_adapter, trained_adapter
from grpo.engine.model.weights import save_checkpoint
from grpo.export import export, main

Q, V, DOWN = "model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.v_proj", "model.layers.1.mlp.down_proj"


def make(ranks):
    pairs, sizes = {}, {Q: (32, 32), V: (16, 32), DOWN: (32, 48)}
    for module, rank in ranks.items():
        outputs, inputs = sizes[module]
        pairs[module] = torch.randn(rank, inputs) * 0.1, torch.randn(outputs, rank) * 0.1
    return Adapter(pairs, "base")


def check_that_peft_merges_the_same(base, folder):
    """Merged into this base, our adapter has the numbers of PEFT's."""
    peft = pytest.importorskip("peft")
    theirs = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), folder)
    theirs = dict(theirs.merge_and_unload().named_parameters())
    for module, (linear, part) in load(base, adapter=load_adapter(folder)).projections().items():
        assert (theirs[f"{module}.weight"] - linear.base(part)[0]).abs().max() <= 1e-6, module


@pytest.mark.parametrize("lora_alpha", [None, 1.0, 6.0, 32.0])
def test_pairs_of_unlike_ranks_come_back_and_mean_the_same_to_peft(tmp_path, lora_alpha):
    """Ranks 4, 4 and 2: PEFT reads each projection's own rank and alpha from two patterns."""
    base, adapter = write_checkpoint(tmp_path / "base"), make({Q: 4, V: 2, DOWN: 4})
    save_adapter(adapter, tmp_path / "adapter", lora_alpha)
    config = read_json(tmp_path / "adapter/adapter_config.json")
    assert config["r"] == 4 and config["lora_alpha"] == (4 if lora_alpha is None else lora_alpha)
    again = load_adapter(tmp_path / "adapter")
    assert again.base_model == "base" and again.pairs.keys() == adapter.pairs.keys()
    for module, (A, B) in adapter.pairs.items():
        assert torch.equal(again.pairs[module][0], A)
        assert torch.allclose(again.pairs[module][1], B, rtol=1e-6)
    check_that_peft_merges_the_same(base, tmp_path / "adapter")


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
    on_top = replace(config, model_name_or_path=f"{tmp_path}/first", model_revision="main")
    policy.load_policy(on_top, cpu).save(tmp_path / "second")
    export(tmp_path / "second", tmp_path / "third", False, "auto")
    for name in ("first", "second", "third"):
        written = read_json(tmp_path / name / "adapter_config.json")
        assert (written["base_model_name_or_path"], written["revision"]) == ("owner/base", "v2")
    assert set(fetched) == {"v2"}


@pytest.mark.parametrize("options", [options for (options,) in cases(__file__, "scales of PEFT")])
def test_pefts_scales_are_read(tmp_path, options):
    """alpha / r, or alpha / sqrt(r) with rslora, each with the projection's own alpha and r."""
    peft = pytest.importorskip("peft")
    base = write_checkpoint(tmp_path / "base")
    settings = {"r": 4, "lora_alpha": 12, "target_modules": ["q_proj", "v_proj"], "init_lora_weights": False}
    config = peft.LoraConfig(task_type="CAUSAL_LM", **settings | json.loads(options))
    peft.get_peft_model(AutoModelForCausalLM.from_pretrained(base), config).save_pretrained(tmp_path / "adapter")
    check_that_peft_merges_the_same(base, tmp_path / "adapter")


def test_an_adapter_of_another_module_is_refused_by_its_name(checkpoint, tmp_path):
    """PEFT saves the module's own weight as well, if it is the head."""
    save_adapter(make({Q: 4}), tmp_path)
    tensors = load_file(tmp_path / "adapter_model.safetensors")
    head = "base_model.model.lm_head"
    tensors |= {f"{head}.lora_A.weight": torch.ones(4, 8), f"{head}.lora_B.weight": torch.ones(9, 4)}
    save_file(tensors | {f"{head}.base_layer.weight": torch.ones(9, 8)}, tmp_path / "adapter_model.safetensors")
    refused(lambda: load(checkpoint, adapter=load_adapter(tmp_path)), "changes lm_head", "q_proj")


@pytest.mark.parametrize("key, value", cases(__file__, "not plain"))
def test_what_would_be_merged_wrongly_is_refused(tmp_path, key, value):
    """With these values an adapter is more than W + s B A, or its base was changed; or they are hostile."""
    save_adapter(make({Q: 4}), tmp_path)
    path = tmp_path / "adapter_config.json"
    write_json(path, read_json(path) | {key: json.loads(value)})
    refused(lambda: load_adapter(tmp_path), "not a plain LoRA adapter")
    path.write_text("[" * 100_000)
    refused(lambda: load_adapter(tmp_path), "not a plain LoRA adapter")


def test_an_adapter_that_eva_begins_is_plain(tmp_path):
    """It chooses A alone, and keeps the base weights."""
    peft = pytest.importorskip("peft")
    save_adapter(make({Q: 4}), tmp_path)
    eva = {"init_lora_weights": "eva", "eva_config": peft.EvaConfig(rho=2.0)}
    peft.LoraConfig(r=4, task_type="CAUSAL_LM", target_modules=["q_proj"], **eva).save_pretrained(tmp_path)
    assert load_adapter(tmp_path).pairs.keys() == {Q}


A, B = torch.ones(4, 32), torch.ones(32, 4)


@pytest.mark.parametrize("tensors", ["", *(tensors for (tensors,) in cases(__file__, "no pairs"))])
def test_tensors_that_are_no_pairs_of_finite_numbers_are_refused(tmp_path, tensors):
    save_adapter(make({Q: 4}), tmp_path)
    halves = zip(("lora_A", "lora_B", "lora_magnitude_vector"), eval(f"[{tensors}]"), strict=False)
    found = {f"base_model.model.{Q}.{half}.weight": tensor.clone() for half, tensor in halves}
    save_file(found, tmp_path / "adapter_model.safetensors")
    refused(lambda: load_adapter(tmp_path), "no pairs lora_A, lora_B")


@pytest.mark.parametrize("dtype, size", [("float32", 1e19), ("bfloat16", 1e19), ("float16", 200.0)])
def test_nothing_infinite_is_merged_or_written(tmp_path, dtype, size):
    """All factors are finite, and their product is not, or it is not in the dtype of the model or of the export."""
    base, dtype = write_chat_checkpoint(tmp_path / "base"), getattr(torch, dtype)
    huge = Adapter({Q: (A * size, B * size)}, str(base))
    save_adapter(huge, tmp_path / "adapter")
    refused(lambda: load(base, dtype=dtype, adapter=huge), f"{Q}, merged with its adapter, would hold")
    words = [f"{tmp_path}/adapter", f"{tmp_path}/out", "--merge", "--dtype", str(dtype).removeprefix("torch.")]
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
    beyond = Q.replace("layers.0", "layers.9")
    for pairs in ({Q: (torch.ones(4, 48), B)}, {Q: (A, torch.ones(48, 4))}, {beyond: (A, B)}):
        refused(lambda pairs=pairs: load(base, adapter=Adapter(pairs, "base")), "belongs to another model")


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
    changes = {f"{module}.weight": B @ A for module, (A, B) in trained_adapter(model, None, "base").pairs.items()}
    for dtype in (torch.bfloat16, torch.float32):
        save_checkpoint(model, tmp_path / "saved", dtype)
        saved = load_file(tmp_path / "saved/model.safetensors")
        for name, weight in load_file(base / "model.safetensors").items():
            wanted = (weight.float() + changes.get(name, 0)).to(dtype)
            torch.testing.assert_close(saved[name], wanted, rtol=1e-6, atol=1e-7)


def test_a_stack_is_the_sum_of_both(tmp_path):
    """Projections with one adapter alone keep it; the others add up."""
    start, model = make({Q: 3, DOWN: 2}), load(write_checkpoint(tmp_path), rank=4, targets=("q_proj", "k_proj"))
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

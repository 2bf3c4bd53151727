"""base_weights: the frozen weights in 8 or 4 bits. Results against float64, memory, what is merged and saved."""

import json

import pytest
import torch
from grpo.kernels.twins import int8_rows, nf4_rows
from making import (
    load,
    make_group,
    measured_in_forks,
    randomise_adapter,
    refused,
    same_tensors,
    whole,
    write_chat_checkpoint,
    write_checkpoint,
)
from safetensors.torch import load_file
from test_policy import configured, hidden
from test_train import run

from grpo.algorithm.logprobs import batch_logprobs
from grpo.algorithm.packing import pack_batch
from grpo.doctor.__main__ import main as doctor
from grpo.engine.device.products import onednn_dtypes
from grpo.engine.device.quantised import FORMATS, QuantisedRows
from grpo.engine.model.adapter import save_adapter, trained_adapter
from grpo.engine.model.build import Build
from grpo.engine.model.weight import QuantisedWeight, dense
from grpo.export import export
from grpo.export import main as export_command
from grpo.policy import load_for_inference, load_policy

CPU = torch.device("cpu")
TWINS = {"int8": int8_rows, "nf4": nf4_rows}


@pytest.mark.parametrize(("held", "width", "held_width"), [("int8", 40, 40), ("nf4", 192, 96), ("nf4", 40, 20)])
def test_numbers_are_rounded_to_steps_of_their_row_or_levels_of_their_block(held, width, held_width):
    """Of 64 numbers, or of the common divisor of 64 and the width. Zeros stay so; a second time changes nothing."""
    W = torch.randn(50, width, generator=torch.Generator().manual_seed(1)) * torch.logspace(-6, 6, 50)[:, None]
    W[7] = 0
    rows = QuantisedWeight(Build(None, False, torch.float64, "cpu", FORMATS[held]), 50, width).rows()
    rows.copy_(W)
    found = rows.dequantise()
    assert rows.q_OX.shape == (50, held_width) and rows.shape == W.shape and not found[7].any()
    assert rows.q_OX.itemsize == 1
    torch.testing.assert_close(found, TWINS[held](W), rtol=1e-6, atol=0)
    rows.copy_(found)
    torch.testing.assert_close(rows.dequantise(), found, rtol=1e-6, atol=0)


def rounded_twin(folder, rank, held, **lora):
    """The model in float64, with every weight of its projections rounded by the twin."""
    model = load(folder, rank=rank, dtype=torch.float64, **lora)
    for linear, part in model.projections().values():
        weight, _ = linear.base(part)
        weight.copy_(TWINS[held](weight))
    return model


@pytest.mark.parametrize("held", TWINS)
@pytest.mark.parametrize(
    ("family", "lora", "recompute"),
    [
        ("qwen2", {}, "none"),
        ("qwen3", {"targets": ("q_proj", "down_proj")}, "mlp"),
        ("llama", {"layers": (1,)}, "all"),
    ],
)
def test_log_probs_and_gradients_of_a_model_equal_float64(tmp_path, family, lora, recompute, held):
    """Also through layers and projections without adapters, and when activations are computed again."""
    write_checkpoint(tmp_path, family)
    ours, slow = load(tmp_path, rank=4, held=held, **lora), rounded_twin(tmp_path, 4, held, **lora)
    ours.recompute = recompute
    group = make_group((5, 9, 6), [7, 3], [8, 2, 4], loss_weight=[0.2, 0.3], advantage=[0.0, 0.0])
    batch, found = pack_batch(whole(group)), []
    for model in (ours, slow):
        logp, _ = batch_logprobs(model, batch, temperature=0.8)
        (logp * batch.weight_C).sum().backward()
        found.append((logp.detach(), [master.grad for master in model.parameters()]))
    (logp, gradients), (slow_logp, slow_gradients) = found
    assert (logp - slow_logp).abs().max() <= 2e-5 and len(gradients) == len(slow_gradients) > 2
    for ours_, slow_ in zip(gradients, slow_gradients, strict=True):
        assert (ours_ - slow_).norm() <= 1e-5 * slow_.norm() + 1e-7
    assert not any(isinstance(part, QuantisedRows) for name, part in ours.named_tensors().items() if "proj" not in name)


# --- memory --------------------------------------------------------------------------------------------------------


def test_a_process_takes_what_is_counted(tmp_path):
    """53M weights in bfloat16 are 106 MB, in 8 bits 53; sampling packs a copy of the former alone. Measured: 133 and 82
    MB, while sampling 277 and 125; some 20 MB are not the model's. Each has a process of its own, a fork."""
    write_checkpoint(
        tmp_path,
        dtype=torch.bfloat16,
        hidden_size=768,
        intermediate_size=3072,
        num_hidden_layers=6,
        vocab_size=256,
    )
    code = f"""
from pathlib import Path
import grpo.trainer
from grpo.engine.device.draw import SamplingParams
from grpo.engine.device.quantised import FORMATS
from grpo.engine.model.build import Build, LoraSpec
from grpo.engine.model.weights import load_decoder, read_model_config
from grpo.engine.sampling.sampler import Sampler
read_model_config(Path({str(tmp_path)!r}))  # which imports a part of transformers
torch.ones(64, 64).bfloat16() @ torch.ones(64, 64).bfloat16()
def measure(held):
    before = status("VmRSS")
    build = Build(LoraSpec(8, 8), False, torch.bfloat16, "cpu", FORMATS.get(held))
    model = load_decoder(Path({str(tmp_path)!r}), build)
    loaded, peak = status("VmRSS") - before, []
    Sampler(model, []).sample([[5, 6]], 2, SamplingParams(4), [1, 2], lambda *_: peak.append(status("VmRSS") - before))
    return loaded, max(peak), sum(tensor.nbytes for tensor in model.buffers())
"""
    (plain, plain_peak, plain_counted), (int8, int8_peak, int8_counted) = measured_in_forks(code, [(None,), ("int8",)])
    assert 0.9 < plain / plain_counted < 1.3 and 0.9 < int8 / int8_counted < 1.3
    # Without oneDNN's bfloat16, nothing is prepacked while sampling.
    most = 0.55 if torch.bfloat16 in onednn_dtypes() else 0.75
    assert int8 < 0.7 * plain and int8_peak < most * plain_peak


# --- what is merged and saved ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stage1(chat_checkpoint, tmp_path_factory):
    """An adapter of the chat checkpoint, such as stage 1 writes, too small to move most numbers to another step."""
    folder, model = tmp_path_factory.mktemp("stage1"), load(chat_checkpoint, rank=2, spread=0.02)
    save_adapter(trained_adapter(model, None, str(chat_checkpoint)), folder)
    return folder


def test_a_first_adapter_is_merged_before_rounding(chat_checkpoint, stage1):
    policy = load_policy(configured(stage1, base_weights="int8"), CPU)
    merged = load_for_inference(configured(stage1), CPU).model
    for module, (linear, part) in merged.projections().items():
        ours, part_of = policy.model.projections()[module]
        torch.testing.assert_close(dense(ours.base(part_of)[0]), int8_rows(linear.base(part)[0]).float())


@pytest.mark.parametrize("start", ["base", "adapter"])
def test_results_apply_to_the_files_weights(chat_checkpoint, stage1, tmp_path, start):
    """The adapter, the merged checkpoint of export, and that of the policy itself: all as without int8."""
    model = chat_checkpoint if start == "base" else stage1
    int8, plain = (load_policy(configured(model, base_weights=how), CPU) for how in ("int8", "null"))
    for name, policy in (("int8", int8), ("plain", plain)):
        randomise_adapter(policy.model, seed=5)
        policy.save(tmp_path / name)
        export(tmp_path / name, tmp_path / f"{name}_merged", merge=True, dtype="float32")
    int8.save_merged(tmp_path / "own")
    assert same_tensors(*(tmp_path / name / "adapter_model.safetensors" for name in ("int8", "plain")))
    merged = [load_file(tmp_path / name / "model.safetensors") for name in ("int8_merged", "own", "plain_merged")]
    assert merged[0].keys() == merged[2].keys() and merged[1]["lm_head.weight"].dtype == torch.float32
    for name, wanted in merged[2].items():
        assert torch.equal(merged[0][name], wanted)
        torch.testing.assert_close(merged[1][name], wanted, rtol=1e-6, atol=1e-7)
    again = load_for_inference(configured(tmp_path / "int8", base_weights="int8"), CPU)
    assert torch.allclose(hidden(again.model), hidden(plain.model), atol=1e-5)
    difference = (hidden(again.model) - hidden(int8.model)).abs().max()
    assert 1e-4 < difference < 0.1 * hidden(again.model).abs().max()  # what rounding the base has changed


def test_without_adapters_it_is_refused():
    refused(lambda: configured("m", lora_r=0, base_weights="int8"), "configuration", "lora_r", exit_code=2)


# --- runs ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The folder of a run of four steps, and its checkpoint."""
    folder = tmp_path_factory.mktemp("runs")
    checkpoint = write_chat_checkpoint(folder / "model")
    run(folder, checkpoint, "complete", max_steps=4, base_weights="int8")
    return folder, checkpoint


def test_an_export_says_how_the_merged_checkpoint_differs_from_the_run(runs, tmp_path, capsys):
    folder, _ = runs
    export_command([str(folder / "complete"), str(tmp_path / "merged"), "--merge", "--dtype", "bfloat16"])
    told = capsys.readouterr().err
    assert "while the run trained with them in int8" in told and "rounded to bfloat16" in told


def test_a_resumed_run_keeps_its_weights_in_8_bits(runs):
    changed = {"base_weights": None, "max_steps": 5, "resume_from_checkpoint": True}
    refused(lambda: run(*runs, "complete", **changed), "base_weights", exit_code=2)
    assert len(run(*runs, "complete", **changed, allow_changes=["base_weights"])) == 5


def test_the_doctor_counts_and_tries_such_weights(runs, capsys):
    folder, _ = runs
    code = doctor([str(folder / "complete.yaml"), f"output_dir={folder / 'new'}", "--json"])
    out = capsys.readouterr().out
    found = {finding["name"]: finding for finding in json.loads(out[out.index("\n[") :] if "\n[" in out else out)}
    assert code == 0 and "fits" in found["memory"]["text"] and found["sample"]["text"], found

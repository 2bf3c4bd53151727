"""Checkpoints that bitsandbytes holds in few bits: opened as they are, trained in the same bits."""

import json

import pytest
import torch
from making import hidden_states, load, refused, write_checkpoint
from safetensors.torch import load_file, save_file
from test_policy import configured

from grpo.base.storage import read_json, write_json
from grpo.engine.device.quantised import FORMATS, NF4, QuantisedRows
from grpo.engine.model.build import Build
from grpo.engine.model.weight import QuantisedWeight
from grpo.policy import load_policy

CPU = torch.device("cpu")
SHAPE = {"vocab_size": 384, "hidden_size": 64, "intermediate_size": 192}


def in_4_bits(weight):
    """Our rows of a weight in nf4."""
    rows = QuantisedWeight(Build(None, False, torch.float32, "cpu", FORMATS["nf4"]), *weight.shape).rows()
    rows.copy_(weight)
    return rows


def by_formula(weight, _):
    """A weight in 4 bits: codes, states, and numbers. Scales, here fewer than 256, are steps of their largest, plus
    a mean."""
    rows = in_4_bits(weight)
    scale, steps = rows.scale_OX.flatten(), torch.linspace(-1, 1, 256)
    offset = scale.mean()
    largest = (scale - offset).abs().amax(dim=0, keepdim=True)
    codes = ((scale - offset)[:, None] / largest - steps).abs().argmin(dim=1)
    scale = steps[codes] * largest + offset
    settings = {"quant_type": "nf4", "blocksize": 64, "dtype": "float32", "shape": list(weight.shape)}
    settings |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": float(offset)}
    states = {"quant_map": torch.tensor(NF4), "absmax": codes.to(torch.uint8)}
    states |= {"nested_absmax": largest, "nested_quant_map": steps}
    states["quant_state.bitsandbytes__nf4"] = torch.tensor(list(json.dumps(settings).encode()), dtype=torch.uint8)
    numbers = (rows.dequantise().view(-1, 64) / rows.scale_OX.view(-1, 1) * scale[:, None]).view(weight.shape)
    return rows.q_OX.reshape(-1, 1), states, numbers


def by_bitsandbytes(weight, nested):
    functional = pytest.importorskip("bitsandbytes.functional", reason="bitsandbytes is not installed")
    codes, state = functional.quantize_4bit(weight, quant_type="nf4", compress_statistics=nested, blocksize=64)
    states = {name.removeprefix("weight."): tensor for name, tensor in state.as_dict(packed=True).items()}
    return codes, states, functional.dequantize_4bit(codes, state).float()


def in_8_bits(weight, _):
    scale = weight.abs().amax(dim=1)
    codes = (weight * 127 / scale[:, None]).round().to(torch.int8)
    return codes, {"SCB": scale, "weight_format": torch.zeros((), dtype=torch.uint8)}, codes * scale[:, None] / 127


def packed_checkpoint(folder, pack, nested):
    """A checkpoint, with its projections packed; and their numbers, by name."""
    write_checkpoint(folder, "llama", **SHAPE)
    tensors, numbers = load_file(folder / "model.safetensors"), {}
    for name in [name for name in tensors if "_proj" in name]:
        tensors[name], states, numbers[name] = pack(tensors[name], nested)
        place = name.removesuffix("weight") if pack is in_8_bits else name + "."
        tensors |= {place + key: tensor.contiguous() for key, tensor in states.items()}
    save_file(tensors, folder / "model.safetensors")
    bits = "load_in_8bit" if pack is in_8_bits else "load_in_4bit"
    quantised = {"quantization_config": {"quant_method": "bitsandbytes", bits: True}}
    write_json(folder / "config.json", read_json(folder / "config.json") | quantised)
    return numbers


@pytest.mark.parametrize(
    "pack, nested", [(by_formula, True), (by_bitsandbytes, False), (by_bitsandbytes, True), (in_8_bits, False)]
)
def test_its_numbers_are_those_of_the_file_also_held_in_the_same_bits(tmp_path, pack, nested):
    numbers = packed_checkpoint(tmp_path, pack, nested)
    held = "int8" if pack is in_8_bits else "nf4"
    dense, again = (load(tmp_path, rank=2, held=how).named_tensors() for how in (None, held))
    for name, wanted in numbers.items():
        torch.testing.assert_close(dense[name], wanted, rtol=1e-6, atol=0)
        assert isinstance(again[name], QuantisedRows)
        torch.testing.assert_close(again[name].dequantise(), wanted, rtol=1e-6, atol=0)


def test_quantising_equals_bitsandbytes():
    functional = pytest.importorskip("bitsandbytes.functional", reason="bitsandbytes is not installed")
    W = torch.randn(256, 512)
    rows = in_4_bits(W)
    codes, state = functional.quantize_4bit(W, quant_type="nf4", compress_statistics=False, blocksize=64)
    assert torch.equal(rows.q_OX.flatten(), codes.flatten())
    assert torch.equal(rows.scale_OX.flatten(), state.absmax)
    assert torch.equal(rows.dequantise(), functional.dequantize_4bit(codes, state))


def test_it_is_trained_in_its_bits_and_merged_into_its_numbers(chat_checkpoint, tmp_path):
    """Without a word of base_weights; the checkpoint that is saved is a plain one."""
    packed_checkpoint(tmp_path / "packed", by_formula, True)
    config = configured(tmp_path / "packed", lora_r=2, tokenizer_name_or_path=str(chat_checkpoint))
    policy = load_policy(config, CPU)
    assert policy.model.build.quantised == FORMATS["nf4"]
    policy.save_merged(tmp_path / "plain")
    assert "quantization_config" not in read_json(tmp_path / "plain/config.json")
    ids = torch.tensor([5, 9, 6, 40])
    plain = load(tmp_path / "plain")
    torch.testing.assert_close(hidden_states(plain, ids), hidden_states(policy.model, ids), rtol=1e-5, atol=1e-5)


def test_other_quantised_checkpoints_are_refused(tmp_path):
    write_checkpoint(tmp_path)
    path = tmp_path / "config.json"
    write_json(path, read_json(path) | {"quantization_config": {"quant_method": "gptq"}})
    refused(lambda: load(tmp_path), "gptq", exit_code=3)

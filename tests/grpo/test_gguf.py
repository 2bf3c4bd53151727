"""Files of llama.cpp's format: what comes out of one is the model that went in."""

import struct

import numpy as np
import pytest
import torch
from making import load, randomise_adapter, refused, write_chat_checkpoint, write_checkpoint
from safetensors.torch import load_file

from grpo.base.storage import read_json
from grpo.config.options import TrainConfig
from grpo.engine.model import gguf as ours
from grpo.export import main as export
from grpo.policy import load_for_inference, load_policy

gguf = pytest.importorskip("gguf", reason="needs the package gguf")
FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(ours, "cache", lambda: tmp_path / "cache")


@pytest.fixture(scope="module")
def chat(tmp_path_factory):
    """A folder with a tokenizer and a chat template."""
    return write_chat_checkpoint(tmp_path_factory.mktemp("chat"))


def write_gguf(path, folder, chat, kind=None, arch=None, **metadata):
    """Write a checkpoint as llama.cpp's converter does. kind: of the quantised matrices."""
    config, tensors = read_json(folder / "config.json"), load_file(folder / "model.safetensors")
    family = config["model_type"]
    arch = arch or {"mistral": "llama"}.get(family, family)  # llama.cpp knows no mistral
    writer = gguf.GGUFWriter(path, arch)
    config["head_dim"] = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    for add, key in {
        "context_length": "max_position_embeddings",
        "block_count": "num_hidden_layers",
        "embedding_length": "hidden_size",
        "feed_forward_length": "intermediate_size",
        "head_count": "num_attention_heads",
        "head_count_kv": "num_key_value_heads",
        "layer_norm_rms_eps": "rms_norm_eps",
        "rope_dimension_count": "head_dim",
        "key_length": "head_dim",
    }.items():
        getattr(writer, f"add_{add}")(config[key])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    add_tokenizer(writer, chat)
    for key, value in metadata.items():
        writer.add_string(f"{arch}.{key.replace('_', '.')}", value)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[arch.upper()], config["num_hidden_layers"])
    for name, tensor in tensors.items():
        stem, _, ending = name.rpartition(".")
        array = tensor.numpy()
        if arch == "llama" and stem.endswith(("q_proj", "k_proj")):
            array = permuted(array, config["num_attention_heads" if "q_proj" in stem else "num_key_value_heads"])
        is_rounded = kind and array.ndim == 2 and array.shape[1] % 32 == 0  # blocks of 32
        if is_rounded:
            array = gguf.quantize(array, kind)
        writer.add_tensor(f"{names.get_name(stem)}.{ending}", array, raw_dtype=kind if is_rounded else None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def permuted(array, num_heads):
    """llama.cpp's order of the rows of q and k: the halves of each head take turns."""
    return array.reshape(num_heads, 2, -1, array.shape[-1]).swapaxes(1, 2).reshape(array.shape)


def add_tokenizer(writer, chat):
    written = read_json(chat / "tokenizer.json")
    content, special = written["model"], {token["content"]: token["id"] for token in written["added_tokens"]}
    ids = content["vocab"] | special
    tokens = sorted(ids, key=ids.get)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in special else 1 for token in tokens])
    writer.add_token_merges([" ".join(pair) if isinstance(pair, list) else pair for pair in content["merges"]])
    writer.add_eos_token_id(ids["<|im_end|>"])
    writer.add_chat_template((chat / "chat_template.jinja").read_text())


def written(tmp_path, chat, family="llama", seed=0, **shape):
    """A checkpoint of the tokenizer's size."""
    size = read_json(chat / "config.json")["vocab_size"]
    return write_checkpoint(tmp_path / "model", family, seed, vocab_size=size, **shape)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tied", [True, False])
def test_every_family_comes_out_as_it_went_in(family, tied, tmp_path, chat):
    shape = {"head_dim": 8} if family in ("llama", "mistral") else {}
    folder = written(tmp_path, chat, family, tie_word_embeddings=tied, rope_parameters={"rope_theta": 5e4}, **shape)
    file = write_gguf(tmp_path / "model.gguf", folder, chat)
    policy = load_for_inference(TrainConfig(model_name_or_path=str(file)), CPU)
    ours_named, theirs = ours_tensors(policy.folders[0]), load_file(folder / "model.safetensors")
    assert ours_named.keys() == theirs.keys()
    assert all(torch.equal(ours_named[name], theirs[name]) for name in theirs)
    expected, model = load(folder), policy.model
    assert all(map(torch.equal, model.tables, expected.tables))
    assert model.config.norm_eps == pytest.approx(expected.config.norm_eps)
    assert (model.config.head_dim, model.config.tied_head) == (expected.config.head_dim, tied)


def ours_tensors(folder):
    return {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}


def test_the_tokenizer_and_its_template_come_along(tmp_path, chat):
    from transformers import AutoTokenizer

    folder = written(tmp_path, chat)
    policy = load_for_inference(TrainConfig(model_name_or_path=str(write_gguf(tmp_path / "m.gguf", folder, chat))), CPU)
    theirs = AutoTokenizer.from_pretrained(chat)
    text = theirs.apply_chat_template([{"role": "user", "content": "What is 3 + 4?"}], tokenize=False)
    assert policy.tokenizer.chat_template == theirs.chat_template
    ids = policy.tokenizer.encode(text)
    assert policy.tokenizer.decode(ids) == text and ids[0] == theirs.encode(text)[0]  # <|im_start|> is one token
    assert theirs.convert_tokens_to_ids("<|im_end|>") in policy.eos_ids


def test_a_quantised_file_is_read_as_it_is_and_says_what_it_lost(tmp_path, chat, capsys):
    folder = written(tmp_path, chat)
    kind = gguf.GGMLQuantizationType.Q8_0
    out = ours.open_gguf(str(write_gguf(tmp_path / "m.gguf", folder, chat, kind)))
    assert "14 of Q8_0 tensors were rounded" in capsys.readouterr().err
    weight = load_file(folder / "model.safetensors")["model.layers.0.mlp.up_proj.weight"]
    rounded = gguf.dequantize(gguf.quantize(weight.numpy(), kind), kind)
    found = ours_tensors(out)["model.layers.0.mlp.up_proj.weight"]
    assert found.dtype == torch.float32 and np.array_equal(found.numpy(), rounded)
    assert not torch.equal(found, weight)


def test_a_file_is_converted_once_in_several_shards_and_again_when_it_changes(tmp_path, chat, capsys, monkeypatch):
    monkeypatch.setattr(ours, "FILE_BYTES", 20_000)
    folder = written(tmp_path, chat)
    file = write_gguf(tmp_path / "m.gguf", folder, chat)
    first = ours.open_gguf(str(file))
    assert len(list(first.glob("*.safetensors"))) > 1 and load(first).config.num_layers == 2
    capsys.readouterr()
    assert ours.open_gguf(str(file)) == first and not capsys.readouterr().err
    write_gguf(file, written(tmp_path, chat, seed=1), chat)
    assert ours.open_gguf(str(file)) != first
    assert all(len(list(path.iterdir())) >= 4 for path in ours.cache().iterdir())  # nothing unfinished


def test_an_exported_adapter_of_a_file_has_a_base_that_peft_loads(tmp_path, chat, monkeypatch, capsys):
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM

    monkeypatch.chdir(tmp_path)
    file = write_gguf(tmp_path / "m.gguf", written(tmp_path, chat), chat)
    policy = load_policy(TrainConfig(model_name_or_path="m.gguf", lora_r=4, torch_dtype="float32"), CPU)
    randomise_adapter(policy.model, seed=3)
    policy.save(tmp_path / "adapter")
    export([f"{tmp_path}/adapter", f"{tmp_path}/out"])
    assert f"PEFT cannot load the GGUF file {file}" in capsys.readouterr().err
    ids = torch.arange(5, 25)[None]
    theirs = peft.AutoPeftModelForCausalLM.from_pretrained(tmp_path / "out")(ids).logits[0]
    for folder in ("adapter", "out"):
        export([str(tmp_path / folder), str(tmp_path / f"{folder}_merged"), "--merge"])
        ours = AutoModelForCausalLM.from_pretrained(tmp_path / f"{folder}_merged")(ids).logits[0]
        assert (ours - theirs).abs().max() < 1e-4


def test_a_file_inside_a_package(tmp_path, monkeypatch):
    package = tmp_path / "packed_model"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('must not be imported')")
    (package / "m.gguf").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    assert ours.find_gguf("packed_model:m.gguf") == package / "m.gguf"
    for name in ("packed_model:other.gguf", "no_such_package:m.gguf", "absent.gguf"):
        refused(lambda name=name: ours.find_gguf(name), "cannot find")


def header(version, num_tensors, num_values):
    return struct.pack("<4sIQQ", b"GGUF", version, num_tensors, num_values)


NAMED = header(3, 0, 1) + struct.pack("<Q1s", 1, b"a")  # one value, whose name is a
HOSTILE = {
    "empty": b"",
    "of another format": b"PK\3\4" + bytes(100),
    "2^60 tensors": header(3, 2**60, 0),
    "a list of 2^60": NAMED + struct.pack("<IIQ", 9, 4, 2**60),
    "an unknown type": NAMED + struct.pack("<I", 77),
    "no architecture": header(3, 0, 0),
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_file_ends_in_three_lines(content, tmp_path):
    file = tmp_path / "m.gguf"
    file.write_bytes(content)
    refused(lambda: ours.open_gguf(str(file)), "cannot be read")
    assert not ours.cache().exists()


def test_a_torn_file_and_one_of_another_model_end_in_three_lines(tmp_path, chat):
    folder = written(tmp_path, chat)
    file = write_gguf(tmp_path / "m.gguf", folder, chat)
    content = file.read_bytes()
    for size in (len(content) // 3, len(content) - 4096):
        file.write_bytes(content[:size])
        refused(lambda: ours.open_gguf(str(file)), "cannot be read")
    for wrong, reason in (({"arch": "gemma"}, "gemma"), ({"rope_scaling_type": "yarn"}, "yarn")):
        write_gguf(file, folder, chat, **wrong)
        refused(lambda: ours.open_gguf(str(file)), "cannot be opened", reason)
    assert not any(ours.cache().glob("*"))

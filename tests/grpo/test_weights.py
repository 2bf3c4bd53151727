"""Checkpoints and adapters, in and out, with transformers and PEFT as judges."""

import http.server
import json
import shutil
import threading
import zlib
from contextlib import contextmanager
from functools import partial

import pytest
import torch
from commands import python
from making import from_transformers, load, logits_of, refused, same_tensors, write_checkpoint
from safetensors.torch import load_file, save_file

from grpo.base.errors import describe
from grpo.data.hub import fetch_data, fetch_model
from grpo.engine.model import weights
from grpo.engine.model.build import Build
from grpo.engine.model.weights import save_checkpoint
from grpo.engine.parallel.shard import Shard
from grpo.engine.parallel.splits import split_of

IDS = torch.tensor([5, 9, 6, 40, 41, 2, 7, 7, 80, 3])


@contextmanager
def edited(folder):
    """The tensors of a checkpoint, to be changed."""
    tensors = load_file(folder / "model.safetensors")
    yield tensors
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def hf_logits(model):
    with torch.no_grad():
        return model(IDS[None]).logits[0].float()


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "llama"])
@pytest.mark.parametrize("tied", [False, True])
def test_sharded_and_single_files_round_trip(tmp_path, family, tied):
    write_checkpoint(tmp_path / "a", family, tie_word_embeddings=tied)
    model = load(tmp_path / "a")
    save_checkpoint(model, tmp_path / "single")
    save_checkpoint(model, tmp_path / "shards", file_bytes=8000)
    assert len([*(tmp_path / "shards").glob("*.safetensors")]) > 3
    for folder in ("single", "shards"):
        assert torch.equal(logits_of(load(tmp_path / folder), IDS), logits_of(model, IDS))
        assert (hf_logits(from_transformers(tmp_path / folder)) - logits_of(model, IDS)).abs().max() <= 2e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_loads_and_saves(tmp_path, dtype):
    write_checkpoint(tmp_path / "a", dtype=dtype)
    model = load(tmp_path / "a", dtype=dtype)
    save_checkpoint(model, tmp_path / "b")
    assert json.loads((tmp_path / "b" / "config.json").read_text())["dtype"] == str(dtype).removeprefix("torch.")
    assert same_tensors(*(tmp_path / name / "model.safetensors" for name in "ab"))


def test_missing_unexpected_and_misshapen_tensors_are_listed(tmp_path):
    """Eight at most; the others are counted."""
    write_checkpoint(tmp_path)
    with edited(tmp_path) as tensors:
        del tensors["model.norm.weight"]
        tensors["lm_head.weight"] = torch.zeros(3, 32)
    misshapen, missing = "lm_head.weight has shape (3, 32), wanted (96, 32)", "missing model.norm.weight"
    for number, told in ((1, missing), (11, "and 5 more")):
        with edited(tmp_path) as tensors:
            tensors.update({f"model.extra{place}": torch.zeros(2) for place in range(number)})
        refused(lambda: load(tmp_path), misshapen, "unexpected model.extra0", told)


def test_a_shard_reads_its_own_part_of_a_file(tmp_path, monkeypatch):
    """Here the second of two; of 95 tokens, it has 47 and a row of zeros."""
    write_checkpoint(tmp_path, vocab_size=95)
    files, read = load_file(tmp_path / "model.safetensors"), {}

    class Noted:
        def __init__(self, name, stored):
            self.name, self.stored = name, stored
            self.get_shape = stored.get_shape

        def __getitem__(self, place):
            read[self.name] = self.stored[place]
            return read[self.name]

    read_tensors = weights.read_tensors
    monkeypatch.setattr(
        weights, "read_tensors", lambda folder: ((name, Noted(name, stored)) for name, stored in read_tensors(folder))
    )
    shard = Shard(1, 2)
    model = weights.load_decoder(tmp_path, Build(None, False, torch.float32, "cpu", shard=shard))
    for name, tensor in model.named_tensors().items():
        split = split_of(model, name, tensor)
        assert torch.equal(tensor, shard.take(files[name], split))
        assert read[name].numel() <= files[name].numel() // (2 if split else 1)
    assert read["model.embed_tokens.weight"].shape == (47, 32)


def test_folders_that_are_no_checkpoints(tmp_path):
    refused(lambda: load(tmp_path), "not a checkpoint")
    write_checkpoint(tmp_path / "a")
    (tmp_path / "a" / "model.safetensors").rename(tmp_path / "a" / "pytorch_model.bin")
    refused(lambda: load(tmp_path / "a"), "no safetensors", "pytorch_model.bin", "AutoModelForCausalLM as M; M.from_")
    (tmp_path / "a" / "model.safetensors").write_bytes(b"\x08\x00\x00\x00\x00\x00\x00\x00{broken}")
    refused(lambda: load(tmp_path / "a"), "cannot be read")
    (tmp_path / "a" / "config.json").write_text("{")
    refused(lambda: load(tmp_path / "a"), "cannot be read")


def test_tensors_that_follow_from_others_may_be_there(tmp_path):
    """A tied head and rotary frequencies, as some checkpoints carry them; an untied model needs its head."""
    for tied in (True, False):
        folder = write_checkpoint(tmp_path / str(tied), tie_word_embeddings=tied)
        wanted = logits_of(load(folder), IDS)
        with edited(folder) as tensors:
            tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
            if tied:
                tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
        assert torch.equal(logits_of(load(folder), IDS), wanted)
        if tied:  # transformers reads both, in spite of the config
            with edited(folder) as tensors:
                tensors["lm_head.weight"][3, 5] += 0.5
            refused(
                lambda folder=folder: load(folder),
                "lm_head.weight is not model.embed_tokens",
                "tie_word_embeddings: false",
            )
    with edited(folder) as tensors:
        del tensors["lm_head.weight"]
    assert refused(lambda: load(folder)).why == "missing lm_head.weight"


def test_a_single_file_goes_before_an_index_of_older_ones(tmp_path):
    """As in transformers, whether the files of the index are still there or not."""
    for seed, folder in enumerate(("old", "new")):
        write_checkpoint(tmp_path / folder, seed=seed)
    save_checkpoint(load(tmp_path / "old"), tmp_path / "both", file_bytes=8000)
    (tmp_path / "both" / "model.safetensors").write_bytes((tmp_path / "new" / "model.safetensors").read_bytes())
    wanted = logits_of(load(tmp_path / "new"), IDS)
    for pattern in ("none", "model-*"):
        for path in (tmp_path / "both").glob(pattern):
            path.unlink()
        assert torch.equal(logits_of(load(tmp_path / "both"), IDS), wanted)
    assert (hf_logits(from_transformers(tmp_path / "both")) - wanted).abs().max() <= 2e-5


def test_an_index_names_files_beside_it_alone(tmp_path):
    model = load(write_checkpoint(tmp_path / "a"))
    save_checkpoint(model, tmp_path / "b", file_bytes=8000)
    path = tmp_path / "b" / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    for name in ("../a/model.safetensors", str(tmp_path / "a" / "model.safetensors")):
        index["weight_map"]["model.norm.weight"] = name
        path.write_text(json.dumps(index))
        refused(lambda: load(tmp_path / "b"), "cannot be read")


# --- where files come from -----------------------------------------------------------------------------------------

COMMIT = "c" * 40


def publish(hub, name, files):
    """Put a repository of these files where the server finds it."""
    tree = [{"type": "file", "path": file, "size": len(body), "oid": "0" * 40} for file, body in files.items()]
    about = {"id": name, "sha": COMMIT, "siblings": [{"rfilename": file} for file in files]}
    texts = {f"api/{name}/revision/main": about, f"api/{name}/tree/{COMMIT}": tree}
    content = {f"{name.removeprefix('models/')}/resolve/{COMMIT}/{file}": body for file, body in files.items()}
    for path, body in (content | {path: json.dumps(text).encode() for path, text in texts.items()}).items():
        (hub / path).parent.mkdir(parents=True, exist_ok=True)
        (hub / path).write_bytes(body)


@pytest.fixture
def hub(tmp_path):
    """A server that speaks as much of the hub's protocol as downloading a repository needs: its address and folder."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def end_headers(self):
            headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{zlib.crc32(self.path.encode())}"'}
            for name, value in (headers | {"X-Error-Code": "RepoNotFound"}).items():  # which is read of an error alone
                self.send_header(name, value)
            super().end_headers()

        def log_message(self, *arguments):
            pass

    folder = tmp_path / "hub"
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", folder
    server.shutdown()
    server.server_close()


FETCH = """
from grpo.data.hub import fetch_data, fetch_model
from grpo.data.rows import read_rows
from grpo.engine.model.weights import read_model_config
folder = fetch_model('someone/tiny')
files = sorted(path.name for path in folder.iterdir())
print(read_model_config(folder).hidden_size, files, read_rows(fetch_data('someone/sums'))[0].question)
"""
FETCH_ABSENT = """
from grpo.base.errors import run_main
from grpo.data.hub import fetch_model
run_main(lambda argv: fetch_model('someone/absent') and 0)
"""


def test_hub_ids_are_fetched_through_the_endpoint(tmp_path, hub):
    """Model and data set by id, in a fresh process; a second look needs no server; what does not exist is an error."""
    endpoint, folder = hub
    model = {path.name: path.read_bytes() for path in write_checkpoint(tmp_path / "model").iterdir()}
    publish(folder, "models/someone/tiny", model | {"pytorch_model.bin": b"never fetched"})
    rows = {"data/train.jsonl": b'{"question": "1+1?", "answer": "2"}\n', "data/test.jsonl": b"{}", "README.md": b"x"}
    publish(folder, "datasets/someone/sums", rows)

    def fetch(code, offline="0"):
        settings = {"HF_ENDPOINT": endpoint, "HF_HUB_OFFLINE": offline, "HF_HOME": str(tmp_path / "home")}
        return python("-c", code, **settings, HF_HUB_DISABLE_XET="1")

    run = fetch(FETCH)
    assert run.stdout.strip() == "32 ['config.json', 'generation_config.json', 'model.safetensors'] 1+1?", run.stderr
    shutil.rmtree(folder)
    assert fetch(FETCH, offline="1").stdout == run.stdout
    failed = fetch(FETCH_ABSENT)
    assert failed.returncode == 3 and "error: cannot fetch the model someone/absent" in failed.stderr
    assert "Traceback" not in failed.stderr


def test_paths_are_used_as_they_are_and_nonsense_is_refused(tmp_path):
    (tmp_path / "d.json").write_text("[]")
    assert fetch_model(str(tmp_path)) == tmp_path and fetch_data(str(tmp_path / "d.json")) == tmp_path / "d.json"
    for name in ("no/such/path", "../x", "justaname", "/abs/path", "a/b/c"):
        refused(lambda name=name: fetch_model(name), "does not exist")


def test_a_path_that_no_system_takes_is_said(tmp_path):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for use in (lambda: fetch_model("a" * 5000), lambda: fetch_data("a" * 5000), (tmp_path / "loop").resolve):
        with pytest.raises((OSError, RuntimeError)) as error:
            use()
        code, said = describe(error.value)
        assert code == 3 and "a path cannot be used" in said and "fix: shorten it, or correct the link" in said


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused(tmp_path, bad):
    write_checkpoint(tmp_path)
    with edited(tmp_path) as tensors:
        tensors["model.norm.weight"][3] = bad
    refused(lambda: load(tmp_path), "do not fit", "model.norm.weight holds numbers that are not finite")


@pytest.mark.parametrize(("train_weights", "is_kept"), [(False, True), (True, False)])
def test_frozen_weights_are_packed_once_and_trained_ones_for_each_generation(tmp_path, train_weights, is_kept):
    model = load(write_checkpoint(tmp_path, tie_word_embeddings=True), train_weights=train_weights)
    weight = model.blocks[0].mlp.down.weight
    with model.sampling() as head_VD:
        packed = weight.prepacked
        assert packed is not None and head_VD is model.embedding.prepacked
    assert (weight.prepacked is packed) == (model.embedding.prepacked is head_VD) == is_kept
    with model.sampling():
        assert (weight.prepacked is packed) == is_kept
    model.refresh()  # as after an update
    assert (weight.prepacked is not None) == is_kept
    weight.refresh()
    assert weight.prepacked is None

"""Fingerprints: equal for equal content, different for any other, however large the file."""

import re
import shutil
from types import SimpleNamespace

import pytest
import torch
from making import TEMPLATE, edit_json, flip_last_bit, refused, write_chat_checkpoint, write_rows

from grpo.base.storage import read_json
from grpo.config.load import load_config
from grpo.config.options import TrainConfig
from grpo.engine.device.distributed import Ranks
from grpo.policy import load_policy
from grpo.run import provenance
from grpo.run.provenance import check_inputs, environment, file_hash, inputs_of
from knowledge.build import build


@pytest.fixture
def hash_of(tmp_path, monkeypatch):
    """The hash of a file with this content, where blocks of 10 bytes are read, up to 4 of them."""
    monkeypatch.setattr(provenance, "BLOCK_BYTES", 10)
    monkeypatch.setattr(provenance, "MAX_BLOCKS", 4)

    def hash_of(content):
        (tmp_path / "file").write_bytes(content)
        return file_hash(tmp_path / "file")

    return hash_of


def changed_at(content, place):
    return content[:place] + b"\xff" + content[place + 1 :]


@pytest.mark.parametrize("size", [0, 1, 9, 10, 11, 30, 31, 39, 40])
def test_a_file_that_is_read_completely_is_told_from_any_other(hash_of, size):
    content = bytes(range(size))
    others = [content + b"\0", *(changed_at(content, place) for place in range(size))]
    assert len({hash_of(content), *map(hash_of, others)}) == size + 2


def test_of_a_large_file_blocks_from_the_first_to_the_last_count(hash_of):
    """95 bytes are 10 blocks; numbers 0, 3, 6 and 9 are read."""
    content = bytes(95)
    noticed = [place for place in range(95) if hash_of(changed_at(content, place)) != hash_of(content)]
    assert noticed == [*range(10), *range(30, 40), *range(60, 70), *range(90, 95)]
    assert len({hash_of(bytes(size)) for size in (95, 96, 100, 110)}) == 4  # the last two have the same four blocks


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_chat_checkpoint(tmp_path_factory.mktemp("model"))


def inputs_in(folder, knowledge_base=None):
    policy = load_policy(TrainConfig(model_name_or_path=str(folder)), torch.device("cpu"))
    return inputs_of(policy, "content", TrainConfig(knowledge_base=knowledge_base))


def test_another_knowledge_base_at_the_same_path_is_noticed(model, tmp_path):
    config, found = TrainConfig(output_dir="o"), []
    for text in ("Water is wet.", "Water is dry."):
        source, path = write_rows(tmp_path / "source.jsonl", [{"title": "Water", "text": text}]), tmp_path / "kb.db"
        build(source, path)
        found.append(inputs_in(model, str(path)))
    words = "another knowledge base", "allow_changes=knowledge_base"
    refused(lambda: check_inputs(model, *found, config), *words, exit_code=2)
    check_inputs(model, found[0], found[0], config)


def lose_a_merge(folder):
    """The vocabulary stays."""
    model = read_json(folder / "tokenizer.json")["model"]
    edit_json(folder / "tokenizer.json", model={**model, "merges": model["merges"][:-1]})


CHANGES = [
    ("base_weights", lambda folder: flip_last_bit(folder / "model.safetensors")),
    ("base_weights", lambda folder: edit_json(folder / "config.json", rms_norm_eps=1e-3)),
    ("chat_template", lambda folder: (folder / "chat_template.jinja").write_text(TEMPLATE + " ")),
    ("tokenizer", lambda folder: (folder / "generation_config.json").write_text('{"eos_token_id": 0}')),
    ("tokenizer", lose_a_merge),
]


@pytest.mark.parametrize(("name", "change"), CHANGES)
def test_each_input_has_a_hash_of_its_own(model, tmp_path, name, change):
    shutil.copytree(model, tmp_path / "copy")
    before = inputs_in(model)
    assert inputs_in(tmp_path / "copy") == before  # whatever the path
    change(tmp_path / "copy")
    after = inputs_in(tmp_path / "copy")
    changed = [key for key in before if before[key] != after[key]]
    assert changed == [name]


def test_the_files_of_rewards_and_tools_are_inputs(model, tmp_path, monkeypatch):
    """Two files of one name both count, and a module by its name."""
    policy = load_policy(TrainConfig(model_name_or_path=str(model)), torch.device("cpu"))
    files = [tmp_path / folder / "mine.py" for folder in "ab"]
    for file in files:
        file.parent.mkdir()
        file.write_text("def one(**columns): ...\ndef two(**columns): ...\n")
    names = (f"{files[0]}:one", f"{files[0]}:two", f"{files[1]}:one", "math")
    config = TrainConfig(reward_funcs=names, tools=(f"{files[0]}:one", "json:dumps"))
    before = inputs_of(policy, "content", config)
    assert before.keys() >= {"reward_funcs (mine.py)", "tools (mine.py)", "tools (__init__.py)"}
    for file in files:
        changed = ["reward_funcs (mine.py)", *["tools (mine.py)"] * (file == files[0])]
        file.write_text("def one(**columns): return 1\n")
        after = inputs_of(policy, "content", config)
        assert [name for name in before if before[name] != after[name]] == changed
        before = after


# --- several machines ----------------------------------------------------------------------------------------------


def test_who_differs_in_what_is_named():
    ranks = SimpleNamespace(rank=0, world=2, gather=lambda mine: [mine, ("host1", {"torch": "2.12", "seed": "1"})])
    error = refused(
        lambda: Ranks.agree(ranks, {"torch": "2.13", "seed": "1", "beta": "0.1"}), "do not agree", exit_code=2
    )
    beta, torch_ = map(str.strip, error.why.splitlines())
    assert beta.startswith("beta: 0.1 on rank 0 (") and beta.endswith("none on rank 1 (host1)")
    assert torch_.startswith("torch: 2.13 on rank 0 (") and torch_.endswith("2.12 on rank 1 (host1)")


def test_the_environment_names_versions_and_keys_but_no_local_paths(tmp_path, monkeypatch):
    def found(*keys):
        return environment(
            load_config(None, [*"reward_funcs=exact dataset_id_or_path=d model_name_or_path=m".split(), *keys])[0]
        )

    here, there, other = found("output_dir=/a/out"), found("output_dir=/b/out"), found("output_dir=o", "beta=0.5")
    assert here == there and {"Python", "grpo", "torch", "transformers", "beta", "seed", "reward_funcs"} <= set(here)
    assert [name for name in here if here[name] != other[name]] == ["beta"]
    monkeypatch.setattr(provenance, "PACKAGES", ("grpo",))
    changed = found("output_dir=o")
    assert [name for name in here if here[name] != changed[name]] == ["grpo"]
    assert re.fullmatch(r"\d+\.\d+\.\d+, source [0-9a-f]{12}", here["grpo"])

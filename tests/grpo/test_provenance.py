"""Fingerprints: equal for equal content, different for any other, however large the file."""

import json
import re
import shutil
from types import SimpleNamespace

import pytest
import torch
from making import write_chat_checkpoint, write_rows

from grpo.base.errors import UserError
from grpo.config.load import load_config
from grpo.config.options import TrainConfig
from grpo.engine.device.distributed import Ranks
from grpo.policy import load_policy
from grpo.run import provenance
from grpo.run.provenance import check_inputs, environment, file_hash, inputs_of
from knowledge.build import build


@pytest.mark.parametrize("size", [0, 1, 9, 10, 11, 30, 31, 39, 40])
def test_a_file_that_is_read_completely_is_told_from_any_other(tmp_path, monkeypatch, size):
    """Blocks of 10 bytes, up to 4 of them."""
    monkeypatch.setattr(provenance, "BLOCK_BYTES", 10)
    monkeypatch.setattr(provenance, "MAX_BLOCKS", 4)
    path, content = tmp_path / "file", bytes(range(size))
    path.write_bytes(content)
    found = {file_hash(path)}
    for place in range(size):
        path.write_bytes(content[:place] + b"\xff" + content[place + 1 :])
        found.add(file_hash(path))
    path.write_bytes(content + b"\0")
    found.add(file_hash(path))
    assert len(found) == size + 2


def test_of_a_large_file_blocks_from_the_first_to_the_last_count(tmp_path, monkeypatch):
    """95 bytes are 10 blocks; numbers 0, 3, 6 and 9 are read."""
    monkeypatch.setattr(provenance, "BLOCK_BYTES", 10)
    monkeypatch.setattr(provenance, "MAX_BLOCKS", 4)
    path, content = tmp_path / "file", bytes(95)
    path.write_bytes(content)
    same, noticed = file_hash(path), []
    for place in range(95):
        path.write_bytes(content[:place] + b"\xff" + content[place + 1 :])
        if file_hash(path) != same:
            noticed.append(place)
    assert noticed == [*range(10), *range(30, 40), *range(60, 70), *range(90, 95)]
    found = set()
    for size in (95, 96, 100, 110):  # the last two have the same four blocks
        path.write_bytes(bytes(size))
        found.add(file_hash(path))
    assert len(found) == 4


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_chat_checkpoint(tmp_path_factory.mktemp("model"))


def inputs_in(folder, knowledge_base=None):
    policy = load_policy(TrainConfig(model_name_or_path=str(folder)), torch.device("cpu"))
    return inputs_of(policy, "content", TrainConfig(knowledge_base=knowledge_base))


def edit(path, change):
    path.write_text(json.dumps(change(json.loads(path.read_text()))))


def other_weights(folder):
    with open(folder / "model.safetensors", "r+b") as file:
        file.seek(-3, 2)
        byte = file.read(1)
        file.seek(-3, 2)
        file.write(bytes([byte[0] ^ 1]))


def other_template(folder):
    path = folder / "chat_template.jinja"
    path.write_text(path.read_text() + " ")


def test_another_knowledge_base_at_the_same_path_is_noticed(model, tmp_path):
    config, found = TrainConfig(output_dir="o"), []
    for text in ("Water is wet.", "Water is dry."):
        source, path = write_rows(tmp_path / "source.jsonl", [{"title": "Water", "text": text}]), tmp_path / "kb.db"
        build(source, path)
        found.append(inputs_in(model, str(path)))
    with pytest.raises(UserError, match="another knowledge base") as error:
        check_inputs(model, *found, config)
    assert error.value.exit_code == 2 and "allow_changes=knowledge_base" in error.value.fix
    check_inputs(model, found[0], found[0], config)


def other_merges(folder):
    """Its vocabulary is the same."""
    found = json.loads((folder / "tokenizer.json").read_text())
    found["model"]["merges"].pop()
    (folder / "tokenizer.json").write_text(json.dumps(found))


CHANGES = [
    ("base_weights", other_weights),
    ("base_weights", lambda folder: edit(folder / "config.json", lambda config: config | {"rms_norm_eps": 1e-3})),
    ("chat_template", other_template),
    ("tokenizer", lambda folder: (folder / "generation_config.json").write_text('{"eos_token_id": 0}')),
    ("tokenizer", other_merges),
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


def told(*facts):
    """What the processes of a run with these facts are told."""
    ranks = Ranks.__new__(Ranks)
    ranks.world, ranks.rank = len(facts), 0
    ranks.gather = lambda mine: [(f"host{rank}", found) for rank, found in enumerate(facts)]
    with pytest.raises(UserError, match="do not agree") as error:
        ranks.agree(facts[0])
    assert error.value.exit_code == 2
    return error.value.why.splitlines()


def test_who_differs_in_what_is_named():
    same = {"torch": "2.13", "beta": "0.1"}
    assert told(same, same, {**same, "torch": "2.12"}) == ["torch: 2.13 on rank 0 (host0), 2.12 on rank 2 (host2)"]
    assert len(told(same, {**same, "beta": "0.2"}, {**same, "torch": "2.12"})) == 2
    assert "none on rank 1" in told(same, {"torch": "2.13"})[0]
    alone = SimpleNamespace(gather=lambda mine: [mine, mine])
    Ranks.agree(alone, same)


def test_the_environment_names_versions_and_keys_but_no_local_paths(tmp_path, monkeypatch):
    keys = ["reward_funcs=exact", "dataset_id_or_path=d", "model_name_or_path=m"]
    here, there = (environment(load_config(None, [*keys, f"output_dir={path}"])[0]) for path in ("/a/out", "/b/out"))
    assert here == there and {"Python", "grpo", "torch", "transformers", "beta", "seed", "reward_funcs"} <= set(here)
    other = environment(load_config(None, [*keys, "output_dir=o", "beta=0.5"])[0])
    assert [name for name in here if here[name] != other[name]] == ["beta"]
    monkeypatch.setattr(provenance, "PACKAGES", ("grpo",))
    changed = environment(load_config(None, [*keys, "output_dir=o"])[0])
    assert [name for name in here if here[name] != changed[name]] == ["grpo"]
    assert re.fullmatch(r"\d+\.\d+\.\d+, source [0-9a-f]{12}", here["grpo"])

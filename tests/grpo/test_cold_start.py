"""Stage 1 as the first part of a run: which base it starts from, and when its result is used again."""

import gc
import re
import shutil
import weakref
from dataclasses import replace
from types import SimpleNamespace

import pytest
from making import refused, write_chat_checkpoint, write_rows

from grpo.base.errors import CONFIG
from grpo.base.storage import read_json, write_json
from grpo.config.load import load_config
from grpo.config.options import SftConfig
from grpo.data.prompts import ChatEncoder, load_tokenizer
from grpo.data.worlds import world as worlds
from grpo.data.worlds.sums import NUM_HELD_OUT, NUM_QUESTIONS, PLAIN, REMAINDERS, make_sums
from grpo.data.worlds.world import make_world
from grpo.doctor.__main__ import checks, make_finding
from grpo.doctor.__main__ import main as doctor
from grpo.run.case import Case
from grpo.run.stage1 import load_stage1
from grpo.sft import load_examples
from grpo.train import train
from grpo.trainer import load_trained

QUIET = {"report_to": ["none"], "disable_tqdm": True, "lora_r": 4, "max_steps": 1, "save_steps": 0}
ROWS = [
    {"messages": [{"role": "user", "content": f"{n}?"}, {"role": "assistant", "content": f"{n}."}]} for n in range(4)
]
QUESTIONS = [{"question": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(4)]


@pytest.fixture
def stages(tmp_path, chat_checkpoint):
    """Two configs whose first stage is one step. Call it with keys that change: `one` of stage 1, `two` of stage 2."""
    write_rows(tmp_path / "rows.jsonl", ROWS)
    write_rows(tmp_path / "questions.jsonl", QUESTIONS)

    stage1 = {"dataset_id_or_path": f"{tmp_path}/rows.jsonl", "output_dir": f"{tmp_path}/cold"}
    stage1 |= {"model_name_or_path": str(chat_checkpoint), **QUIET}
    stage2 = {"dataset_id_or_path": f"{tmp_path}/questions.jsonl", "output_dir": f"{tmp_path}/rl", **QUIET}
    stage2 |= {"cold_start": f"{tmp_path}/cold.yaml", "overwrite_output_dir": True, "reward_funcs": "exact"}
    stage2 |= {"num_generations": 2, "per_device_train_batch_size": 2, "max_completion_length": 4}

    def write(one=(), two=()):
        write_json(tmp_path / "cold.yaml", stage1 | dict(one))
        write_json(tmp_path / "rl.yaml", stage2 | dict(two))
        return load_config(tmp_path / "rl.yaml")

    return write


def base_of(folder):
    return read_json(folder / "final/adapter_config.json")["base_model_name_or_path"]


def refusal(config):
    return refused(lambda: train(*config), exit_code=CONFIG)


def test_a_toy_world_replaces_nobodys_files(tmp_path):
    """What a killed run has begun of one is replaced."""
    (tmp_path / "questions.jsonl").write_text("mine")
    ranks = SimpleNamespace(is_main=True, barrier=lambda: None)
    config = SftConfig(toy_world="arithmetic", toy_dir=str(tmp_path))
    refused(lambda: make_world(config, ranks, print), "holds no toy world", exit_code=2)
    assert [path.name for path in tmp_path.iterdir()] == ["questions.jsonl"]
    (tmp_path / "world.json").write_text("{}")
    make_world(config, ranks, print)
    assert (tmp_path / "questions.jsonl").read_text() != "mine"


@pytest.mark.parametrize("kind", [REMAINDERS, PLAIN], ids=["arithmetic", "sums"])
def test_sums_are_answered_right_in_a_box_and_none_is_held_out_that_was_seen(kind):
    made = make_sums(1, kind)
    questions = [question for question, _ in made.conversations]
    for question, answer in made.conversations[:200]:
        right = sum(map(int, re.findall(r"\d+", question)[: kind.num_terms]))
        assert answer.endswith(f"\\boxed{{{right % kind.modulus if kind.modulus else right}}}")
        assert answer.count("+") in (0, kind.num_terms - 1)
    worked_out = sum("+" in answer for _, answer in made.conversations)
    assert worked_out / len(questions) == pytest.approx(kind.share_worked_out, abs=0.06)
    assert (len(made.questions), len(made.held_out)) == (NUM_QUESTIONS, NUM_HELD_OUT)
    questions += [row["question"] for row in made.questions + made.held_out]
    assert len(set(questions)) == len(questions)


def test_the_base_of_stage_1_is_its_own_or_the_one_that_stage_2_names(tmp_path, stages, chat_checkpoint, capsys):
    train(*stages())
    assert base_of(tmp_path / "cold") == base_of(tmp_path / "rl") == str(chat_checkpoint)
    shutil.rmtree(tmp_path / "cold")
    other = write_chat_checkpoint(tmp_path / "other")
    for own in (str(chat_checkpoint), None):  # a stage 1 config need not name a model, then
        train(*stages({"model_name_or_path": own}, {"model_name_or_path": str(other)}))
        assert base_of(tmp_path / "cold") == base_of(tmp_path / "rl") == str(other)
        assert f"cold.yaml from {other} into" in capsys.readouterr().err
        shutil.rmtree(tmp_path / "cold")


def test_nothing_of_stage_1_lives_when_stage_2_loads(stages, monkeypatch):
    """On a GPU stage 2 plans with what is free, so it must not wait for Python to collect garbage some day."""
    first, alive = [], []

    def load(*arguments):
        alive.extend(reference() for reference in first)
        policy, optimizer = load_trained(*arguments)
        first.extend(map(weakref.ref, (policy.model, optimizer)))
        return policy, optimizer

    monkeypatch.setattr("grpo.sft.load_trained", load)
    monkeypatch.setattr("grpo.train.load_trained", load)
    gc.disable()
    try:
        train(*stages())
    finally:
        gc.enable()
    assert alive == [None, None]


def test_what_stage_2_says_of_the_model_is_meant_for_stage_1(tmp_path, stages, chat_checkpoint):
    """Both are one run of the same processes, too, whatever the file of stage 1 says."""
    keys = {"model_name_or_path": "owner/model", "model_revision": "v2", "tokenizer_name_or_path": "owner/tokenizer"}
    keys |= {"chat_template": "t.jinja", "adapter_name_or_path": "owner/adapter", "tensor_parallel_size": 2}
    stage1, _, _ = load_stage1(stages({"tensor_parallel_size": 4}, keys)[0])
    assert {name: getattr(stage1, name) for name in keys} == keys
    own, _, _ = load_stage1(stages()[0])
    assert (own.model_name_or_path, own.model_revision) == (str(chat_checkpoint), "main")


def test_a_finished_stage_1_is_used_again_unless_its_config_differs(tmp_path, stages, capsys):
    """An adapter beside it or an unknown origin make another one, too."""
    train(*stages())
    assert "stage 1 of 2, the cold start" in capsys.readouterr().err
    final = tmp_path / "cold/final"
    written = (final / "adapter_model.safetensors").stat().st_mtime_ns
    shutil.move(tmp_path / "rows.jsonl", tmp_path / "moved.jsonl")
    free = {"logging_steps": 7, "save_total_limit": 1, "run_name": "another", "report_to": ["tensorboard"]}
    free["dataset_id_or_path"] = f"{tmp_path}/moved.jsonl"
    train(*stages(free, {"seed": 3, "beta": 0.1}))
    assert "is reused" in capsys.readouterr().err
    assert (final / "adapter_model.safetensors").stat().st_mtime_ns == written

    changes = {"learning_rate": 0.5, "max_steps": 2, "lora_r": 8, "system_prompt": "Be brief.", "max_samples": 2}
    for key, value in changes.items():
        error = refusal(stages(free | {key: value}))
        assert f"{key}: " in error.why and f"-> {value}" in error.why
        assert "remove" in error.fix and "cold_start=null" in error.fix
    error = refusal(stages(free, {"model_name_or_path": str(final)}))
    assert "is an adapter" in error.what and "cold_start=null" in error.fix
    (final / "origin.json").unlink()
    assert "does not say what it was made from" in refusal(stages(free)).why


def test_other_data_and_another_base_make_another_stage_1(tmp_path, stages, chat_checkpoint, capsys):
    model = shutil.copytree(chat_checkpoint, tmp_path / "model")
    one = {"model_name_or_path": str(model)}
    train(*stages(one))
    write_rows(tmp_path / "rows.jsonl", ROWS[:3])
    assert "data: " in refusal(stages(one)).why
    write_rows(tmp_path / "rows.jsonl", ROWS)
    train(*stages(one))
    shutil.rmtree(model)
    write_chat_checkpoint(model, spread=0.2)  # the same name and sizes
    assert refusal(stages(one)).why.startswith("base model: ")
    assert doctor([f"{tmp_path}/rl.yaml", "--json"]) == CONFIG
    assert "base model: " in capsys.readouterr().out


def test_a_toy_world_uses_its_stage_1_again(tmp_path, monkeypatch, capsys):
    few = replace(REMAINDERS, num_cold_start=40)
    monkeypatch.setattr("grpo.data.worlds.sums.NUM_QUESTIONS", 20)
    monkeypatch.setattr("grpo.data.worlds.sums.NUM_HELD_OUT", 8)
    monkeypatch.setitem(worlds.KINDS_OF_SUMS, "arithmetic", few)
    world = {"toy_world": "arithmetic", "output_dir": "unused"}
    write_json(tmp_path / "cold.yaml", {**QUIET, **world, "per_device_train_batch_size": 4})
    keys = "toy_world=arithmetic reward_funcs=math max_steps=1 num_generations=2 per_device_train_batch_size=2"
    keys += f" max_completion_length=4 lora_r=2 report_to=none disable_tqdm=true cold_start={tmp_path}/cold.yaml"
    keys = [*keys.split(), f"output_dir={tmp_path}/rl"]
    assert "model" not in examine(keys), "there is no world yet to look at"
    train(*load_config(None, keys))
    train(*load_config(None, [*keys, "resume_from_checkpoint=true"]))
    assert "is reused" in capsys.readouterr().err

    found = examine([*keys, "resume_from_checkpoint=true"])
    assert all(finding.ok is not False for finding in found.values()), found
    assert found["stage 1"].text == f"done: {tmp_path / 'rl' / 'cold_start' / 'final'}"
    assert found["data"].text.startswith("20 questions") and "sample" in found


def examine(keys):
    case = Case(load_config(None, keys)[0])
    return {name: make_finding(name, check, case) for name, check in checks(case)}


# --- LLaMA-Factory's registry of data sets -------------------------------------------------------------------------

REGISTRY = {
    "identity": {"file_name": "identity.json"},
    "talk": {
        "file_name": "talk.json",
        "formatting": "sharegpt",
        "columns": {"messages": "turns", "system": "rule"},
        "tags": {"role_tag": "who", "content_tag": "said", "user_tag": "customer", "assistant_tag": "agent"},
    },
    "renamed": {"file_name": "renamed.json", "columns": {"prompt": "q", "query": "more", "response": "a"}},
    "gone": {"file_name": "gone.json"},
}


@pytest.fixture
def registry(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    write_json(folder / "dataset_info.json", REGISTRY)
    alpaca = [{"instruction": f"{n}?", "input": "", "output": f"{n}!"} for n in range(3)]
    turns = [{"who": "customer", "said": "Hi"}, {"who": "agent", "said": "Hello"}]
    write_json(folder / "identity.json", alpaca)
    write_json(folder / "talk.json", [{"turns": turns, "rule": "Be kind."}])
    write_json(folder / "renamed.json", [{"q": "Who?", "more": "Say it.", "a": "Me."}])
    return folder


def examples(chat_checkpoint, *keys):
    config, _ = load_config(None, [f"model_name_or_path={chat_checkpoint}", "output_dir=o", *keys], SftConfig)
    encoder = ChatEncoder(load_tokenizer(chat_checkpoint))
    return [(group.prompt.text, group.completions[0].text) for group in load_examples(config, encoder, 512)[0]]


def test_registered_data_sets_are_read_in_their_own_layouts(tmp_path, registry, chat_checkpoint, monkeypatch):
    found = examples(chat_checkpoint, "dataset=identity, talk,renamed", f"dataset_dir={registry}")
    assert [answer for _, answer in found] == ["0!", "1!", "2!", "Hello", "Me."]
    assert "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi<|im_end|>" in found[3][0]
    assert "Who?\nSay it." in found[4][0]
    found = examples(chat_checkpoint, "dataset=identity,talk", f"dataset_dir={registry}", "max_samples=1")
    assert [answer for _, answer in found] == ["0!", "Hello"]
    monkeypatch.chdir(tmp_path)  # LLaMA-Factory's dataset_dir is `data` unless it is said
    assert len(examples(chat_checkpoint, "dataset=identity")) == 3
    assert len(examples(chat_checkpoint, f"dataset={registry / 'identity.json'}")) == 3


@pytest.mark.parametrize(
    "keys, part",
    [
        ("dataset=identiy dataset_dir=data", "does not register identiy"),
        ("dataset=identity,nothing dataset_dir=data", "does not register nothing"),
        ("dataset=gone dataset_dir=data", "cannot read data/gone.json"),
        ("dataset=knowrl_coldstart", "dataset_dir"),  # a name that is registered elsewhere
        ("dataset=talk dataset_dir=data", "talk.json: row 1 does not have the columns"),
    ],
)
def test_what_the_registry_does_not_have(tmp_path, registry, chat_checkpoint, monkeypatch, keys, part):
    monkeypatch.chdir(tmp_path)
    write_json(registry / "talk.json", [{"conversations": []}])
    refused(lambda: examples(chat_checkpoint, *keys.split()), part)


def test_a_stage_1_of_registered_data_is_made_and_used_again(tmp_path, registry, stages, capsys):
    one = {"dataset_id_or_path": "identity,talk", "dataset_dir": str(registry)}
    train(*stages(one))
    train(*stages(one))
    assert "is reused" in capsys.readouterr().err
    talk = REGISTRY["talk"] | {"columns": {"messages": "turns"}}
    write_json(registry / "dataset_info.json", REGISTRY | {"talk": talk})
    assert "data: " in refusal(stages(one)).why

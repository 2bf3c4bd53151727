"""The start of a run: what is wrong is found before the model is loaded, and leaves nothing that blocks the next."""

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress

import pytest
from making import refused, write_checkpoint, write_rows

from grpo import train
from grpo.base.errors import Interrupted, UserError, check_all, describe, reason, run_main
from grpo.run.run_dir import holds_a_run

TEMPLATE = "{% for m in messages %}{{ m['content'] }}<|im_end|>{% endfor %}{% if add_generation_prompt %}>{% endif %}"


@pytest.fixture
def home(chat_checkpoint, tmp_path, monkeypatch):
    """A folder with data, and a config for it; the model's weights must not be read."""
    write_rows(tmp_path / "q.jsonl", [{"question": f"{i}?", "answer": str(i)} for i in range(8)])
    write_rows(tmp_path / "chats.jsonl", [{"messages": [{"role": "user", "content": "a"}]}])
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "binary.jinja").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "broken.jinja").write_text("line one\n{% for m in messages %}")
    (tmp_path / "no_system.jinja").write_text(
        "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + TEMPLATE
    )
    (tmp_path / "mine.py").write_text("def f(completions, ground_truth, **_): return [0.0] * len(completions)")
    write_checkpoint(tmp_path / "bare")
    common = f"model_name_or_path: {chat_checkpoint}\noutput_dir: run\nreport_to: none\ndisable_tqdm: true\n"
    common += "max_steps: 1\n"
    questions = "dataset_id_or_path: q.jsonl\nreward_funcs: exact,format\nmax_completion_length: 4\n"
    (tmp_path / "c.yaml").write_text(common + questions)
    (tmp_path / "sft.yaml").write_text(common + "dataset_id_or_path: chats.jsonl\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def loads_nothing(*_, **__):
    raise AssertionError("the model was loaded")


STARTS = [  # keys, exit code, words of the error
    ("device=cuda", 2, "device is cuda, and torch finds no such GPU"),
    ("device=mps", 2, "device is mps"),
    ("report_to=swanlab", 2, "pip install swanlab"),
    ("reward_funcs=./absent.py:f", 2, "cannot import the reward ./absent.py:f"),
    ("reward_funcs=./mine.py:f", 3, "mine:f needs the column ground_truth"),
    ("dataset_id_or_path=absent.jsonl", 3, "absent.jsonl does not exist"),
    ("dataset_id_or_path=empty.jsonl", 3, "holds no rows"),
    ("eval_dataset_id_or_path=absent.jsonl", 3, "absent.jsonl does not exist"),
    ("eval_reward_funcs=./mine.py:f eval_dataset_id_or_path=q.jsonl", 3, "needs the column ground_truth"),
    ("chat_template=absent.jinja", 3, "cannot read the chat template absent.jinja"),
    ("chat_template=binary.jinja", 3, "cannot read the chat template binary.jinja"),
    ("chat_template=broken.jinja", 3, "the chat template cannot render a prompt"),
    ("chat_template=no_system.jinja system_prompt=x", 3, "cannot render a prompt"),
    ("model_name_or_path=bare", 3, "cannot read the tokenizer in bare"),
    ("model_name_or_path=bare chat_template=no_system.jinja", 3, "cannot read the tokenizer in bare"),
]


@pytest.mark.parametrize(("keys", "code", "part"), STARTS, ids=[start[0] for start in STARTS])
def test_a_wrong_start_is_told_before_the_model_is_loaded_and_blocks_nothing(home, monkeypatch, keys, code, part):
    monkeypatch.setattr("grpo.engine.model.policy.load_decoder", loads_nothing)
    for _ in range(2):  # the second try finds what the first has left
        error = refused(lambda: train.main(["c.yaml", *keys.split(" ")]), part, exit_code=code)
        assert "internal error" not in describe(error)[1] and not holds_a_run(home / "run")


def test_the_next_try_after_a_wrong_start_runs(home):
    with pytest.raises(UserError):
        train.main(["c.yaml", "dataset_id_or_path=empty.jsonl"])
    assert json.loads((home / "run/run_state.json").read_text())["exit_code"] == 3
    train.main(["c.yaml"])
    assert json.loads((home / "run/run_state.json").read_text())["status"] == "done"
    with pytest.raises(UserError, match="is not empty"):
        train.main(["c.yaml"])


def test_a_resumed_run_cannot_end_before_its_checkpoint(home):
    train.main(["c.yaml", "max_steps=2"])
    final = (home / "run/final/adapter_model.safetensors").read_bytes()
    shorter = ["c.yaml", "max_steps=1", "resume_from_checkpoint=true"]
    refused(lambda: train.main(shorter), "is at step 2, and would end at step 1", "raise it to 2", exit_code=2)
    shutil.rmtree(home / "run/final")
    train.main(["c.yaml", "max_steps=2", "resume_from_checkpoint=true"])
    assert (home / "run/final/adapter_model.safetensors").read_bytes() == final


def test_a_signal_during_a_download_ends_the_run_as_a_signal(home, monkeypatch):
    """The library's errors become messages there; a signal is none of them."""

    def download(*_, **more):
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("the signal was not seen")

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    with pytest.raises(Interrupted):
        train.main(["c.yaml", "model_name_or_path=somebody/model"])
    state = json.loads((home / "run/run_state.json").read_text())
    assert (state["exit_code"], state["reason"]) == (143, str(Interrupted(143)))


def test_a_command_starts_without_libraries_that_only_some_runs_need():
    """Transformers alone would take several seconds, torch more than one. Each in a fork of a process that has
    imported torch alone."""
    code = """
import os, sys
import grpo.config.load, grpo.explain
assert "torch" not in sys.modules
import torch
later = {"sqlite3", "transformers", "datasets", "matplotlib", "triton"}
for command in ("train", "sft", "generate"):
    if os.fork() == 0:
        __import__(f"grpo.{command}")
        print(command, sorted(later & set(sys.modules)), flush=True)
        os._exit(0)
    os.wait()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["train []", "sft []", "generate []"]


@pytest.mark.parametrize("moment", ["loading", "training", "the end"])
def test_the_rewards_are_closed_however_a_run_ends(home, monkeypatch, capsys, moment):
    closed = []
    monkeypatch.setattr("rewards.scorer.Scorer.close", lambda self: closed.append(self))
    target = {"loading": "trainer.load_policy", "training": "algorithm.step.pack_batch"}.get(moment)
    if target:
        monkeypatch.setattr(f"grpo.{target}", loads_nothing)
        with pytest.raises(AssertionError):
            train.main(["c.yaml"])
    else:
        train.main(["c.yaml"])
    assert len(closed) == 1


def test_the_reason_of_an_error_is_never_empty():
    class NotFound(OSError):
        """As the hub's library has it."""

    assert reason(TimeoutError()) == "TimeoutError"
    assert reason(NotFound("\n404 Client Error.\n\nNo such repository")) == "NotFound: 404 Client Error."
    assert reason(FileNotFoundError(2, "No such file or directory", "a")) == "[Errno 2] No such file or directory: 'a'"


def test_of_several_failed_checks_all_are_told_and_the_first_gives_the_code():
    def fails(what, code):
        def check():
            raise UserError(what, "because", "", code)

        return check

    with pytest.raises(UserError) as caught:
        check_all(fails("no key", 4), lambda: None, fails("no disk", 6))
    assert (caught.value.what, caught.value.why, caught.value.exit_code) == ("no key; no disk", "because", 4)


def test_a_reader_that_has_read_enough_ends_a_command_well(monkeypatch, capsys):
    """As `| head` does: it closes stdout."""
    reader, writer = os.pipe()
    os.close(reader)
    with suppress(BrokenPipeError), open(writer, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        with pytest.raises(SystemExit) as ended:
            run_main(lambda argv: print("the first line of many"))
    assert ended.value.code == 0 and capsys.readouterr().err == ""

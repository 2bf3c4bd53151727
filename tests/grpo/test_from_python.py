"""Training from Python is the run of the command, with the objects of the program, which it leaves as they were."""

import functools
import io
import os
import random
import re
import signal
import sys
import threading
import traceback
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import date
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from making import cases, read_lines, refused

from grpo.api import train
from grpo.base.errors import UserError
from grpo.base.storage import read_json
from grpo.config.options import TrainConfig
from grpo.data.worlds.world import invent, write_world
from grpo.run import run_dir
from grpo.run.checkpoint import random_state, restore_random_state
from grpo.train import main

ROWS = [{"question": f"What is {a} + 1?", "answer": str(a + 1)} for a in range(8)]
KEYS = {
    "max_steps": 2,
    "num_generations": 2,
    "per_device_train_batch_size": 4,
    "max_completion_length": 6,
    "report_to": ["none"],
    "save_steps": 0,
    "device": "cpu",
}
SMALL = {**KEYS, "lora_r": 2}


def brevity(completions, **columns):
    return [-float(len(completion)) for completion in completions]


class Constant:
    """A reward with a state, which a class or a name alone does not have."""

    def __init__(self, value=0.0):
        self.value = value

    def __call__(self, completions, **columns):
        return [self.value] * len(completions)

    def __len__(self):
        return 0

    def negative(self, completions, **columns):
        return [-self.value] * len(completions)


def of_one(completion):
    return 3.0


@functools.wraps(of_one)
def for_each(completions, **columns):
    return [of_one(completion) + 1 for completion in completions]


@functools.wraps(brevity)
def hides(*arguments, **columns):
    return [5.0] * len(columns["completions"])


async def later(completions, scale=1.0, **columns):
    return [scale] * len(completions)


def weights(folder):
    return (folder / "final/adapter_model.safetensors").read_bytes()


def test_a_run_from_python_is_the_run_of_the_command(chat_checkpoint, tmp_path, capsys):
    result = train(chat_checkpoint, ROWS, [brevity], tmp_path / "mine", eval_size=2, **SMALL)
    assert result.path == tmp_path / "mine" and (result.path / "report.html").exists()
    assert result.before[""].keys() == result.after[""].keys()
    assert not capsys.readouterr().out and "held-out questions: 2" in repr(result)
    main([f"{tmp_path}/mine.config.yaml", f"output_dir={tmp_path / 'again'}"])
    assert weights(tmp_path / "mine") == weights(tmp_path / "again")
    assert capsys.readouterr().out == result.table + "\n"


# --- rewards ------------------------------------------------------------------------------------------------------


def test_the_objects_themselves_are_called_and_have_short_names(chat_checkpoint, tmp_path):
    def math(completions, **columns):  # the name of a built-in reward
        return [9.0] * len(completions)

    given = {
        "Constant": (Constant(1.0), 1.0),
        "Constant_2": (Constant(2.0), 2.0),
        "negative": (Constant(2.0).negative, -2.0),
        "of_one": (for_each, 4.0),
        "later": (functools.partial(later, scale=8.0), 8.0),
        "lambda": (lambda completions, **columns: [6.0] * len(completions), 6.0),
        "math_2": (math, 9.0),
        "brevity": (hides, 5.0),
    }
    keys = {**SMALL, "max_steps": 1}
    train(chat_checkpoint, ROWS, [function for function, _ in given.values()], tmp_path / "mine", **keys)
    first = read_lines(tmp_path / "mine/completions/step-000001.jsonl")[0]
    assert first["rewards"] == {name: value for name, (_, value) in given.items()}


def test_only_the_program_repeats_a_run_with_an_object_and_the_files_say_so(chat_checkpoint, tmp_path):
    def run(*rewards, **keys):
        train(chat_checkpoint, ROWS, rewards, tmp_path / "mine", **{**SMALL, "save_steps": 1, "max_steps": 1, **keys})

    run(Constant(2.0), for_each)
    config = tmp_path / "mine.config.yaml"
    note, _, text = config.read_text().partition("\n")
    assert note.startswith("# No command can repeat this run: ") and "<python>:Constant" in note and "Constant" in text
    for file in (config, tmp_path / "mine/config.resolved.yaml"):
        command = [str(file), f"output_dir={tmp_path / 'other'}"]
        refused(lambda command=command: main(command), "<python>:Constant is in no file", "grpo.api.train", exit_code=2)
    run(Constant(2.0), for_each, resume_from_checkpoint=True, max_steps=2)
    assert read_json(tmp_path / "mine/run_state.json")["step"] == 2


# --- rows ---------------------------------------------------------------------------------------------------------


def test_the_rows_that_are_trained_are_those_that_were_given(chat_checkpoint, tmp_path, monkeypatch):
    """A secret's value may be a common word. Logs do without it, data does not."""
    monkeypatch.setenv("POSTGRES_PASSWORD", "postgres")
    seen = []

    def look(completions, question, when, **columns):
        seen.extend(question)
        assert when[0] == "2020-01-02" and columns["numbers"][0] == {"1": [0.1, 0.5], "path": "a/b"}
        return [1.0] * len(completions)

    same = {"numbers": {np.int64(1): np.float32([0.1, 0.5]), "path": Path("a/b")}, "cost": Decimal("1.10")}
    same["when"] = date(2020, 1, 2)
    rows = [{"question": f"Who wrote postgres {n}?", "answer": np.int64(n), **same} for n in range(4)]
    train(chat_checkpoint, rows, look, tmp_path / "mine", **SMALL)
    assert set(seen) == {row["question"] for row in rows}
    assert read_lines(tmp_path / "mine.rows.jsonl")[3] == {
        "question": "Who wrote postgres 3?",
        "answer": 3,
        "when": "2020-01-02",
        "numbers": {"1": [0.1, 0.5], "path": "a/b"},
        "cost": "1.10",
    }
    assert "postgres" not in (tmp_path / "mine/completions/step-000001.jsonl").read_text()


def test_a_toy_world_is_written_unchanged(tmp_path, monkeypatch):
    made = invent(TrainConfig(toy_world="encyclopedia", seed=1))
    monkeypatch.setenv("MY_API_KEY", made.questions[0]["title"])
    write_world(tmp_path, made)
    assert read_lines(tmp_path / "questions.jsonl") == made.questions
    assert read_lines(tmp_path / "articles.jsonl") == made.articles


@pytest.mark.parametrize(
    "rows", [iter(ROWS), SimpleNamespace(iterrows=None, to_dict=lambda orient: ROWS)], ids=["iterator", "pandas"]
)
def test_rows_come_in_many_forms(chat_checkpoint, tmp_path, rows):
    train(chat_checkpoint, rows, "exact", tmp_path / "mine", **{**SMALL, "max_steps": 1})
    assert read_lines(tmp_path / "mine.rows.jsonl") == ROWS


# --- a user of TRL ------------------------------------------------------------------------------------------------


def test_trls_names_and_objects_are_keys(chat_checkpoint, tmp_path):
    peft, trl = pytest.importorskip("peft"), pytest.importorskip("trl")
    args = trl.GRPOConfig(f"{tmp_path}/mine", use_cpu=True, bf16=False, max_steps=5, logging_steps=3)
    adapter = peft.LoraConfig(r=3, lora_alpha=4, target_modules=["q_proj"])
    keys = {**KEYS, "learning_rate": np.float64(1e-4), "tokenizer_name_or_path": chat_checkpoint}
    data = {"train_dataset": ROWS, "eval_dataset": ROWS[:2], "reward_funcs": brevity}
    result = train(model=chat_checkpoint, args=args, peft_config=adapter, **data, **keys)
    config = (tmp_path / "mine/config.resolved.yaml").read_text()
    wanted = ("lora_r: 3", "lora_alpha: 4.0", "- q_proj", "max_steps: 2", "logging_steps: 3", "learning_rate: 0.0001")
    assert result.after and all(text in config for text in wanted)
    assert read_lines(tmp_path / "mine.held_out.jsonl") == ROWS[:2]


# --- mistakes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes, word", cases(__file__, "refused"))
def test_a_refused_call_says_what_to_do_and_writes_nothing(chat_checkpoint, finished, changes, word):
    def written():
        return {path.name: path.read_bytes() for path in finished.parent.glob("mine.*")}

    before = written()
    keys = {"model": chat_checkpoint, "rows": ROWS, "rewards": "exact", "output_dir": finished, **SMALL}
    with pytest.raises(UserError) as error:
        train(**keys | eval(f"dict({changes})"))
    assert word in str(error.value)
    assert error.value.why
    assert error.value.fix
    assert error.value.exit_code in (2, 3)
    assert not re.search(r"CONFIG|=true|=false", str(error.value))
    assert written() == before


@pytest.fixture(scope="module")
def finished(chat_checkpoint, tmp_path_factory):
    """A run, beside which its rows and its configuration are."""
    return train(chat_checkpoint, ROWS, "exact", tmp_path_factory.mktemp("finished") / "mine", **SMALL).path


# --- the program around it ----------------------------------------------------------------------------------------


def test_the_current_folder_may_be_the_output(chat_checkpoint, tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path / "mine")
    train(chat_checkpoint, ROWS, "exact", ".", **SMALL)
    assert {"mine", "mine.rows.jsonl", "mine.config.yaml"} <= {path.name for path in tmp_path.iterdir()}


def test_a_thread_may_train(chat_checkpoint, tmp_path):
    for steps in (1, 2):  # the second one finds no lock
        keys = SMALL | {"max_steps": steps, "overwrite_output_dir": True}
        thread = threading.Thread(target=train, args=(chat_checkpoint, ROWS, "exact", tmp_path / "mine"), kwargs=keys)
        thread.start()
        thread.join()
        state = read_json(tmp_path / "mine/run_state.json")
        assert (state["status"], state["step"]) == ("done", steps)


def test_a_run_that_cannot_begin_frees_its_directory(chat_checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr("grpo.run.libraries.configure", lambda config: 1 / 0)
    with pytest.raises(UserError, match="ZeroDivisionError"):
        train(chat_checkpoint, ROWS, "exact", tmp_path / "mine", **SMALL)
    assert read_json(tmp_path / "mine/run_state.json")["status"] == "failed"
    run_dir.RunDir(tmp_path / "mine", False, False).close(0, "")


def settings_of_the_process():
    names = "are_deterministic_algorithms_enabled is_deterministic_algorithms_warn_only_enabled get_default_device"
    names += " is_grad_enabled is_inference_mode_enabled get_num_threads get_default_dtype"
    found = [getattr(torch, name)() for name in names.split()]
    found += map(torch.is_autocast_enabled, ("cpu", "cuda"))
    backends = torch.backends, torch.backends.cuda.matmul, torch.backends.cudnn, torch.backends.mkldnn.matmul
    found += [backend.fp32_precision for backend in backends]
    found += map(signal.getsignal, (signal.SIGINT, signal.SIGTERM))
    found += [torch.utils.deterministic.fill_uninitialized_memory, dict(os.environ), sys.stderr, threading.excepthook]
    return found


@pytest.mark.parametrize("fails", [False, True])
def test_the_process_is_as_before(chat_checkpoint, tmp_path, fails):
    """Settings, variables, handlers, the timer, and what its random numbers are."""

    def numbers():
        return random.random(), np.random.rand(), torch.rand(1).item()

    def reward(completions, **columns):
        numbers()
        return [1 / (1 - fails)] * len(completions)

    torch.utils.deterministic.fill_uninitialized_memory = True
    before, states = settings_of_the_process(), random_state()
    wanted = numbers()
    restore_random_state(states)
    signal.setitimer(signal.ITIMER_REAL, 1000)
    keys = {**SMALL, "full_determinism": True, "tf32": True, "report_to": ["tensorboard"]}
    with suppress(UserError):
        train(chat_checkpoint, ROWS, reward, tmp_path / "mine", **keys)
    assert 900 < signal.setitimer(signal.ITIMER_REAL, 0)[0] <= 1000
    assert settings_of_the_process() == before and numbers() == wanted


@contextmanager
def changed(owner, name, value):
    before = getattr(owner, name)
    setattr(owner, name, value)
    yield
    setattr(owner, name, before)


closed = io.StringIO()
closed.close()
CALLERS = {
    "no_grad": torch.no_grad(),
    "inference_mode": torch.inference_mode(),
    "autocast": torch.autocast("cpu", torch.bfloat16),
    "device": torch.device("meta"),
    "precision_on_cpus": changed(torch.backends.mkldnn.matmul, "fp32_precision", "bf16"),
    "precision_of_all": changed(torch.backends, "fp32_precision", "tf32"),
    "no_stderr": changed(sys, "stderr", None),
    "closed_stderr": changed(sys, "stderr", closed),
    "odd_stderr": changed(sys, "stderr", SimpleNamespace(write=len, flush=lambda: None)),
}


@pytest.fixture(scope="module")
def plain(chat_checkpoint, tmp_path_factory):
    """The weights of a run whose caller is in the middle of nothing."""
    folder = tmp_path_factory.mktemp("plain") / "mine"
    return weights(train(chat_checkpoint, ROWS, brevity, folder, eval_size=2, **SMALL).path)


@pytest.mark.parametrize("caller", CALLERS)
def test_what_a_caller_is_in_the_middle_of_changes_nothing_and_stays(chat_checkpoint, tmp_path, plain, caller):
    with CALLERS[caller]:
        before = settings_of_the_process()
        train(chat_checkpoint, ROWS, brevity, tmp_path / "mine", eval_size=2, **SMALL)
        assert settings_of_the_process() == before
    assert weights(tmp_path / "mine") == plain


def test_no_traceback_holds_a_key_or_what_it_came_from(chat_checkpoint, tmp_path, monkeypatch):
    monkeypatch.setenv("MY_API_KEY", "sk-canary-0123")

    def reward(completions, **columns):
        raise ValueError(f"401 for {os.environ['MY_API_KEY']}")

    with pytest.raises(UserError) as caught:
        train(chat_checkpoint, ROWS, reward, tmp_path / "mine", **SMALL)
    shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value)
    assert "401 for [MY_API_KEY]" in shown and "sk-canary" not in shown and "ValueError: 401" in shown
    assert "direct cause" not in shown and "During handling" not in shown
    assert caught.value._render_traceback_() == str(caught.value).split("\n")
    assert "Traceback" in (tmp_path / "mine/debug.log").read_text()


@dataclass
class Arguments:
    """As TRL's: a field that means nothing here, at its default and changed, and one that has a meaning."""

    num_generations: int = 2
    push_to_hub: bool = False
    dataloader_pin_memory: bool = True
    dataloader_num_workers: int = 0

    to_dict = asdict


def test_only_what_a_user_has_set_is_said_to_be_unused(chat_checkpoint, tmp_path, capsys):
    args = Arguments(dataloader_num_workers=3)
    keys = {key: value for key, value in SMALL.items() if key != "num_generations"}
    train(chat_checkpoint, ROWS, "exact", tmp_path / "mine", args=args, **{**keys, "max_steps": 1})
    said = capsys.readouterr().err
    assert "dataloader_num_workers is not used" in said
    assert "push_to_hub" not in said
    assert "pin_memory" not in said
    assert "num_generations: 2" in (tmp_path / "mine/config.resolved.yaml").read_text()


@pytest.mark.parametrize("name", ["mine.rows.jsonl", "mine.config.yaml"])
def test_a_file_beside_the_run_that_no_call_has_written_stays(chat_checkpoint, tmp_path, name):
    (tmp_path / name).write_text('{"mine": 1}\n')
    call = functools.partial(train, chat_checkpoint, ROWS, "exact", tmp_path / "mine", **SMALL)
    refused(call, f"{name} is there already", exit_code=2)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert "mine" in (tmp_path / name).read_text()

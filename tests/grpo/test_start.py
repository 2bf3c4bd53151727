"""The start of a run: what is wrong is found before the model is loaded, and leaves nothing that blocks the next."""

import json
import os
import shutil
import signal
import sys
from contextlib import suppress

import pytest
from commands import python
from making import edit_json, refused, run_state, write_checkpoint, write_rows

from grpo import train
from grpo.base.errors import Interrupted, UserError, check_all, reason, run_main
from grpo.run.run_dir import holds_a_run
from grpo.run.start import DOCTOR

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


def start(*keys):
    train.main(["c.yaml", *keys])


def loads_nothing(*_, **__):
    raise AssertionError("the model was loaded")


def test_a_folder_that_the_run_reads_is_no_output(home, chat_checkpoint):
    """Before anything is written there: with files of a run it would be a model no more."""
    (home / "rows").mkdir()
    shutil.copy(home / "q.jsonl", home / "rows")
    shutil.copytree(chat_checkpoint, home / "run" / "final")
    (home / "run" / "run_state.json").write_text(json.dumps({"id": "0" * 21}))
    keys = [
        f"model_name_or_path={name} output_dir={name}" for name in (chat_checkpoint, "run/final", "run/../run/final/")
    ]
    keys += [f"tokenizer_name_or_path={chat_checkpoint} output_dir={chat_checkpoint}"]
    keys += ["model_name_or_path=run/final output_dir=run", "dataset_id_or_path=rows output_dir=rows"]
    before = sorted(home.rglob("*")), sorted(chat_checkpoint.iterdir())
    for typed in keys:
        command = ["c.yaml", *typed.split(), "overwrite_output_dir=true"]
        said = "holds what the run reads", "set another output_dir"
        refused(lambda command=command: train.main(command), *said, exit_code=2)
        assert (sorted(home.rglob("*")), sorted(chat_checkpoint.iterdir())) == before


STARTS = [  # keys, exit code, words of the error
    ("device=cuda", 2, "device is cuda, and torch finds no such GPU"),
    ("device=mps", 2, "device is mps"),
    ("report_to=swanlab", 2, "pip install swanlab"),
    ("reward_funcs=./absent.py:f", 2, "cannot import the reward ./absent.py:f"),
    ("reward_funcs=./mine.py:f", 3, "mine:f needs the column ground_truth"),
    ("dataset_id_or_path=absent.jsonl", 3, "absent.jsonl does not exist"),
    ("dataset_id_or_path=data/absent.jsonl", 3, "dataset data/absent.jsonl does not exist"),  # no hub is asked
    ("dataset_id_or_path=https://hub/owner/name", 3, "dataset https://hub/owner/name does not exist"),
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
    monkeypatch.setattr("grpo.policy.load_decoder", loads_nothing)
    for _ in range(2):  # the second try finds what the first has left
        error = refused(lambda: start(*keys.split(" ")), part, exit_code=code)
        assert (DOCTOR in error.fix or code == 2) and not holds_a_run(home / "run")


# --- a hub, and a machine without a GPU ------------------------------------------------------------------------------


@pytest.fixture
def asked(home, chat_checkpoint, monkeypatch):
    """What a hub is asked for, in order: the repository, and whether with weights. It has a model and a data set."""
    repositories = {"owner/model": chat_checkpoint, "owner/data": home / "data", "owner/nli": chat_checkpoint}
    (home / "data").mkdir()
    shutil.copy(home / "q.jsonl", home / "data")
    seen = []

    def download(name, *, allow_patterns, **_):
        seen.append((name, "*.safetensors" in allow_patterns))
        return str(repositories[name])

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    return seen


HUB = ["c.yaml", "model_name_or_path=owner/model", "dataset_id_or_path=owner/data"]


def test_a_hub_is_asked_for_weights_last(asked):
    train.main(HUB)
    assert max(asked.index((name, False)) for name in ("owner/model", "owner/data")) < asked.index(
        ("owner/model", True)
    )


def test_a_hub_is_not_asked_for_weights_while_anything_is_lacking(asked, monkeypatch):
    for name in ("OPENAI_API_KEY_JUDGE", "OPENAI_API_KEY_FACTSCORE"):
        monkeypatch.delenv(name, raising=False)
    lacking = "reward_funcs=knowrl knowledge_base=no.db nli_model=owner/nli report_to=swanlab"
    with pytest.raises(UserError) as error:
        train.main([*HUB, *lacking.split()])
    assert ("owner/model", False) in asked and not any(with_weights for _, with_weights in asked)
    for words in ("API_KEY_JUDGE", "API_KEY_FACTSCORE", "no.db does not exist", "FACTSCORE_DB_PATH", "swanlab"):
        assert words in error.value.why


def test_a_judge_that_is_out_of_reach_is_found_before_weights_are_fetched(asked, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY_JUDGE", "canary-key")
    keys = ["reward_funcs=correctness", "judge_base_url=http://127.0.0.1:9/v1", "api_deadline_s=1"]
    with pytest.raises(UserError, match="judge"):
        train.main([*HUB, *keys])
    assert not any(with_weights for _, with_weights in asked)


@pytest.fixture
def large(home, chat_checkpoint):
    """The config and the tokenizer of a model of 7.6 billion weights, without these."""
    shutil.copytree(chat_checkpoint, home / "large", ignore=shutil.ignore_patterns("*.safetensors"))
    shutil.copy(chat_checkpoint / "model.safetensors", home / "small.safetensors")
    sizes = {"hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "vocab_size": 152064}
    sizes |= {"num_attention_heads": 28, "num_key_value_heads": 4, "tie_word_embeddings": False}
    sizes |= {"layer_types": ["full_attention"] * 28, "max_window_layers": 28}
    edit_json(home / "large/config.json", **sizes)
    return "model_name_or_path=large"


def set_memory(monkeypatch, gigabytes):
    monkeypatch.setattr("grpo.engine.model.memory.free_bytes", lambda device: int(gigabytes * 1e9))


def test_a_large_model_without_a_gpu_is_named_first_and_counted(home, large, monkeypatch):
    """7,615,616,512 weights of 2 or 4 bytes."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    for gigabytes in (20, 2000):
        set_memory(monkeypatch, gigabytes)
        error = refused(lambda: start(large, "dataset_id_or_path=absent.jsonl"), "3 things")
        assert error.why.startswith("1. machine: no GPU: torch finds none, and the model has 7.6 billion weights")
        assert "15.2 GB in bfloat16 on a GPU and 30.5 GB in float32" in error.why
        assert "--memory-gb 80" in error.why
        assert ("device=cpu" in error.why) == (gigabytes > 31), "a fix has to help"
    set_memory(monkeypatch, 31.0)  # the weights fit, and their adapters do not
    refused(lambda: start(large, "device=cpu"), "model does not fit into memory", "tensor_parallel_size")
    set_memory(monkeypatch, 2000)
    refused(lambda: start(large, "device=cpu"), "large holds no safetensors weights")
    (home / "large/model.safetensors").write_bytes((home / "small.safetensors").read_bytes())
    monkeypatch.setattr("grpo.policy.load_decoder", loads_nothing)
    with pytest.raises(AssertionError, match="the model was loaded"):
        start(large, "device=cpu")


def test_without_its_config_a_model_is_counted_by_its_name(home, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("huggingface_hub.snapshot_download", loads_nothing)
    for name, is_large in (("owner/Some-7B-Chat", True), ("owner/Some-0.5B", False), ("owner/Some-135M", False)):
        with pytest.raises(UserError, match="cannot fetch the model|things keep") as error:
            start(f"model_name_or_path={name}")
        assert ("14.0 GB in bfloat16 on a GPU and 28.0 GB in float32" in str(error.value)) == is_large
        assert "model_name_or_path=FOLDER" in str(error.value)


def test_memory_that_runs_out_in_loading_is_not_blamed_on_a_step(home, monkeypatch):
    def load(*_, **__):
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr("grpo.policy.load_decoder", load)
    error = refused(lambda: start(), "while the model was loaded", "base_weights=int8", exit_code=8)
    assert "max_num_seqs" not in error.fix


def test_a_resumed_run_cannot_end_before_its_checkpoint(home):
    start("max_steps=2")
    final = (home / "run/final/adapter_model.safetensors").read_bytes()
    shorter = ["c.yaml", "max_steps=1", "resume_from_checkpoint=true"]
    refused(lambda: train.main(shorter), "is at step 2, and would end at step 1", "raise it to 2", exit_code=2)
    shutil.rmtree(home / "run/final")
    start("max_steps=2", "resume_from_checkpoint=true")
    assert (home / "run/final/adapter_model.safetensors").read_bytes() == final


def test_a_signal_during_a_download_ends_the_run_as_a_signal(home, monkeypatch):
    """The library's errors become messages there; a signal is none of them."""

    def download(*_, **more):
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("the signal was not seen")

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    with pytest.raises(Interrupted):
        start("model_name_or_path=somebody/model")
    state = run_state(home / "run")
    assert (state["exit_code"], state["reason"]) == (143, str(Interrupted(143)))


def test_a_command_starts_without_libraries_that_only_some_runs_need():
    """Transformers alone would take several seconds, torch more than one. Each in a fork of a process that has
    imported torch alone."""
    code = """
import os, sys
import grpo.config.load, grpo.explain
assert "torch" not in sys.modules
import torch
later = {"sqlalchemy", "sqlite3", "transformers", "datasets", "matplotlib", "triton"}
for command in ("train", "sft", "generate"):
    if os.fork() == 0:
        __import__(f"grpo.{command}")
        print(command, sorted(later & set(sys.modules)), flush=True)
        os._exit(0)
    os.wait()
"""
    assert python("-c", code).stdout.splitlines() == ["train []", "sft []", "generate []"]


@pytest.mark.parametrize("moment", ["loading", "training", "the end"])
def test_the_rewards_are_closed_however_a_run_ends(home, monkeypatch, capsys, moment):
    closed = []
    monkeypatch.setattr("rewards.scorer.Scorer.close", lambda self: closed.append(self))
    target = {"loading": "trainer.load_policy", "training": "algorithm.step.set_trained"}.get(moment)
    if target:
        monkeypatch.setattr(f"grpo.{target}", loads_nothing)
        with pytest.raises(AssertionError):
            start()
    else:
        start()
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

"""The doctor finds what would fail later, names it, changes nothing, and counts memory for a GPU that is not there."""

import json
import shutil
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from making import TEMPLATE, refused, write_rows

from grpo.base.errors import CONFIG, PREFLIGHT, STORAGE, UserError
from grpo.base.storage import read_json, write_json
from grpo.config.load import load_config
from grpo.doctor import __main__ as doctor
from grpo.doctor import trial
from grpo.doctor.__main__ import main
from grpo.run.case import Case
from grpo.run.checkpoint import check_disk
from grpo.run.start import model as describe
from grpo.run.start import questions, reward, tokenizer
from grpo.train import train

CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.fixture()
def config(tmp_path, chat_checkpoint):
    shutil.copytree(chat_checkpoint, tmp_path / "model")
    data = write_rows(tmp_path / "data.jsonl", [{"question": "What is 1 + 1?", "answer": "2"}] * 4)
    path = tmp_path / "run.yaml"
    paths = f"model_name_or_path: {tmp_path}/model\ndataset_id_or_path: {data}\noutput_dir: {tmp_path}/run\n"
    path.write_text(paths + "reward_funcs: math\nnum_generations: 4\nmax_completion_length: 16\n")
    return path


def examine(capsys, *argv):
    """Return the doctor's exit code, its findings, by name what each says, and the names of those that failed."""
    code = main([*map(str, argv), "--json"])
    printed = capsys.readouterr()
    findings = json.loads(printed.out)
    text = {finding["name"]: finding["text"] for finding in findings}
    failed = [finding["name"] for finding in findings if finding["ok"] is False]
    return SimpleNamespace(code=code, findings=findings, text=text, failed=failed, stderr=printed.err)


def test_a_healthy_config(config, capsys, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    seen = examine(capsys, config)
    assert seen.code == 0 and all(finding["ok"] for finding in seen.findings) and not seen.stderr
    names = "config machine output trackers data model tokenizer math prompts prompt memory weights audit sample steps"
    assert list(seen.text) == f"{names} time cost".split()
    assert sorted(tmp_path.rglob("*")) == before
    assert main([str(config)]) == 0
    assert capsys.readouterr().out.count("ok    ") == 17


def test_what_is_found_is_shown_at_once_and_memory_before_weights_are_fetched(config, capsys, monkeypatch):
    shown = []
    monkeypatch.setattr(trial, "weights", lambda case: shown.append(capsys.readouterr().out) or "there")
    assert main([str(config), "--memory-gb", "80"]) == 0
    assert "fits into 80.0 GB" in shown[0] and "audit" not in shown[0]


def test_flags_and_keys_may_stand_in_any_order(config, capsys):
    seen = examine(capsys, "--memory-gb", 80, "--max_samples", 3, "--config", config, "beta=0.1")
    assert seen.code == 0
    assert "3 prompts" in seen.text["prompts"]
    assert "fits into 80.0 GB" in seen.text["memory"]
    seen = examine(capsys, config, "--memory-gb", 0.00001)
    assert seen.code == PREFLIGHT and seen.failed == ["memory"]


def test_it_says_what_ends_an_answer(config, capsys, tmp_path):
    """A base model names another end token than its chat template writes; both end an answer."""
    model = tmp_path / "model"
    write_json(model / "config.json", read_json(model / "config.json") | {"eos_token_id": 0})
    settings = read_json(model / "tokenizer_config.json")
    write_json(model / "tokenizer_config.json", settings | {"eos_token": "<|endoftext|>"})
    said = examine(capsys, config).text["tokenizer"]
    assert "an answer ends with <|im_end|> or <|endoftext|>" in said and "opens <think>" not in said
    thinking = tmp_path / "thinking.jinja"
    thinking.write_text(TEMPLATE + "{% if add_generation_prompt %}<think>{% endif %}")
    said = examine(capsys, config, f"chat_template={thinking}").text["tokenizer"]
    assert "its template opens <think> in the prompt" in said


@pytest.mark.parametrize("keys", [["lora_r=8"], ["lora_r=0"]])
def test_the_size_of_a_checkpoint_is_that_of_its_tensors(config, capsys, tmp_path, keys):
    """Also of a run that starts from the adapter of another: its checkpoints hold both."""
    model = tmp_path / "model"
    for number in (1, 2):
        keys = [*keys, f"output_dir={tmp_path / str(number)}", f"model_name_or_path={model}", "max_steps=1"]
        settings, _ = load_config(config, [*keys, "disable_tqdm=true", "report_to=none"])
        case = Case(settings)
        describe(case)
        counted = check_disk(case.decoder, settings, model if number == 2 else None)
        train(settings)
        capsys.readouterr()
        model = tmp_path / str(number) / "final"
        tensors = (tmp_path / str(number) / "checkpoint-1").glob("*.safetensors")
        assert counted == pytest.approx(sum(path.stat().st_size for path in tensors), rel=0.05), number


def test_it_says_where_a_run_goes_on_and_what_keeps_it_from_that(config, capsys):
    train(*load_config(config, ["max_steps=1", "disable_tqdm=true", "report_to=none"]))
    capsys.readouterr()
    keys = ["max_steps=2", "report_to=none", "resume_from_checkpoint=true"]
    seen = examine(capsys, config, *keys)
    assert seen.code == 0
    assert "resumes from" in seen.text["resume"]
    assert "checkpoint-1" in seen.text["resume"]
    seen = examine(capsys, config, *keys, "max_completion_length=8")
    assert seen.code == CONFIG and "max_completion_length: 16 -> 8" in seen.text["resume"]


def test_it_warns_of_a_dtype_that_this_cpu_emulates_as_a_run_does(config, capsys, monkeypatch):
    monkeypatch.setattr("grpo.engine.device.products.onednn_dtypes", lambda: (torch.float32,))
    for dtype, warns in (("bfloat16", True), ("float32", False)):
        seen = examine(capsys, config, f"torch_dtype={dtype}", "--memory-gb", 80)
        assert "emulates bfloat16" not in seen.text["model"]  # a GPU does not
        text = describe(Case(load_config(config, [f"torch_dtype={dtype}", "device=cpu"])[0]))
        assert ("emulates bfloat16" in text) == warns


def looked_at(config, *keys, memory_gb=80.0):
    """The case of a config as far as its memory."""
    case = Case(load_config(config, keys)[0], memory_gb)
    for check in (partial(questions, use="train"), describe, tokenizer, trial.prompts, trial.memory_plan):
        check(case)
    return case


def test_memory_is_planned_for_the_longest_prompt_with_its_completion(config):
    case = looked_at(config)
    assert case.longest == max(len(prompt.ids) for prompt in case.prompts) + 16
    assert looked_at(config, "max_completion_length=400").needed_bytes > case.needed_bytes


def test_a_reference_is_a_second_model_only_if_all_weights_are_trained(config):
    """In bfloat16. With adapters it is the model without them."""
    needed = {
        rank: [looked_at(config, f"lora_r={rank}", f"beta={beta}").needed_bytes for beta in (0, 0.1)] for rank in (8, 0)
    }
    num_weights = sum(tensor.numel() for tensor in looked_at(config, "lora_r=0").decoder.named_tensors().values())
    assert needed[8][1] == needed[8][0] and needed[0][1] - needed[0][0] == 2 * num_weights


@pytest.mark.parametrize("limit, number", [(1, 2), (3, 4)])
def test_the_disk_must_hold_one_checkpoint_more_than_are_kept(config, tmp_path, monkeypatch, limit, number):
    """The new one is complete before an old one goes. What counts is the disk of output_dir."""
    case = Case(load_config(config, [f"save_total_limit={limit}"])[0])
    describe(case)
    one = check_disk(case.decoder, case.config, None)
    disk, large = SimpleNamespace(total=10**15, free=number * one), SimpleNamespace(total=10**15, free=10**15)
    monkeypatch.setattr("shutil.disk_usage", lambda path: disk if path.is_relative_to(tmp_path.resolve()) else large)
    assert check_disk(case.decoder, case.config, None) == one
    disk.free -= 1
    run = replace(case.config, report_to=("none",), max_steps=1)
    for checks in (lambda: check_disk(case.decoder, case.config, None), lambda: train(run)):
        refused(checks, "the disk is too small", f"{number} of ", exit_code=STORAGE)


def test_a_file_system_without_a_size_is_too_small_for_nothing(config, capsys, tmp_path, monkeypatch):
    """As some network file systems."""
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(total=0, free=0))
    seen = examine(capsys, config)
    assert not seen.failed and "tells no size" in seen.text["output"]
    assert list(tmp_path.glob("tmp*")) == []


@pytest.mark.parametrize("value", ["nan", "inf", "1e300"])
def test_a_reward_that_gives_no_usable_number_is_a_fault(config, capsys, tmp_path, value):
    returned = f"[float('{value}')] * len(completions)"
    (tmp_path / "mine.py").write_text(f"def odd(completions, **columns):\n    return {returned}\n")
    seen = examine(capsys, config, f"reward_funcs=[{tmp_path}/mine.py:odd]")
    assert seen.code == PREFLIGHT and seen.failed == ["sample"]
    assert f"odd returned {float(value)}" in seen.text["sample"]


@pytest.mark.parametrize(
    "name, answers, said",
    [
        ("exact", ["2", "", None, "3"], "needs answer; warning: 2 of 4 rows lack one"),
        ("math", ["2", "First we note that 1 is a root, and divide by it."], "warning: 1 answers that are sentences"),
    ],
)
def test_answers_that_are_empty_or_sentences_are_a_warning(config, tmp_path, name, answers, said):
    case = Case(load_config(config, [f"reward_funcs={name}"])[0])
    write_rows(tmp_path / "data.jsonl", [{"question": "q", "answer": answer} for answer in answers])
    questions(case, "train")
    assert said in reward(case, name)


def test_a_tracker_with_an_account_says_that_its_login_is_not_tested(config, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "swanlab", SimpleNamespace())
    said = examine(capsys, config, "report_to=[tensorboard,swanlab]").text["trackers"]
    assert "login is not tested" in said
    assert "SWANLAB_API_KEY" in said
    assert "SWANLAB_MODE=offline" in said


def test_the_tiny_config_is_well(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(CONFIGS.parent)
    seen = examine(capsys, CONFIGS / "tiny.yaml", f"output_dir={tmp_path / 'run'}")
    assert seen.code == 0 and "stage 1" in seen.text


def test_one_fault_fails_once(config, capsys, monkeypatch):
    """The same error by two checks."""

    def fails(case):
        raise UserError("it is gone", "why", "fix", 3)

    monkeypatch.setattr(doctor, "checks", lambda case: iter([("model", fails), ("tokenizer", fails)]))
    seen = examine(capsys, config)
    assert seen.failed == ["model"] and seen.text["tokenizer"] == "not checked: model says why"

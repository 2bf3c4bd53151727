"""The commands as a user types them, in processes of their own; each once in a new interpreter, else in a fork."""

import json
import re
import subprocess
import sys

import pytest
import torch
from commands import ROOT, next_commands, run_command, source_files
from making import cases, write_adapter, write_rows


def command(*arguments, stdin="", code=0, new_interpreter=False):
    if new_interpreter:
        words = [sys.executable, "-m", *map(str, arguments)]
        run = subprocess.run(words, capture_output=True, text=True, input=stdin, cwd=ROOT)
    else:
        run = run_command(*arguments, stdin=stdin)
    assert run.returncode == code, run.stderr
    assert "Traceback" not in run.stderr
    return run


@pytest.fixture(scope="module")
def adapter(chat_checkpoint, tmp_path_factory):
    return write_adapter(tmp_path_factory.mktemp("adapter"), chat_checkpoint)


def test_export_of_a_training_checkpoint_with_full_fine_tuning(chat_checkpoint, tmp_path):
    from safetensors.torch import load_file

    data = write_rows(tmp_path / "q.jsonl", [{"question": f"{i}?", "answer": str(i)} for i in range(8)])
    keys = "toy_world=null cold_start=null max_steps=1 lora_r=0 reward_funcs=exact,format per_device_train_batch_size=8"
    keys += f" max_completion_length=8 disable_tqdm=true report_to=none output_dir={tmp_path / 'run'}"
    keys += f" model_name_or_path={chat_checkpoint} dataset_id_or_path={data}"
    command("grpo.train", ROOT / "configs/tiny_math.yaml", *keys.split())
    final = load_file(tmp_path / "run/final/model.safetensors")
    command("grpo.export", tmp_path / "run/checkpoint-1", tmp_path / "out", "--merge")
    torch.testing.assert_close(load_file(tmp_path / "out/model.safetensors"), final, rtol=0, atol=0)


def test_generate(adapter):
    greedy = ["grpo.generate", adapter, "--max-new-tokens", 8, "--temperature", 0]
    one = command(*greedy, "--prompt", "What is 1 + 2?")
    piped = command(*greedy, stdin="What is 1 + 2?\n\n", new_interpreter=True)
    assert one.stdout == piped.stdout and len(one.stdout) > 1
    evaluate, export = next_commands(one.stderr)
    assert evaluate == f"grpo.evaluate {adapter} --data FILE" and export.startswith("grpo.export")
    several = command("grpo.generate", adapter, "--prompt", "a", "--prompt", "b", "--n", 2, "--max-new-tokens", 4)
    assert several.stdout.count("> ") >= 2
    assert all(c.isprintable() or c == "\n" for c in several.stdout)


def test_good_input_brings_no_warning(adapter, tmp_path):
    data = write_rows(tmp_path / "q.jsonl", [{"question": "1 + 2?", "answer": "3"}])
    asked = ["grpo.generate", adapter, "--prompt", "1 + 2?", "--max-new-tokens", 4]
    measured = ["grpo.evaluate", adapter, "--data", data, "--reward", "exact", "max_completion_length=4"]
    for words in (asked, measured):
        assert "warning" not in command(*words, new_interpreter=True).stderr.lower()


def test_score(tmp_path):
    path = write_rows(tmp_path / "in.jsonl", [{"completion": r"\boxed{0}", "answer": 0}, {"completion": "x"}])
    run = command("rewards.score", "--reward", "math", path, new_interpreter=True)
    assert [json.loads(line)["rewards"]["math"] for line in run.stdout.splitlines()] == [1, None]
    assert "1 of 2" in run.stderr


@pytest.mark.parametrize("line, code, part", cases(__file__, "mistakes"))
def test_mistakes_end_in_three_lines_and_the_right_code(tmp_path, line, code, part):
    write_rows(tmp_path / "in.jsonl", [{"completion": "x"}])
    words = line.replace("{tmp}", str(tmp_path)).split()
    run = command(*words, code=int(code), new_interpreter="grpo.evaluate" in line or part == "is not empty")
    assert part in run.stderr and "fix: " in run.stderr


def test_without_a_name_all_commands_are_listed():
    listed = set(re.findall(r"^    (\S+)  ", command("grpo", new_interpreter=True).stdout, re.MULTILINE))
    files = source_files("grpo", "rewards", "knowledge")
    files = [path.relative_to(ROOT).with_suffix("") for path in files if "run_main(main)" in path.read_text()]
    names = {".".join(path.parts).removesuffix(".__main__") for path in files} - {"grpo"} | {"grpo.minimal"}
    assert listed == names
    assert "`python -m grpo` lists them" in command("grpo", "grpo.trains x", code=2).stderr

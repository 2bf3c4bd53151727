"""The commands as a user types them, in processes of their own; each once in a new interpreter, else in a fork."""

import json
import os
import re
import subprocess
import sys

import pytest
import torch
from commands import ROOT, next_commands, run_command, source_files
from making import load, randomise_adapter, write_rows

from grpo.engine.model.adapter import save_adapter, trained_adapter


def command(*arguments, stdin="", code=0, new_interpreter=False):
    if new_interpreter:
        run = subprocess.run(
            [sys.executable, "-m", *map(str, arguments)],
            capture_output=True,
            text=True,
            input=stdin,
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    else:
        run = run_command(*arguments, stdin=stdin)
    assert run.returncode == code, run.stderr
    assert "Traceback" not in run.stderr
    return run


@pytest.fixture(scope="module")
def adapter(chat_checkpoint, tmp_path_factory):
    from transformers import AutoTokenizer

    folder = tmp_path_factory.mktemp("adapter")
    model = load(chat_checkpoint, rank=4)
    randomise_adapter(model)
    save_adapter(trained_adapter(model, None, str(chat_checkpoint)), folder, lora_alpha=8)
    AutoTokenizer.from_pretrained(chat_checkpoint).save_pretrained(folder)
    return folder


def test_export_of_a_training_checkpoint_with_full_fine_tuning(chat_checkpoint, tmp_path):
    from safetensors.torch import load_file

    data = write_rows(tmp_path / "q.jsonl", [{"question": f"{i}?", "answer": str(i)} for i in range(8)])
    keys = "toy_world=null cold_start=null max_steps=1 lora_r=0 reward_funcs=exact,format per_device_train_batch_size=8"
    keys += f" max_completion_length=8 disable_tqdm=true report_to=none output_dir={tmp_path / 'run'}"
    keys += f" model_name_or_path={chat_checkpoint} dataset_id_or_path={data}"
    command("grpo.train", ROOT / "configs/tiny_math.yaml", *keys.split())
    final = load_file(tmp_path / "run" / "final" / "model.safetensors")
    command("grpo.export", tmp_path / "run" / "checkpoint-1", tmp_path / "out", "--merge")
    (tmp_path / "run" / "final").rename(tmp_path / "elsewhere")
    command("grpo.export", tmp_path / "run", tmp_path / "of_run", "--merge")  # the newest checkpoint
    for folder in ("out", "of_run"):
        exported = load_file(tmp_path / folder / "model.safetensors")
        assert exported.keys() == final.keys() and all(torch.equal(exported[k], final[k]) for k in final)


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
    rows = [
        {"completion": r"so \boxed{4}", "answer": 4},
        {"completion": "<think>a</think><answer>b</answer>", "answer": ["c", "B"]},
        {"completion": "none", "solution": "#### 4"},
        {"completion": r"\boxed{0}", "answer": 0},
        {"completion": "x"},
    ]
    path = write_rows(tmp_path / "in.jsonl", rows)
    run = command("rewards.score", "--reward", "math,format,exact", path, "math_reward_no_answer=-0.25")
    graded = [json.loads(line) for line in run.stdout.splitlines()]
    assert [row["rewards"]["math"] for row in graded] == [1.0, -0.25, -0.25, 1.0, None]
    assert [row["rewards"]["format"] for row in graded] == [-1.0, 1.0, -1.0, -1.0, -1.0]
    assert [row["rewards"]["exact"] for row in graded] == [0.0, 1.0, 0.0, 0.0, None]
    assert all(row["reasons"][name] for row in graded for name in row["rewards"])
    assert "4 of 5" in run.stderr and "math" in run.stderr
    command("rewards.score", "--reward", "math", path, "--output", tmp_path / "out.jsonl", new_interpreter=True)
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 5


NO_MODEL = "toy_world=null model_name_or_path=/no/model dataset_id_or_path=x cold_start=null output_dir={tmp}"
MISTAKES = [
    ("grpo.train no.yaml", 2, "error: cannot read the config no.yaml"),
    ("grpo.train configs/tiny_math.yaml beta=x nonsense=1", 2, "2 problems"),
    (f"grpo.train configs/tiny_math.yaml {NO_MODEL}", 3, "does not exist"),
    ("rewards.score --reward nope {tmp}/in.jsonl", 2, "unknown reward nope"),
    ("grpo.generate /no/model --prompt x", 3, "does not exist"),
    ("grpo.evaluate /no/model --data x --reward math --n 8", 2, "--n 8 at temperature 0"),
    ("grpo.export /no/model {tmp}/out", 3, "/no/model does not exist"),
    ("grpo.export /no/model {tmp}/in.jsonl", 2, "cannot use the folder"),
    ("grpo.export /no/model {tmp}/in.jsonl/out", 2, "cannot use the folder"),
    ("grpo.export /no/model {tmp}", 2, "is not empty"),
    ("grpo.report {tmp} --output {tmp}/in.jsonl/x.html", 2, "fix: give --output the path of a file"),
    ("grpo.report {tmp} --output {tmp}", 2, "fix: give --output the path of a file"),
]


@pytest.mark.parametrize(("line", "code", "part"), MISTAKES)
def test_mistakes_end_in_three_lines_and_the_right_code(tmp_path, line, code, part):
    write_rows(tmp_path / "in.jsonl", [{"completion": "x"}])
    words = line.replace("{tmp}", str(tmp_path)).split()
    run = command(*words, code=code, new_interpreter=words[0] == "grpo.evaluate" or part == "is not empty")
    assert part in run.stderr and "fix: " in run.stderr


def test_without_a_name_all_commands_are_listed():
    listed = set(re.findall(r"^    (\S+)  ", command("grpo", new_interpreter=True).stdout, re.MULTILINE))
    files = [*source_files("grpo", "rewards", "knowledge")]
    names = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts) for path in files if "run_main(main)" in path.read_text()
    }
    names = {name.removesuffix(".__main__") for name in names} - {"grpo"} | {"grpo.minimal"}
    assert listed == names and "`python -m grpo` lists them" in command("grpo", "grpo.trains x", code=2).stderr

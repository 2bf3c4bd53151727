"""What a user of TRL brings along: conversations, and reward functions in a file, through a complete run."""

import pytest
from making import read_lines, write_rows

from grpo import train

FUNCTIONS = """
import asyncio
import re

import numpy as np
import torch

steps = []

def format_reward(completions, **kwargs):
    contents = [completion[0]["content"] for completion in completions]
    return [1.0 if re.match(r"^<think>.*?</think>", content) else 0.0 for content in contents]

def length_reward(
    prompts, completions, completion_ids, trainer_state, log_extra, log_metric, ground_truth, task, **kwargs
):
    assert all(prompt[0]["role"] == "system" and prompt[-1]["role"] == "user" for prompt in prompts)
    assert ground_truth == [prompts[0][-1]["content"][:1]] * len(prompts)
    assert trainer_state.max_steps == 2
    steps.append(trainer_state.global_step)
    log_extra("tokens", [len(ids) for ids in completion_ids])
    log_metric("length/tokens", np.mean([len(ids) for ids in completion_ids]))
    return np.array([len(ids) / 8 for ids in completion_ids], dtype=np.float32)

async def service(completions, task, **kwargs):
    await asyncio.sleep(0.01)
    return torch.ones(len(completions)) if task[0] == "a" else [None] * len(completions)
"""


@pytest.fixture
def home(chat_checkpoint, tmp_path, monkeypatch):
    rows = [
        {
            "prompt": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": f"{i}?"}],
            "ground_truth": str(i),
            "task": "ab"[i % 2],
        }
        for i in range(8)
    ]
    write_rows(tmp_path / "q.jsonl", rows)
    (tmp_path / "rewards.py").write_text(FUNCTIONS)
    (tmp_path / "c.yaml").write_text(
        f"model_name_or_path: {chat_checkpoint}\ndataset_id_or_path: q.jsonl\noutput_dir: run\nmax_steps: 2\n"
        "questions_per_step: 4\nnum_generations: 4\nmax_completion_length: 6\nreport_to: none\ndisable_tqdm: true\n"
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


def of_run(home) -> tuple[list[dict], list[dict]]:
    """The metrics of the steps, and all completions."""
    files = sorted((home / "run/completions").iterdir())
    return read_lines(home / "run/metrics.jsonl"), [line for file in files for line in read_lines(file)]


def test_trls_functions_and_conversations_run_unchanged(home):
    names = [f"./rewards.py:{name}" for name in ("format_reward", "length_reward", "service")]
    train.main(["c.yaml", f"reward_funcs={','.join(names)}"])
    steps, completions = of_run(home)
    assert len(steps) == 2 and len(completions) == 32
    for line in steps:
        assert line["rewards/rewards:length_reward/time"] > 0
        assert line["rewards/rewards:service/unscored_frac"] == 0  # it does not apply to task b
        assert line["log/length/tokens"] == pytest.approx(line["completions/mean_length"])
    for completion in completions:
        parts = completion["rewards"]
        assert parts["rewards:length_reward"] == pytest.approx(completion["num_tokens"] / 8)
        assert completion["details"]["rewards:length_reward"]["extra"] == {"tokens": completion["num_tokens"]}
        is_a = int(completion["prompt"].partition("?")[0][-1]) % 2 == 0
        assert parts["rewards:service"] == (1.0 if is_a else None)
        assert completion["reward"] == pytest.approx(sum(value for value in parts.values() if value is not None))

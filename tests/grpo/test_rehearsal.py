"""The first step that the doctor makes is the run's own, and its time becomes that of the run."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from making import make_group, write_rows

from grpo.config.options import SftConfig, TrainConfig
from grpo.doctor import estimate
from grpo.doctor.estimate import GrpoRehearsal, SftRehearsal, StepTime, num_packed
from grpo.run.case import Case
from grpo.sft import sft
from grpo.train import train
from rewards.services import Checkup

QUESTIONS = [{"question": f"What is {n} + {n}?" + " Tell." * n, "answer": str(2 * n)} for n in range(6)]
CONVERSATIONS = [
    {"messages": [{"role": "user", "content": f"{n}?" * n}, {"role": "assistant", "content": "1" * 9 * n}]}
    for n in range(1, 8)
]


@pytest.fixture
def shared(chat_checkpoint):
    """Keys of both stages."""
    return {
        "model_name_or_path": str(chat_checkpoint),
        "max_steps": 1,
        "report_to": ["none"],
        "disable_tqdm": True,
    }


@pytest.fixture
def config(tmp_path, shared):
    return TrainConfig(
        dataset_id_or_path=str(write_rows(tmp_path / "data.jsonl", QUESTIONS)),
        output_dir=str(tmp_path / "run"),
        reward_funcs=["math"],
        num_generations=2,
        max_completion_length=40,
        beta=0.1,
        **shared,
    )


@pytest.fixture
def stage1(tmp_path, shared):
    return SftConfig(
        dataset_id_or_path=str(write_rows(tmp_path / "rows.jsonl", CONVERSATIONS)),
        output_dir=str(tmp_path / "cold"),
        max_length=100,
        per_device_train_batch_size=4,
        learning_rate=0.01,
        **shared,
    )


def test_it_makes_the_first_step_of_the_run(config, tmp_path):
    rehearsal = GrpoRehearsal(config)
    before = sorted(tmp_path.rglob("*"))
    step = rehearsal.time_step()
    assert list(step.phases) == ["generating", "reference", "training"] and min(step.phases.values()) > 0
    assert step.measured.startswith("4 rows, completions of") and "cut" not in step.measured
    assert sorted(tmp_path.rglob("*")) == before
    decode = rehearsal.trainer.policy.decode
    made = [decode(completion.ids) for group in rehearsal.trainer.learned.groups for completion in group.completions]
    train(config)
    lines = (tmp_path / "run" / "completions" / "step-000001.jsonl").read_text().splitlines()
    assert made == [json.loads(line)["completion"] for line in lines]


def test_it_makes_the_first_step_of_stage_1(stage1, tmp_path):
    rehearsal = SftRehearsal(stage1)
    step = rehearsal.time_step()
    assert list(step.phases) == ["training"] and step.measured.startswith("4 rows")
    sft(stage1)
    metrics = json.loads((tmp_path / "cold" / "metrics.jsonl").read_text().splitlines()[0])
    assert sum(map(num_packed, rehearsal.trainer.learned.groups)) == metrics["num_tokens"]


@pytest.mark.parametrize("limit_s", [0.0, 1.0, 1e9])
@pytest.mark.parametrize("kind", [GrpoRehearsal, SftRehearsal])
def test_a_step_that_takes_too_long_is_made_smaller_and_scaled_by_its_tokens(kind, config, stage1, limit_s):
    """Where each token takes a hundredth of a second, so does each token of a complete step."""
    rehearsal = kind(config if kind is GrpoRehearsal else stage1)
    make_step, spent = rehearsal.make_step, []

    def timed(tokens):
        make_step(tokens)
        groups = rehearsal.trainer.learned.groups
        assert len(groups) == rehearsal.num_rows
        assert all(len(group.prompt.ids) <= tokens for group in groups)
        assert all(len(c.ids) <= tokens for group in groups for c in group.completions)
        spent.append(sum(map(num_packed, groups)) / 100)
        generated = sum(len(completion.ids) for group in groups for completion in group.completions)
        return {"generating": generated / 1000, "training": spent[-1]}

    rehearsal.make_step = timed
    step = rehearsal.time_step(limit_s)
    prompts, completions = rehearsal.full_tokens()
    assert step.phases == pytest.approx({"generating": completions / 1000, "training": (prompts + completions) / 100})
    assert sum(spent[1:]) <= max(limit_s, spent[0])  # the first one is warm-up
    assert ("scaled up" in step.measured) == (limit_s < 1e9)


def test_a_completion_that_was_cut_counts_with_the_maximum_length(config):
    """4 questions with 2 completions each: one of 3 tokens ended, one was cut; it may have up to 40."""
    rehearsal = GrpoRehearsal(config)
    groups = [make_group((7, 7), [8] * 5, [8] * 3, finish_reason=["length", "stop"])]
    rehearsal.trainer.learned = SimpleNamespace(groups=groups)
    prompts = [len(prompt.ids) for prompt in rehearsal.source.prompts]
    assert rehearsal.full_tokens() == (4 * sum(prompts) / len(prompts), 4 * 2 * (40 + 3) / 2)


def test_the_terms_of_a_run(config):
    """Ten steps of 8 completions: two calls after another in each, and 3 evaluations of 16 questions: 128 calls."""
    case = Case(replace(config, max_steps=10, eval_steps=9, api_max_concurrency=4))
    case.prompts, case.rows = [None] * 6, {"eval": [None] * 16}
    phases = {"generating": 3.0, "reference": 1.0, "training": 2.0}
    case.rehearsal = type("Known", (), {"time_step": lambda self: StepTime(phases, "all of it")})()
    case.checkups = {"judge": Checkup("", 0.5, (10_000, 2_000))}
    text = estimate.duration(case)
    assert "7.00 s a step: generating 3.00 + reference 1.00 + training 2.00 + judge (at most) 1.00" in text
    assert "10 steps take 1.2 min" in text
    assert "3 evaluations take 24 s" in text  # 48 answers, of which 8 take 3 + 1 seconds
    assert text.endswith("measured here: all of it") and case.rehearsal is None
    assert "judge: 128 calls at most, 1.28M tokens of prompts and 0.26M of replies" in estimate.cost(case)

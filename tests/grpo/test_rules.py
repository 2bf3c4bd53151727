"""The rules: each recognises a run that has its failure, and keeps quiet about one that nearly has it."""

import math
import random
import re
from pathlib import Path

import pytest
import test_train
from making import write_chat_checkpoint
from test_train import run

from grpo.diagnosis import rules
from grpo.diagnosis.health import Diagnosis
from grpo.diagnosis.rules import ENDINGS, RULES, History, advice, meaning
from grpo.model.policy import Policy

HEALTHY = {
    "reward_std": 0.5,
    "frac_reward_zero_std": 0.3,
    "advantage_abs_mean": 0.6,
    "accuracy": 0.5,
    "refusal_rate": 0.1,
    "refusal_rate_known": 0.05,
    "coverage": 0.7,
    "entropy": 0.8,
    "grad_norm": 0.2,
    "rewards/format/mean": 0.6,
    "rewards/format/std": 0.4,
    "rewards/format/unscored_frac": 0.0,
    "completions/mean_length": 100.0,
    "completions/clipped_ratio": 0.05,
    "sampling/kept_frac": 0.5,
    "time/reward": 1.0,
    "step_time": 10.0,
}


def symptoms_of(num_steps: int = 40, config=None, prompt: str = "", end: bool = True, **changes) -> dict[str, object]:
    """The alarms, by rule, of a run whose reward rises. changes: metric -> a function of the step, or a value."""
    diagnosis = Diagnosis(History(config=config or {}, prompt=prompt))
    for step in range(1, num_steps + 1):
        metrics = {**HEALTHY, "reward": step / num_steps + 0.02 * (-1) ** step}
        for name, change in changes.items():
            metrics[name] = change(step) if callable(change) else change
        diagnosis.check(step, metrics)
    if end:
        diagnosis.end()
    return {symptom.rule.__name__: symptom for symptom in diagnosis.symptoms}


def late(before, after, begin: int = 20):
    """A metric that changes at a step."""
    return lambda step: after if step >= begin else before


def flat(step: int) -> float:
    """A reward that goes nowhere."""
    return 0.5 + 0.02 * (-1) ** step


def test_a_healthy_run_raises_no_alarm():
    assert symptoms_of() == {}


# rule -> (a run that has it, the step of the alarm, words of its sentence), (a run that nearly has it)
CASES = {
    "not_finite": (
        ({"grad_norm": late(0.2, math.nan, 30)}, 32, "since step 30"),
        {"grad_norm": lambda step: math.nan if step % 3 else 0.2},
    ),
    "all_unscorable": (
        ({"rewards/mine:f/unscored_frac": late(0.5, 1.0), "reward": late(0.5, math.nan)}, 22, "mine:f"),
        {"rewards/mine:f/unscored_frac": 0.99},
    ),
    "constant_reward": (({"reward": 1.0, "reward_std": 0.0}, 3, "has the reward 1"), {"reward_std": 0.001}),
    "no_signal": (
        ({"frac_reward_zero_std": late(0.3, 0.9), "accuracy": 0.02}, 24, "since step 20, because only 2%"),
        {"frac_reward_zero_std": lambda step: 0.9 if step % 5 else 0.7},
    ),
    "nothing_kept": (({"sampling/kept_frac": late(0.5, 0.0)}, 22, "since step 20"), {"sampling/kept_frac": 0.01}),
    "format_never_right": (
        ({"rewards/format/mean": -1.0, "rewards/format/std": 0.0}, 5, "the reward format is -1"),
        {"rewards/format/mean": 1.0, "rewards/format/std": 0.0},
    ),
    "refuses_everything": (({"refusal_rate": late(0.1, 0.97, 12)}, 12, "97%"), {"refusal_rate": 1.0}),
    "refuses_known": (({"refusal_rate_known": late(0.05, 0.4, 25)}, 29, "since step 20"), {"refusal_rate_known": 0.4}),
    "coverage_falls": (({"coverage": late(0.7, 0.5, 25)}, 30, "70% of the questions"), {"coverage": late(0.7, 0.65)}),
    "length_without_reward": (
        ({"completions/mean_length": late(100.0, 200.0), "reward": flat}, 22, "100 tokens at the start"),
        {"completions/mean_length": late(100.0, 200.0)},
    ),
    "cut_off": (
        ({"completions/clipped_ratio": late(0.05, 0.4)}, 24, "40% of the completions are cut off"),
        {"completions/clipped_ratio": lambda step: 0.4 if step % 5 else 0.2},
    ),
    "entropy_died": (({"entropy": late(0.8, 0.02, 41)}, 45, "entropy died since step 41"), {"entropy": late(0.8, 0.1)}),
    "entropy_exploded": (({"entropy": late(0.8, 5.0)}, 24, "entropy has exploded"), {"entropy": late(0.8, 1.2)}),
    "rewards_slower": (
        ({"time/reward": late(1.0, 8.0), "judge/calls": 5.0}, 21, "the judge got slower"),
        {"time/reward": late(0.01, 0.1)},
    ),
    "learned_nothing": (({"reward": flat}, 50, "learned nothing"), {}),
}


@pytest.mark.parametrize("rule", [rule.__name__ for rule in (*RULES, *ENDINGS)])
def test_a_rule_recognises_its_failure_and_no_other(rule):
    (failing, step, words), sound = CASES[rule]
    symptom = symptoms_of(50, **failing)[rule]
    assert symptom.step == step and words in symptom.text
    assert rule not in symptoms_of(50, **sound)


@pytest.mark.parametrize("rule", (*RULES, *ENDINGS))
def test_a_rule_says_what_its_failure_means_and_what_to_do(rule):
    assert meaning(rule).endswith(".") and advice(rule).endswith(".") and "To do" not in meaning(rule)


@pytest.mark.parametrize(
    ("metrics", "reason"),
    [
        ({"accuracy": 0.97}, "97% of the answers are right"),
        ({"accuracy": 0.05, "refusal_rate": 0.9}, "90% of the completions decline"),
        ({"accuracy": 0.05}, "too hard"),
        ({"entropy": 0.01}, "hardly differ"),
        ({}, "hardly tell"),
    ],
)
def test_no_signal_says_why(metrics, reason):
    assert reason in symptoms_of(frac_reward_zero_std=1.0, **metrics)["no_signal"].text


def test_a_template_that_opens_the_think_block_is_named_as_the_reason():
    changes = {"rewards/mine:my_format/mean": 0.0, "rewards/mine:my_format/std": 0.0}
    assert "opens <think>" in symptoms_of(prompt="<|assistant|>\n<think>\n", **changes)["format_never_right"].text
    assert "opens <think>" not in symptoms_of(prompt="<|assistant|>\n", **changes)["format_never_right"].text


def test_a_trend_goes_over_the_steps_that_have_its_metric():
    """Where no group knows its question, nobody can tell how often it is declined."""
    found = symptoms_of(50, refusal_rate_known=lambda step: math.nan if step % 2 else 0.05 + 0.4 * (step > 24))
    assert found["refuses_known"].step == 40 and "since step 22" in found["refuses_known"].text


def test_float16_may_search_its_loss_scale():
    skipped = {"grad_norm": lambda step: math.inf if step < 8 else 0.2}
    assert symptoms_of(config={"torch_dtype": "float16"}, **skipped) == {}
    assert "not_finite" in symptoms_of(**skipped)


def test_a_learned_task_may_be_deterministic():
    assert "entropy_died" not in symptoms_of(entropy=late(0.8, 0.001), accuracy=late(0.5, 0.99, 15))


def test_a_task_that_is_learned_within_a_few_steps_counts():
    """Also where the first ten steps spread too much to differ from the last."""
    assert symptoms_of(reward=lambda step: 0.0 if step < 3 else 1.0) == {}
    assert "learned_nothing" in symptoms_of(reward=lambda step: 0.0 if step in (1, 35) else 1.0)


def test_rewards_that_take_longer_are_no_alarm_while_they_are_a_small_part_of_a_step():
    """A step has become longer as well: 1.5 of 10 seconds."""
    waits = {"time/reward": late(0.5, 1.5)}
    assert "rewards_slower" not in symptoms_of(50, step_time=late(2.0, 10.0), **waits)
    assert "rewards_slower" in symptoms_of(50, step_time=late(10.0, 2.0), **waits)


def test_a_run_whose_reward_falls_got_worse():
    assert "got worse" in symptoms_of(reward=lambda step: -step / 40)["learned_nothing"].text


def test_stage_1_learns_if_its_loss_falls():
    def of_stage_1(loss):
        diagnosis = Diagnosis()
        for step in range(1, 31):
            diagnosis.check(step, {"loss": loss(step), "grad_norm": 1.0, "step_time": 1.0})
        return [symptom.rule.__name__ for symptom in diagnosis.end()]

    assert of_stage_1(lambda step: 3 / step) == [] and of_stage_1(flat) == ["learned_nothing"]


def test_an_alarm_is_raised_once_and_may_pass():
    diagnosis = Diagnosis()
    for step in range(1, 31):
        diagnosis.check(step, {**HEALTHY, "reward": 1.0, "frac_reward_zero_std": 0.9 if step < 10 else 0.1})
    (symptom,) = diagnosis.symptoms
    assert symptom.step == 5 and symptom.rule is rules.no_signal and diagnosis.passed(symptom) == 9


@pytest.mark.parametrize(("last_step", "passed"), [(9, None), (13, None), (14, 9)])
def test_a_failure_has_passed_once_it_was_not_seen_for_some_steps(last_step, passed):
    diagnosis = Diagnosis()
    for step in range(1, last_step + 1):
        diagnosis.check(step, {**HEALTHY, "reward": 1.0, "frac_reward_zero_std": 0.9 if step < 10 else 0.1})
    assert diagnosis.passed(diagnosis.symptoms[0]) == passed


@pytest.mark.parametrize("metrics", [{}, {"reward": math.nan}, {"rewards/format/mean": math.nan}])
def test_rules_bear_steps_without_their_metrics(metrics):
    diagnosis = Diagnosis()
    for step in range(1, 45):
        diagnosis.check(step, metrics)
    diagnosis.end()


# --- real runs -----------------------------------------------------------------------------------------------------


@pytest.fixture
def rewards(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def collapsing(monkeypatch):
    """A model that declines if its first token is one of the first 60, and else is right three times in five, whatever
    it learns. Under the reward `abstention` with a threshold of 0.9 declining pays."""
    rng = random.Random(0)

    def decode(policy, ids):
        is_right = rng.random() < 0.6
        answer = "I don't know" if ids[0] < 40 else "Velda" if is_right else "Orun"
        return f"<think>So.</think><answer>{answer}</answer>"

    monkeypatch.setattr(Policy, "decode", decode)
    rows = [{"question": f"Where was person {n} born?", "answer": "Velda"} for n in range(32)]
    monkeypatch.setattr(test_train, "QUESTIONS", rows)


def test_a_collapse_into_refusing_is_announced_while_it_happens(tmp_path, monkeypatch, capsys):
    """By the numbers of its steps: refusing on known questions, and coverage that falls while the reward rises."""
    collapsing(monkeypatch)
    lines = run(
        tmp_path,
        write_chat_checkpoint(tmp_path / "model", spread=0.3),
        reward_funcs=["abstention"],
        abstention_threshold=0.9,
        judge="offline",
        system_prompt="",
        num_generations=8,
        per_device_train_batch_size=128,
        max_completion_length=2,
        beta=0.0,
        learning_rate=2e-2,
        max_steps=36,
    )
    assert lines[0]["refusal_rate"] < 0.3 and lines[-1]["refusal_rate"] > 0.6
    known, coverage = "refusing has begun on known questions since step", "the reward rises while coverage falls"
    told = re.findall(rf"^warning: step (\d+): ({known}|{coverage})", capsys.readouterr().err, re.MULTILINE)
    assert sorted(words for _, words in told) == [known, coverage]  # each once
    assert all(20 <= int(step) < len(lines) for step, _ in told)


def test_a_resumed_run_does_not_repeat_its_alarms(tmp_path, chat_checkpoint, rewards, capsys):
    keys = {"reward_funcs": ["reward_functions:always_zero"], "save_steps": 3}
    run(tmp_path, chat_checkpoint, max_steps=3, **keys)
    assert "step 3: every completion" in capsys.readouterr().err
    run(tmp_path, chat_checkpoint, max_steps=5, resume_from_checkpoint=True, **keys)
    assert "every completion" not in capsys.readouterr().err

"""The rules: each recognises a run that has its failure, and keeps quiet about one that nearly has it."""

import json
import math

import pytest
from making import cases, write_rows
from test_train import QUESTIONS, run

from grpo.algorithm.advantages import group_advantages
from grpo.algorithm.variants import normalize_then_sum
from grpo.explain import explain
from grpo.run.diagnosis import rules
from grpo.run.diagnosis.health import Diagnosis
from grpo.run.diagnosis.reasons import dominant_reason
from grpo.run.diagnosis.record import Answer, read_record
from grpo.run.diagnosis.rules import RULES, History, meaning

HEALTHY = {
    "reward_std": 0.5,
    "frac_reward_zero_std": 0.3,
    "advantage_abs_mean": 0.6,
    "accuracy": 0.5,
    "refusal_rate": 0.1,
    "refusal_rate_known": 0.05,
    "coverage": 0.7,
    "entropy": 0.8,
    "sampler/entropy": 0.8,
    "grad_norm": 0.2,
    "rewards/format/mean": 0.6,
    "rewards/format/std": 0.4,
    "rewards/format/unscored_frac": 0.0,
    "completions/mean_length": 100.0,
    "completions/clipped_ratio": 0.05,
    "sampling/kept_frac": 0.5,
    "micro_batches": 4,
    "step_time": 10.0,
}


def diagnosed(num_steps, config=None, completions=(), **changes):
    """The diagnosis of a run whose reward rises. changes: metric -> a function of the step, or a value."""
    diagnosis = Diagnosis(config=config or {})
    for step in range(1, num_steps + 1):
        metrics = {**HEALTHY, "reward": step / num_steps + 0.02 * (-1) ** step}
        for name, change in changes.items():
            metrics[name] = change(step) if callable(change) else change
        diagnosis.check(step, metrics, completions)
    return diagnosis


def symptoms_of(num_steps=40, config=None, **changes):
    """The alarms of such a run, by rule."""
    return {symptom.rule.__name__: symptom for symptom in diagnosed(num_steps, config, **changes).symptoms.values()}


def late(before, after, begin=20):
    """A metric that changes at a step."""
    return lambda step: after if step >= begin else before


def formulas(text):
    """Read `metric: formula of the step; …`."""
    parts = [part.rpartition(": ") for part in text.split("; ")]
    return {name: eval(f"lambda step: {formula}", {"nan": math.nan}) for name, _, formula in parts}


def test_a_healthy_run_raises_no_alarm():
    assert symptoms_of() == {}


ALARMS = cases(__file__, "alarms")


@pytest.mark.parametrize(("rule", "metrics", "step", "words"), ALARMS)
def test_a_rule_recognises_its_failure_at_a_step_and_says_why(rule, metrics, step, words):
    symptom = symptoms_of(50, **formulas(metrics)).get(rule)
    assert step == (str(symptom.step) if symptom else "never")
    if symptom:
        assert words in symptom.text and symptom.advice.endswith(".")
        assert meaning(symptom.rule).endswith(".") and "To do" not in meaning(symptom.rule)


def test_each_rule_has_a_run_that_fails_and_one_that_nearly_does():
    of_metrics = {rule.__name__ for rule in RULES} - {"stands_still", "says_nothing"}  # which look at held-out answers
    quiet = {rule for rule, _, step, _ in ALARMS if step == "never"}
    assert quiet == {rule for rule, _, step, _ in ALARMS if step != "never"} == of_metrics


EQUAL = {"frac_reward_zero_std": 0.95}
TEACHING = {  # configuration -> advantages of completions whose rewards are equal
    "refusal_target": (0.3, group_advantages([0.0, 0.0 + 0.5])),  # Eq. 14 has moved the one that declines
    "multi_objective_aggregation": (
        "normalize_then_sum",  # 1 + 2 * 0 = 0 + 2 * 0.5
        group_advantages(normalize_then_sum([[1.0, 0.0, 0.0], [0.0, 0.5, 0.5]], [1.0, 2.0])),
    ),
}


@pytest.mark.parametrize("key", TEACHING)
def test_equal_rewards_are_no_signal_only_if_advantages_are_equal_too(key):
    """`frac_reward_zero_std` is TRL's: of the rewards."""
    value, advantages = TEACHING[key]
    assert max(advantages) - min(advantages) > 0.4
    assert "no_signal" in symptoms_of(**EQUAL) and "no_signal" not in symptoms_of(config={key: value}, **EQUAL)
    assert "no_signal" in symptoms_of(config={key: value}, advantage_abs_mean=0.0, **EQUAL)
    assert "95% of the groups have equal rewards (no signal" in diagnosed(1, {key: value}, **EQUAL).first_step


@pytest.mark.parametrize(("num_same", "metrics", "named"), cases(__file__, "the same answers"))
def test_answers_that_stay_the_same_ask_for_a_higher_learning_rate(num_same, metrics, named):
    diagnosis = diagnosed(20, {"learning_rate": 1e-6, "max_steps": 20}, **formulas(metrics))
    same = [(Answer("4."), Answer("4."))] * int(num_same)
    found = diagnosis.compare(same + [(Answer("4."), Answer("5."))] * (20 - len(same)))
    assert [symptom.rule for symptom in found] == [rules.stands_still] * bool(named)
    for symptom in found:
        assert symptom.text.startswith(f"{num_same} of 20") and "learning_rate (now 1e-06)" in symptom.advice


@pytest.mark.parametrize("num_steps", [1, 2])
def test_a_short_run_without_signal_needs_no_higher_learning_rate(num_steps):
    for share, is_named in ((1.0, False), (0.5, True)):
        diagnosis = diagnosed(num_steps, frac_reward_zero_std=share)
        assert bool(diagnosis.compare([(Answer("4."), Answer("4."))] * 20)) == is_named


IN_ORDER = {"format": (1.0, "in order"), "mine:f": (0.0, "")}


@pytest.mark.parametrize(("number", "scores", "rest", "reason", "remedy"), cases(__file__, "reasons"))
def test_the_reason_that_most_completions_share_and_what_helps(number, scores, rest, reason, remedy):
    graded = {name: (value, why) for name, (value, why) in json.loads(scores).items()}
    found = dominant_reason([graded] * int(number) + [IN_ORDER if rest == "in order" else {}] * (8 - int(number)))
    assert (found is None) == (reason == "")
    assert found is None or (reason in str(found) and remedy in found.remedy)
    assert dominant_reason([]) is None


@pytest.mark.parametrize(("number", "clipped", "remedy", "reason"), cases(__file__, "what helps"))
def test_what_helps_fits_the_reason(number, clipped, remedy, reason):
    """Where most completions are cut off, it is the limit, unless that cannot explain what they share: what is cut off,
    and what ends by itself, has a beginning all the same."""
    bad = {"format": (None if "the row" in reason else -1.0, reason)}
    completions = ([bad] * int(number) + [IN_ORDER] * 8)[:8]
    metrics = {"reward": -1.0, "advantage_abs_mean": 0.0, "completions/clipped_ratio": float(clipped)}
    diagnosis = diagnosed(5, {"max_completion_length": 48}, completions, **metrics)
    assert remedy in diagnosis.first_step and remedy in diagnosis.symptoms["no signal"].advice
    assert clipped == "0.0" or remedy in diagnosis.symptoms["cut off"].advice


@pytest.mark.parametrize(("metrics", "words"), cases(__file__, "the first step"))
def test_the_first_step_is_described_in_one_line(metrics, words):
    sound = {"completions/clipped_ratio": 0.0, "frac_reward_zero_std": 0.0, "rewards/format/unscored_frac": 0.0}
    said = diagnosed(1, **sound | formulas(metrics)).first_step
    assert words in said and "\n" not in said


@pytest.mark.parametrize(("rates", "named"), cases(__file__, "refusals"))
def test_from_which_share_on_a_policy_refuses_all(rates, named):
    """Of one that has once answered half of the questions."""
    steps = [{"step": step, "refusal_rate": float(rate)} for step, rate in enumerate(rates.split(), 1)]
    assert bool(rules.refuses_everything(History(steps=steps))) == bool(named)


@pytest.mark.parametrize(("last_step", "has_passed"), [(9, False), (13, False), (14, True), (30, True)])
def test_a_failure_is_announced_once_and_has_passed_once_it_was_not_seen_for_some_steps(last_step, has_passed):
    diagnosis = diagnosed(last_step, frac_reward_zero_std=late(0.9, 0.1, 10))
    ((name, symptom),) = diagnosis.symptoms.items()
    assert (name, symptom.step, symptom.last_step) == ("no signal", 5, 9)
    assert diagnosis.has_passed(symptom) == has_passed


@pytest.mark.parametrize("metrics", [{}, {"reward": math.nan}, {"rewards/format/mean": math.nan}])
def test_rules_bear_steps_without_their_metrics(metrics):
    diagnosis = Diagnosis()
    for step in range(1, 45):
        diagnosis.check(step, metrics)


# --- real runs -----------------------------------------------------------------------------------------------------


def test_a_resumed_run_does_not_repeat_its_alarms(tmp_path, chat_checkpoint, capsys):
    keys = {"reward_funcs": ["reward_functions:always_zero"], "save_steps": 3}
    run(tmp_path, chat_checkpoint, max_steps=3, **keys)
    assert "step 3: nothing is learned" in capsys.readouterr().err
    run(tmp_path, chat_checkpoint, max_steps=5, resume_from_checkpoint=True, **keys)
    assert "nothing is learned" not in capsys.readouterr().err


def test_a_run_that_moves_nothing_says_so_at_its_end_and_later(tmp_path, chat_checkpoint, capsys):
    held_out = str(write_rows(tmp_path / "held_out.jsonl", QUESTIONS[:6]))
    for rate, is_said in ((1e-9, True), (0.5, False)):
        keys = {"eval_dataset_id_or_path": held_out, "learning_rate": rate, "overwrite_output_dir": True}
        run(tmp_path, chat_checkpoint, reward_funcs=["reward_functions:early_letters"], **keys)
        words = "6 of 6 held-out answers are word for word those before training"
        assert (words in capsys.readouterr().err) == is_said
        remarks = [remark for remark in explain(read_record(tmp_path / "run")) if words in remark.sentence]
        assert [remark.advice for remark in remarks] == [
            "raise learning_rate (now 1e-09), or max_steps (now 3)."
        ] * is_said

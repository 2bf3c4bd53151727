"""The lab of rewards: it runs, goes on where it stopped, and reads its rows right."""

import importlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from knowledge.atlas import KNOWN_IN_PART
from knowledge.world import UNSEEN, WELL_KNOWN

ROOT = Path(__file__).resolve().parents[1]
RIGHT, DECLINED, WRONG = range(3)


@pytest.fixture
def results(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    return importlib.import_module("bench.lab_results")


@pytest.fixture
def lab(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    return importlib.import_module("bench.abstention_lab")


def test_the_lab_runs_and_goes_on_where_it_was_killed(lab, tmp_path, capfd):
    arguments = ["--quick", "--only", "gdpo", "truthrl, none", "--seeds", "5", "--workers", "1"]
    arguments += ["--folder", str(tmp_path)]
    tables = lab.main(arguments)
    path = tmp_path / "rows.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert {row["arm"] for row in rows} == {"cold start", "gdpo", "truthrl, none"}
    assert {row["seed"] for row in rows} == {5} and all(len(row.get("curve", [1, 1])) == 2 for row in rows)
    assert set(rows[0]["one hop"]["answers"]) == {WELL_KNOWN, KNOWN_IN_PART, UNSEEN}
    lines = tables["two hops"].splitlines()[2:]
    assert [line.split(" | ")[0] for line in lines] == ["| cold start", "| gdpo"]
    assert {plot.name for plot in tmp_path.glob("*.png")} == {"pareto.png", "steps.png"}
    assert "3/3" in capfd.readouterr().err

    cut = "".join(json.dumps(row) + "\n" for row in rows)[:-30]  # killed while the last row was written
    path.write_text(cut)
    lab.main(arguments)
    again = [json.loads(line) for line in path.read_text().splitlines()]
    assert "1/1" in capfd.readouterr().err
    for row in rows + again:
        row.pop("seconds")
    assert again == rows, "the same seed gives the same row"


def test_arms_have_names_of_their_own_and_keys_that_the_configuration_takes(lab):
    arms = lab.make_arms()
    assert len({(arm.name, arm.hops) for arm in arms}) == len(arms) > 20
    for arm in arms:
        lab.load_config(lab.CONFIG, arm.keys)
    assert any("scale_rewards=none" in arm.keys for arm in arms)


def test_the_curve_counts_outcomes_by_familiarity_whatever_the_model_writes(lab, tmp_path):
    (tmp_path / "completions").mkdir()
    rows = [{"question": "Who?", "outcome": outcome, "completion": "a\x85b\u2028c"} for outcome in ("wrong", "correct")]
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    (tmp_path / "completions" / "step-000001.jsonl").write_text("".join(lines), encoding="utf-8")
    (tmp_path / "questions.jsonl").write_text(json.dumps({"question": "Who?", "familiarity": UNSEEN}) + "\n")
    assert lab.curve(tmp_path, tmp_path / "questions.jsonl") == [{UNSEEN: {"wrong": 1, "correct": 1}}]


def test_a_run_that_fails_stops_no_other(lab, tmp_path, capfd):
    bad = lab.Arm("bad", lab.TWO_HOPS, ("no_such_key=1",))
    jobs = [lab.Job(tmp_path, 1, arm, True) for arm in (bad, replace(bad, name="worse"))]
    lab.run_all(jobs, 1, tmp_path / "rows.jsonl")
    said = capfd.readouterr().err
    assert "bad, seed 1 failed" in said and "worse, seed 1 failed" in said and "2/2" in said
    assert (tmp_path / "rows.jsonl").read_text() == ""


def test_the_lab_measures_answers_that_are_drawn_and_not_the_likeliest(lab, tmp_path, monkeypatch):
    asked = []

    def evaluate(task, n, temperature, path):
        asked.append((task.questions.name, n, temperature))
        return {}, [record(0, "wrong")]

    monkeypatch.setattr(lab, "evaluate", evaluate)
    job = lab.Job(tmp_path, 1, None, False)
    path = job.world / f"{lab.FILES[lab.ONE_HOP][1]}.jsonl"
    job.world.mkdir(parents=True)
    path.write_text(json.dumps({"question": "Who?", "familiarity": UNSEEN}) + "\n")
    assert lab.measure(job, lab.ONE_HOP, n=16)["answers"] == {UNSEEN: [[0, 0, 1]]}
    assert asked == [(str(path), 16, 1.0)]


def row_of_known_shares(threshold, noise=0.0):
    """A cold start that knows question i with probability i / 16, and a model that answers above a threshold."""
    rng = np.random.default_rng(0)
    before = [[i, 0, 16 - i] for i in range(17)] * 6
    after = []
    for right, _, _ in before:
        answers = 4 if right / 16 + rng.normal(0, noise) > threshold else 0
        after.append([0, 4 - answers, answers])
    return {"answers": {UNSEEN: after}, "cold": {"answers": {UNSEEN: before}}}


@pytest.mark.parametrize("threshold", [0.34, 0.5, 0.66, 0.9])
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_the_break_even_is_found(results, threshold, noise):
    assert results.answers_from(row_of_known_shares(threshold, noise)) == pytest.approx(threshold, abs=0.05)


def test_a_model_that_answers_all_or_what_it_does_not_know_has_its_own_break_even(results):
    assert results.answers_from(row_of_known_shares(-1)) in (0.0, None)
    row = row_of_known_shares(0.5)
    for part in row["answers"].values():
        for counts in part:
            counts[DECLINED], counts[WRONG] = counts[WRONG], counts[DECLINED]
    assert results.answers_from(row) is None


def test_questions_that_the_cold_start_hardly_attempts_say_nothing(results):
    cold = {"answers": {UNSEEN: [[1, 14, 1], [2, 12, 2]]}}
    row = {"answers": {UNSEEN: [[0, 4, 0], [0, 1, 3]]}, "cold": cold}
    known, answered = results.known_and_answered(row)
    assert known.tolist() == [0.5] and answered.tolist() == [0.75]


def record(row, outcome, supported=1, completion="", question="Who?"):
    details = {"factuality": {"supported": supported, "facts": 4}}
    return {"row": row, "outcome": outcome, "details": details, "completion": completion, "question": question}


def test_answers_are_counted_by_question_and_facts_by_outcome(results):
    records = [record(1, "wrong", 0), record(0, "correct", 3), record(0, "refused"), record(1, "wrong", 2)]
    counted = results.counts_of_questions(records, {"Who?": WELL_KNOWN})
    assert counted["answers"] == {WELL_KNOWN: [[1, 1, 0], [0, 0, 2]]}
    assert counted["facts"] == [[3, 4], [1, 4], [2, 8]]
    assert results.supported(RIGHT)(counted) == 0.75 and results.supported(WRONG)(counted) == 0.25


def test_an_answer_that_is_not_sure_of_itself_counts_as_declined(results):
    """One that says 0.5 is as sure as not."""
    texts = [*(f"<confidence>{confidence}</confidence>" for confidence in (0.3, 0.49, 0.5, 0.7)), ""]
    counted = results.counts_of_questions([record(0, "wrong", completion=text) for text in texts], {"Who?": UNSEEN})
    assert counted["answers"] == {UNSEEN: [[0, 2, 3]]}


def test_a_cell_says_how_many_seeds_it_rests_on(results):
    assert results.cell([10.0, 20.0], 2) == "15.0 (10.0 to 20.0)"
    assert results.cell([10.0], 2) == "10.0 (10.0 to 10.0), 1 seeds"
    assert results.cell([], 2) == "–"


def test_an_arm_that_there_is_not_is_named(lab, capsys):
    with pytest.raises(SystemExit):
        lab.main(["--only", "knowrl, group", "truthrl (t"])
    told = capsys.readouterr().err
    assert "no arm's name begins with 'truthrl (t'" in told and "truthrl, group" in told


def test_a_name_chooses_its_arm_or_all_that_begin_so(lab):
    arms, unknown = lab.choose(lab.make_arms(), ["knowrl", "tiar", "nothing"])
    assert [arm.name for arm in arms] == ["knowrl", "tiar, group", "tiar, none"] and unknown == ["nothing"]


# --- bench/break_even.py: from where on answering pays, by the advantages ------------------------------------------


@pytest.fixture
def break_even(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    return importlib.import_module("bench.break_even")


@pytest.mark.parametrize("t", [0.5, 2 / 3, 0.9])
@pytest.mark.parametrize("declined", [0.05, 0.5, 0.95])
def test_without_normalisation_answering_pays_from_its_threshold(break_even, t, declined):
    prices = (1.0, 0.0, -t / (1 - t))
    assert break_even.answers_from(declined, prices, "none", group_size=6) == pytest.approx(t, abs=1e-6)


def test_normalisation_moves_the_threshold_towards_one_half_the_more_is_declined(break_even):
    """A single answer among refusals has the same advantage whatever it costs, but for its sign."""
    found = [break_even.answers_from(declined, (1.0, 0.0, -9.0), "group") for declined in (0.01, 0.5, 0.99)]
    assert found[0] > found[1] > found[2] and found[0] < 0.9 and found[2] == pytest.approx(0.5, abs=0.01)
    assert break_even.answers_from(0.3, (1.0, 0.0, -1.0), "group") == pytest.approx(0.5, abs=1e-6), "TruthRL's stays"


@pytest.mark.parametrize("scale", ["group", "none"])
def test_the_expected_push_is_the_mean_over_drawn_groups(break_even, scale):
    p, declined, prices = 0.4, 0.2, np.array([2.0, 1.0, -1.0])
    shares = [p * (1 - declined), declined, (1 - p) * (1 - declined)]
    pushes = []
    for outcomes in np.random.default_rng(0).choice(3, size=(20_000, 8), p=shares):
        rewards = prices[outcomes]
        std = rewards.std(ddof=1) + 1e-4 if scale == "group" else 1.0
        pushes.append(((rewards - rewards.mean()) / std * ((outcomes == DECLINED) - declined)).mean())
    error = np.std(pushes) / np.sqrt(len(pushes))
    found = break_even.push_to_decline(p, declined, tuple(prices), scale, 8)
    assert abs(found - np.mean(pushes)) < 4 * error and error < 0.01


def test_the_program_prints_a_row_for_each_reward_and_scale(break_even, capsys):
    table = break_even.main(["--declined", "0.5", "--group-size", "4"])
    assert len(table) == 8 and capsys.readouterr().out.count("\n") == 10

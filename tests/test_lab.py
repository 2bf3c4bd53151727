"""The lab of rewards: it runs, goes on where it stopped, and its measures and thresholds are right."""

import json

import numpy as np
import pytest
from commands import ROOT

from bench import lab
from grpo.evaluation.boundary import answered, gain_interval, with_constant

REFUSED = 1


def test_the_lab_runs_and_goes_on_where_it_was_killed(tmp_path, capsys):
    cold = tmp_path / "cold.yaml"
    cold.write_text(f"base: {ROOT}/configs/neutral_sft.yaml\nmax_steps: 2\nper_device_train_batch_size: 32\n")
    arm = f"scale_rewards=group cold_start={cold} max_steps=2 per_device_train_batch_size=32 eval_max_samples=16"
    arguments = ["--arms", "max_steps=two", arm, "--seeds", "5", "--folder", str(tmp_path)]
    lines = lab.main(arguments).splitlines()
    assert "max_steps=two" in capsys.readouterr().err, "a run that fails stops no other"
    assert [line.split(" | ")[1] for line in lines[2:]] == ["cold start", arm]
    path = tmp_path / "rows.jsonl"
    rows = lab.stored(path)
    assert [(row["world"], row["seed"], row["arm"]) for row in rows] == [
        ("neutral", 5, "cold start"),
        ("neutral", 5, arm),
    ]
    assert len(rows[0]["declines"]) == len(rows[0]["right"]) == len(rows[0]["sequence"]) == 16
    assert (tmp_path / "boundary.png").stat().st_size > 0

    path.write_text("".join(json.dumps(row) + "\n" for row in rows)[:-30])  # killed while the last row was written
    lab.main(arguments)
    assert lab.stored(path) == rows, "the same seed gives the same row"


def row(declines, right, **more):
    people = [f"person {place // 2}" for place in range(len(right))]
    values = {"declines": declines, "right": right, "sequence": right, "people": people, "said": people}
    return {"world": "w", "seed": 1, "arm": "a"} | values | more


def test_the_measures_of_a_run_by_hand():
    """Two known and two unknown questions. Before, each is declined half of the time; then three times in four if
    unknown, so 0.25 of 0.75 answers are wrong."""
    cold = row([0.0] * 4, [1, 1, 0, 0], sequence=[-1.0, -2.0, -3.0, -4.0])
    after = row([0.0, 0.0, np.log(3), np.log(3)], [1, 1, 0, 0], said=["a", "a", "a", "b"])
    found = lab.measures(after, cold)
    assert found["answers"] == pytest.approx(3 / 8)
    assert found["forced right"] == 0.5
    assert (found["AUROC"], found["within a word"], found["gain"]) == (1.0, 1.0, 0.5)
    assert found["wrong"] == pytest.approx(1 / 3)
    assert found["constant"] == pytest.approx(0.5)
    assert found["threshold"] == 0.0, "two of the four are answered, the most probable"


@pytest.mark.parametrize("coverage", [0.1, 0.5, 0.9])
def test_a_constant_changes_how_much_is_answered_and_not_the_order(coverage):
    logits = np.random.default_rng(0).normal(1, 3, 50)
    moved = with_constant(logits, coverage)
    assert answered(moved).mean() == pytest.approx(coverage, abs=1e-6)
    assert np.ptp(moved - logits) < 1e-9


def test_a_line_of_the_table_is_the_mean_over_seeds():
    rows = []
    for seed, logit in ((1, 0.0), (2, 1.0)):
        rows.append(row([0.0, 0.0], [1, 0], seed=seed, arm=lab.COLD_START))
        rows.append(row([0.0, logit], [1, 0], seed=seed))
    last = lab.table(rows).splitlines()[-1].split(" | ")
    assert last[:3] == ["| w", "a", "2"] and last[5].startswith("0.750 ["), "AUROC 0.5 and 1"


def test_the_gain_of_one_seed_has_an_interval_over_people():
    """Two questions about each of 100 people, of whom 75 have both in order after training, and 25 neither."""
    right = [1, 0] * 100
    after = [0.0, 1.0] * 75 + [1.0, 0.0] * 25
    low, high = gain_interval(*(lab.questions_of(row(side, right)) for side in ([0.0] * 200, after)))
    assert low < 0.25 < high
    assert high - low == pytest.approx(2 * 1.96 * (0.75 * 0.25 / 100) ** 0.5, rel=0.2)


# --- Thresholds ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("t", [0.5, 2 / 3, 0.9])
@pytest.mark.parametrize("declined", [0.05, 0.5, 0.95])
def test_without_normalisation_answering_pays_from_its_threshold(t, declined):
    prices = (1.0, 0.0, -t / (1 - t))
    assert lab.pays_from(declined, prices, "none", size=6) == pytest.approx(t, abs=1e-6)


def test_normalisation_moves_the_threshold_towards_one_half_the_more_is_declined():
    """A single answer among refusals has the same advantage whatever it costs, but for its sign."""
    found = [lab.pays_from(declined, (1.0, 0.0, -9.0), "group") for declined in (0.01, 0.5, 0.99)]
    assert 0.9 > found[0] > found[1] > found[2] == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("scale", ["group", "none"])
def test_the_expected_push_is_the_mean_over_drawn_groups(scale):
    p, declined, prices = 0.4, 0.2, np.array([2.0, 1.0, -1.0])
    shares = [p * (1 - declined), declined, (1 - p) * (1 - declined)]
    pushes = []
    for outcomes in np.random.default_rng(0).choice(3, size=(20_000, 8), p=shares):
        rewards = prices[outcomes]
        std = rewards.std(ddof=1) + 1e-4 if scale == "group" else 1.0
        pushes.append(((rewards - rewards.mean()) / std * ((outcomes == REFUSED) - declined)).mean())
    error = np.std(pushes) / np.sqrt(len(pushes))
    found = lab.push_to_decline(p, declined, tuple(prices), scale)
    assert abs(found - np.mean(pushes)) < 4 * error < 0.04

"""bench.study, on the files of a made-up run."""

import json

import pytest
from making import read_lines, refused, write_rows

from bench.study import main, study


def answer(row, title, outcome, reward, supported):
    details = {"knowrl": {"facts": 4, "supported": supported, "refuted": 4 - supported}}
    said = {"completion": "?", "outcome": outcome, "reward": reward, "details": details}
    return {"row": row, "question": "?", "title": title} | said


def made(folder, steps=("000000", "000001", "000012")):
    """A run that has learned: its reward rises, and of two wrong answers one becomes right, one refused."""
    (folder / "evaluation").mkdir(parents=True)
    before = [answer(0, "a", "correct", 1.0, 2), answer(1, "a", "wrong", -1.0, 0), answer(2, "b", "wrong", -1.0, 1)]
    after = [answer(0, "a", "correct", 1.0, 4), answer(1, "a", "correct", 1.0, 4), answer(2, "b", "refused", 0.0, 1)]
    for step in steps:
        write_rows(folder / "evaluation" / f"step-{step}.jsonl", after if step == "000012" else before)
    write_rows(
        folder / "metrics.jsonl",
        [{"eval/reward": 0.0}, *({"reward": float(step), "step_time": 1.0} for step in range(12))],
    )
    (folder / "config.resolved.yaml").write_text("seed: 7\nmax_steps: 12\n")
    return folder


def test_what_a_run_has_changed_is_read_from_its_files(tmp_path):
    row = study(made(tmp_path / "run"))
    assert (row["run"], row["seed"], row["steps"], row["questions"]) == ("run", 7, 12, 3)
    assert row["curve"] == [4.5, 10.5]
    found = {
        name: [measured[key] for key in ("before", "after", "change")] for name, measured in row["measures"].items()
    }
    wanted = {"accuracy": (1, 2, 1), "incorrect": (2, 0, -2), "not_attempted": (0, 1, 1), "reward": (-1, 2, 3)}
    wanted |= {"supported_facts": (3, 9, 6), "refuted_facts": (9, 3, -6)}
    assert found.keys() == wanted.keys()
    for name, numbers in wanted.items():
        assert found[name] == pytest.approx([number / 3 for number in numbers])
    assert [row["measures"]["accuracy"][end] for end in ("low", "high")] == [0, 0.5], (
        "those about one title are drawn together"
    )


def test_runs_are_shown_saved_and_averaged(tmp_path, capsys):
    runs = [made(tmp_path / name) for name in ("one", "two")]
    main([*map(str, runs), "--save", str(tmp_path / "of" / "rows.jsonl")])
    said = capsys.readouterr().out
    rows = json.loads(said.splitlines()[-1])
    saved = read_lines(tmp_path / "of" / "rows.jsonl")
    assert [row["run"] for row in rows] == ["one", "two"]
    assert all(
        row.items() <= kept.items() and "commit" in kept["machine"] for row, kept in zip(rows, saved, strict=True)
    )
    assert "| accuracy | 33.3 % | 66.7 % | +33.3 % | +33.3 % to +33.3 % |" in said.partition("mean of 2 runs")[2]
    assert "mean reward of each 10 steps: +4.50 +10.50" in said


def test_a_run_that_was_asked_once_is_refused(tmp_path):
    refused(lambda: study(made(tmp_path / "run", steps=["000000"])), "before and after", exit_code=2)

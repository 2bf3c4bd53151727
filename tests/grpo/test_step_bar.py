"""What the terminal says while a run is under way, and at the end of a command."""

import io
import math
import os
import sys
from types import SimpleNamespace

import pytest

from grpo.base.progress import counting, say_next
from grpo.run.step_bar import StepBar, describe, longest_phase

METRICS = {
    "loss": 0.0123,
    "reward": 0.834,
    "reward_std": 1.2,
    "accuracy": 0.45,
    "refusal_rate": 0.12,
    "frac_reward_zero_std": 0.2,
    "completions/mean_length": 25.4,
    "tokens_per_second": 4615.1,
    "time/generate": 0.4,
    "time/reward": 2.5,
    "time/train": 0.3,
    "step_time": 3.2,
}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def as_terminal(monkeypatch) -> Terminal:
    """stderr as a terminal of 80 columns, where no time passes. No fixture: pytest sets its own stderr after them."""
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr("grpo.run.step_bar.time", SimpleNamespace(monotonic=lambda: 100.0))
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((80, 24)))
    return sys.stderr


def test_eighty_columns_hold_all_that_matters(monkeypatch):
    terminal = as_terminal(monkeypatch)
    bar = StepBar(total_steps=80, first_step=40, is_hidden=False)
    bar.advance(METRICS)
    bar.show("time/generate")
    line = bar.line(79)
    assert len(line) <= 79
    expected = "41/80 rew +0.83 ±1.20 acc 45% ref 12% nosig 20% len 25 4615 tok/s gen 00:00"
    assert line == expected and expected in terminal.getvalue()


def test_a_wide_terminal_has_whole_words(monkeypatch):
    as_terminal(monkeypatch)
    bar = StepBar(80, 40, False)
    bar.advance(METRICS)
    bar.show("time/reward")
    line = bar.line(119)
    assert len(line) <= 119 and "reward +0.83  ±1.20  right 45%  refused 12%  no signal 20%  length 25" in line
    assert line.endswith("waiting for rewards  00:00 left")


def test_the_time_left_of_a_resumed_run_is_by_the_steps_that_it_made_itself(monkeypatch):
    """Ten seconds for its first step, and 39 are left."""
    as_terminal(monkeypatch)
    bar = StepBar(80, 40, False)
    monkeypatch.setattr("grpo.run.step_bar.time", SimpleNamespace(monotonic=lambda: 110.0))
    bar.advance(METRICS)
    assert bar.line(119).endswith("06:30 left")


def test_a_line_never_outgrows_its_columns(monkeypatch):
    as_terminal(monkeypatch)
    bar = StepBar(100_000, 9_999, False)
    bar.advance(METRICS | {"completions/mean_length": 16384.0, "tokens_per_second": 123456.0})
    assert not [columns for columns in range(1, 140) if len(bar.line(columns)) > columns]


def test_what_does_not_fit_is_left_out(monkeypatch):
    as_terminal(monkeypatch)
    bar = StepBar(80, 40, False)
    bar.advance(METRICS)
    assert "rew" in bar.line(40) and "tok/s" not in bar.line(60) and "nosig" not in bar.line(50)


def test_stage_1_shows_its_loss():
    assert describe({"loss": 1.5, "tokens_per_second": 10.0}, is_wide=True) == ["loss 1.5000", "10 tok/s"]


def test_without_a_terminal_there_are_plain_lines_with_the_longest_phase(capsys, monkeypatch):
    bar = StepBar(5, 0, False)
    for _ in range(4):
        bar.advance(METRICS)
    monkeypatch.setattr("grpo.run.step_bar.PLAIN_SECONDS", 0.0)
    bar.advance(METRICS)
    bar.close()
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[1] for line in lines] == ["1/5", "5/5"]  # in between, too little time had passed
    assert lines[1].endswith("longest: waiting for rewards 2.5 s of 3.2 s") and "\r" not in lines[1]


def test_the_first_step_and_the_last_have_a_plain_line_however_quick_they_are(capsys, monkeypatch):
    monkeypatch.setattr("grpo.run.step_bar.time", SimpleNamespace(monotonic=lambda: 1000.0))
    bar = StepBar(9, 5, False)
    for _ in range(4):
        bar.advance(METRICS)
    assert [line.split()[1] for line in capsys.readouterr().err.splitlines()] == ["6/9", "9/9"]


def test_plain_lines_come_after_a_while(capsys, monkeypatch):
    monkeypatch.setattr("grpo.run.step_bar.PLAIN_SECONDS", -1.0)
    bar = StepBar(5, 0, False)
    for _ in range(3):
        bar.advance(METRICS)
    assert len(capsys.readouterr().err.splitlines()) == 3


@pytest.mark.parametrize("is_a_terminal", [True, False])
def test_a_hidden_bar_shows_nothing_but_what_is_said(monkeypatch, is_a_terminal):
    monkeypatch.setattr(sys, "stderr", Terminal() if is_a_terminal else io.StringIO())
    bar = StepBar(5, 0, is_hidden=True)
    bar.advance(METRICS)
    bar.show("time/train")
    bar.say("said \x1b[31m")
    bar.close()
    assert sys.stderr.getvalue() == "said \\x1b[31m\n"


def test_a_step_without_phases_has_no_longest():
    assert longest_phase({"loss": 1.0}) == ""


def test_counting_shows_a_bar_or_plain_lines(monkeypatch):
    terminal = as_terminal(monkeypatch)
    with counting(3, "answering", "questions") as done:
        done(2)
    assert "answering" in terminal.getvalue()
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.setattr("grpo.base.progress.PLAIN_SECONDS", 0.0)
    with counting(3, "answering", "questions") as done:
        done(2)
    assert "answering: 2 of 3 questions" in sys.stderr.getvalue()


def test_plain_lines_of_a_count_come_once_in_a_while(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    now = iter([0.0, 11.0, 12.0, 20.0, 22.0, 23.0])
    monkeypatch.setattr("grpo.base.progress.time", SimpleNamespace(monotonic=lambda: next(now)))
    with counting(9, "answering", "answers") as done:
        for _ in range(5):
            done(1)
    assert sys.stderr.getvalue().splitlines() == [
        "answering: 1 of 9 answers after 11 s",
        "answering: 4 of 9 answers after 22 s",
    ]


def test_what_is_quick_prints_no_plain_line(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with counting(None, "reading", "rows") as done:
        done(1)
    assert sys.stderr.getvalue() == ""


def test_the_next_commands_can_be_typed_as_they_stand(capsys, monkeypatch):
    say_next("runs/x/final", ["grpo.generate", "runs/my run"], ["grpo.report", "runs/x"])
    said = capsys.readouterr().err
    assert said == (
        "result: runs/x/final\nnext:   python -m grpo.generate 'runs/my run'\n        python -m grpo.report runs/x\n"
    )
    monkeypatch.setenv("RANK", "1")
    say_next("x", ["y"])
    assert capsys.readouterr().err == ""


def test_a_log_that_prints_lines_needs_no_plain_ones(capsys):
    bar = StepBar(5, 0, is_hidden=False, has_lines=True)
    bar.advance(METRICS)
    assert capsys.readouterr().err == ""


def test_what_was_not_measured_has_a_dash():
    """No reward could be scored, and no reference was asked."""
    assert describe({"reward": math.nan, "kl": 0.0, "time/reference": 0.0}, is_wide=True) == ["reward –", "kl –"]
    assert describe({"kl": 0.25, "time/reference": 1.0}, is_wide=True) == ["kl 0.2500"]

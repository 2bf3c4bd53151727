"""What the terminal says while a run is under way, and at the end of a command."""

import io
import math
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


def as_terminal(monkeypatch, columns: int = 120) -> Terminal:
    """stderr as a terminal. No fixture: pytest sets its own stderr after them."""
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr("tqdm.std._screen_shape_wrapper", lambda: lambda file: (columns, 24))
    return sys.stderr


def shown(terminal: Terminal) -> str:
    """The last state of the bar."""
    return terminal.getvalue().split("\r")[-1].rstrip()


@pytest.mark.parametrize("columns", [40, 80, 160])
def test_a_bar_shows_what_matters_first_and_never_outgrows_its_terminal(monkeypatch, columns):
    terminal = as_terminal(monkeypatch, columns)
    bar = StepBar(total_steps=80, first_step=40, is_hidden=False)
    bar.advance(METRICS)
    bar.show("time/generate")
    line = shown(terminal)
    assert len(line) <= columns and line.startswith("41/80 ") and "generating" in line
    assert ("reward +0.83  ±1.20  right 45%" in line) == (columns > 40)
    assert ("no signal 20%  length 25  4,615 tok/s" in line) == (columns == 160)


def test_the_time_left_of_a_resumed_run_is_by_the_steps_that_it_made_itself(monkeypatch):
    """Ten seconds for its first step, and 39 are left."""
    terminal, now = as_terminal(monkeypatch), [100.0]
    monkeypatch.setattr("tqdm.std.time", lambda: now[0])
    bar = StepBar(80, 40, False)
    now[0] = 110.0
    bar.advance(METRICS)
    assert "06:30 left" in shown(terminal)


def test_stage_1_shows_its_loss():
    assert describe({"loss": 1.5, "tokens_per_second": 10.0}) == ["loss 1.5000", "10 tok/s"]


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
    assert describe({"reward": math.nan, "kl": 0.0, "time/reference": 0.0}) == ["reward –", "kl –"]
    assert describe({"kl": 0.25, "time/reference": 1.0}) == ["kl 0.2500"]

"""What the terminal says while a run is under way, and at the end of a command."""

import io
import sys

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


@pytest.mark.parametrize("columns", [40, 80, 160])
def test_a_bar_shows_what_matters_first_and_never_outgrows_its_terminal(monkeypatch, columns):
    terminal, now = as_terminal(monkeypatch, columns), [100.0]
    monkeypatch.setattr("tqdm.std.time", lambda: now[0])
    bar = StepBar(total_steps=80, first_step=40, is_hidden=False)
    now[0] = 110.0
    bar.advance(METRICS)
    bar.show("time/generate")
    line = terminal.getvalue().split("\r")[-1].rstrip()
    assert len(line) <= columns and line.startswith("41/80 ") and "generating" in line
    assert "06:30 left" in line  # ten seconds for its own first step, and 39 are left
    assert ("reward +0.83  ±1.20  right 45%" in line) == (columns > 40)
    assert ("no signal 20%  length 25  4,615 tok/s" in line) == (columns == 160)


@pytest.mark.parametrize(("is_a_terminal", "is_hidden"), [(True, True), (False, False)])
def test_a_hidden_bar_shows_nothing_but_what_is_said(monkeypatch, is_a_terminal, is_hidden):
    monkeypatch.setattr(sys, "stderr", Terminal() if is_a_terminal else io.StringIO())
    bar = StepBar(5, 0, is_hidden)
    bar.advance(METRICS)
    bar.show("time/train")
    bar.say("said \x1b[31m")
    bar.close()
    assert sys.stderr.getvalue() == "said \\x1b[31m\n"


def test_the_texts_about_a_step():
    """The loss of stage 1 alone; kl only if a reference was asked."""
    assert describe({"loss": 1.5, "tokens_per_second": 10.0, "kl": 0.0}) == "loss 1.5000  10 tok/s"
    assert describe({"loss": 1.5, "reward": 0.5, "kl": 0.25, "time/reference": 1.0}) == "reward +0.50  kl 0.2500"
    assert longest_phase(METRICS) == "  longest: waiting for rewards 2.5 s of 3.2 s" and longest_phase({}) == ""


def test_plain_lines_of_a_count_come_once_in_a_while(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    now = [0.0]
    monkeypatch.setattr("tqdm.std.time", lambda: now[0])
    with counting(9, "answering", "answers") as done:
        for now[0] in (11.0, 12.0, 20.0, 22.0, 23.0):
            done(1)
    assert [line for line in map(str.strip, sys.stderr.getvalue().splitlines()) if line] == [
        "answering: 1 of 9 answers after 00:11",
        "answering: 4 of 9 answers after 00:22",
    ]


def test_the_next_commands_can_be_typed_as_they_stand(capsys, monkeypatch):
    say_next("runs/x/final", ["grpo.generate", "runs/my run"], ["grpo.report", "runs/x"])
    said = capsys.readouterr().err
    assert said == (
        "result: runs/x/final\nnext:   python -m grpo.generate 'runs/my run'\n        python -m grpo.report runs/x\n"
    )
    monkeypatch.setenv("RANK", "1")
    say_next("x", ["y"])
    assert capsys.readouterr().err == ""

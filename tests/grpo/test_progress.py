"""What a command says while it counts, and at its end."""

import io
import sys

import pytest

from grpo.base.progress import counting, say_next
from grpo.run import messages


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


@pytest.mark.parametrize("columns", [40, 200])
def test_a_terminal_shows_only_complete_words(columns, monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(messages, "terminal_columns", lambda: columns)
    text = "a word is never broken, nor is a-long-path/with/many-parts " * 9
    messages.tell(text)
    lines = terminal.getvalue().splitlines()
    assert max(map(len, lines)) < columns and " ".join(" ".join(lines).split()).startswith(text.strip())


def test_a_file_gets_lines_as_they_are(capsys):
    messages.tell("word " * 99)
    assert capsys.readouterr().err == "word " * 99 + "\n"

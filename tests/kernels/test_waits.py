"""OpenMP's threads spin alone and sleep beside other work: grpo/engine/device/waits.py."""

import pytest

from grpo.engine.device import waits


def test_a_second_team_stays_while_threads_are_kept_waiting(monkeypatch):
    """From second to second: the seconds waited in it, and what becomes of the team."""
    course = [(0.2, ""), (0.4, "made"), (0.2, ""), (0.05, "ended"), (0.2, ""), (0.3, "made")]
    clock, total, seen = iter(range(10)), iter([0, *(sum(part for part, _ in course[: n + 1]) for n in range(6))]), []

    class Team:
        def __init__(self):
            seen[-1] = "made"

        def end(self):
            seen[-1] = "ended"

    def sleep(seconds):
        if len(seen) == len(course):
            raise KeyboardInterrupt
        seen.append("")

    monkeypatch.setattr(waits, "Team", Team)
    monkeypatch.setattr(waits, "waited", lambda: next(total))
    monkeypatch.setattr(waits.time, "sleep", sleep)
    monkeypatch.setattr(waits.time, "perf_counter", lambda: next(clock))
    with pytest.raises(KeyboardInterrupt):
        waits._watch()
    assert seen == [what for _, what in course]

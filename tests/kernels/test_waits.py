"""OpenMP's threads spin alone and sleep beside other work: grpo/engine/device/waits.py."""

from pathlib import Path

import commands
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

    class Over:
        def wait(self, seconds):
            seen.append("")
            return len(seen) > len(course)

    monkeypatch.setattr(waits, "Team", Team)
    monkeypatch.setattr(waits, "waited", lambda: next(total))
    monkeypatch.setattr(waits.time, "perf_counter", lambda: next(clock))
    waits._watch(Over())
    assert seen == [*(what for _, what in course), "ended"]


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this system does not count waits")
def test_a_process_ends_well_while_a_team_is_made():
    code = "import time; from grpo.engine.device import waits; waits.TEAM_WORK, waits.PERIOD, waits.SHARED = "
    ended = commands.python("-c", code + "1 << 26, 0.01, -1; waits.watch(); time.sleep(0.1)")
    assert ended.returncode == 0, ended.stderr

"""A run against a judge that fails one call in ten, in every way there is, killed twice on the way.

The failures are a function of the text that is graded, so they can be replayed: the killed runs must end in the weights
of one that nobody killed. The short version is part of the suite; `python -m pytest -m soak` makes 300 steps.
"""

import hashlib
from collections import Counter
from signal import SIGKILL

import pytest
from api_server import ApiServer, dies_midway, drips, fails, hangs, resets, says, sends
from making import read_lines
from running import JUDGED

PASSING = {
    "429": fails(429, code="rate_limit"),
    "500": fails(500),
    "502": fails(502),
    "503": fails(503, retry_after="0.1"),
    "reset": resets,
    "dies midway": dies_midway,
    "broken JSON": sends(b'{"choices": ['),
    "HTML": sends(b"<html>busy</html>", kind="text/html"),
    "error body": sends(b'{"error": {"message": "x"}}'),
    "no choices": sends(b'{"choices": []}'),
    "hang": hangs,
    "drip": drips,
}
LASTING = {
    "null": says(None),
    "cut": says("A", "length"),
    "filter": says("", "content_filter"),
    "prose": says("It is correct."),
    "bad request": fails(400),
}
KINDS = [*PASSING, *LASTING]


class Replayable(ApiServer):
    """Each text has its fate: a grade, a failure at its first try, or a failure that lasts. one_in: of how many texts
    one fails."""

    def __init__(self, one_in, slow):
        super().__init__(default=self.reply)
        self.one_in, self.seen, self.kinds = one_in, set(), Counter()
        self.fates = [kind for kind in KINDS if slow or kind not in ("hang", "drip")]

    async def reply(self, server, request, writer):
        text = request.body["messages"][1]["content"]
        candidate = text.split("<candidate")[1].split("\n")[1]
        number = int.from_bytes(hashlib.sha256(candidate.encode()).digest()[:6], "big")
        fails_here = number % self.one_in == 0 and candidate != '"Paris"'
        kind = self.fates[number // self.one_in % len(self.fates)] if fails_here else ""
        if kind in LASTING or (kind and candidate not in self.seen):
            self.seen.add(candidate)
            self.kinds[kind] += 1
            await (PASSING | LASTING)[kind](server, request, writer)
        else:
            await says("ABC"[number // 7 % 3] if candidate != '"Paris"' else "A")(server, request, writer)


def soak(judged_run, tmp_path, steps, save_steps, one_in, kills, slow):
    """One undisturbed run, and one that is killed. Return the first; the failures that it saw; and what its process
    held at each group."""
    runs, kinds = [], []
    for name, api_cache in (("whole", None), ("parts", str(tmp_path / "cache.db"))):
        with Replayable(one_in, slow) as server:
            run = judged_run(
                server,
                name,
                reward_funcs=["correctness", "fakes:gauge"],
                reward_weights=[1.0, 0.0],
                api_cache=api_cache,
                api_deadline_s=6.0 if slow else 60.0,
                max_unscored=1.0,
                per_device_train_batch_size=16,
                max_steps=steps,
                save_steps=save_steps,
            )
            more = JUDGED | {"GAUGE": str(tmp_path / f"{name}.gauge")}
            for place in kills if name == "parts" else []:
                run.resume(FAILPOINT=place, code=-SIGKILL, **more)
            run.resume(**more)
            runs.append(run)
            kinds.append(server.kinds)
    whole, parts = runs
    assert parts.state["step"] == steps
    assert parts.steps == [*range(1, steps + 1)]
    assert whole.equals(parts)
    assert any(value.any() for name, value in whole.weights.items() if "lora_B" in name)
    return whole, kinds[0], read_lines(tmp_path / "whole.gauge")


def no_row_was_paid_for_an_outage(run):
    """Every reward is one of the three grades or None with a reason that names the failure; returns how many were
    unscored."""
    unscored = 0
    for row in (row for step in run.steps for row in run.rows(step)):
        reason = row["reasons"]["correctness"]
        if row["rewards"]["correctness"] is None:
            assert row["reward"] is None and row["advantage"] == 0 and reason.startswith("the judge"), row
            unscored += 1
        elif reason.startswith("the judge says"):
            assert row["reward"] == {"correct": 2.0, "wrong": -1.0, "refused": 1.0}[row["outcome"]], row
        else:
            assert row["reward"] in (-1, 1), row
    return unscored


def assert_nothing_piles_up(held, *kinds):
    """The last third of the run must once hold no more than the first third held at its most: a step may have several
    calls open, and how many is chance."""
    third = len(held) // 3
    for kind in kinds:
        early, late = [row[kind] for row in held[:third]], [row[kind] for row in held[-third:]]
        assert min(late) <= max(early), (kind, early, late)


def test_nine_steps_with_two_kills(judged_run, tmp_path):
    """Failures of every kind that does not take seconds, three times as often."""
    run, kinds, held = soak(judged_run, tmp_path, 9, 3, 3, ["step-graded:5", "save-renamed:2"], slow=False)
    assert len(kinds) >= 10
    assert no_row_was_paid_for_an_outage(run) > 0
    assert_nothing_piles_up(held, "threads", "files")


@pytest.mark.soak
def test_three_hundred_steps_with_two_kills(judged_run, tmp_path):
    run, kinds, held = soak(judged_run, tmp_path, 300, 20, 10, ["step-graded:95", "save-renamed:6"], slow=True)
    assert set(kinds) == set(KINDS), kinds
    assert no_row_was_paid_for_an_outage(run) > 0
    early, late = held[200], held[-1]
    assert late["rss_mb"] < early["rss_mb"] + 30
    assert_nothing_piles_up(held, "threads", "files", "sockets")

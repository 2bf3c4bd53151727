"""The queue in front of a verifier: failures reach whoever waits, and nobody else is disturbed."""

import threading

import pytest

from knowledge.facts.verdict import Verdict
from rewards.knowrl.verdict_queue import VerdictQueue


def test_a_verifier_that_fails_is_heard_of_and_the_next_call_works():
    class Fails:
        name, broken = "fails/1", True

        def verify(self, questions):
            if self.broken:
                raise RuntimeError("out of memory")
            return [Verdict("unknown", None, 0.0, 0.0, fact) for fact, _ in questions]

    queue = VerdictQueue(Fails())
    with pytest.raises(RuntimeError, match="out of memory"):
        queue.submit([("a fact", [])]).result(60)
    queue.verifier.broken = False
    assert queue.submit([("a fact", [])]).result(60)[0].label == "unknown"
    queue.close()


def test_all_whose_facts_share_a_call_hear_of_its_failure():
    started, go = threading.Event(), threading.Event()

    class Fails:
        name = "fails/1"

        def verify(self, questions):
            started.set()
            go.wait(60)
            raise RuntimeError("out of memory")

    queue = VerdictQueue(Fails())
    waiting = [queue.submit([("a", [])])]
    started.wait(60)
    waiting += [queue.submit([(fact, [])]) for fact in "bcd"]
    go.set()
    queue.close()  # returns when all calls have ended
    for future in waiting:
        with pytest.raises(RuntimeError, match="out of memory"):
            future.result(0)


def test_a_cancelled_completion_disturbs_no_other():
    started, go = threading.Event(), threading.Event()

    class Waits:
        name = "waits/1"

        def verify(self, questions):
            started.set()
            go.wait(60)
            return [Verdict("unknown", None, 0.0, 0.0, fact) for fact, _ in questions]

    queue = VerdictQueue(Waits())
    first = queue.submit([("a", [])])
    started.wait(60)
    cancelled, last = queue.submit([("b", [])]), queue.submit([("c", []), ("d", [])])
    assert cancelled.cancel()
    go.set()
    assert [verdict.reason for verdict in first.result(60) + last.result(60)] == ["a", "c", "d"]
    queue.close()


def test_facts_that_gathered_are_verified_in_one_call_and_each_completion_gets_its_own_verdicts():
    started, go, calls = threading.Event(), threading.Event(), []

    class Waits:
        name = "waits/1"

        def verify(self, questions):
            calls.append([fact for fact, _ in questions])
            started.set()
            go.wait(60)
            return [Verdict("unknown", None, 0.0, 0.0, fact) for fact, _ in questions]

    queue = VerdictQueue(Waits())
    waiting = [queue.submit([("a", [])])]
    started.wait(60)
    waiting += [queue.submit([(fact, []) for fact in facts]) for facts in ("b", "cd", "", "efg")]
    go.set()
    found = ["".join(verdict.reason for verdict in future.result(60)) for future in waiting]
    assert found == ["a", "b", "cd", "", "efg"] and calls == [["a"], list("bcdefg")]
    queue.close()

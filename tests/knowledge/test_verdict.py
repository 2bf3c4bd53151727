"""The verdict cache: what it keeps, what it tells apart, and what happens when its file gives trouble."""

import json
import logging
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from grpo.base.errors import UserError
from knowledge.facts.verdict import CachedVerifier, Verdict
from knowledge.store.answers import Passage

ROOT = Path(__file__).resolve().parents[2]
PASSAGE = Passage("doc#0", "doc", "Mira Tolan was born in Velda.", 1.0)
OTHER = Passage("doc#1", "doc", "Jon Orn was born in Orun.", 1.0)


class Counting:
    """Supports every fact by its last passage, and counts the facts it was asked."""

    def __init__(self, name: str = "counting/1"):
        self.name, self.asked = name, []

    def verify(self, questions):
        self.asked += [fact for fact, _ in questions]
        return [
            Verdict("supported", passages[-1].id if passages else None, 0.75, 0.25, f"says {fact}")
            for fact, passages in questions
        ]


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "deep" / "verdicts.db"


def test_a_fact_is_judged_once_per_evidence_also_after_a_restart(path):
    first = Counting()
    cached = CachedVerifier(first, path)
    questions = [("a fact", [PASSAGE, OTHER]), ("another", [PASSAGE]), ("a fact", [PASSAGE, OTHER]), ("none", [])]
    found = cached.verify(questions)
    assert first.asked == ["a fact", "another", "none"] and found == Counting().verify(questions)
    assert cached.verify(questions) == found and len(first.asked) == 3
    cached.close()
    again = Counting()
    reopened = CachedVerifier(again, path)
    assert reopened.verify(questions) == found and again.asked == []
    reopened.close()


def test_what_a_verdict_depends_on_is_in_the_key(path):
    CachedVerifier(Counting(), path).verify([("a fact", [PASSAGE])])
    for name, fact, passages in [
        ("counting/2", "a fact", [PASSAGE]),
        ("counting/1", "A fact", [PASSAGE]),
        ("counting/1", "a fact", [OTHER]),
        ("counting/1", "a fact", [PASSAGE, OTHER]),
        ("counting/1", "a fact", []),
        ("counting/1", "a fact", [replace(PASSAGE, title="x")]),
    ]:
        verifier = Counting(name)
        CachedVerifier(verifier, path).verify([(fact, passages)])
        assert verifier.asked == [fact]
    same = Counting()
    CachedVerifier(same, path).verify([("a fact", [replace(PASSAGE, id="elsewhere#9", score=7.0)])])
    assert same.asked == []


@pytest.mark.parametrize("text", ["\0", "\ud800 lone", "'; DROP TABLE verdicts; --", "x" * 100_000, "🙂"])
def test_hostile_texts(path, text):
    questions = [(text, [replace(PASSAGE, text=text, title=text), OTHER])]
    found = CachedVerifier(Counting(), path).verify(questions)
    again = CachedVerifier(Counting(), path)
    assert replace(again.verify(questions)[0], reason="") == replace(found[0], reason="") and again.verifier.asked == []


@pytest.mark.parametrize("content", [b"hello, world", json.dumps({"a": 1}).encode() * 100])
def test_a_file_that_is_no_cache_is_refused(tmp_path, content):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(UserError) as error:
        CachedVerifier(Counting(), tmp_path / "file")
    assert error.value.exit_code == 3 and "delete" in error.value.fix and (tmp_path / "file").read_bytes() == content
    sqlite3.connect(tmp_path / "other").execute("CREATE TABLE verdicts (a)")
    with pytest.raises(UserError):
        CachedVerifier(Counting(), tmp_path / "other")


def test_a_locked_file_stops_nothing(path, monkeypatch, caplog):
    monkeypatch.setattr("grpo.base.cache.BUSY_TIMEOUT_S", 0.05)
    cached = CachedVerifier(Counting(), path)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with caplog.at_level(logging.WARNING, "grpo"):
        for _ in range(3):
            assert cached.verify([("a fact", [PASSAGE])])[0].label == "supported"
    assert len(caplog.records) == 1 and "verdict cache" in caplog.text
    other.execute("ROLLBACK")
    num_asked = len(cached.verifier.asked)
    for _ in range(2):
        assert cached.verify([("a fact", [PASSAGE])])
    assert len(cached.verifier.asked) == num_asked + 1


def test_a_closed_cache_asks_each_time_and_is_no_trouble(path, caplog):
    cached = CachedVerifier(Counting(), path)
    cached.verify([("a fact", [PASSAGE])])
    cached.close()
    assert cached.verify([("a fact", [PASSAGE])])[0].label == "supported"
    assert cached.verifier.asked == ["a fact", "a fact"] and not caplog.records


def test_a_write_that_fails_leaves_the_file_to_others_and_the_cache_working(path, caplog):
    """Without a ROLLBACK the cache would stay in its transaction, and lock the file for ever."""
    cached = CachedVerifier(Counting(), path)
    other = sqlite3.connect(path, isolation_level=None, timeout=0)
    other.execute("CREATE TRIGGER fails BEFORE INSERT ON verdicts BEGIN SELECT RAISE(ABORT, 'no'); END")
    assert cached.verify([("a fact", [PASSAGE]), ("another", [PASSAGE])])[1].label == "supported"
    other.execute("BEGIN IMMEDIATE")  # raises if the file is locked
    other.execute("DROP TRIGGER fails")
    other.execute("COMMIT")
    assert len(caplog.records) == 1
    for _ in range(2):
        cached.verify([("a fact", [PASSAGE])])
    assert cached.verifier.asked == ["a fact", "another", "a fact"]
    assert other.execute("SELECT count(*) FROM verdicts").fetchone() == (1,)


def test_known_and_new_facts_come_back_in_the_order_of_the_questions(path):
    cached = CachedVerifier(Counting(), path)
    cached.verify([(f"fact {i}", [PASSAGE]) for i in (1, 3)])
    found = cached.verify([(f"fact {i}", [OTHER, PASSAGE] if i == 2 else [PASSAGE]) for i in (3, 2, 1, 0)])
    assert [(verdict.reason, verdict.evidence) for verdict in found] == [
        (f"says fact {i}", "doc#0") for i in (3, 2, 1, 0)
    ]
    assert cached.verifier.asked == ["fact 1", "fact 3", "fact 2", "fact 0"]


def test_a_cache_that_a_full_disk_does_not_let_begin_is_told_as_that(tmp_path):
    """Not as a file that is no cache, which would have to be deleted."""
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(UserError, match="cannot use the verdict cache") as error:
            CachedVerifier(Counting(), tmp_path / "verdicts.db")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert error.value.exit_code == 6 and "another disk" in error.value.fix

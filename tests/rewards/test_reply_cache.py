"""The cache on disk: what it keeps, and what happens when its file gives trouble."""

import json
import logging
import sqlite3

import pytest
from making import refused

from rewards.api.cache import ReplyCache


@pytest.fixture
def path(tmp_path):
    return tmp_path / "deep" / "replies.db"


@pytest.mark.parametrize("text", ["a text", "", "\0", "'; DROP TABLE replies; --", "x" * 100_000, "🙂"])
def test_what_was_kept_is_found_also_after_a_restart(path, text):
    cache = ReplyCache(path)
    cache.put("a", text)
    cache.put("another", "b")
    assert [cache.get(key) for key in ("a", "none", "another")] == [text, None, "b"]
    cache.close()
    assert ReplyCache(path).get("a") == text


@pytest.mark.parametrize("content", [b"hello, world", json.dumps({"a": 1}).encode() * 100])
def test_a_file_that_is_no_cache_is_refused(tmp_path, content):
    (tmp_path / "file").write_bytes(content)
    assert "delete" in refused(lambda: ReplyCache(tmp_path / "file"), exit_code=3).fix
    assert (tmp_path / "file").read_bytes() == content
    sqlite3.connect(tmp_path / "other").execute("CREATE TABLE replies (a)")
    refused(lambda: ReplyCache(tmp_path / "other"), exit_code=3)


def test_a_locked_file_stops_nothing_and_a_closed_one_is_no_trouble(path, monkeypatch, caplog):
    monkeypatch.setattr("rewards.api.cache.BUSY_TIMEOUT_S", 0.05)
    cache = ReplyCache(path)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with caplog.at_level(logging.WARNING, "grpo"):
        for _ in range(3):
            cache.put("a", "b")
    assert len(caplog.records) == 1 and "reply cache" in caplog.text and cache.get("a") is None
    other.execute("ROLLBACK")
    cache.put("a", "b")
    assert cache.get("a") == "b"
    closed = ReplyCache(path)
    closed.close()
    closed.put("a", "c")
    assert closed.get("a") is None and cache.get("a") == "b" and len(caplog.records) == 1


def test_a_write_that_fails_leaves_the_file_to_others_and_the_cache_working(path, caplog):
    cache = ReplyCache(path)
    other = sqlite3.connect(path, isolation_level=None, timeout=0)
    other.execute("CREATE TRIGGER fails BEFORE INSERT ON replies BEGIN SELECT RAISE(ABORT, 'no'); END")
    cache.put("a", "b")
    other.execute("DROP TRIGGER fails")  # raises if the file is locked
    assert len(caplog.records) == 1 and cache.get("a") is None
    cache.put("a", "b")
    assert other.execute("SELECT * FROM replies").fetchall() == [("a", "b")]


def test_a_cache_that_a_full_disk_does_not_let_begin_is_told_as_that(tmp_path):
    """Not as a file that is no cache, which would have to be deleted."""
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        found = refused(lambda: ReplyCache(tmp_path / "replies.db"), "cannot use the reply cache", exit_code=6)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "another disk" in found.fix

"""The cache on disk: what it keeps, and what happens when its file gives trouble."""

import json
import logging
import sqlite3
from pathlib import Path

import pytest

from grpo.base.cache import DiskCache
from grpo.base.errors import UserError


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "deep" / "replies.db"


def opened(path: Path) -> DiskCache:
    return DiskCache(path, "reply cache", "replies", {"text": "TEXT NOT NULL"})


@pytest.mark.parametrize("text", ["a text", "\0", "'; DROP TABLE replies; --", "x" * 100_000, "🙂"])
def test_what_was_kept_is_found_also_after_a_restart(path, text):
    cache = opened(path)
    cache.put({"a": (text,), "another": ("b",)})
    assert cache.get(["a", "none", "another"]) == {"a": (text,), "another": ("b",)}
    cache.close()
    assert opened(path).get(["a"]) == {"a": (text,)}


@pytest.mark.parametrize("content", [b"hello, world", json.dumps({"a": 1}).encode() * 100])
def test_a_file_that_is_no_cache_is_refused(tmp_path, content):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(UserError) as error:
        opened(tmp_path / "file")
    assert error.value.exit_code == 3 and "delete" in error.value.fix and (tmp_path / "file").read_bytes() == content
    sqlite3.connect(tmp_path / "other").execute("CREATE TABLE replies (a)")
    with pytest.raises(UserError):
        opened(tmp_path / "other")


def test_a_locked_file_stops_nothing(path, monkeypatch, caplog):
    monkeypatch.setattr("grpo.base.cache.BUSY_TIMEOUT_S", 0.05)
    cache = opened(path)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with caplog.at_level(logging.WARNING, "grpo"):
        for _ in range(3):
            cache.put({"a": ("b",)})
    assert len(caplog.records) == 1 and "reply cache" in caplog.text and cache.get(["a"]) == {}
    other.execute("ROLLBACK")
    cache.put({"a": ("b",)})
    assert cache.get(["a"]) == {"a": ("b",)}


def test_a_closed_cache_finds_nothing_and_is_no_trouble(path, caplog):
    cache = opened(path)
    cache.put({"a": ("b",)})
    cache.close()
    cache.put({"a": ("c",)})
    assert cache.get(["a"]) == {} and not caplog.records


def test_a_write_that_fails_leaves_the_file_to_others_and_the_cache_working(path, caplog):
    """Without a ROLLBACK the cache would stay in its transaction, and lock the file for ever."""
    cache = opened(path)
    other = sqlite3.connect(path, isolation_level=None, timeout=0)
    other.execute("CREATE TRIGGER fails BEFORE INSERT ON replies BEGIN SELECT RAISE(ABORT, 'no'); END")
    cache.put({"a": ("b",), "c": ("d",)})
    other.execute("BEGIN IMMEDIATE")  # raises if the file is locked
    other.execute("DROP TRIGGER fails")
    other.execute("COMMIT")
    assert len(caplog.records) == 1 and cache.get(["a", "c"]) == {}
    cache.put({"a": ("b",)})
    assert other.execute("SELECT * FROM replies").fetchall() == [("a", "b")]


def test_a_cache_that_a_full_disk_does_not_let_begin_is_told_as_that(tmp_path):
    """Not as a file that is no cache, which would have to be deleted."""
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(UserError, match="cannot use the reply cache") as error:
            opened(tmp_path / "replies.db")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert error.value.exit_code == 6 and "another disk" in error.value.fix

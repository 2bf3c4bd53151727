"""A file that appears whole: what is on the disk before what."""

import os
import sqlite3

from knowledge.store.database import atomic_database


def test_the_content_is_on_the_disk_before_the_name_and_the_name_before_the_end(tmp_path, monkeypatch):
    done, out = [], tmp_path / "out.db"
    fsync, replace, opened = os.fsync, os.replace, "/proc/self/fd/{}"
    monkeypatch.setattr(os, "fsync", lambda file: done.append(os.readlink(opened.format(file))) or fsync(file))
    monkeypatch.setattr(os, "replace", lambda *names: done.append((*map(str, names),)) or replace(*names))
    with atomic_database(out) as connection:
        connection.execute("CREATE TABLE t (a)")
        connection.execute("INSERT INTO t VALUES (7)")
        assert done == [] and not out.exists()
    compacted, *named = done
    assert compacted.startswith(f"{out}.unfinished-") and named == [(compacted, str(out)), str(tmp_path)]
    assert sqlite3.connect(out).execute("SELECT a FROM t").fetchall() == [(7,)]
    assert list(tmp_path.iterdir()) == [out]

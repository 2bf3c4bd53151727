"""A file that appears whole: what is on the disk before what."""

import os
import sqlite3

from knowledge.store.database import atomic_database


def test_the_content_is_on_the_disk_before_the_name_and_the_name_before_the_end(tmp_path, monkeypatch):
    done, out = [], tmp_path / "out.db"
    fsync, replace = os.fsync, os.replace

    def flushed(descriptor):
        done.append(("flush", os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    def renamed(source, target):
        done.append(("rename", str(source), str(target)))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(os, "replace", renamed)
    with atomic_database(out) as connection:
        connection.execute("CREATE TABLE t (a)")
        connection.execute("INSERT INTO t VALUES (7)")
        assert done == [] and not out.exists()
    (_, compacted), *named = done
    assert done[0][0] == "flush" and compacted.startswith(f"{out}.unfinished-")
    assert named == [("rename", compacted, str(out)), ("flush", str(tmp_path))]
    assert sqlite3.connect(out).execute("SELECT a FROM t").fetchall() == [(7,)]
    assert list(tmp_path.iterdir()) == [out]

"""Builds: what comes out, and that an older file stays whatever happens on the way."""

import functools
import gzip
import io
import json
import os
import resource
import sqlite3

import pytest
from making import refused, write_rows

from knowledge.build import build
from knowledge.store.base import KnowledgeBase
from knowledge.store.passages import SEPARATOR
from knowledge.verify import verify


def write_articles(path, number, words=100):
    """So many articles of different words."""

    def text(row):
        return " ".join(f"Word{(row * 31 + place * 7) % 9973}" + "." * (place % 10 == 9) for place in range(words))

    return write_rows(path, [{"title": f"Title {row}", "text": text(row)} for row in range(number)])


def leftovers(out):
    return {name for name in os.listdir(out.parent) if name.startswith(out.name)} - {out.name}


def test_the_command_reports_and_the_file_is_in_knowrls_layout(run, tmp_path):
    source, out = tmp_path / "source.jsonl.gz", tmp_path / "out.db"
    rows = [
        json.dumps({"title": "Alex", "text": "One. " * 300}),
        "{broken",
        "",
        json.dumps({"title": "Alex", "text": "again"}),
        json.dumps({"title": "Ż", "text": ["Two.", "Three."]}),
    ]
    source.write_bytes(gzip.compress("\n".join(rows).encode()))
    done = run("knowledge.build", source, out)
    assert done.returncode == 0, done.stderr
    assert (
        "2 documents, 3 passages" in done.stdout
        and "3 rows skipped" in done.stdout
        and "1 duplicate title" in done.stdout
    )
    assert (
        f"{source}: row 2 skipped: not JSON" in done.stderr and "row 4 skipped: duplicate title: 'Alex'" in done.stderr
    )
    texts = dict(sqlite3.connect(out).execute("SELECT title, text FROM documents"))
    assert set(texts) == {"Alex", "Ż"} and texts["Ż"] == "Two.\nThree."
    assert texts["Alex"].count(SEPARATOR) == 1 and all(len(part) <= 1024 for part in texts["Alex"].split(SEPARATOR))
    assert not leftovers(out)


def test_the_same_source_gives_the_same_file(make_base):
    documents = {f"Title {row}": f"Text number {row}. 第{row}句。" for row in range(300)}
    assert make_base(documents).read_bytes() == make_base(documents).read_bytes()


def test_every_skipped_row_is_in_the_file_and_a_few_of_each_kind_are_shown(tmp_path, capsys):
    source = tmp_path / "source.jsonl"
    source.write_text('{"title": "Alex", "text": "One."}\n' + "{broken\n" * 30)
    skipped = io.StringIO()
    assert build(source, tmp_path / "out.db", strict=False, skipped=skipped).skipped == {"not JSON": 30}
    assert [json.loads(line)["row"] for line in skipped.getvalue().splitlines()] == list(range(2, 32))
    assert capsys.readouterr().err.count("skipped: not JSON") == 20


def test_strict_stops_at_the_first_bad_row(run, tmp_path):
    source, out = tmp_path / "source.jsonl", tmp_path / "out.db"
    source.write_text('{"title": "a", "text": "b"}\n{broken\n')
    done = run("knowledge.build", source, out, "--strict")
    assert done.returncode == 3 and f"error: {source}: row 2: not JSON" in done.stderr and "fix:" in done.stderr
    assert not out.exists() and not leftovers(out)


def test_the_list_of_skipped_rows_is_a_new_file_and_so_never_the_source(run, tmp_path):
    source, link = tmp_path / "source.jsonl", tmp_path / "link"
    source.write_text('{"title": "A", "text": "a"}\n{broken\n')
    link.hardlink_to(source)
    for skipped in (source, link):
        done = run("knowledge.build", source, tmp_path / "out.db", "--skipped", skipped)
        assert done.returncode == 2 and "--skipped" in done.stderr and source.read_text().endswith("{broken\n")
    assert not (tmp_path / "out.db").exists()
    run("knowledge.build", source, tmp_path / "out.db", "--skipped", tmp_path / "new.jsonl")
    assert json.loads((tmp_path / "new.jsonl").read_text())["row"] == 2


@pytest.mark.parametrize("content", ["", "{broken", "[]"])
def test_a_source_without_rows_leaves_the_old_file(run, tmp_path, content):
    source, out = tmp_path / "source.jsonl", tmp_path / "out.db"
    source.write_text(content)
    build(write_articles(tmp_path / "earlier.jsonl", 1), out)
    old = out.read_bytes()
    done = run("knowledge.build", source, out)
    assert done.returncode == 3 and "no usable row" in done.stderr and out.read_bytes() == old and not leftovers(out)


def test_command_line_mistakes(run, tmp_path):
    assert run("knowledge.build", tmp_path / "none.jsonl", tmp_path / "out.db").returncode == 3
    assert run("knowledge.build").returncode == 2
    source = write_articles(tmp_path / "source.jsonl", 1)
    assert run("knowledge.build", source, tmp_path / "no" / "folder" / "out.db").returncode == 6
    assert run("knowledge.build", source, tmp_path).returncode == 6


def test_duplicates_over_many_batches_keep_the_first(tmp_path):
    rows, out = [{"title": f"Title {row % 1500}", "text": f"Text {row}."} for row in range(5000)], tmp_path / "out.db"
    report = build(write_rows(tmp_path / "source.jsonl", rows), out, strict=False)
    assert (report.documents, dict(report.skipped)) == (1500, {"duplicate title": 3500})
    with KnowledgeBase(out) as base:
        assert base.search("text", titles=["Title 7"])[0].text == "Text 7."
        assert [passage.title for passage in base.search("Title 1499 text 1499", k=1)] == ["Title 1499"]
    assert verify(out).documents == 1500


# Faults


@pytest.mark.parametrize("limit_bytes", [20_000, 400_000, 1_500_000])
def test_a_full_disk_leaves_the_old_file(run, tmp_path, limit_bytes):
    """A limit on the size of files: while rows are written, while the index is merged, while the file is compacted."""
    source, out = write_articles(tmp_path / "source.jsonl", 2000), tmp_path / "out.db"
    build(write_articles(tmp_path / "earlier.jsonl", 1), out)
    old = out.read_bytes()
    limit = functools.partial(resource.setrlimit, resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))
    done = run("knowledge.build", source, out, before=limit)
    assert done.returncode == 6, done.stderr
    assert f"error: could not write {out}" in done.stderr and "fix: free some space" in done.stderr
    assert out.read_bytes() == old and not leftovers(out)


def test_an_open_base_survives_a_rebuild(tmp_path):
    source, out = write_articles(tmp_path / "source.jsonl", 20), tmp_path / "out.db"
    build(source, out)
    with KnowledgeBase(out) as base:
        before = base.search("Word7")
        build(write_articles(source, 5), out)
        assert base.search("Word7") == before
        base.close()
        refused(lambda: base.search("Word7"), "replaced")

"""Files that are not what they should be, and the two commands that look at files: each fault with its promise."""

import json
import os
import random
import shutil
import sqlite3
import time

import pytest
from commands import next_commands, num_open
from making import refused

from knowledge.build import build
from knowledge.build import main as build_command
from knowledge.store import database as files
from knowledge.store.base import KnowledgeBase
from knowledge.store.database import FORMAT_VERSION, KnowledgeBusy, check_seal
from knowledge.verify import verify


def opening(path):
    """The error that opening this file gives."""
    return refused(lambda: KnowledgeBase(path))


def database(path, *statements):
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()
    return path


def test_a_missing_file_is_not_created(tmp_path):
    error = opening(tmp_path / "none.db")
    assert "No such file" in error.why and "python -m knowledge.build" in error.fix
    assert os.listdir(tmp_path) == [] and "directory" in opening(tmp_path).why


DOCUMENTS = "CREATE TABLE documents (title PRIMARY KEY, text)"


@pytest.mark.parametrize(
    "content, found",
    [
        (b"", "no table at all"),
        (b"hello, world", "not a database"),
        (b"SQLite format 3\0", "not a database"),
        (b"\x1f\x8b\x08", "not a database"),
        (["PRAGMA user_version = 1"], "no table at all"),
        (["CREATE TABLE pages (id, body)"], "pages(id, body)"),
        (["CREATE TABLE documents (title PRIMARY KEY, body)"], "documents(title, body)"),
        ([DOCUMENTS], "is empty"),
        ([DOCUMENTS, "CREATE TABLE knowledge_meta (key, value)"], "version (None, None)"),
    ],
)
def test_a_file_that_is_no_knowledge_base_is_refused_with_what_it_holds(tmp_path, content, found):
    path = tmp_path / "file.db"
    path.write_bytes(content) if isinstance(content, bytes) else database(path, *content)
    assert found in opening(path).what


@pytest.mark.parametrize(
    ("key", "value", "versions"),
    [("tokens_version", 99, f"version ({FORMAT_VERSION}, 99)"), ("format_version", 3, "version (3, ")],
)
def test_an_index_of_another_version_says_how_to_build_it_anew(ours, tmp_path, key, value, versions):
    path = tmp_path / "copy.db"
    shutil.copy(ours, path)
    error = opening(database(path, f"UPDATE knowledge_meta SET value = '{value}' WHERE key = '{key}'"))
    assert versions in error.what and f"knowledge.build SOURCE.jsonl {path}" in error.fix
    assert f"knowledge.build {path} OUT.db" in error.fix
    build(path, tmp_path / "OUT.db")
    assert verify(tmp_path / "OUT.db").documents == verify(ours).documents


def test_documents_without_a_title_or_a_text_do_no_harm(ready_made, tmp_path):
    documents = {"Alex": "He was born.", "": "Nobody.", "Ż": " ", "Ź": "A letter."}
    found = verify(ready_made(tmp_path / "base.db", documents))
    assert (found.documents, found.passages) == (4, 3)


@pytest.fixture(scope="module")
def sixty(make_base):
    return make_base({f"Title {n}": " ".join(f"word{n * place % 997}" for place in range(150)) for n in range(60)})


def test_no_truncated_file_is_ever_served(sixty, knowrl_sixty, tmp_path):
    rng, path = random.Random(2), tmp_path / "cut.db"
    for source in (sixty, knowrl_sixty):
        whole = source.read_bytes()
        for length in [0, 1, 50, 99, 100, 512, 4096, len(whole) - 1, *rng.sample(range(len(whole)), 60)]:
            path.write_bytes(whole[:length])
            for look in (KnowledgeBase, verify):
                refused(lambda look=look: look(path))


@pytest.fixture
def knowrl_sixty(ready_made, tmp_path):
    return ready_made(tmp_path / "knowrl.db", {f"Title {n}": f"word{n} " * 300 for n in range(60)})


def test_a_damaged_page_is_found_at_once_or_where_it_is_met(knowrl_sixty, tmp_path):
    """Of a file that is not ours; of ours no byte changes unnoticed."""

    def look(path):
        with KnowledgeBase(path) as base:
            for number in range(60):
                base.search("word1", 5, base.lookup(f"Title {number}").titles)

    whole = knowrl_sixty.read_bytes()
    for page in range(0, len(whole), 4096):
        path = tmp_path / f"damaged{page}.db"
        path.write_bytes(whole[:page] + bytes(4096) + whole[page + 4096 :])
        refused(lambda path=path: look(path))


def test_a_file_that_is_written_to_while_it_is_open_is_served_no_longer(sixty, tmp_path):
    path = tmp_path / "copy.db"
    shutil.copy(sixty, path)
    with KnowledgeBase(path) as base:
        assert base.search("word7", 5, ["Title 3"])
        with open(path, "r+b") as file:
            file.seek(5000)
            file.write(b"!")
        for ask in (lambda: base.search("word7", 5, ["Title 4"]), lambda: base.lookup("Title 5")):
            refused(ask, "was changed while it was open")


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE documents SET text = replace(text, '1962', '1963')",
        "DELETE FROM documents WHERE title = 'Ż'",
        "UPDATE knowledge_terms SET passages = 9999",
    ],
)
def test_a_base_that_was_written_to_after_its_build_is_refused_until_it_is_built_again(run, ours, tmp_path, statement):
    path, again = tmp_path / "copy.db", tmp_path / "again.db"
    shutil.copy(ours, path)
    database(path, statement)
    error = opening(path)
    assert error.exit_code == 3 and "changed after it was built" in error.what and "on purpose" in error.fix
    assert refused(lambda: verify(path)).what == error.what and run("knowledge.verify", path).returncode == 3
    assert run("knowledge.build", path, again).returncode == 0 and verify(again).documents in (7, 8)
    with KnowledgeBase(again) as base:
        assert ("1963" in base.search("Kassel")[0].text) is ("1963" in statement)


def flip(path, built, place):
    """Write a file with one byte changed."""
    path.write_bytes(built[:place] + bytes([built[place] ^ 4]) + built[place + 1 :])


def test_no_byte_of_a_base_changes_unnoticed(sixty, tmp_path):
    path, rng, built = tmp_path / "copy.db", random.Random(4), sixty.read_bytes()
    size = len(built)
    for place in [0, *range(size - 81, size, 9), size - 1, *rng.sample(range(size), 100)]:
        flip(path, built, place)
        refused(lambda: check_seal(path))
    check_seal(sixty)


def test_of_a_large_base_a_start_checks_the_first_megabyte(sixty, tmp_path, monkeypatch):
    """A megabyte of a page, and a base of many."""
    monkeypatch.setattr(files, "SAMPLE_BYTES", 4096)
    path, size = tmp_path / "large.db", sixty.stat().st_size // 4096 * 4096
    path.write_bytes(sixty.read_bytes()[:size])
    files._seal(path)
    built = path.read_bytes()
    for place in range(7, size, 4096):
        flip(path, built, place)
        refused(lambda: check_seal(path))
        refused(lambda: check_seal(path, max_bytes=4096)) if place == 7 else check_seal(path, max_bytes=4096)


def test_a_locked_file_is_waited_for_and_then_that_look_up_alone_fails(ours, tmp_path, monkeypatch):
    path = tmp_path / "locked.db"
    shutil.copy(ours, path)
    assert files.BUSY_TIMEOUT_S == 5.0
    monkeypatch.setattr(files, "BUSY_TIMEOUT_S", 0.5)
    with KnowledgeBase(path) as base:
        other, begun = sqlite3.connect(path, isolation_level=None), time.monotonic()
        other.execute("BEGIN EXCLUSIVE")
        for call in (
            lambda: base.lookup("Alex"),
            lambda: base.search("Salt"),
            lambda: base.search("born", titles=["Alex"]),
            lambda: KnowledgeBase(path),
        ):
            assert isinstance(refused(call), KnowledgeBusy)
        assert 4 * 0.4 < time.monotonic() - begun < 4 * 4.0
        other.execute("ROLLBACK")
        assert base.lookup("Alex").how == "exact" and base.search("Salt March")


# KnowRL's own file is in WAL mode, as its DocDB leaves it


@pytest.fixture
def wal(knowrl):
    """KnowRL's file in WAL mode, complete, alone in its folder."""
    folder = knowrl.parent / "folder"
    folder.mkdir()
    connection = sqlite3.connect(shutil.move(knowrl, folder / "wal.db"))
    assert connection.execute("PRAGMA journal_mode=WAL").fetchone() == ("wal",)
    connection.close()
    assert os.listdir(folder) == ["wal.db"]
    return folder / "wal.db"


def test_a_file_in_wal_mode_is_read_and_nothing_appears_beside_it(wal):
    before = wal.read_bytes()
    with KnowledgeBase(wal) as base:
        assert base.search("Salt March", titles=base.lookup("Mahatma Gandhi").titles)[0].title == "Mahatma Gandhi"
        assert sorted(os.listdir(wal.parent)) == ["wal.db"]
    assert verify(wal).documents and wal.read_bytes() == before


def test_a_file_in_wal_mode_whose_last_changes_are_not_in_it_is_refused(wal):
    writer = sqlite3.connect(wal)
    writer.execute("INSERT INTO documents VALUES ('New', 'Zanzibar is an island.')")
    writer.commit()
    refused(lambda: KnowledgeBase(wal), "WAL mode", "wal.db-wal", f"sqlite3 {wal} 'PRAGMA journal_mode=DELETE'")
    writer.execute("PRAGMA journal_mode=DELETE")
    writer.close()
    with KnowledgeBase(wal) as base:
        assert base.lookup("New").how == "exact"


def test_a_closed_base_holds_no_file_open(knowrl):
    kept = []  # garbage collection must not be what closes them
    for _ in range(3):
        with KnowledgeBase(knowrl) as base:
            kept += [base, base._database]
            assert base.lookup("Mahatma Gandhi").how == "exact" and num_open(knowrl)
        assert num_open(knowrl) == 0
    database(knowrl, "DELETE FROM documents")
    opening(knowrl)
    assert num_open(knowrl) == 0


# The commands


def test_search_command(run, ours, tmp_path):
    done = run("knowledge.search", ours, "Who led the Salt March?", "-k", "2")
    assert done.returncode == 0 and "Mahatma Gandhi#0" in done.stdout
    assert "--title 'Mahatma Gandhi'" in next_commands(done.stderr)[0]
    done = run("knowledge.search", ours, "born in Kassel", "--title", "Alex;AleX;Nobody", "--json")
    answer = json.loads(done.stdout)
    told = {"wanted": "Alex;AleX;Nobody", "titles": ["Alex", "AleX"], "how": "parts", "missing": ["Nobody"]}
    assert answer["lookup"] == told
    assert answer["passages"][0]["id"] == "Alex#0"
    assert "result: no passage found" in run("knowledge.search", ours, "…").stderr
    nobody = run("knowledge.search", ours, "Salt March", "--title", "…")
    assert "title: missing: no document" in nobody.stdout and "result: no passage found" in nobody.stderr
    assert run("knowledge.search", tmp_path / "none.db", "x").returncode == 3
    assert run("knowledge.search", ours, "x", "-k", "0").returncode == 2


def test_search_command_escapes_control_characters(run, ready_made, tmp_path):
    path = ready_made(tmp_path / "base.db", {"Evil \x1b[2J": "red \x1b[31m text\x07 is here"})
    done = run("knowledge.search", path, "red text", "--title", "Evil \x1b[2J")
    assert "red" in done.stdout and "\x1b" not in done.stdout + done.stderr and "\x07" not in done.stdout


def test_verify_command(run, ours, knowrl):
    done = run("knowledge.verify", ours)
    assert done.returncode == 0 and done.stdout.endswith("sound\n") and "8 documents" in done.stdout
    assert next_commands(done.stderr)[0] == f"knowledge.search {ours} QUERY"
    assert "without full-text index" in run("knowledge.verify", knowrl).stdout


def test_a_build_overwrites_nothing_but_a_knowledge_base(ours, tmp_path):
    source = tmp_path / "wiki.jsonl"
    source.write_text('{"title": "Velda", "text": "Velda is a town."}\n')
    before = source.read_text()
    refused(lambda: build_command([str(source), str(source)]), "is no knowledge base", exit_code=2)
    assert source.read_text() == before
    shutil.copy(ours, tmp_path / "old.db")
    build_command([str(source), str(tmp_path / "old.db")])
    assert verify(tmp_path / "old.db").documents == 1

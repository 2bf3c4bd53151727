"""python -m knowledge.verify DB [--json]

Is a knowledge base whole? Reads every byte of it and changes nothing: SQLite's own check of all pages, then the
content of every table against the checksums made when it was built, down to a single flipped bit. Exit code 0 if it is
sound, 3 if not.
"""

import argparse
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from grpo.errors import PREFLIGHT, UserError, run_main
from knowledge.errors import KnowledgeBusy
from knowledge.store.database import ReadOnlyDatabase
from knowledge.store.index import CONTENT, checksum
from knowledge.store.passages import split_stored
from knowledge.store.recognise import OURS, Kind, check_header, check_index, recognise
from knowledge.store.side_index import read_side_index, side_index_path

MAX_PROBLEMS = 20


@dataclass
class Findings:
    """What was counted, and what is wrong: no problems means sound. warnings: odd, but it works (documents without any
    text)."""

    owner: str = ""
    documents: int = 0
    passages: int = 0
    text_bytes: int = 0
    has_index: bool = False
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def verify(path: Path) -> Findings:
    """Checks a whole file. UserError (exit 3) if it is no knowledge base at all, KnowledgeBusy if it is locked."""
    check_header(path)
    found = Findings()
    _verify(path, found)
    side = side_index_path(path)
    if found.owner != OURS and not found.problems and read_side_index(path, side):
        found.has_index = True
        _verify(side, found, "side index: ")
    return found


def _verify(path: Path, found: Findings, where: str = "") -> None:
    """SQLite's own check of every page, then the content of one file."""
    database = ReadOnlyDatabase(path)
    try:
        broken = [f"{where}SQLite: {row[0]}" for row in database.rows("PRAGMA integrity_check(20)") if row[0] != "ok"]
        if broken:
            found.problems += broken
        elif where:
            _compare_checksums(database, check_index(database), found, where)
        else:
            kind = recognise(database)
            found.owner, found.has_index = kind.owner, kind.owner == OURS
            _read_documents(database, kind, found)
            _compare_checksums(database, kind.meta, found)
    except KnowledgeBusy:
        raise
    except UserError as error:
        if "SQLite says" not in error.what:
            raise
        found.problems.append(where + error.what)  # too damaged even for SQLite's check
    finally:
        database.close()


def _read_documents(database: ReadOnlyDatabase, kind: Kind, found: Findings) -> None:
    """Counts what is there; a document without title or text is odd, but does no harm."""
    num_blank = 0
    for title, text in database.stream("SELECT title, text FROM documents"):
        passages = split_stored(str(text or ""), kind.markers)
        found.documents += 1
        found.passages += len(passages)
        found.text_bytes += len(str(text or "").encode())
        num_blank += not title or not passages
    if num_blank:
        found.warnings.append(f"{num_blank} documents without title or text")


def _compare_checksums(database: ReadOnlyDatabase, meta: dict, found: Findings, where: str = "") -> None:
    """The content of every table is what it was when the file was built. KnowRL's and FActScore's files have no such
    record."""
    for table, wanted in meta.get("checksums", {}).items():
        if checksum(database.stream(CONTENT[table])) != wanted:
            found.problems.append(f"{where}the content of the table {table} has changed since it was built")


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m knowledge.verify", description=__doc__.split("\n\n", 1)[1])
    parser.add_argument("db", type=Path, metavar="DB")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    options = parser.parse_args(argv)
    found = verify(options.db)
    if options.json:
        print(json.dumps(asdict(found)))
    else:
        print(
            f"{options.db}: {found.owner or 'unreadable'} file, {found.documents:,} documents, {found.passages:,} passages, "
            f"{found.text_bytes / 1e6:,.1f} MB of text, {'with' if found.has_index else 'without'} full-text index"
        )
        for warning in found.warnings:
            print(f"warning: {warning}")
    if found.problems:
        raise UserError(
            f"{options.db} is damaged: {found.problems[0]}",
            "; ".join(found.problems[1:MAX_PROBLEMS]),
            "fetch or build it again",
            PREFLIGHT,
        )
    if not options.json:
        print("sound")


if __name__ == "__main__":
    run_main(main)

"""python -m knowledge.verify DB [--json]

Check that a knowledge base is complete and undamaged, at any size: SQLite reads all pages and compares each table with
its indexes, and all documents are read. A byte that changed within a text is not noticed. Nothing is changed. Exit code
0 if the file is sound, 3 if not.
"""

import json
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path

from grpo.base.errors import PREFLIGHT, UserError, run_main
from grpo.base.progress import command_parser, say_next
from knowledge.errors import KnowledgeBusy
from knowledge.store.database import ReadOnlyDatabase
from knowledge.store.passages import split_stored
from knowledge.store.recognise import OURS, Kind, check_header, recognise

MAX_PROBLEMS = 20


@dataclass
class Findings:
    """What was counted, and what is wrong; without problems the file is sound.

    warnings: what is odd but does no harm, such as documents without any text.
    """

    owner: str = ""
    documents: int = 0
    passages: int = 0
    text_bytes: int = 0
    has_index: bool = False
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        index = "with" if self.has_index else "without"
        return (
            f"{self.owner or 'unreadable'} file, {self.documents:,} documents, {self.passages:,} passages, "
            f"{self.text_bytes / 1e6:,.1f} MB of text, {index} full-text index"
        )


def verify(path: Path) -> Findings:
    """Let SQLite check every page of a complete file, then read the documents.

    UserError (exit 3) if it is no knowledge base at all, KnowledgeBusy if it is locked.
    """
    check_header(path)
    found = Findings()
    try:
        with closing(ReadOnlyDatabase(path)) as database:
            broken = [text for (text,) in database.rows("PRAGMA integrity_check(20)") if text != "ok"]
            if broken:
                found.problems += [f"SQLite: {text}" for text in broken]
                return found
            kind = recognise(database)
            found.owner, found.has_index = kind.owner, kind.owner == OURS
            _read_documents(database, kind, found)
    except KnowledgeBusy:
        raise
    except UserError as error:
        if "SQLite says" not in error.what:
            raise
        found.problems.append(error.what)  # too damaged even for SQLite's check
    return found


def _read_documents(database: ReadOnlyDatabase, kind: Kind, found: Findings) -> None:
    """Count what is there; a document without title or text is odd, but does no harm."""
    num_blank = 0
    for title, text in database.stream("SELECT title, text FROM documents"):
        text = str(text or "")
        passages = split_stored(text, kind.markers)
        found.documents += 1
        found.passages += len(passages)
        found.text_bytes += len(text.encode())
        num_blank += not title or not passages
    if num_blank:
        found.warnings.append(f"{num_blank} documents without title or text")


def check(path: Path) -> Findings:
    """Check a file as `verify` does. UserError (exit 3) if it is not sound."""
    return _sound(path, verify(path))


def _sound(path: Path, found: Findings) -> Findings:
    if found.problems:
        why = "; ".join(found.problems[1:MAX_PROBLEMS])
        raise UserError(f"{path} is damaged: {found.problems[0]}", why, "fetch or build it again", PREFLIGHT)
    return found


def main(argv: list[str]) -> None:
    parser = command_parser("knowledge.verify", __doc__.split("\n\n", 1)[1])
    parser.add_argument("db", type=Path, metavar="DB", help="the knowledge base")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    options = parser.parse_args(argv)
    found = verify(options.db)
    if options.json:
        print(json.dumps(asdict(found)))
    else:
        print(f"{options.db}: {found}")
        for warning in found.warnings:
            print(f"warning: {warning}")
    _sound(options.db, found)
    if options.json:
        return
    print("sound")
    say_next(
        f"{options.db} is sound",
        ["knowledge.search", options.db, "QUERY"],
        ["grpo.doctor", "CONFIG", f"knowledge_base={options.db}"],
    )


if __name__ == "__main__":
    run_main(main)

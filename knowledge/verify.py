"""python -m knowledge.verify DB

Check that a knowledge base is complete and undamaged, at any size: every byte is as `knowledge.build` wrote it, SQLite
finds all pages in order and each table in accord with its indexes, and all documents can be read. KnowRL's and
FActScore's files keep no digests, so a byte that changed within a text of theirs is not noticed. Nothing is written.
Exit code 0 if the file is sound, 3 if not.
"""

import math
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from grpo.base.errors import run_main
from grpo.base.progress import command_parser, say_next
from knowledge.store.database import ALL_DOCUMENTS, ReadOnlyDatabase, check_file
from knowledge.store.passages import split_stored


@dataclass
class Content:
    """What was counted in a file."""

    has_index: bool
    documents: int = 0
    passages: int = 0

    def __str__(self) -> str:
        index = "with" if self.has_index else "without"
        return f"{self.documents:,} documents, {self.passages:,} passages, {index} full-text index"


def verify(path: Path) -> Content:
    """Check the digests and every page of a file, then read and count the documents.

    UserError (exit 3) if it is damaged, or no knowledge base at all; KnowledgeBusy if it is locked.
    """
    with closing(ReadOnlyDatabase(path)) as database:
        content = Content(bool(check_file(database, math.inf)))
        for _, text in database.stream(ALL_DOCUMENTS):
            content.documents += 1
            content.passages += len(split_stored(str(text or "")))
    return content


def main(argv: list[str]) -> None:
    parser = command_parser("knowledge.verify", __doc__.split("\n\n", 1)[1])
    parser.add_argument("db", type=Path, metavar="DB", help="the knowledge base")
    path = parser.parse_args(argv).db
    content = verify(path)
    print(f"{path}: {content}")
    print("sound")
    indexed = path.with_suffix(".indexed.db")
    say_next(
        f"{path} is sound",
        ["knowledge.search", path, "QUERY"] if content.has_index else ["knowledge.build", path, indexed],
        ["grpo.doctor", "CONFIG", f"knowledge_base={path}"],
    )


if __name__ == "__main__":
    run_main(main)

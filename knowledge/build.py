"""python -m knowledge.build SOURCE OUT.db [--strict] [--skipped FILE.jsonl]

Build a knowledge base from rows of {"title", "text"}: JSON lines (in constant memory), a JSON array, a table or
Parquet, plain or gzip; from a folder of texts (.txt, .md), whose names are the titles; or from a file of KnowRL or
FActScore, which has no full-text index. Rows that cannot be used are reported with their number and the reason; of
equal titles the first wins. OUT.db appears complete or not at all, and an older OUT.db stays until then. A build that
is killed leaves a folder OUT.db.unfinished-… behind.
"""

import json
import os
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from tqdm import tqdm

from grpo.base.errors import PREFLIGHT, UserError, run_main
from grpo.base.progress import check_output, command_parser, say_next
from grpo.base.storage import failpoint
from knowledge.source import Document, Skip, read_source, sources_of
from knowledge.store.database import atomic_database
from knowledge.store.fulltext import IndexWriter
from knowledge.store.passages import MAX_TOKENS, SEPARATOR, pack

MAX_SHOWN_PER_REASON = 20


@dataclass
class Built:
    """What a build did. skipped: kind of reason -> number of rows."""

    documents: int = 0
    passages: int = 0
    skipped: Counter = field(default_factory=Counter)

    def skip(self, source: Path, skip: Skip, file: TextIO | None) -> None:
        """Count a skipped row, write it to the file, and print it if it is one of the first of its kind."""
        kind = skip.reason.partition(":")[0]
        self.skipped[kind] += 1
        if file:
            print(json.dumps({"row": skip.number, "reason": skip.reason}), file=file)
        if self.skipped[kind] <= MAX_SHOWN_PER_REASON:
            tqdm.write(f"{source}: row {skip.number} skipped: {skip.reason}", file=sys.stderr)
        elif self.skipped[kind] == MAX_SHOWN_PER_REASON + 1:
            tqdm.write(f"(further rows of the kind '{kind}' are only counted)", file=sys.stderr)


def build(
    source: Path,
    out: Path,
    strict: bool = True,
    skipped: TextIO | None = None,
    max_tokens: int = MAX_TOKENS,
    progress: bool = False,
) -> Built:
    """Build `out` from the source. strict: stop at the first row that cannot be used. skipped: gets all such rows.

    UserError: unusable source (exit 3), no room (exit 6). `out` is then as before.
    """
    built = Built()
    size_bytes = sum(file.stat().st_size for file in sources_of(source))
    bar = tqdm(total=size_bytes, unit="B", unit_scale=True, desc=out.name, disable=not progress)
    with atomic_database(out) as connection, bar:
        writer = IndexWriter(connection)
        for row in read_source(source, lambda num_bytes: bar.update(num_bytes - bar.n)):
            failpoint("build-rows")
            if isinstance(row, Document):
                passages = pack(row.text, max_tokens)
                if writer.add(row.title, SEPARATOR.join(passages), passages):
                    continue
                row = Skip(row.number, f"duplicate title: {row.title[:80]!a}")
            if strict:
                raise UserError(
                    f"{source}: row {row.number}: {row.reason}",
                    "--strict stops at the first bad row",
                    "correct it, or build without --strict to skip it",
                    PREFLIGHT,
                )
            built.skip(source, row, skipped)
        if not writer.num_documents:
            raise UserError(
                f"{source} holds no usable row",
                f"{built.skipped.total()} rows were skipped",
                'rows are objects like {"title": "Alex", "text": "Alex was born in 1962."}, or files .txt and .md',
                PREFLIGHT,
            )
        bar.set_description(f"{out.name}: merging the index")
        writer.finish()
    built.documents = writer.num_documents
    built.passages = writer.num_passages
    return built


def main(argv: list[str]) -> None:
    parser = command_parser("knowledge.build", __doc__.split("\n\n", 1)[1])
    parser.add_argument("source", type=Path, metavar="SOURCE", help="the file or folder to read")
    parser.add_argument("out", type=Path, metavar="OUT.db", help="the knowledge base to write")
    parser.add_argument("--strict", action="store_true", help="stop at the first row that cannot be used")
    parser.add_argument(
        "--skipped", type=Path, metavar="FILE", help="write number and reason of every skipped row to this new file"
    )
    options = parser.parse_args(argv)
    if options.skipped:
        check_output(options.skipped, "--skipped")
        if options.skipped.exists():
            parser.error("--skipped names a file that exists: name a new one")
    if options.out.is_file():
        with open(options.out, "rb") as there:
            if not b"SQLite format 3".startswith(there.read(15)):
                raise UserError(
                    f"{options.out} is no knowledge base", "the build would overwrite it", "name another output"
                )
    with open(options.skipped or os.devnull, "w", encoding="utf-8") as file:
        built = build(options.source, options.out, options.strict, file, progress=True)
    print(
        f"{options.out}: {built.documents:,} documents, {built.passages:,} passages, "
        f"{options.out.stat().st_size / 1e6:,.1f} MB"
    )
    kinds = ", ".join(f"{number} {kind}" for kind, number in built.skipped.most_common())
    print(f"{built.skipped.total()} rows skipped: {kinds}" if kinds else "0 rows skipped")
    say_next(options.out, ["knowledge.verify", options.out], ["knowledge.search", options.out, "QUERY"])


if __name__ == "__main__":
    run_main(main)

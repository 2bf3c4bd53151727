"""python -m knowledge.build SOURCE OUT.db [--strict] [--max-tokens 256] [--max-row-mb 8] [--skipped FILE.jsonl]

Build a knowledge base in constant memory, from a JSON array or JSON lines of {"title", "text"}, plain or gzip, or from
a file of KnowRL or FActScore, which has no full-text index. Rows that cannot be used are reported with line number and
reason; of equal titles the first wins. OUT.db appears complete or not at all, and an older OUT.db stays until then.
"""

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from tqdm import tqdm

from grpo.base.errors import PREFLIGHT, UserError, run_main
from grpo.base.progress import check_output, command_parser, say_next
from grpo.base.storage import failpoint
from knowledge.store.atomic_database import atomic_database, build_lock
from knowledge.store.index import DOCUMENTS_TABLE, IndexWriter
from knowledge.store.passages import MAX_TOKENS, MIN_TOKENS, SEPARATOR, passages_of
from knowledge.store.recognise import require_fts5
from knowledge.store.source import MAX_ROW_BYTES, Row, Skip, Source

MAX_SHOWN_PER_REASON = 20
INSERT = "INSERT OR IGNORE INTO documents VALUES (?, ?)"


@dataclass
class Report:
    """What a build did. skipped: kind of reason -> number of rows; text_bytes: of the documents in UTF-8."""

    documents: int = 0
    passages: int = 0
    text_bytes: int = 0
    file_bytes: int = 0
    seconds: float = 0.0
    skipped: Counter = field(default_factory=Counter)


class SkipLog:
    """Count skipped rows, print the first of each kind, and write all to a file if one is given.

    If `strict`, it raises at the first.
    """

    def __init__(self, source: Path, strict: bool, file: TextIO | None = None):
        self.source, self.strict, self.file = source, strict, file
        self.counts: Counter[str] = Counter()

    def add(self, skip: Skip) -> None:
        kind = skip.reason.partition(":")[0].partition(" at byte")[0]
        if "MB" in kind:
            kind = "too long"
        self.counts[kind] += 1
        if self.strict:
            why, fix = "--strict stops at the first bad row", "correct it, or build without --strict to skip it"
            raise UserError(f"{self.source}:{skip.line}: {skip.reason}", why, fix, PREFLIGHT)
        if self.file:
            print(json.dumps({"line": skip.line, "reason": skip.reason}), file=self.file)
        if self.counts[kind] <= MAX_SHOWN_PER_REASON:
            tqdm.write(f"{self.source}:{skip.line}: skipped: {skip.reason}", file=sys.stderr)
        elif self.counts[kind] == MAX_SHOWN_PER_REASON + 1:
            tqdm.write(f"(further rows of the kind '{kind}' are only counted)", file=sys.stderr)


def build(source: Source, out: Path, skips: SkipLog, max_tokens: int = MAX_TOKENS, progress: bool = False) -> Report:
    """Build `out` from the source.

    UserError: unusable source (exit 3), no room (exit 6), another build of it is running (exit 7). `out` is then as
    before.
    """
    require_fts5(out)
    start = time.perf_counter()
    report = Report(skipped=skips.counts)
    with (
        build_lock(out),
        atomic_database(out) as connection,
        tqdm(
            total=source.size_bytes,
            unit="B",
            unit_scale=True,
            desc=out.name,
            disable=not progress,
        ) as bar,
    ):
        writer = IndexWriter(connection)
        connection.execute(DOCUMENTS_TABLE)
        for row in source:
            bar.update(source.bytes_read - bar.n)
            failpoint("build-rows")
            if isinstance(row, Row):
                passages = passages_of(row.texts, max_tokens)
                text = SEPARATOR.join(passages)
                if connection.execute(INSERT, (row.title, text)).rowcount:
                    writer.add(row.title, passages)
                    report.text_bytes += len(text.encode())
                    continue
                row = Skip(row.line, f"duplicate title: {row.title[:80]!a}")
            skips.add(row)
        if not writer.num_documents:
            what, why = f"{source.path} holds no usable row", f"{skips.counts.total()} rows were skipped"
            fix = 'rows are objects like {"title": "Alex", "text": "Alex was born in 1962."}'
            raise UserError(what, why, fix, PREFLIGHT)
        bar.update(source.size_bytes - bar.n)
        bar.set_description(f"{out.name}: merging the index")
        writer.finish()
    report.documents = writer.num_documents
    report.passages = writer.num_passages
    report.file_bytes = out.stat().st_size
    report.seconds = time.perf_counter() - start
    return report


def main(argv: list[str]) -> None:
    parser = command_parser("knowledge.build", __doc__.split("\n\n", 1)[1])
    add = parser.add_argument
    add("source", type=Path, metavar="SOURCE", help="the file to read")
    add("out", type=Path, metavar="OUT.db", help="the knowledge base to write")
    add("--strict", action="store_true", help="stop at the first row that cannot be used")
    length_help = "cut longer passages, in estimated tokens (default %(default)s)"
    add("--max-tokens", type=_number(int, MIN_TOKENS), default=MAX_TOKENS, help=length_help)
    row_help = "skip longer rows (default %(default)g)"
    add("--max-row-mb", type=_number(float, 1e-6), default=MAX_ROW_BYTES / 2**20, help=row_help)
    add("--skipped", type=Path, metavar="FILE", help="write line and reason of every skipped row to this file")
    options = parser.parse_args(argv)
    source = Source(options.source, int(options.max_row_mb * 2**20))
    if options.skipped:
        check_output(options.skipped, "--skipped")
        if options.skipped.resolve() == options.out.resolve() or _is_same(options.skipped, options.source):
            parser.error("--skipped names the source or the output")
    with open(options.skipped or os.devnull, "w", encoding="utf-8") as file:
        skips = SkipLog(options.source, options.strict, file)
        report = build(source, options.out, skips, options.max_tokens, progress=True)
    mb_per_s = report.text_bytes / 1e6 / report.seconds
    print(
        f"{options.out}: {report.documents:,} documents, {report.passages:,} passages, "
        f"{report.file_bytes / 1e6:,.1f} MB in {report.seconds:.1f} s ({mb_per_s:.1f} MB/s of text)"
    )
    kinds = ", ".join(f"{number} {kind}" for kind, number in report.skipped.most_common())
    print(f"{report.skipped.total()} rows skipped: {kinds}" if kinds else "0 rows skipped")
    say_next(options.out, ["knowledge.verify", options.out], ["knowledge.search", options.out, "QUERY"])


def _is_same(path: Path, source: Path) -> bool:
    """Return whether a path leads to the source, under whatever name."""
    return path.exists() and source.exists() and path.samefile(source)


def _number(kind: type, least: float) -> Callable[[str], float]:
    """Return a reader of numbers from `least` on."""

    def number(text: str) -> float:
        if not least <= kind(text) < 2**20:
            raise argparse.ArgumentTypeError(f"must be at least {least:g}")
        return kind(text)

    return number


if __name__ == "__main__":
    run_main(main)

"""python -m knowledge.build SOURCE OUT.db [--strict] [--max-tokens 256] [--max-row-mb 8] [--skipped FILE.jsonl]

Builds a knowledge base from a JSON array or JSON lines of {"title", "text"}, plain or gzip, in constant memory. Rows
that cannot be used are reported with line number and reason; of equal titles the first wins. OUT.db appears whole or
not at all, and an older OUT.db stays until then.
"""

import argparse
import json
import os
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from sqlalchemy import Connection
from tqdm import tqdm

from grpo.errors import PREFLIGHT, UserError, run_main
from grpo.storage import failpoint
from knowledge.store.index import DOCUMENTS_TABLE, IndexWriter
from knowledge.store.passages import MAX_TOKENS, MIN_TOKENS, SEPARATOR, passages_of
from knowledge.store.recognise import require_fts5
from knowledge.store.source import MAX_ROW_BYTES, Skip, Source
from knowledge.store.whole_file import build_lock, whole_file

MAX_SHOWN_PER_REASON = 20
INSERT = "INSERT OR IGNORE INTO documents VALUES (?, ?)"


@dataclass
class Report:
    """What a build did. skipped: reason (without particulars) -> how many rows; bytes are those of the text, seconds
    wall clock."""

    documents: int = 0
    passages: int = 0
    text_bytes: int = 0
    file_bytes: int = 0
    seconds: float = 0.0
    skipped: Counter = field(default_factory=Counter)

    @property
    def mb_per_s(self) -> float:
        return self.text_bytes / 1e6 / max(self.seconds, 1e-9)


class SkipLog:
    """Prints the first skips of each kind, counts all, and writes all to a file if one is given; strict: raises at the
    first."""

    def __init__(self, source: Path, strict: bool, file: TextIO | None = None):
        self.source, self.strict, self.file, self.counts = source, strict, file, Counter()

    def add(self, skip: Skip) -> None:
        kind = skip.reason.partition(":")[0].partition(" at byte")[0]
        kind = "too long" if "MB" in kind else kind
        self.counts[kind] += 1
        if self.strict:
            raise UserError(
                f"{self.source}:{skip.line}: {skip.reason}",
                "--strict stops at the first row that cannot be used",
                "mend the row, or build without --strict to skip it",
                PREFLIGHT,
            )
        if self.file:
            print(json.dumps({"line": skip.line, "reason": skip.reason}), file=self.file)
        if self.counts[kind] <= MAX_SHOWN_PER_REASON:
            tqdm.write(f"{self.source}:{skip.line}: skipped: {skip.reason}", file=sys.stderr)
        elif self.counts[kind] == MAX_SHOWN_PER_REASON + 1:
            tqdm.write(f"(further rows of the kind '{kind}' are only counted)", file=sys.stderr)


def build(source: Source, out: Path, skips: SkipLog, max_tokens: int = MAX_TOKENS, progress: bool = False) -> Report:
    """Builds `out` from the source. UserError: unusable source (exit 3), no room (6), another build (7); `out` is then
    as before."""
    require_fts5(out)
    start, report = time.perf_counter(), Report(skipped=skips.counts)
    with build_lock(out), whole_file(out) as connection:
        writer = IndexWriter(connection)
        connection.exec_driver_sql(DOCUMENTS_TABLE)
        with tqdm(total=source.size_bytes, unit="B", unit_scale=True, desc=out.name, disable=not progress) as bar:
            _write_rows(source, connection, writer, skips, max_tokens, report, bar)
            if not writer.num_documents:
                raise UserError(
                    f"{source.path} holds no usable row",
                    f"{sum(skips.counts.values())} rows were skipped",
                    'rows are objects like {"title": "Alex", "text": "Alex was born in 1962."}',
                    PREFLIGHT,
                )
            bar.set_description(f"{out.name}: merging the index")
            writer.finish()
    report.documents, report.passages, report.file_bytes = writer.num_documents, writer.num_passages, out.stat().st_size
    report.seconds = time.perf_counter() - start
    return report


def _write_rows(
    source: Source,
    connection: Connection,
    writer: IndexWriter,
    skips: SkipLog,
    max_tokens: int,
    report: Report,
    bar: tqdm,
) -> None:
    """Every row of the source as a document with its passages."""
    for row in source:
        bar.update(source.bytes_read - bar.n)
        failpoint("build-rows")
        if isinstance(row, Skip):
            skips.add(row)
            continue
        passages = passages_of(row.texts, max_tokens)
        text = SEPARATOR.join(passages)
        if connection.exec_driver_sql(INSERT, (row.title, text)).rowcount:
            writer.add(row.title, passages)
            report.text_bytes += len(text.encode())
        else:
            skips.add(Skip(row.line, f"duplicate title: {row.title[:80]!a}"))
    bar.update(source.size_bytes - bar.n)


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m knowledge.build",
        description=__doc__.split("\n\n", 1)[1],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", type=Path, metavar="SOURCE")
    parser.add_argument("out", type=Path, metavar="OUT.db")
    parser.add_argument("--strict", action="store_true", help="stop at the first row that cannot be used")
    parser.add_argument(
        "--max-tokens",
        type=_passage_length,
        default=MAX_TOKENS,
        help="longest passage, in estimated tokens (default %(default)s)",
    )
    parser.add_argument(
        "--max-row-mb", type=float, default=MAX_ROW_BYTES / 2**20, help="longer rows are skipped (default %(default)g)"
    )
    parser.add_argument(
        "--skipped", type=Path, metavar="FILE", help="write every skipped row's line and reason to this JSON lines file"
    )
    options = parser.parse_args(argv)
    source = Source(options.source, int(options.max_row_mb * 2**20))
    with open(options.skipped or os.devnull, "w", encoding="utf-8") as file:
        report = build(
            source, options.out, SkipLog(options.source, options.strict, file), options.max_tokens, progress=True
        )
    print(
        f"{options.out}: {report.documents:,} documents, {report.passages:,} passages, {report.file_bytes / 1e6:,.1f} MB "
        f"in {report.seconds:.1f} s ({report.mb_per_s:.1f} MB/s of text)"
    )
    skipped = ", ".join(f"{number} {kind}" for kind, number in report.skipped.most_common())
    print(f"{sum(report.skipped.values())} rows skipped" + (f": {skipped}" if skipped else ""))


def _passage_length(value: str) -> int:
    if int(value) < MIN_TOKENS:
        raise argparse.ArgumentTypeError(f"must be at least {MIN_TOKENS}")
    return int(value)


if __name__ == "__main__":
    run_main(main)

"""python -m bench.report [--results bench/results] [--readme bench/README.md]

Turn stored rows into the table of bench/README.md. Of each case of a benchmark, device and dtype, the row that was
measured last counts; below the table stands at which commit that was.
With --readme, the lines between <!-- bench --> and <!-- /bench --> are replaced. Rows that no benchmark has written are
left out, with a note. The last line of stdout is JSON.
"""

import json
import sys
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path

from bench.record import COLUMNS, RESULTS, cells, markdown_table, plain_parser

REAL = "smollm2"  # the model of bench/models.py whose shape is that of a published checkpoint small enough for a CPU
OF_BENCHMARKS = {"bench", "date", "options", "machine", "cases", "checks"}  # keys of their rows
CaseOfRow = tuple[Mapping, Mapping]  # a row, and one of its cases


def read_own(path: Path) -> list[dict]:
    """Read the rows of a file that benchmarks have written; say on stderr how many others it has."""
    lines = path.read_text(encoding="utf-8").splitlines()
    rows = []
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:  # of a benchmark that was killed while it wrote
            continue
        if isinstance(row, dict) and row.keys() >= OF_BENCHMARKS:
            rows.append(row)
    num_others = len(lines) - len(rows)
    if num_others:
        print(f"{path}: left out {num_others} of {len(lines)} rows, which no benchmark has written", file=sys.stderr)
    return rows


def newest(rows: Iterable[Mapping]) -> list[CaseOfRow]:
    """Return each case of each benchmark, device and dtype as it was measured last, those of a real shape first.

    rows: oldest first; those of a smoke test do not count.
    """
    found: dict[tuple, dict[str, CaseOfRow]] = {}
    for row in rows:
        options = row["options"]
        if options["smoke"]:
            continue
        key = row["bench"], options.get("device", "cpu"), options.get("dtype", "")
        cases = found.setdefault(key, {})
        for case in row["cases"]:
            cases[case["name"]] = row, case
    measured = [pair for key in sorted(found) for pair in found[key].values()]
    return sorted(measured, key=lambda row_and_case: REAL not in row_and_case[1]["name"])


def footing(rows: Iterable[Mapping]) -> str:
    """Say what the figures were measured on: a line per machine."""
    measured: dict[str, list[str]] = {}
    for row in rows:
        machine = row["machine"]
        hardware = f"{machine['gpu'] or machine['cpu']}, {machine['cores']} cores"
        software = f"torch {machine['versions'].get('torch')}"
        when = f"{row['bench']} on {row['date']} (commit {machine['commit']})"
        measured.setdefault(f"{hardware}, {software}", []).append(when)
    lines = [f"Measured on {on}: {', '.join(dict.fromkeys(when))}." for on, when in measured.items()]
    return "\n\n".join(textwrap.fill(line, 120, break_on_hyphens=False) for line in lines)


def replace_block(readme: Path, name: str, block: str) -> None:
    """Replace the text between <!-- name --> and <!-- /name -->."""
    marks = f"<!-- {name} -->", f"<!-- /{name} -->"
    before, begin, rest = readme.read_text(encoding="utf-8").partition(marks[0])
    _, end, after = rest.partition(marks[1])
    if not begin or not end:
        raise SystemExit(f"{readme} has no lines {' and '.join(marks)}: add them where the table should stand")
    readme.write_text(f"{before}{begin}\n{block}\n{end}{after}", encoding="utf-8")


def main(argv: list[str] | None = None) -> dict:
    parser = plain_parser("bench.report", __doc__)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder or file of the stored rows")
    parser.add_argument("--readme", type=Path, help="file whose table is replaced")
    options = parser.parse_args(argv)
    if not options.results.exists():
        parser.error(f"there is no {options.results}: give a file or a folder that a benchmark's --save has written")
    is_folder = options.results.is_dir()
    files = sorted(options.results.glob("*.jsonl")) if is_folder else [options.results]
    found = newest(row for path in files for row in read_own(path))
    lines = [cells(row, case) for row, case in found]
    block = f"{markdown_table(COLUMNS, lines)}\n\n{footing(row for row, _ in found)}"
    print(block)
    if options.readme:
        replace_block(options.readme, "bench", block)
    result = {"bench": "report", "cases": len(found)}
    print(json.dumps(result))
    return result


if __name__ == "__main__":
    main()

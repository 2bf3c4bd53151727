"""python -m bench.report [--results bench/results] [--readme bench/README.md]

Turn stored rows into the table of bench/README.md. Of each benchmark, device and dtype, all rows count that were
measured at the newest commit, so a benchmark can be run once for each model. If they repeat a case, the newest counts.
With --readme, the lines between <!-- bench --> and <!-- /bench --> are replaced. The last line of stdout is JSON.
"""

import json
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path

from bench.record import RESULTS, duration, markdown_table, plain_parser, read_rows
from bench.timing import our_seconds

BEGIN, END = "<!-- bench -->", "<!-- /bench -->"
UNLISTED = ("canary", "products")  # for whoever looks for what is slow
Measured = tuple[Mapping, Mapping]  # a row, and one of its cases
COLUMNS = ("benchmark", "case", "ours", "peer", "times faster (range)", "target", "share of the ceiling")


def newest(rows: Iterable[Mapping]) -> list[Measured]:
    """Return the cases of each benchmark, part, device and dtype at the commit that was measured last, each once.

    rows: oldest first; those of a smoke test do not count.
    """
    commits: dict[tuple, str] = {}
    found: dict[tuple, dict[str, Measured]] = {}
    for row in rows:
        if row["options"]["smoke"] or row["bench"] in UNLISTED or not row["cases"]:
            continue
        dtype = row["options"].get("dtype", "")
        key = (row["bench"], row.get("part", ""), row["options"].get("device", "cpu"), dtype)
        if commits.get(key) != row["machine"]["commit"]:
            commits[key] = row["machine"]["commit"]
            found[key] = {}
        found[key] |= {case["name"]: (row, case) for case in row["cases"]}
    measured = []
    for key in sorted(found):
        measured += found[key].values()
    return measured


def cells(row: Mapping, case: Mapping) -> list[str]:
    """Fill the columns of a case. A column stays empty if the case has nothing for it."""
    peer = faster = ""
    if "peer" in case:
        low, high = case["ratio_range"]
        peer = f"{case['peer']}: {duration(case['seconds'][case['peer']]['median'])}"
        faster = f"**{case['ratio']:.1f}** ({low:.1f} to {high:.1f})"
    target = f"{case['target']:g}" if "target" in case else ""
    share = f"{100 * case['ceiling_share']:.0f} %" if "ceiling_share" in case else ""
    name = f"{row['bench']}, {row['options'].get('device', 'cpu')}"
    return [name, case["name"], duration(our_seconds(case)), peer, faster, target, share]


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
    return "\n\n".join(textwrap.fill(line, 140, break_on_hyphens=False) for line in lines)


def replace_block(readme: Path, block: str) -> None:
    """Replace the text between the two marks."""
    before, begin, rest = readme.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{readme} has no lines {BEGIN} and {END}: add them where the table should stand")
    readme.write_text(f"{before}{BEGIN}\n{block}\n{END}{after}", encoding="utf-8")


def main(argv: list[str] | None = None) -> dict:
    parser = plain_parser("bench.report", __doc__)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the stored rows")
    parser.add_argument("--readme", type=Path, help="file whose table is replaced")
    options = parser.parse_args(argv)
    found = newest(read_rows(options.results))
    lines = [cells(row, case) for row, case in found]
    block = f"{markdown_table(COLUMNS, lines)}\n\n{footing(row for row, _ in found)}"
    print(block)
    if options.readme:
        replace_block(options.readme, block)
    result = {"bench": "report", "cases": len(found)}
    print(json.dumps(result))
    return result


if __name__ == "__main__":
    main()

"""python -m bench.report [--results bench/results] [--readme README.md]

Turns stored rows into the README's table and plots: of every benchmark, device and dtype the newest row counts.
With --readme, the lines between <!-- bench --> and <!-- /bench --> are replaced. Plots are written beside the rows.
The last line of stdout is JSON.
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from bench import growth, timing
from grpo.run.plot import line_plot

BEGIN, END = "<!-- bench -->", "<!-- /bench -->"
HEADER = "| benchmark | case | ours | peer | times faster (range) | target | share of the ceiling |\n|---|---|---|---|---|---|---|"


def newest(rows: Sequence[Mapping]) -> list[Mapping]:
    """One row per benchmark, part of it, device and dtype; smoke rows do not count."""
    found = {
        (row["bench"], row.get("part", ""), device(row), row["options"].get("dtype", "")): row
        for row in rows
        if not row["options"]["smoke"]
    }
    return [found[key] for key in sorted(found)]


def device(row: Mapping) -> str:
    return row["options"].get("device", "cpu")


def table(rows: Sequence[Mapping]) -> str:
    return "\n".join([HEADER, *(line for row in rows for line in lines(row))])


def lines(row: Mapping) -> Iterator[str]:
    """A table line per case with a comparison or a share of the ceiling."""
    for case in row["cases"]:
        if "seconds" not in case or "ours" not in case["seconds"]:
            continue
        peer = case.get("peer")
        low, high = case.get("ratio_range", (0, 0))
        cells = [
            f"{row['bench']}, {device(row)}",
            case["name"],
            duration(case["seconds"]["ours"]["median"]),
            f"{peer}: {duration(case['seconds'][peer]['median'])}" if peer else "",
            f"**{case['ratio']:.1f}** ({low:.1f} to {high:.1f})" if peer else "",
            f"{case['target']:g}" if "target" in case else "",
            f"{100 * case['ceiling_share']:.0f} %" if "ceiling_share" in case else "",
        ]
        yield "| " + " | ".join(cells) + " |"


def duration(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


def footing(rows: Sequence[Mapping]) -> str:
    """What the figures were measured on."""
    return "\n".join(
        sorted(
            {
                f"Measured on {row['machine']['gpu'] or row['machine']['cpu']}, {row['machine']['cores']} cores, torch "
                f"{row['machine']['versions'].get('torch')}; {row['bench']}: {row['date']}, commit {row['machine']['commit']}."
                for row in rows
            }
        )
    )


def plot_memory(folder: Path, row: Mapping) -> list[str]:
    """Peak memory of log-probs against tokens."""
    names = []
    for number, measured in enumerate(row["peak_megabytes"], 1):
        curves = {
            side: list(zip(measured["tokens"], measured[side], strict=True))
            for side in ("ours", "torch")
            if side in measured
        }
        names.append(f"logprob_memory_{number}.png")
        line_plot(folder / names[-1], curves, f"tokens, {measured['name']}", "peak memory, MB")
    return names


def draw_plots(folder: Path, rows: Sequence[Mapping]) -> list[str]:
    drawers = {"growth": growth.plots, "logprob": plot_memory}
    return [name for row in rows if row["bench"] in drawers for name in drawers[row["bench"]](folder, row)]


def replace_block(readme: Path, block: str) -> None:
    text = readme.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{readme} has no lines {BEGIN} and {END}")
    readme.write_text(f"{before}{BEGIN}\n{block}\n{END}{after}", encoding="utf-8")


def main(argv: list[str] | None = None) -> dict:
    arguments = argparse.ArgumentParser(
        prog="python -m bench.report",
        description=__doc__.partition("\n\n")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    arguments.add_argument("--results", type=Path, default=timing.RESULTS)
    arguments.add_argument("--readme", type=Path)
    options = arguments.parse_args(argv)
    rows = [row for row in newest(timing.read_rows(options.results)) if row["cases"]]
    block = f"{table(rows)}\n\n{footing(rows)}"
    print(block)
    if options.readme:
        replace_block(options.readme, block)
    result = {"bench": "report", "rows": len(rows), "plots": draw_plots(options.results, rows)}
    print(json.dumps(result))
    return result


if __name__ == "__main__":
    main()

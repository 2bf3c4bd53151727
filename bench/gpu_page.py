"""python -m bench.gpu_page FOLDER

Read what bench/gpu_checks.sh has measured so far, and say in page.md what to do next: how the parts ended, the share of
the floor that each case reaches, and the three largest losses, each with the operations to look at first. A loss is the
time of a phase of a complete step beyond its floor. The last line of stdout is JSON.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from bench.record import duration, markdown_table, plain_parser, read_rows
from bench.timing import our_seconds
from grpo.base.storage import write_atomically

NUM_LOSSES = 3
NUM_SHOWN = 4  # operations and products per loss
PROFILED = {"generate": ", LoRA", "reference": ", training", "train": ", training"}  # which profile shows a phase
MODELS = {"knowrl": "7b", "math": "1.5b"}  # of a shape


def parts_table(folder: Path) -> str:
    """Show how each part ended, from parts.log: name, seconds, how."""
    log = folder / "parts.log"
    lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    return markdown_table(("part", "seconds", "how it ended"), [line.split(maxsplit=2) for line in lines])


def share_table(rows: Iterable[Mapping]) -> str:
    """Show the share of the floor of every case but single products."""
    lines = []
    for row in rows:
        for case in row["cases"]:
            if row["bench"] != "products" and "ceiling_share" in case:
                share, target = f"{case['ceiling_share']:.0%}", case.get("target")
                wanted = f"{target:.0%}" if target and target <= 1 else ""
                lines.append((row["bench"], case["name"], duration(our_seconds(case)), share, wanted))
    return markdown_table(("benchmark", "case", "time", "share of the floor", "target"), lines)


def losses(rows: Sequence[Mapping]) -> list[tuple[float, str, str, str]]:
    """Return seconds beyond the floor, shape, phase and a sentence for every phase of a step, the largest first.

    The newest row of a part counts, and in it the first case: a slow judge changes none of these phases.
    """
    found = {}
    for row in reversed(rows):
        for case in row["cases"]:
            for phase, floor in case.get("floors", {}).items():
                spent = case["phases"][phase]
                text = f"{case['name']}, {phase}: {duration(spent)}, of which {duration(floor)} are needed"
                shape = case["name"].partition(":")[0]
                found.setdefault((row["part"], phase), (spent - floor, shape, phase, text))
    return sorted(found.values(), reverse=True)


def suspects(rows: Sequence[Mapping], shape: str, phase: str) -> list[str]:
    """Return what to look at first: the longest operations of the phase, and the products furthest from their floor."""
    model, mark = MODELS.get(shape, shape), PROFILED[phase]
    lines, products = [], []
    for row in rows:
        for name, operations in row.get("profiles", {}).items():
            if mark in name and name.startswith((shape, model)):
                total = sum(operation["microseconds"] for operation in operations)
                for operation in operations[:NUM_SHOWN]:
                    lines.append(f"{operation['microseconds'] / total:.0%} of {name}: {operation['name'][:80]}")
        for case in row["cases"]:
            if row["bench"] == "products" and phase == "generate" and case["name"].startswith(model):
                products.append((our_seconds(case) * (1 - case["ceiling_share"]), case["name"]))
    products.sort(reverse=True)
    return lines + [f"{duration(lost)} a call lost in {name}" for lost, name in products[:NUM_SHOWN]]


def page(folder: Path) -> str:
    """Write the page of what has been measured so far."""
    rows = read_rows(folder, "gpu_rows.jsonl*")
    machine = rows[-1]["machine"] if rows else {}
    versions = ", ".join(f"{name} {number}" for name, number in machine.get("versions", {}).items())
    head = f"{machine.get('gpu') or machine.get('cpu')}, {versions}, commit {machine.get('commit')}"
    failed = [f"- {check}: {value}" for row in rows for check, value in row["checks"].items() if "failed" in check]
    failed += [f"- {check}" for row in rows for check, value in row["checks"].items() if value is False]
    sections = ["# What was measured", head, "## How the parts ended", parts_table(folder)]
    if failed:
        sections += ["## Mend this first", "\n".join(failed)]
    sections += ["## Share of the floor", share_table(rows), "## The largest losses of a step"]
    for lost, shape, phase, text in losses(rows)[:NUM_LOSSES]:
        sections.append(f"**{duration(lost)} lost**: {text}.")
        sections.append("\n".join(f"- {line}" for line in suspects(rows, shape, phase)))
    return "\n\n".join(filter(None, sections)) + "\n"


def main(argv: list[str] | None = None) -> dict:
    parser = plain_parser("bench.gpu_page", __doc__)
    parser.add_argument("folder", type=Path, help="RESULTS of bench/gpu_checks.sh")
    folder = parser.parse_args(argv).folder
    text = page(folder)
    write_atomically(folder / "page.md", text)
    print(text)
    result = {"bench": "gpu_page", "lines": text.count("\n")}
    print(json.dumps(result))
    return result


if __name__ == "__main__":
    main()

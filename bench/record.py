"""Read the options of a benchmark, and record what it measures: each case at once, and one row of JSON at the end.

The row is the last line that a benchmark prints. It holds `cases` (one dictionary each: name, seconds of each side,
ratio, share of the ceiling), `checks` (what must hold for the comparison to mean anything, measured in the same run),
the options and the machine.
"""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from grpo.base.progress import command_parser

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).with_name("results")
PACKAGES = ("torch", "transformers", "trl", "peft")
NO_PEER: Mapping[str, Sequence[str]] = {"none": ()}
Sizes = Mapping[str, Mapping[str, Any]]


# --- Options -------------------------------------------------------------------------------------------------------


def parse(
    module: str,
    doc: str,
    argv: Sequence[str] | None,
    sizes: Sizes,
    peers: Mapping[str, Sequence[str]] = NO_PEER,
    dtypes: Sequence[str] = ("bfloat16", "float32"),
    choices: Mapping[str, Sequence[str]] | None = None,
) -> argparse.Namespace:
    """Read the options that every benchmark has, and one for each of its sizes; note the load of the machine.

    sizes: under "cpu" the name and default of each size, under "cuda" the defaults that differ on a GPU, under "smoke"
    the values for a trial, which also replace what was given. A default of False makes a flag.
    peers: name -> packages that it needs. The first peer and the first dtype are the defaults.
    dtypes: none if the benchmark runs on a CPU only. choices: size -> values that it may have.
    """
    parser = plain_parser(module, doc)
    parser.set_defaults(device="cpu")
    if dtypes:
        parser.add_argument("--device", choices=("cpu", "cuda"))
        parser.add_argument("--dtype", choices=dtypes, default=dtypes[0])
    parser.add_argument("--peer", choices=peers, default=next(iter(peers)), help="what to compare with")
    parser.add_argument("--repeats", type=int, default=5, help="how often each side runs; the sides take turns")
    parser.add_argument("--smoke", action="store_true", help="use tiny sizes, to see whether the benchmark runs")
    saving = "append the row to a file in FOLDER (default: bench/results)"
    parser.add_argument("--save", type=Path, nargs="?", const=RESULTS, metavar="FOLDER", help=saving)
    add_sizes(parser, sizes, choices or {})
    options = parser.parse_args(argv)
    missing = [package for package in peers[options.peer] if not find_spec(package)]
    if missing:
        parser.error(f"{options.peer} needs {', '.join(missing)}: pip install -e '.[bench]', or choose --peer none")
    fill_in(options, sizes)
    options.load_before = os.getloadavg()
    return options


def plain_parser(module: str, doc: str) -> argparse.ArgumentParser:
    """Make a parser whose help shows a module's docstring, without its first line, which is the usage."""
    return command_parser(module, doc.partition("\n\n")[2])


def add_sizes(parser: argparse.ArgumentParser, sizes: Sizes, choices: Mapping[str, Sequence[str]]) -> None:
    """Add an option for each size; it is None unless it is given."""
    on_gpu = sizes.get("cuda", {})
    for name, value in sizes["cpu"].items():
        option = f"--{name.replace('_', '-')}"
        if value is False:
            parser.add_argument(option, action="store_true", default=None)
            continue
        is_list = isinstance(value, list)
        shown = f"default: {as_typed(value)}"
        if name in on_gpu:
            shown += f"; on a GPU {as_typed(on_gpu[name])}"
        parser.add_argument(
            option,
            type=type(value[0] if is_list else value),
            nargs="+" if is_list else None,
            choices=choices.get(name),
            help=shown,
        )


def as_typed(value: object) -> str:
    """Write a size as it would be typed."""
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def fill_in(options: argparse.Namespace, sizes: Sizes) -> None:
    """Set the sizes that were not given to those of the device, and for a trial some sizes to tiny ones."""
    settings = vars(options)
    for name, value in (sizes["cpu"] | sizes.get(options.device, {})).items():
        if settings[name] is None:
            settings[name] = value
    if options.smoke:
        settings.update(sizes.get("smoke", {}), repeats=min(options.repeats, 2))


# --- Results -------------------------------------------------------------------------------------------------------


class Record:
    """The cases and checks of one run of a benchmark.

    If the row is to be saved, each case is also written to NAME.PID.partial at once. A benchmark that is killed leaves
    that file behind.
    """

    def __init__(self, name: str, options: argparse.Namespace):
        self.name, self.options = name, options
        self.cases: list[Mapping] = []
        self.checks: dict[str, object] = {}

    @property
    def partial(self) -> Path:
        return self.options.save / f"{self.name}.{os.getpid()}.partial"

    def add(self, case: Mapping) -> None:
        """Keep a case, and print one line about it."""
        self.cases.append(case)
        print(line_about(case), flush=True)
        if self.options.save:
            append(self.partial, case)

    def finish(self, **more: object) -> dict:
        """Print the row as the last line, append it to the results if --save asks for it, and return it."""
        for check, value in self.checks.items():
            print(f"check  {check}: {value}")
        settings = dict(vars(self.options))
        load_before = settings.pop("load_before")
        for key, value in settings.items():
            if isinstance(value, Path):
                settings[key] = value.name  # the rest of the path says nothing about the figures
        row = {
            "bench": self.name,
            "date": time.strftime("%Y-%m-%d"),
            "options": settings,
            "cases": self.cases,
            "checks": self.checks,
            **more,
            "load": {"before": list(load_before), "after": list(os.getloadavg())},
            "machine": machine(self.options.device),
        }
        if self.options.save:
            append(self.options.save / f"{self.name}.jsonl", row)
            self.partial.unlink(missing_ok=True)
        print(json.dumps(row), flush=True)
        return row


def line_about(case: Mapping) -> str:
    """Say in one line what was measured."""
    parts = [f"{name} {1e3 * spent['median']:.4g} ms" for name, spent in case["seconds"].items()]
    if "ratio" in case:
        low, high = case["ratio_range"]
        parts.append(f"{case['ratio']:.2f} × {case['peer']} ({low:.2f} to {high:.2f})")
    if "tokens_per_s" in case:
        parts.append(f"{case['tokens_per_s']:.5g} tokens/s")
    if "ceiling_share" in case:
        parts.append(f"{case['ceiling_share']:.0%} of the ceiling")
    return f"{case['name']:44} {'   '.join(parts)}"


def phases_line(phases: Mapping[str, float]) -> str:
    """Say in one line how long each phase took."""
    return ", ".join(f"{phase} {spent:.3f} s" for phase, spent in phases.items())


def append(path: Path, record: Mapping) -> None:
    """Append a line of JSON to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a", encoding="utf-8") as file:
        print(json.dumps(record), file=file)


def read_rows(folder: Path) -> list[dict]:
    """Read all rows of a results folder, the oldest of each file first."""
    rows = []
    for path in sorted(folder.glob("*.jsonl")):
        rows += map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return rows


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Make a table in Markdown."""
    lines = ["| " + " | ".join(cells) + " |" for cells in (columns, *rows)]
    lines.insert(1, "|---" * len(columns) + "|")
    return "\n".join(lines)


def machine(device: str) -> dict:
    """Describe what the figures depend on."""
    found = {
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "gpu": None,
        "python": platform.python_version(),
        "commit": git("rev-parse", "--short", "HEAD"),
        "changed": bool(git("status", "--porcelain", "--untracked-files=no", ".", ":!bench/results")),
    }
    if "torch" in sys.modules:
        import torch

        found["threads"] = torch.get_num_threads()
        if device == "cuda":
            found["gpu"] = torch.cuda.get_device_name()
    found["versions"] = {}
    for package in PACKAGES:
        try:
            found["versions"][package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def cpu_name() -> str:
    """Return the processor's name, by Linux."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def git(*arguments: str) -> str | None:
    """Return what a git command prints; None if there is no git or no checkout."""
    if not shutil.which("git"):
        return None
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None

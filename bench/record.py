"""Read the options of a benchmark, and record what it measures as rows of JSON.

A row holds `cases` (one dictionary each: name, seconds and tokens per second of each side, ratio, share of the
ceiling), `checks` (what must hold for the comparison to mean anything, measured in the same run), `profiles`, the
options and the machine. The last line that a benchmark prints is one row with everything.
"""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench import timing
from grpo.base.progress import command_parser

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).with_name("results")
PACKAGES = ("torch", "transformers", "trl", "peft")
NO_PEER: Mapping[str, Sequence[str]] = {"none": ()}
COLUMNS = (  # of the table of cases
    *("benchmark", "case", "ours", "tokens/s", "peer", "its tokens/s"),
    *("times faster (range)", "target", "share of the ceiling"),
)
Sizes = Mapping[str, Mapping[str, Any]]


# --- Options -------------------------------------------------------------------------------------------------------


def parse(
    name: str,
    doc: str,
    argv: Sequence[str] | None,
    sizes: Sizes,
    peers: Mapping[str, Sequence[str]] = NO_PEER,
    dtypes: Sequence[str] = ("bfloat16", "float32"),
    choices: Mapping[str, Sequence[str]] | None = None,
) -> argparse.Namespace:
    """Read the options that every benchmark has, and one for each of its sizes.

    sizes: under "cpu" the name and default of each size, under "cuda" the defaults that differ on a GPU, under "smoke"
    the values for a trial, which also replace what was given.
    peers: name -> packages that it needs. The first peer and the first dtype are the defaults.
    dtypes: none if the benchmark runs on a CPU only. choices: size -> values that it may have.
    """
    parser = plain_parser(f"bench.{name}", doc)
    parser.set_defaults(device="cpu")
    if dtypes:
        parser.add_argument("--device", choices=("cpu", "cuda"))
        parser.add_argument("--dtype", choices=dtypes, default=dtypes[0])
    parser.add_argument("--peer", choices=peers, default=next(iter(peers)), help="what to compare with")
    parser.add_argument("--repeats", type=int, default=5, help="how often each side runs; the sides take turns")
    parser.add_argument("--smoke", action="store_true", help="use tiny sizes, to see whether the benchmark runs")
    add_save(parser, f"{name}.jsonl")
    for size, value in sizes["cpu"].items():
        add_size(parser, size, value, (choices or {}).get(size))
    device = parser.parse_known_args(argv)[0].device
    parser.set_defaults(**sizes.get(device, {}))
    options = parser.parse_args(argv)
    missing = [package for package in peers[options.peer] if not find_spec(package)]
    if missing:
        parser.error(f"{options.peer} needs {', '.join(missing)}: pip install -e '.[bench]', or choose --peer none")
    if options.device == "cuda":
        import torch  # not before: some benchmarks need none

        if not torch.cuda.is_available():
            parser.error("torch finds no GPU: choose --device cpu")
    if options.smoke:
        vars(options).update(sizes.get("smoke", {}), repeats=min(options.repeats, 2))
    return options


def plain_parser(module: str, doc: str) -> argparse.ArgumentParser:
    """Make a parser whose help shows a module's docstring, without its first line, which is the usage."""
    return command_parser(module, doc.partition("\n\n")[2])


def add_save(parser: argparse.ArgumentParser, name: str) -> None:
    """Add --save. name: of the file in bench/results that gets the rows, if no other is named."""
    text = f"append the rows to FILE (default: bench/results/{name})"
    parser.add_argument("--save", type=Path, nargs="?", const=RESULTS / name, metavar="FILE", help=text)


def add_size(parser: argparse.ArgumentParser, name: str, value: Any, choices: Sequence[str] | None) -> None:
    """Add the option of a size. value: its default, or a list of one kind; a default of False makes a flag."""
    option = f"--{name.replace('_', '-')}"
    shared = {"default": value, "choices": choices, "help": "default: %(default)s"}
    if value is False:
        parser.add_argument(option, action="store_true")
    elif isinstance(value, list):
        parser.add_argument(option, type=type(value[0]), nargs="+", **shared)
    else:
        parser.add_argument(option, type=type(value), **shared)


# --- Results -------------------------------------------------------------------------------------------------------


class Results:
    """What one run of a benchmark has measured.

    With --save, each case, check and profile is appended to a file at once, as a row of its own, so that a benchmark
    that is killed loses none. peaks: measures the machine's ceilings (ceilings.peaks). more: what else the rows should
    hold.
    """

    def __init__(
        self,
        name: str,
        options: argparse.Namespace,
        peaks: Callable[[argparse.Namespace], Mapping[str, float]] | None = None,
        **more: object,
    ):
        self.options = options
        self.peak = peaks(options) if peaks else {}
        self.about = {
            "bench": name,
            "date": time.strftime("%Y-%m-%d"),
            "options": {key: value for key, value in vars(options).items() if key != "save"},
            "machine": machine(options.device),
            "ceilings": self.peak or None,
            **more,
        }
        self.row: dict = self.about | {"cases": [], "checks": {}, "profiles": {}}

    def compare(
        self,
        name: str,
        sides: timing.Sides,
        tokens: float | None,
        floor: float | None = None,
        times: int = 1,
        **more: object,
    ) -> dict:
        """Time the sides, make a case of it, and keep that.

        tokens: of one time; None if there are none. floor: the least time that ours could take.
        times: how often a side does its work in one run. The case has the seconds of one time.
        """
        timed = timing.interleave(sides, self.options.repeats, self.options.device)
        seconds = {side: [spent / times for spent in found] for side, found in timed.items()}
        case = timing.make_case(name, seconds, tokens, floor, **more)
        self.add(case)
        return case

    def add(self, case: dict) -> None:
        """Keep a case, and print its line of the table."""
        assert not self.row["profiles"], "a profiler slows what follows it: profile after the last case"
        filled = zip(COLUMNS, cells(self.about, case), strict=True)
        print("   ".join(f"{column} {cell}" for column, cell in filled if cell), flush=True)
        self.row["cases"].append(case)
        self._save(cases=[case])

    def check(self, checks: Mapping[str, object]) -> None:
        """Keep some checks, and print them."""
        for check, value in checks.items():
            print(f"check  {check}: {value}", flush=True)
        self.row["checks"] |= checks
        self._save(checks=checks)

    def profile(self, name: str, run: timing.Side) -> None:
        """Profile one run after all cases; keep and print the operations that take longest."""
        found = {name: timing.profile(run, self.options.device)}
        self.row["profiles"] |= found
        self._save(profiles=found)

    def finish(self) -> dict:
        """Print and return the row of everything."""
        print(json.dumps(self.row), flush=True)
        return self.row

    def _save(self, **found: object) -> None:
        """Append a row of what was found to the results, if --save asks for it."""
        if self.options.save:
            nothing = {
                "cases": [],
                "checks": {},
                "profiles": {},
            }
            append(self.options.save, [self.about | nothing | found])


def append(path: Path, rows: Iterable[Mapping]) -> None:
    """Add rows of JSON to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def cells(row: Mapping, case: Mapping) -> list[str]:
    """Fill the columns of a case. A column stays empty if the case has nothing for it.

    Targets are those of machines with units for bfloat16.
    """
    rates = {side: rate(found) for side, found in case.get("tokens_per_s", {}).items()}
    side = case.get("peer", "")
    peer = faster = ""
    if side:
        low, high = case["ratio_range"]
        peer = f"{side}: {duration(case['seconds'][side]['median'])}"
        faster = f"**{case['ratio']:.1f}** ({low:.1f} to {high:.1f})"
    peak = row.get("ceilings") or {}
    has_units = peak.get("bfloat16_tflops", 0) >= peak.get("float32_tflops", 0)
    target = case.get("target") or 0 if has_units else 0
    aim = f"{target:g} ×" if target > 1 else f"{100 * target:.0f} %"  # of the peer's speed, or of the ceiling
    share = f"{100 * case['ceiling_share']:.0f} %" if "ceiling_share" in case else ""
    options = row["options"]
    name = ", ".join(filter(None, (row["bench"], options.get("device", "cpu"), options.get("dtype"))))
    ours = [duration(timing.our_seconds(case)), rates.get("ours", "")]
    return [name, case["name"], *ours, peer, rates.get(side, ""), faster, aim if target else "", share]


def duration(seconds: float) -> str:
    """Write a time with its unit."""
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{1e3 * seconds:.3g} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.3g} µs"


def rate(tokens_per_s: float) -> str:
    """Write a number of tokens per second.

    >>> rate(1247.7), rate(0.4567)
    ('1,248', '0.457')
    """
    return f"{tokens_per_s:,.0f}" if tokens_per_s >= 100 else f"{tokens_per_s:.3g}"


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
        "versions": {package: version(package) for package in PACKAGES if find_spec(package)},
    }
    if "torch" in sys.modules:
        import torch  # it is there

        found["threads"] = torch.get_num_threads()
        if device == "cuda":
            found["gpu"] = torch.cuda.get_device_name()
    return found


def cpu_name() -> str:
    """Return the processor's name, by Linux."""
    named = re.search("^model name\\s*: (.*)", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    return named[1] if named else platform.processor()


def git(*arguments: str) -> str | None:
    """Return what a git command prints; None if there is no git or no checkout."""
    with suppress(OSError, subprocess.CalledProcessError):
        return subprocess.check_output(["git", *arguments], cwd=ROOT, text=True, stderr=subprocess.DEVNULL).strip()
    return None

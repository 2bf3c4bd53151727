"""What the benchmarks share: their options, interleaved repeats, the statistics of a comparison, the machine, the JSON
line.

A row, the last line of every benchmark, holds `cases` (one dictionary each: name, seconds per side, ratio, share of the
ceiling), `checks` (what must hold for the comparison to mean anything, measured in the same run), the options and the
machine.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).with_name("results")
PACKAGES = ("torch", "transformers", "trl", "peft")


def parser(
    module: str, doc: str, peers: Sequence[str] = ("none",), dtypes: Sequence[str] = ("bfloat16", "float32")
) -> argparse.ArgumentParser:
    """The options that every benchmark has. The first peer and dtype are the default; a benchmark without dtypes runs
    on a CPU only."""
    made = argparse.ArgumentParser(
        prog=f"python -m {module}",
        description=doc.partition("\n\n")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if dtypes:
        made.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
        made.add_argument("--dtype", choices=dtypes, default=dtypes[0])
    made.add_argument("--peer", choices=peers, default=peers[0], help="whom to compare with")
    made.add_argument("--repeats", type=int, default=5, help="of each side, alternately")
    made.add_argument("--smoke", action="store_true", help="tiny sizes: does it run?")
    made.add_argument("--save", action="store_true", help="append the row to bench/results/")
    return made


def parse(arguments: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """The options, with the load of the machine before anything was measured."""
    options = arguments.parse_args(argv)
    options.repeats = min(options.repeats, 2) if options.smoke else options.repeats
    options.load_before = os.getloadavg()
    return options


def interleave(
    sides: Mapping[str, Callable[[], object]], repeats: int, device: str = "cpu", warm_up: int = 1
) -> dict[str, list[float]]:
    """Seconds of each side in each repeat. The sides take turns, and the order turns round in every other repeat, so
    that a slow moment of the machine meets all of them. On a GPU, time is taken by events on its stream."""
    for _ in range(warm_up):
        for side in sides.values():
            side()
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for repeat in range(repeats):
        for name in list(sides) if repeat % 2 == 0 else reversed(sides):
            seconds[name].append(once(sides[name], device))
    return seconds


def once(side: Callable[[], object], device: str = "cpu") -> float:
    """Seconds of one call."""
    if device != "cuda":
        start = time.perf_counter()
        side()
        return time.perf_counter() - start
    import torch

    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    side()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e3


def now(device: str) -> float:
    """The time when all work handed to the device so far is done."""
    if device == "cuda":
        import torch

        torch.cuda.synchronize()
    return time.perf_counter()


def spread(values: Sequence[float]) -> dict[str, float | list[float]]:
    return {"median": statistics.median(values), "range": [min(values), max(values)]}


def ratio(ours: Sequence[float], peer: Sequence[float]) -> dict[str, float | list[float]]:
    """How many times longer the peer takes, repeat by repeat."""
    ratios = [b / a for a, b in zip(ours, peer, strict=True)]
    return {"ratio": statistics.median(ratios), "ratio_range": [min(ratios), max(ratios)]}


def compare(seconds: Mapping[str, Sequence[float]], ours: str = "ours") -> dict:
    """A case's figures: seconds of each side, and the ratio to the fastest of the others."""
    others = [name for name in seconds if name != ours]
    result = {"seconds": {name: spread(values) for name, values in seconds.items()}}
    if others:
        fastest = min(others, key=lambda name: statistics.median(seconds[name]))
        result |= {"peer": fastest, **ratio(seconds[ours], seconds[fastest])}
    return result


def machine(device: str = "cpu") -> dict:
    """What the figures depend on."""
    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in open("/proc/cpuinfo", encoding="utf-8")
            if line.startswith("model name")
        ),
        "",
    )
    changed = _git("status", "--porcelain", "--untracked-files=no", ".", ":!bench/results")
    found = {
        "cpu": cpu or platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "gpu": None,
        "python": platform.python_version(),
        "commit": _git("rev-parse", "--short", "HEAD"),
        "changed": bool(changed),
    }
    if "torch" in sys.modules:
        import torch

        found |= {"threads": torch.get_num_threads(), "gpu": torch.cuda.get_device_name() if device == "cuda" else None}
    return found | {"versions": dict(_versions())}


def _versions() -> Iterator[tuple[str, str]]:
    for package in PACKAGES:
        try:
            yield package, version(package)
        except PackageNotFoundError:
            continue


def _git(*arguments: str) -> str | None:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None


def show(case: Mapping) -> None:
    """A line for the reader."""
    parts = [f"{name} {1e3 * spent['median']:.4g} ms" for name, spent in case["seconds"].items()]
    if "ratio" in case:
        low, high = case["ratio_range"]
        parts.append(f"{case['ratio']:.2f} × {case['peer']} ({low:.2f} to {high:.2f})")
    parts += [f"{case['tokens_per_s']:.5g} tokens/s"] if "tokens_per_s" in case else []
    parts += [f"{100 * case['ceiling_share']:.0f} % of the ceiling"] if "ceiling_share" in case else []
    print(f"{case['name']:44} " + "   ".join(parts), flush=True)


def finish(name: str, options: argparse.Namespace, cases: Sequence[Mapping], checks: Mapping, **more: object) -> dict:
    """Prints the row as the last line, keeps it if asked to, and returns it."""
    for check, value in checks.items():
        print(f"check  {check}: {value}")
    settings = {
        key: value.name if isinstance(value, Path) else value
        for key, value in vars(options).items()
        if key != "load_before"
    }
    row = {
        "bench": name,
        "date": time.strftime("%Y-%m-%d"),
        "options": settings,
        "cases": list(cases),
        "checks": dict(checks),
        **more,
        "load": {"before": list(options.load_before), "after": list(os.getloadavg())},
        "machine": machine(getattr(options, "device", "cpu")),
    }
    line = json.dumps(row)
    if options.save:
        RESULTS.mkdir(exist_ok=True)
        with open(RESULTS / f"{name}.jsonl", "a", encoding="utf-8") as file:
            print(line, file=file)
    print(line, flush=True)
    return row


def read_rows(folder: Path) -> list[dict]:
    """All rows of a results folder, oldest first within each file."""
    return [
        json.loads(line)
        for path in sorted(folder.glob("*.jsonl"))
        for line in path.read_text(encoding="utf-8").splitlines()
    ]

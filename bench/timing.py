"""Share what all benchmarks need: options, interleaved repeats, comparisons, profiles, the machine, the JSON line.

The last line that a benchmark prints is its row. A row holds `cases` (one dictionary each: name, seconds of each side,
ratio, share of the ceiling), `checks` (what must hold for the comparison to mean anything, measured in the same run),
the options and the machine.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from grpo.progress import command_parser

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).with_name("results")
PACKAGES = ("torch", "transformers", "trl", "peft")
NUM_PROFILED = 12  # operations that a profile lists


# --- Options -------------------------------------------------------------------------------------------------------


def parser(
    module: str,
    doc: str,
    peers: Sequence[str] = ("none",),
    dtypes: Sequence[str] = ("bfloat16", "float32"),
    choices: Mapping[str, Sequence[str]] | None = None,
    **sizes: Mapping[str, Any],
) -> argparse.ArgumentParser:
    """Make a parser with the options that every benchmark has, and one for each of its sizes.

    The first peer and the first dtype are the defaults. A benchmark without dtypes runs on a CPU only. sizes: name ->
    value, on a CPU (cpu), where it is another on a GPU (cuda), and for a trial (smoke). choices: of a size.
    """
    made = plain_parser(module, doc)
    if dtypes:
        made.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
        made.add_argument("--dtype", choices=dtypes, default=dtypes[0])
    made.add_argument("--peer", choices=peers, default=peers[0], help="what to compare with")
    made.add_argument("--repeats", type=int, default=5, help="how often each side runs; the sides take turns")
    made.add_argument("--smoke", action="store_true", help="use tiny sizes, to see whether the benchmark runs")
    made.add_argument("--save", action="store_true", help="append the row to bench/results/")
    on_gpu = sizes.get("cuda", {})
    for name, value in sizes.get("cpu", {}).items():
        is_list = isinstance(value, list)
        made.add_argument(
            f"--{name.replace('_', '-')}",
            type=type(value[0] if is_list else value),
            nargs="+" if is_list else None,
            choices=(choices or {}).get(name),
            help=f"default: {value}" + (f"; on a GPU {on_gpu[name]}" if name in on_gpu else ""),
        )
    return made


def plain_parser(module: str, doc: str) -> argparse.ArgumentParser:
    """Make a parser whose help shows a module's docstring, without its first line, which is the usage."""
    return command_parser(module, doc.partition("\n\n")[2])


def parse(
    arguments: argparse.ArgumentParser, argv: Sequence[str] | None, **sizes: Mapping[str, Any]
) -> argparse.Namespace:
    """Parse the options, and note the load of the machine before anything is measured.

    sizes: as in `parser`; those of `smoke` replace what was given, too.
    """
    options = arguments.parse_args(argv)
    settings = vars(options)
    unset = {name for name, value in settings.items() if value is None}
    chosen = {**sizes.get("cpu", {}), **sizes.get(settings.get("device", "cpu"), {})}
    settings.update({name: value for name, value in chosen.items() if name in unset})
    if options.smoke:
        settings.update(sizes.get("smoke", {}), repeats=min(options.repeats, 2))
    options.load_before = os.getloadavg()
    if getattr(options, "save", False):
        Unfinished.path = RESULTS / f"{arguments.prog.rpartition('.')[2]}.{os.getpid()}.partial"
    return options


class Unfinished:
    """Where the cases of a benchmark that saves are kept until its row is written; killed, it leaves them there."""

    path: Path | None = None


# --- Time ----------------------------------------------------------------------------------------------------------


def interleave(sides: Mapping[str, Callable[[], object]], repeats: int, device: str = "cpu") -> dict[str, list[float]]:
    """Return the seconds of each side in each repeat, after one run of each that does not count.

    The sides take turns, in the opposite order in every other repeat, so that a slow moment of the machine meets all
    of them.
    """
    for side in sides.values():
        side()
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for repeat in range(repeats):
        for name in list(sides) if repeat % 2 == 0 else reversed(sides):
            seconds[name].append(once(sides[name], device))
    return seconds


def once(side: Callable[[], object], device: str = "cpu") -> float:
    """Return the seconds of one call; on a GPU, by events on its stream."""
    if device != "cuda":
        start = time.perf_counter()
        side()
        return time.perf_counter() - start
    import torch

    begin = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    begin.record()
    side()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e3


def now(device: str) -> float:
    """Wait until the device has done all its work, and return the time."""
    if device == "cuda":
        import torch

        torch.cuda.synchronize()
    return time.perf_counter()


def profile(run: Callable[[], object], device: str) -> list[dict]:
    """Print and return the operations that take longest, on the GPU if there is one."""
    from torch import profiler
    from torch.autograd import DeviceType

    activities = [profiler.ProfilerActivity.CPU]
    kind, attribute = DeviceType.CPU, "self_cpu_time_total"
    if device == "cuda":
        activities.append(profiler.ProfilerActivity.CUDA)
        kind, attribute = DeviceType.CUDA, "self_device_time_total"
    with profiler.profile(activities=activities) as recorded:
        run()
        now(device)
    operations = []
    for event in recorded.key_averages():
        microseconds = getattr(event, attribute)
        if event.device_type == kind and microseconds > 0:
            operations.append({"name": event.key[:120], "calls": event.count, "microseconds": microseconds})
    operations.sort(key=lambda operation: -operation["microseconds"])
    total = sum(operation["microseconds"] for operation in operations)
    for operation in operations[:NUM_PROFILED]:
        microseconds = operation["microseconds"]
        share = f"{100 * microseconds / total:5.1f} %  {microseconds:10.0f} µs"
        print(f"    {share}  {operation['calls']:6} calls  {operation['name'][:90]}", flush=True)
    return operations[:NUM_PROFILED]


# --- Comparisons ---------------------------------------------------------------------------------------------------


def spread(values: Sequence[float]) -> dict[str, float | list[float]]:
    """Return the median and the range of some values."""
    return {"median": statistics.median(values), "range": [min(values), max(values)]}


def ratio(ours: Sequence[float], peer: Sequence[float]) -> dict[str, float | list[float]]:
    """Return how many times longer the peer takes, compared repeat by repeat."""
    found = spread([theirs / own for own, theirs in zip(ours, peer, strict=True)])
    return {"ratio": found["median"], "ratio_range": found["range"]}


def compare(
    name: str, sides: Mapping[str, Callable[[], object]], options: argparse.Namespace, calls: int = 1, **more: object
) -> dict:
    """Time the sides, and make a case: the seconds of each, and the ratio of the fastest peer to ours.

    calls: what a side does so many times, of which the case has the seconds of one.
    """
    timed = interleave(sides, options.repeats, getattr(options, "device", "cpu"))
    seconds = {side: [spent / calls for spent in values] for side, values in timed.items()}
    case = {"name": name, "seconds": {side: spread(values) for side, values in seconds.items()}, **more}
    peers = [side for side in seconds if side != "ours"]
    if peers:
        fastest = min(peers, key=lambda side: case["seconds"][side]["median"])
        case |= {"peer": fastest, **ratio(seconds["ours"], seconds[fastest])}
    return case


def our_seconds(case: Mapping) -> float:
    """Return the median time of our side."""
    return case["seconds"]["ours"]["median"]


def rates(case: Mapping, tokens: int, ceiling_seconds: float) -> dict[str, float]:
    """Make the figures that follow from our time: tokens per second, and the share of the ceiling."""
    seconds = our_seconds(case)
    return {"tokens": tokens, "tokens_per_s": tokens / seconds, "ceiling_share": ceiling_seconds / seconds}


# --- Results -------------------------------------------------------------------------------------------------------


def show(case: Mapping) -> None:
    """Print one line about a case."""
    parts = [f"{name} {1e3 * spent['median']:.4g} ms" for name, spent in case["seconds"].items()]
    if "ratio" in case:
        low, high = case["ratio_range"]
        parts.append(f"{case['ratio']:.2f} × {case['peer']} ({low:.2f} to {high:.2f})")
    if "tokens_per_s" in case:
        parts.append(f"{case['tokens_per_s']:.5g} tokens/s")
    if "ceiling_share" in case:
        parts.append(f"{100 * case['ceiling_share']:.0f} % of the ceiling")
    print(f"{case['name']:44} {'   '.join(parts)}", flush=True)
    if Unfinished.path:
        _append(Unfinished.path, json.dumps(case))


def finish(name: str, options: argparse.Namespace, cases: Sequence[Mapping], checks: Mapping, **more: object) -> dict:
    """Print the row as the last line, append it to the results if --save asks for it, and return it."""
    for check, value in checks.items():
        print(f"check  {check}: {value}")
    settings = dict(vars(options))
    load_before = settings.pop("load_before")
    for key, value in settings.items():
        if isinstance(value, Path):
            settings[key] = value.name  # the rest of the path says nothing about the figures
    row = {
        "bench": name,
        "date": time.strftime("%Y-%m-%d"),
        "options": settings,
        "cases": list(cases),
        "checks": dict(checks),
        **more,
        "load": {"before": list(load_before), "after": list(os.getloadavg())},
        "machine": machine(settings.get("device", "cpu")),
    }
    line = json.dumps(row)
    if options.save:
        _append(RESULTS / f"{name}.jsonl", line)
    if Unfinished.path:
        Unfinished.path.unlink(missing_ok=True)
        Unfinished.path = None
    print(line, flush=True)
    return row


def _append(path: Path, line: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a", encoding="utf-8") as file:
        print(line, file=file)


def read_rows(folder: Path) -> list[dict]:
    """Read all rows of a results folder, the oldest of each file first."""
    rows = []
    for path in sorted(folder.glob("*.jsonl")):
        rows += map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return rows


def machine(device: str = "cpu") -> dict:
    """Describe what the figures depend on."""
    found = {
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "gpu": None,
        "python": platform.python_version(),
        "commit": _git("rev-parse", "--short", "HEAD"),
        "changed": bool(_git("status", "--porcelain", "--untracked-files=no", ".", ":!bench/results")),
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


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def _git(*arguments: str) -> str | None:
    if not shutil.which("git"):
        return None
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None

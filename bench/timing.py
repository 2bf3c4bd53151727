"""Time the sides of a comparison by turns, and profile one run."""

import statistics
import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence

NUM_PROFILED = 12  # operations that a profile lists
Side = Callable[[], object]  # does the work of one side once
Sides = Mapping[str, Side]
Spread = dict[str, float | list[float]]


def interleave(sides: Sides, repeats: int, device: str = "cpu") -> dict[str, list[float]]:
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


def once(side: Side, device: str = "cpu") -> float:
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


def spread(values: Sequence[float]) -> Spread:
    """Return the median and the range of some values."""
    return {"median": statistics.median(values), "range": [min(values), max(values)]}


def ratio(ours: Sequence[float], peer: Sequence[float]) -> Spread:
    """Return how many times longer the peer takes, compared repeat by repeat."""
    pairs = zip(ours, peer, strict=True)
    found = spread([theirs / own for own, theirs in pairs])
    return {"ratio": found["median"], "ratio_range": found["range"]}


def compare(name: str, sides: Sides, options: Namespace, calls: int = 1, **more: object) -> dict:
    """Time the sides, and make a case: the seconds of each, and the ratio of the fastest peer to ours.

    calls: how often a side repeats its work in one run. The case has the seconds of one call.
    """
    seconds = {}
    for side, timed in interleave(sides, options.repeats, options.device).items():
        seconds[side] = [spent / calls for spent in timed]
    case = {"name": name, "seconds": {side: spread(timed) for side, timed in seconds.items()}, **more}
    peers = [side for side in sides if side != "ours"]
    if peers:
        fastest = fastest_of(peers, case)
        case |= {"peer": fastest, **ratio(seconds["ours"], seconds[fastest])}
    return case


def fastest_of(sides: Sequence[str], case: Mapping) -> str:
    """Return the side with the smallest median time."""
    return min(sides, key=lambda side: case["seconds"][side]["median"])


def our_seconds(case: Mapping) -> float:
    """Return the median time of our side."""
    return case["seconds"]["ours"]["median"]


def rates(case: Mapping, tokens: int, floor: float) -> dict[str, float]:
    """Make the figures that follow from our time: tokens per second, and the share of the ceiling."""
    seconds = our_seconds(case)
    return {"tokens": tokens, "tokens_per_s": tokens / seconds, "ceiling_share": floor / seconds}


def profile(run: Side, device: str) -> list[dict]:
    """Print and return the operations that take longest, on the GPU if there is one."""
    from torch import profiler

    activity, attribute = profiler.ProfilerActivity.CPU, "self_cpu_time_total"
    if device == "cuda":
        activity, attribute = profiler.ProfilerActivity.CUDA, "self_device_time_total"
    with profiler.profile(activities=[activity]) as recorded:
        run()
        now(device)
    operations = []
    for event in recorded.key_averages():
        spent = getattr(event, attribute)
        operations.append({"name": event.key[:120], "calls": event.count, "microseconds": spent})
    operations.sort(key=lambda operation: -operation["microseconds"])
    total = sum(operation["microseconds"] for operation in operations)
    for operation in operations[:NUM_PROFILED]:
        spent, calls = operation["microseconds"], operation["calls"]
        print(f"    {spent / total:6.1%}  {spent:10.0f} µs  {calls:6} calls  {operation['name'][:90]}", flush=True)
    return operations[:NUM_PROFILED]

"""Time the sides of a comparison by turns, and profile one run."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence

NUM_PROFILED = 30  # operations that a profile lists
Side = Callable[[], object]  # does the work of one side once
Sides = Mapping[str, Side]


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
    """Return the seconds of one call; on a GPU, by events on its stream, so that waiting for it does not count."""
    if device != "cuda":
        start = time.perf_counter()
        side()
        return time.perf_counter() - start
    import torch  # not before: some benchmarks need none

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
        import torch  # as in `once`

        torch.cuda.synchronize()
    return time.perf_counter()


def spread(values: Sequence[float]) -> dict[str, float | list[float]]:
    """Return the median and the range of some values."""
    return {"median": statistics.median(values), "range": [min(values), max(values)]}


def make_case(
    name: str, seconds: Mapping[str, Sequence[float]], tokens: float | None, floor: float | None = None, **more: object
) -> dict:
    """Make a case of the seconds of each side, repeat by repeat.

    It has the tokens per second of each side, the ratio of the fastest peer to ours, compared repeat by repeat, and the
    share of the ceiling. tokens: what each side handles in these seconds; None for work that has no tokens.
    floor: the least time that our side could take.
    """
    case = {"name": name, "seconds": {side: spread(spent) for side, spent in seconds.items()}, **more}
    if tokens is not None:
        rates = {side: tokens / spent["median"] for side, spent in case["seconds"].items()}
        case |= {"tokens": tokens, "tokens_per_s": rates}
    peers = [side for side in seconds if side != "ours"]
    if peers:
        fastest = min(peers, key=lambda side: case["seconds"][side]["median"])
        pairs = zip(seconds["ours"], seconds[fastest], strict=True)
        ratio = spread([theirs / own for own, theirs in pairs])
        case |= {"peer": fastest, "ratio": ratio["median"], "ratio_range": ratio["range"]}
    if floor:
        case["ceiling_share"] = floor / our_seconds(case)
    return case


def our_seconds(case: Mapping) -> float:
    """Return the median time of our side."""
    return case["seconds"]["ours"]["median"]


def profile(run: Side, device: str) -> str:
    """Print and return a table of the operations that take longest, on the GPU if there is one."""
    from torch import profiler

    activity = profiler.ProfilerActivity.CPU
    attribute = "self_cpu_time_total"
    if device == "cuda":
        activity = profiler.ProfilerActivity.CUDA
        attribute = "self_device_time_total"
    with profiler.profile(activities=[activity]) as recorded:
        run()
        now(device)
    operations = recorded.key_averages().table(sort_by=attribute, row_limit=NUM_PROFILED)
    print(operations, flush=True)
    return operations

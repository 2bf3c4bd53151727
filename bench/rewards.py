"""python -m bench.rewards [--model 4m] [--prompts 8] [--group 12] [--shortest 0.5] [--longest 3]

What does a step cost with a judge that takes 0.5 to 3 s for each of 96 completions, and where does the difference come
from? The judge is a coroutine, as a client of an API is: it waits for a time drawn from the completion's number, the
same in every repeat, and all calls are in flight together. The sides take turns:
  without      the judge answers at once
  with         each call takes its time; calls start as completions end, the reference pass runs meanwhile, and micro-batches are
               trained in the order in which their rewards arrive
  in order     the same calls, but micro-batches wait for their turn (full_determinism): what the order of arrival saves
Completions end by themselves, at lengths around half of the limit, so that calls start while others are still being
generated.

Checked in the same run: every completion was judged once per step, and its score is the one that the step used.
`reward_phase` is the time from the first call to the last answer; the floor of a step is the slowest call. Targets: the
phase at most 1.2 times the slowest call; the sum of all calls is what one after the other would take.
The last line of stdout is JSON.
"""

import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from bench import models, steps, timing
from grpo.schema import Group, Score
from grpo.train import Trainer
from rewards.registry import Reward
from rewards.scorer import Scorer

PHASES = ("time/generate", "time/reference", "time/reward", "time/train")


@dataclass
class Judge:
    """`delays[n]`: seconds that the n-th call of a step takes. Remembers when calls began and ended."""

    delays: list[float]
    began: list[float] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)

    async def grade(self, completion: str, columns: Mapping[str, Any]) -> Score:
        number = len(self.began)
        self.began.append(time.perf_counter())
        await asyncio.sleep(self.delays[number])
        self.ended.append(time.perf_counter())
        return Score(value_of(columns["completion_ids"]))

    def phase(self) -> float:
        return max(self.ended) - min(self.began)


def value_of(ids: list[int]) -> float:
    return sum(token % 2 for token in ids) / len(ids)


def step(trainer: Trainer, delays: list[float], in_order: bool, seen: list[dict]) -> None:
    """One step under a judge of these delays; what it took goes to `seen`."""
    judge = Judge(delays)
    rollout = trainer.rollout
    rollout.config = replace(trainer.config, full_determinism=in_order)
    rollout.scorer.close()
    rollout.scorer = Scorer([Reward("judge", grade=judge.grade, slow=any(delays))])
    metrics, groups = trainer.train_step()
    seen.append(
        {
            "step": metrics["step_time"],
            "reward_phase": judge.phase(),
            "micro_batches": metrics["micro_batches"],
            "tokens": completion_tokens(groups),
            "judged": len(judge.ended),
            "wrong": wrong_scores(groups),
            **{name.partition("/")[2]: metrics[name] for name in PHASES},
        }
    )


def completion_tokens(groups: list[Group]) -> int:
    return sum(len(completion.ids) for group in groups for completion in group.completions)


def wrong_scores(groups: list[Group]) -> int:
    return sum(
        reward != value_of(completion.ids)
        for group in groups
        for completion, reward in zip(group.completions, group.rewards, strict=True)
    )


def explain(medians: Mapping[str, Mapping[str, float]], delays: list[float]) -> dict[str, float]:
    """Where the difference between with and without comes from, in seconds."""
    fast, slow = medians["without"], medians["with"]
    found = {
        "step time added": slow["step"] - fast["step"],
        "slowest call": max(delays),
        "sum of calls": sum(delays),
        **{f"added in {phase}": slow[phase] - fast[phase] for phase in ("generate", "reference", "reward", "train")},
        "judge hidden behind other work": slow["reward_phase"] - slow["reward"],
        "saved by training in order of arrival": medians["in order"]["step"] - slow["step"],
    }
    for name, seconds in found.items():
        print(f"{name:40} {seconds:8.3f} s")
    return found


def main(argv: list[str] | None = None) -> dict:
    arguments = timing.parser("bench.rewards", __doc__)
    arguments.add_argument("--model", choices=models.SHAPES, help="default: 4m; on a GPU 1.5b")
    arguments.add_argument("--prompts", type=int, default=8)
    arguments.add_argument("--group", type=int, default=12, help="completions per prompt")
    arguments.add_argument("--tokens", type=int, help="of the longest completion; default 128")
    arguments.add_argument("--shortest", type=float, default=0.5, help="seconds of the fastest call")
    arguments.add_argument("--longest", type=float, default=3.0, help="seconds of the slowest call")
    options = timing.parse(arguments, argv)
    if options.smoke:
        options.prompts, options.group, options.shortest, options.longest = 2, 4, 0.02, 0.1
    name = options.model or models.default_sizes(options, ("4m",), ("1.5b",))[0]
    number = options.prompts * options.group
    tokens = options.tokens or (8 if options.smoke else 128)
    rng = random.Random(0)
    delays = [rng.uniform(options.shortest, options.longest) for _ in range(number)]
    packed = (
        options.group * tokens + 128
    )  # about one group: there is an order to choose only with several micro-batches
    keys = {
        "num_generations": options.group,
        "per_device_train_batch_size": number,
        "max_completion_length": tokens,
        "beta": 0.04,
        "torch_dtype": options.dtype,
        "device": options.device,
        "max_tokens_per_micro_batch": packed,
    }
    seen: dict[str, list[dict]] = {"without": [], "with": [], "in order": []}
    with tempfile.TemporaryDirectory() as folder:
        path = models.write_model(
            name, Path(folder), getattr(torch, options.dtype), options.device, mean_length=tokens / 2
        )
        with steps.trainer(path, Path(folder), **keys) as trainer:
            timing.interleave(
                {
                    "without": lambda: step(trainer, [0.0] * number, False, seen["without"]),
                    "with": lambda: step(trainer, delays, False, seen["with"]),
                    "in order": lambda: step(trainer, delays, True, seen["in order"]),
                },
                options.repeats,
                options.device,
            )
    measured = {side: rows[1:] for side, rows in seen.items()}
    medians = {
        side: {key: statistics.median(row[key] for row in rows) for key in rows[0]} for side, rows in measured.items()
    }
    for side, row in medians.items():
        print(f"{side:10} " + "   ".join(f"{key} {value:.3f}" for key, value in row.items()))
    case = {
        "name": f"{name}, {number} completions, judge {options.shortest} to {options.longest} s",
        "seconds": {side: timing.spread([row["step"] for row in rows]) for side, rows in measured.items()},
        "phase_over_slowest": medians["with"]["reward_phase"] / max(delays),
        "target_phase_over_slowest": 1.2,
        "medians": medians,
        "difference": explain(medians, delays),
    }
    everything = [row for rows in seen.values() for row in rows]
    checks = {
        "judged once": all(row["judged"] == number for row in everything),
        "wrong scores": sum(row["wrong"] for row in everything),
        "reward phase / slowest call": case["phase_over_slowest"],
    }
    return timing.finish("rewards", options, [case], checks)


if __name__ == "__main__":
    main()

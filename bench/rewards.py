"""python -m bench.rewards [--model 4m] [--prompts 8] [--group 12] [--shortest 0.5] [--longest 3]

What does a step cost with a judge that takes 0.5 to 3 s for each of 96 completions, and where does the difference come
from? The judge is a coroutine, like a client of an API: it waits for a time drawn from the completion's number, the
same in every repeat, and all calls are in flight together. The sides take turns:
  without      the judge answers at once
  with         each call takes its time; calls start as completions end, the reference pass runs meanwhile, and
               micro-batches are trained in the order in which their rewards arrive
  in order     the same calls, but micro-batches wait for their turn (full_determinism), which shows what training in
               the order of arrival saves
Completions end by themselves, at lengths around half of the limit, so calls start while others are still generated.

Checked in the same run: each completion was judged once per step, and the step used its score. `reward_phase` is the
time from the first call to the last answer. No step can be faster than the slowest call; the phase should take at most
1.2 times as long. The sum of all calls is what one call after the other would take. The last line of stdout is JSON.
"""

import asyncio
import random
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from bench import models, steps, timing
from bench.workload import completion_lengths
from grpo.schema import Group, Score
from grpo.train import GrpoTrainer
from rewards.registry import Reward
from rewards.scorer import Scorer


@dataclass
class Judge:
    """A judge whose n-th call takes delays[n] seconds. It remembers when calls began and ended."""

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
    """Return the judge's score: the share of odd token ids."""
    return sum(token % 2 for token in ids) / len(ids)


def install(trainer: GrpoTrainer, judge: Judge) -> None:
    """Make the judge the only reward of a trainer."""
    trainer.rollout.scorer.close()
    trainer.rollout.scorer = Scorer([Reward("judge", grade=judge.grade, slow=any(judge.delays))])


def step(trainer: GrpoTrainer, delays: list[float], in_order: bool = False) -> dict:
    """Run one step under a judge with these delays, and return what it took."""
    judge = Judge(delays)
    trainer.rollout.config = replace(trainer.config, full_determinism=in_order)
    install(trainer, judge)
    metrics, groups = steps.run_step(trainer)
    return {
        "step": metrics["step_time"],
        "reward_phase": judge.phase(),
        "micro_batches": metrics["micro_batches"],
        "tokens": sum(completion_lengths(groups)),
        "judged": len(judge.ended),
        "wrong": wrong_scores(groups),
        **{phase: metrics[f"time/{phase}"] for phase in steps.PHASES},
    }


def wrong_scores(groups: list[Group]) -> int:
    """Count the rewards that are not the judge's."""
    wrong = 0
    for group in groups:
        wrong += sum(completion.reward != value_of(completion.ids) for completion in group.completions)
    return wrong


def explain(medians: Mapping[str, Mapping[str, float]], delays: list[float]) -> dict[str, float]:
    """Print and return where the difference between with and without comes from, in seconds."""
    fast, slow, ordered = medians["without"], medians["with"], medians["in order"]
    found = {
        "step time added": slow["step"] - fast["step"],
        "slowest call": max(delays),
        "sum of calls": sum(delays),
    }
    for phase in steps.PHASES:
        found[f"added in {phase}"] = slow[phase] - fast[phase]
    found["judge hidden behind other work"] = slow["reward_phase"] - slow["reward"]
    found["saved by training in order of arrival"] = ordered["step"] - slow["step"]
    for name, seconds in found.items():
        print(f"{name:40} {seconds:8.3f} s")
    return found


def main(argv: list[str] | None = None) -> dict:
    arguments = timing.parser("bench.rewards", __doc__)
    arguments.add_argument("--model", choices=models.SHAPES, help="default: 4m; on a GPU 1.5b")
    arguments.add_argument("--prompts", type=int, default=8)
    arguments.add_argument("--group", type=int, default=12, help="completions per prompt")
    arguments.add_argument("--tokens", type=int, help="tokens of the longest completion; default 128")
    arguments.add_argument("--shortest", type=float, default=0.5, help="seconds of the fastest call")
    arguments.add_argument("--longest", type=float, default=3.0, help="seconds of the slowest call")
    options = timing.parse(arguments, argv)
    if options.smoke:
        options.prompts, options.group, options.shortest, options.longest = 2, 4, 0.02, 0.1
    name = options.model or timing.default(options, smoke="tiny", cpu="4m", cuda="1.5b")
    number = options.prompts * options.group
    tokens = options.tokens or timing.default(options, smoke=8, cpu=128, cuda=128)
    rng = random.Random(0)
    delays = [rng.uniform(options.shortest, options.longest) for _ in range(number)]
    keys = steps.common_keys(options, options.group, number, tokens, beta=0.04)
    # A micro-batch takes about one group, because an order can be chosen only among several micro-batches.
    keys["max_tokens_per_micro_batch"] = options.group * tokens + 128
    seen: dict[str, list[dict]] = {"without": [], "with": [], "in order": []}
    with (
        models.temporary_model(name, options, mean_length=tokens / 2) as path,
        steps.trainer(path, path.parent, **keys) as trainer,
    ):
        sides = {
            "without": lambda: seen["without"].append(step(trainer, [0.0] * number)),
            "with": lambda: seen["with"].append(step(trainer, delays)),
            "in order": lambda: seen["in order"].append(step(trainer, delays, in_order=True)),
        }
        timing.interleave(sides, options.repeats, options.device)
    case = {"name": f"{name}, {number} completions, judge {options.shortest} to {options.longest} s", "seconds": {}}
    medians, everything = {}, []
    for side, rows in seen.items():
        everything += rows
        measured = rows[1:]  # the first step is warm-up
        case["seconds"][side] = timing.spread([row["step"] for row in measured])
        medians[side] = {key: statistics.median(row[key] for row in measured) for key in measured[0]}
        print(f"{side:10} " + "   ".join(f"{key} {value:.3f}" for key, value in medians[side].items()))
    case["phase_over_slowest"] = medians["with"]["reward_phase"] / max(delays)
    case["target_phase_over_slowest"] = 1.2
    case["medians"] = medians
    case["difference"] = explain(medians, delays)
    checks = {
        "judged once": all(row["judged"] == number for row in everything),
        "wrong scores": sum(row["wrong"] for row in everything),
        "reward phase / slowest call": case["phase_over_slowest"],
    }
    return timing.finish("rewards", options, [case], checks)


if __name__ == "__main__":
    main()

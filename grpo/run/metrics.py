"""The metrics of a step: statistics of its completions, and its time by phase."""

import math
import re
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from grpo.algorithm.schema import Group, Score, completions_of
from grpo.run.diagnosis.glossary import Metrics

CPU = torch.device("cpu")


def completion_metrics(groups: Sequence[Group], reward_names: Sequence[str]) -> dict[str, float]:
    """Describe the rewards, advantages and lengths of a step's completions. Nothing scorable has no mean."""
    completions = completions_of(groups)
    rewards = [completion.reward for completion in completions if completion.reward is not None]
    lengths = [completion.num_drawn for completion in completions]
    ended = [completion.num_drawn for completion in completions if completion.finish_reason == "stop"]
    num_trained = sum(len(completion.trained()) for completion in completions if completion.loss_weight)
    logps = [completion.logps[place] for completion in completions for place in completion.drawn()]
    num_failed = sum(completion.finish_reason == "tool" for completion in completions)
    metrics = {"reward": mean(rewards)} if rewards else {}
    metrics |= {
        "reward_std": std(rewards),
        "frac_reward_zero_std": mean([float(not group.has_signal) for group in groups]),
        "advantage_abs_mean": mean([abs(completion.advantage or 0.0) for completion in completions]),
        "completions/mean_length": mean(lengths),
        "completions/min_length": min(lengths),
        "completions/max_length": max(lengths),
        "completions/mean_terminated_length": mean(ended),
        "completions/clipped_ratio": 1 - (len(ended) + num_failed) / len(lengths),
        "sampler/entropy": -mean(logps),
        "completions/trained_frac": num_trained / max(sum(lengths), 1),
    }
    for name in reward_names:
        values: list[float] = []
        applying: list[Score] = []
        for completion in completions:
            score = completion.scores[name]
            if score.value is not None:
                values.append(score.value)
            if score.applies or completion.reward is None:
                applying.append(score)
        if values:
            metrics[f"rewards/{name}/mean"] = mean(values)
        metrics[f"rewards/{name}/std"] = std(values)
        metrics[f"rewards/{name}/unscored_frac"] = _unscored_share(applying)
    outcomes = [completion.outcome for completion in completions]
    known = [outcome for outcome in outcomes if outcome is not None]
    if known:
        metrics["accuracy"] = known.count("correct") / len(known)
        metrics["refusal_rate"] = known.count("refused") / len(known)
        metrics |= _coverage(groups)
    return metrics


def credit_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Return the share of tokens in true or false sentences, and of those whose advantage changed its sign (Eq. 13)."""
    num_tokens = num_judged = num_changed = 0
    for completion in completions_of(groups):
        judged: set[int] = set()
        for sentence in completion.sentences:
            judged.update(range(sentence.start, sentence.end))
        advantages = completion.token_advantages()
        num_tokens += completion.num_drawn
        num_judged += len(judged.intersection(completion.drawn()))
        num_changed += sum(advantages[place] * (completion.advantage or 0) < 0 for place in completion.drawn())
    return {"credit/judged_frac": num_judged / num_tokens, "credit/changed_frac": num_changed / num_tokens}


def tool_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Describe the calls of tools in a step's completions."""
    of_each = [completion.calls for completion in completions_of(groups)]
    calls = [call for calls in of_each for call in calls]
    return {
        "tools/call_frequency": len(calls) / len(of_each),
        "tools/called_frac": mean([float(bool(calls)) for calls in of_each]),
        "tools/failure_frequency": mean([float(bool(call.failure)) for call in calls]),
        "tools/mean_result_length": mean([call.end - call.start for call in calls]),
    }


def _coverage(groups: Sequence[Group]) -> dict[str, float]:
    """Return the share of questions with a right answer in their group, and how often groups decline a known one.

    A group knows its question if a quarter of its completions is right, and more are right than wrong: a lucky guess
    is not knowledge.
    """
    counts = []
    for group in groups:
        counts.append(Counter(completion.outcome for completion in group.completions))
    known = [c for c in counts if c["correct"] > c["wrong"] and c["correct"] >= c.total() / 4]
    metrics = {"coverage": mean([float(count["correct"] > 0) for count in counts])}
    if known:
        metrics["refusal_rate_known"] = mean([count["refused"] / count.total() for count in known])
    return metrics


def _unscored_share(scores: Sequence[Score]) -> float:
    """Return the largest of these shares: unscorable completions, and for each service the unanswered requests.

    Otherwise the failure of a service that few completions need, such as the decomposer for wrong answers, would hide.
    """
    if not scores:
        return 0.0
    answered: dict[str, list[bool]] = {}
    for score in scores:
        for service, is_answered in score.asked.items():
            answered.setdefault(service, []).append(is_answered)
    is_scored = [score.value is not None for score in scores]
    return max(1 - mean(shares) for shares in (is_scored, *answered.values()))


def mean(values: Sequence[float]) -> float:
    """Return the mean; 0 if there are no values."""
    return statistics.fmean(values) if values else 0.0


def std(values: Sequence[float]) -> float:
    """Return the standard deviation (n - 1); 0 for fewer than two values."""
    if len(values) < 2:
        return 0.0
    centre = mean(values)
    squares = sum((value - centre) ** 2 for value in values)
    return math.sqrt(squares / (len(values) - 1))


class Window:
    """The metrics of the steps since the last logged line: their means, or last values of those in SINCE_START."""

    SINCE_START = re.compile("(judge|decomposer)/|(epoch|num_tokens|learning_rate|skipped_steps|peak_memory_gb)$")

    def __init__(self):
        self.values: dict[str, list[float]] = {}
        self.number = 0  # of steps

    def add(self, metrics: Metrics) -> None:
        """Add a step."""
        self.number += 1
        for name, value in metrics.items():
            self.values.setdefault(name, []).append(value)

    def take(self) -> dict[str, float]:
        """Return the metrics of the line, and begin a new one. A metric is NaN if no step has a finite value."""
        taken = {}
        for name, values in self.values.items():
            finite = list(filter(math.isfinite, values)) or [math.nan]
            taken[name] = values[-1] if self.SINCE_START.match(name) else mean(finite)
        self.values = {}
        self.number = 0
        return taken


class Clock:
    """Seconds of a step by phase; time outside of all phases is training. On a GPU a phase ends with its work."""

    def __init__(self, device: torch.device = CPU):
        """Begin a step."""
        self.wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
        self.restart()

    def restart(self) -> None:
        """Begin a step."""
        self.started = time.perf_counter()
        self.phases = {"time/generate": 0.0, "time/reference": 0.0, "time/reward": 0.0}

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Count the time inside as `phase`, one of the keys of `phases`."""
        started = time.perf_counter()
        yield
        self.wait()
        self.phases[phase] += time.perf_counter() - started

    def result(self) -> dict[str, float]:
        """Return the seconds of every phase, and of the step since `restart`."""
        self.wait()
        step_time = time.perf_counter() - self.started
        train_time = step_time - sum(self.phases.values())
        return {**self.phases, "time/train": train_time, "step_time": step_time}

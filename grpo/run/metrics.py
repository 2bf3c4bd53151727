"""The metrics of a step: statistics of its tokens and of its completions, and its time by phase."""

import math
import re
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch

from grpo.algorithm.schema import Group, Outcome, PackedBatch, Score, completions_of
from grpo.engine.device.distributed import Ranks
from grpo.run.diagnosis.glossary import Metrics

CPU = torch.device("cpu")


class TokenMeter:
    """Means over all trained completion tokens of a step: sums are kept, and divided at the end.

    With several iterations these are means over all of them, since ratios are clipped only after the first one. The
    noise between sampler and trainer is measured only in the first iteration, before the policy changes.
    """

    NAMES = ("kl", "entropy", "clip_ratio/low_mean", "clip_ratio/high_mean")

    def __init__(self):
        self.sums = [0.0] * len(self.NAMES)
        self.num_tokens = self.loss = 0.0
        self.first_num_tokens = self.first_diff = 0.0  # of the first iteration
        self.largest_diff = 0.0

    def add(
        self,
        iteration: int,
        batch: PackedBatch,
        loss: torch.Tensor,
        logp_C: torch.Tensor,
        entropy_C: torch.Tensor,
        stats: Mapping[str, torch.Tensor],
    ) -> None:
        """Add one pass over a micro-batch: its loss, log-probs and entropies, and the statistics of `policy_loss`."""
        used_C = batch.weight_C != 0
        values = (stats["kl"], entropy_C, stats["clipped_low"].float(), stats["clipped_high"].float())
        sums = [torch.where(used_C, value, 0.0).sum() for value in values]
        diff_C = torch.where(used_C, (logp_C.detach() - batch.sampler_logp_C).abs(), 0.0)
        others = [used_C.sum().float(), loss.detach(), diff_C.sum(), diff_C.max()]
        *sums, num_tokens, loss, diff, largest_diff = torch.stack(sums + others).tolist()
        self.sums = [a + b for a, b in zip(self.sums, sums, strict=True)]
        self.num_tokens += num_tokens
        self.loss += loss
        if iteration == 0:
            self.first_num_tokens += num_tokens
            self.first_diff += diff
            self.largest_diff = max(self.largest_diff, largest_diff)

    def result(self, ranks: Ranks) -> dict[str, float]:
        """Return the means over all ranks, under their names in the glossary. The loss is the mean over iterations."""
        mine = [*self.sums, self.num_tokens, self.loss, self.first_num_tokens, self.first_diff]
        *sums, num_tokens, loss, first_num_tokens, first_diff = ranks.sum(mine)
        means = {name: value / max(num_tokens, 1) for name, value in zip(self.NAMES, sums, strict=True)}
        means["clip_ratio/region_mean"] = means["clip_ratio/low_mean"] + means["clip_ratio/high_mean"]
        means["sampler/logp_diff_mean"] = first_diff / max(first_num_tokens, 1)
        means["sampler/logp_diff_max"] = ranks.max(self.largest_diff)
        means["loss"] = loss * first_num_tokens / max(num_tokens, 1)
        return means


def completion_metrics(groups: Sequence[Group], reward_names: Sequence[str]) -> dict[str, float]:
    """Describe the rewards, advantages and lengths of a step's completions. Nothing scorable has no mean."""
    completions = completions_of(groups)
    rewards = [completion.reward for completion in completions if completion.reward is not None]
    lengths = [len(completion.ids) for completion in completions]
    ended = [len(completion.ids) for completion in completions if completion.finish_reason == "stop"]
    metrics = {"reward": mean(rewards)} if rewards else {}
    metrics |= {
        "reward_std": std(rewards),
        "frac_reward_zero_std": mean([float(not _has_signal(group)) for group in groups]),
        "advantage_abs_mean": mean([abs(completion.advantage) for completion in completions]),
        "completions/mean_length": mean(lengths),
        "completions/min_length": min(lengths),
        "completions/max_length": max(lengths),
        "completions/mean_terminated_length": mean(ended),
        "completions/clipped_ratio": 1 - len(ended) / len(lengths),
    }
    for name in reward_names:
        values = [c.scores[name].value for c in completions if c.scores[name].value is not None]
        if values:
            metrics[f"rewards/{name}/mean"] = mean(values)
        metrics[f"rewards/{name}/std"] = std(values)
        applying = [c.scores[name] for c in completions if c.scores[name].applies or c.reward is None]
        metrics[f"rewards/{name}/unscored_frac"] = _unscored_share(applying)
    outcomes = [outcome_of(completion.scores) for completion in completions]
    known = [outcome for outcome in outcomes if outcome is not None]
    if known:
        metrics["accuracy"] = known.count("correct") / len(known)
        metrics["refusal_rate"] = known.count("refused") / len(known)
        metrics |= _coverage(groups)
    return metrics


def credit_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Return the share of tokens in true or false sentences, and of those whose advantage changed its sign (Eq. 19)."""
    num_tokens = num_judged = num_changed = 0
    for completion in completions_of(groups):
        num_tokens += len(completion.ids)
        num_judged += sum(sentence.end - sentence.start for sentence in completion.sentences)
        num_changed += sum(advantage * completion.advantage < 0 for advantage in completion.token_advantages)
    return {"credit/judged_frac": num_judged / num_tokens, "credit/changed_frac": num_changed / num_tokens}


def _coverage(groups: Sequence[Group]) -> dict[str, float]:
    """Return the share of questions with a right answer in their group, and how often groups decline a known one.

    A group knows its question if a quarter of its completions is right, and more are right than wrong: a lucky guess
    is not knowledge.
    """
    counts = []
    for group in groups:
        counts.append(Counter(outcome_of(completion.scores) for completion in group.completions))
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


def _has_signal(group: Group) -> bool:
    """Return whether its scorable rewards differ."""
    return len({completion.reward for completion in group.completions} - {None}) > 1


def outcome_of(scores: Mapping[str, Score]) -> Outcome | None:
    """Return the outcome of a completion, by the first reward that knows it; None if none does."""
    return next((score.outcome for score in scores.values() if score.outcome is not None), None)


def is_mixed(group: Group) -> bool:
    """Return whether dynamic sampling keeps a group: some of its answers are right, and some are not.

    The outcome decides, not the reward's value. Only if no reward knows an outcome, the rewards must differ instead.
    """
    outcomes = [outcome_of(completion.scores) for completion in group.completions]
    if not any(outcomes):
        return _has_signal(group)
    return 0 < outcomes.count("correct") < len(outcomes)


def mean(values: Sequence[float]) -> float:
    """Return the mean; 0 if there are no values."""
    return statistics.fmean(values) if values else 0.0


def std(values: Sequence[float]) -> float:
    """Return the standard deviation (n - 1); 0 for fewer than two values."""
    if len(values) < 2:
        return 0.0
    centre = mean(values)
    return math.sqrt(sum((value - centre) ** 2 for value in values) / (len(values) - 1))


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
            finite = [value for value in values if math.isfinite(value)] or [math.nan]
            taken[name] = values[-1] if self.SINCE_START.match(name) else mean(finite)
        self.values, self.number = {}, 0
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
        self.phase = ""  # the one that is running

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Count the time inside as `phase`, one of the keys of `phases`."""
        started, self.phase = time.perf_counter(), phase
        yield
        self.wait()
        self.phase = ""  # after an error it stays, and tells where that happened
        self.phases[phase] += time.perf_counter() - started

    def result(self) -> dict[str, float]:
        """Return the seconds of every phase, and of the step since `restart`."""
        self.wait()
        step_time = time.perf_counter() - self.started
        train_time = step_time - sum(self.phases.values())
        return {**self.phases, "time/train": train_time, "step_time": step_time}

"""Grade completions while others are still being generated.

Each completion is handed over the moment it ends. Rewards that grade one completion start at once: plain functions on a
small thread pool, coroutines (API calls) on one event loop. A user's function sees a group, as soon as it is
complete (calls.py).

Of several processes that hold one model together, the first one asks the rewards, and all get the grades.
"""

import asyncio
import inspect
import logging
import time
from collections import defaultdict
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

from grpo.algorithm.schema import Completion, Group, Score
from grpo.base.errors import PREFLIGHT, UserError, check_all
from grpo.engine.device.peers import Peers
from rewards.calls import MAX_NUMBER, FunctionCalls, TrainerState, start_loop
from rewards.own_words import CALLS, own_words
from rewards.registry import Counts, Reward, Say

NUM_THREADS = 4
POLL_SECONDS = 0.002
CLOSE_SECONDS = 1.0  # that closing waits for grades to be given up
NOT_A_REWARD = f"a reward is a number between -{MAX_NUMBER:g} and {MAX_NUMBER:g}, or None"
START = TrainerState()
Futures = dict[str, Future]  # reward name -> its grade, under way
_log = logging.getLogger("rewards")


class Scorer:
    """The rewards of a run at work: `submit` each completion as it ends, then `collect` each group.

    All peers make the same calls in the same order.
    """

    def __init__(self, rewards: Sequence[Reward], weights: Sequence[float] | None = None, peers: Peers | None = None):
        self.rewards = list(rewards)
        self.peers = peers or Peers()
        self.resources = [resource for reward in rewards for resource in reward.resources]
        self.weights = list(weights) if weights else [1.0] * len(self.rewards)
        self.pool = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="reward")
        self.calls = FunctionCalls()
        self.under_way: dict[Group, list[Futures | None]] = {}  # one for each completion; None: not submitted yet
        self.loop: asyncio.AbstractEventLoop | None = None  # started when it is needed
        self.not_numbers: dict[str, float] = {}  # reward -> the first value that is NaN, infinite or far too large

    def submit(self, group: Group, index: int, state: TrainerState = START) -> None:
        """Start grading completion `index` of `group`; with its last one, start the functions that see a group."""
        nothing = [None] * len(group.completions)
        futures = self.under_way.setdefault(group, nothing)
        of_completion = futures[index] = {}
        if self.peers.rank:  # the first one grades
            return
        completion = group.completions[index]
        own = {"prompt": group.prompt.text, "completion_ids": completion.ids, CALLS: completion.calls}
        row = group.prompt.columns | own
        text = own_words(completion.text, completion.calls)  # never what a tool has said
        for reward in self.rewards:
            if reward.grade is not None and not completion.failure:
                of_completion[reward.name] = self._start(reward, text, row)
        if None not in futures:
            self._start_group_functions(group, futures, state)

    def collect(self, group: Group) -> None:
        """Wait for a group's grades; set each completion's scores, its facts, and its reward: their weighted sum.

        A group that was not submitted, or was collected before, stays as it is.
        """
        if group not in self.under_way:
            return
        scores_of_each = self.peers.of_first(lambda: self._scores(group))
        for completion, scores in zip(group.completions, scores_of_each, strict=True):
            completion.scores = scores
            completion.facts = self._facts(scores)
        group.weights = self.weights_of(group)
        for completion in group.completions:
            completion.reward = combine(completion.scores, group.weights)
        del self.under_way[group]

    def _facts(self, scores: Mapping[str, Score]) -> list[dict[str, Any]]:
        """Return the facts that the first reward has found which checks every answer; [] if none does."""
        checking = [reward.name for reward in self.rewards if reward.checks_every_answer]
        return scores[checking[0]].facts if checking else []

    def weights_of(self, group: Group) -> dict[str, float]:
        """Return the weights of the rewards that apply to a group's prompt; of all rewards, if those weigh nothing."""
        scores = group.completions[0].scores
        names = [reward.name for reward in self.rewards]
        weights = dict(zip(names, self.weights, strict=True))
        applying = {name: weight for name, weight in weights.items() if scores[name].applies}
        return applying if any(applying.values()) else weights

    def grade(self, groups: Sequence[Group]) -> None:
        """Grade finished groups, as evaluation does."""
        for group in groups:
            for index in range(len(group.completions)):
                self.submit(group, index)
        for group in groups:
            self.collect(group)

    def prepare(self, rows: Sequence[dict[str, Any]], say: Say) -> None:
        """Check before the first step whatever could fail later."""
        if self.peers.rank == 0:
            checks = [partial(resource.prepare, rows, say) for resource in self.resources]
            check_all(*checks)

    def check_numbers(self) -> None:
        """Raise UserError if a reward has returned NaN, an infinite or a far too large number."""
        for name, value in self.not_numbers.items():
            fix = "correct the function, or return None for what it cannot score"
            raise UserError(f"the reward {name} returned {value}", NOT_A_REWARD, fix, PREFLIGHT)

    def take_metrics(self) -> dict[str, float]:
        """Return what the rewards count, such as calls; the seconds of users' functions, and what they log.

        What is counted per step begins anew. All peers must call it.
        """
        return self.peers.of_first(self._metrics)

    def close(self) -> None:
        """Free what the rewards hold. Grades that are still under way are given up."""
        for resource in self.resources:
            resource.close()
        self.pool.shutdown(wait=False, cancel_futures=True)
        if self.loop:  # it ends first, since it starts calls
            self.loop.call_soon_threadsafe(self.loop.stop)
            latest = time.monotonic() + CLOSE_SECONDS
            while not self.loop.is_closed() and time.monotonic() < latest:
                time.sleep(POLL_SECONDS)
        self.calls.close()

    def _metrics(self) -> dict[str, float]:
        of_functions = [reward.name for reward in self.rewards if reward.function is not None]
        return self.calls.metrics(of_functions) | together(resource.counts() for resource in self.resources)

    def _scores(self, group: Group) -> list[dict[str, Score]]:
        """Wait for a group's grades. Return for each completion: reward name -> score."""
        scores: list[dict[str, Score]] = [{} for _ in group.completions]
        for reward in self.rewards:
            futures = [of_one.get(reward.name) for of_one in self.under_way[group]]
            grades = [None if future is None else _wait_for(future) for future in futures]
            if reward.function is not None:  # it grades the complete group
                grades = grades[0]
            for completion, of_completion, grade in zip(group.completions, scores, grades, strict=True):
                score = grade and self._usable(reward.name, grade)
                of_completion[reward.name] = after_calls(completion, score)
        return scores

    def _start(self, reward: Reward, text: str, row: dict[str, Any]) -> Future:
        if inspect.iscoroutinefunction(reward.grade):
            return self._on_loop(reward.grade(text, row))
        return self.pool.submit(reward.grade, text, row)

    def _start_group_functions(self, group: Group, futures: list[Futures], state: TrainerState) -> None:
        for reward in self.rewards:
            if reward.function is not None:
                call = self.calls.grade(reward.name, reward.function, reward.timeout_s, group, state)
                task = self._on_loop(call)
                for of_completion in futures:
                    of_completion[reward.name] = task

    def _usable(self, name: str, score: Score) -> Score:
        """Make a score unscorable whose value is no usable number. Warn of the first one of each reward."""
        if score.value is None or abs(score.value) <= MAX_NUMBER:
            return score
        if name not in self.not_numbers:
            self.not_numbers[name] = score.value
            what = f"the reward {name} returned {score.value}; {NOT_A_REWARD}"
            _log.warning(f"warning: {what}. Such completions train nothing; rewards/{name}/unscored_frac counts them")
        return replace(score, value=None, reason=f"the reward returned {score.value}: {NOT_A_REWARD}")

    def _on_loop(self, work: Coroutine[Any, Any, Any]) -> Future:
        """Run a coroutine on the event loop of this scorer, which has a thread of its own."""
        self.loop = self.loop or start_loop("rewards")
        return asyncio.run_coroutine_threadsafe(work, self.loop)


def after_calls(completion: Completion, score: Score | None) -> Score:
    """Return the score of a completion, with the tools that it called among what was asked; None if one has failed."""
    asked = {f"tool {call.tool}": not call.failure for call in completion.calls}
    if completion.failure:
        last = completion.calls[-1]
        reason = f"the tool {last.tool} gave no result: {completion.failure}"
        score = score or Score(None)
        return replace(score, value=None, outcome=None, reason=reason, asked=asked)
    return replace(score, asked=score.asked | asked) if asked else score


def together(counts: Iterable[Counts]) -> dict[str, float]:
    """Return the numbers of several resources as one each: two rewards may have a judge each, or check facts."""
    numbers: dict[str, float] = defaultdict(int)
    divisors: dict[str, float] = defaultdict(int)
    for of_one in counts:
        for name, (number, divisor) in of_one.items():
            numbers[name] += number
            divisors[name] += divisor
    return {name: number / divisors[name] if divisors[name] else number for name, number in numbers.items()}


def _wait_for(future: Future) -> Any:
    """Wait for a grade. A signal interrupts this wait on every system, which a lock's would not."""
    while not future.done():
        time.sleep(POLL_SECONDS)
    return future.result()


def combine(scores: Mapping[str, Score], weights: Mapping[str, float]) -> float | None:
    """Return the sum of the weighted scores; None as soon as one of them is None.

    A reward of weight 0 is logged and counts for nothing, not even where it is None.
    """
    terms = []
    for name, weight in weights.items():
        if not weight:
            continue
        value = scores[name].value
        if value is None:
            return None
        terms.append(weight * value)
    return sum(terms)

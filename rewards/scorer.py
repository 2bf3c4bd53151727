"""Rewards at work while other completions are still being generated.

Each completion is handed over the moment it ends. Rewards that grade one completion start at once: plain functions on a
small thread pool, coroutines (API calls) on one event loop. User functions see a whole group, as soon as it is
complete.
"""

import asyncio
import inspect
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from grpo.schema import Completion, Group, Score
from rewards.registry import Reward

NUM_THREADS = 4


class Scorer:
    """Grades the completions of one step at a time: `begin`, `submit` each, then `collect` each group."""

    def __init__(self, rewards: Sequence[Reward], weights: Sequence[float] | None = None):
        self.rewards = list(rewards)
        self.weights = list(weights) if weights else [1.0] * len(self.rewards)
        self.pool = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="reward")
        self.loop: asyncio.AbstractEventLoop | None = None
        self.futures: dict[tuple[int, int], dict[str, Future]] = {}
        self.texts: dict[int, dict[int, Completion]] = {}

    @property
    def slow(self) -> bool:
        return any(reward.slow for reward in self.rewards)

    def begin(self) -> None:
        """Forgets the previous step."""
        self.futures, self.texts = {}, {}

    def submit(
        self, group: int, index: int, group_size: int, prompt: str, completion: Completion, columns: dict[str, Any]
    ) -> None:
        """Starts grading completion `index` of `group`."""
        row = columns | {"prompt": prompt, "completion_ids": completion.ids}
        futures = self.futures.setdefault((group, index), {})
        for reward in self.rewards:
            if reward.grade is not None:
                futures[reward.name] = self._start(reward, completion.text, row)
        arrived = self.texts.setdefault(group, {})
        arrived[index] = completion
        if len(arrived) == group_size:
            self._start_group_functions(group, [arrived[i] for i in range(group_size)], prompt, columns)

    def ready(self, group: int, group_size: int) -> bool:
        """Whether `collect` would return at once."""
        return all(future.done() for index in range(group_size) for future in self.futures[group, index].values())

    def collect(self, group_number: int, group: Group) -> None:
        """Waits for a group's grades and fills in its scores and rewards (a weighted sum; None if any part is None)."""
        group.scores = [
            {name: future.result() for name, future in self._in_order(group_number, index)}
            for index in range(len(group.completions))
        ]
        group.rewards = [combine(scores, self.rewards, self.weights) for scores in group.scores]

    def grade(self, groups: Sequence[Group]) -> None:
        """Submits and collects finished groups, as evaluation does."""
        self.begin()
        for number, group in enumerate(groups):
            for index, completion in enumerate(group.completions):
                self.submit(number, index, len(group.completions), group.prompt.text, completion, group.prompt.columns)
        for number, group in enumerate(groups):
            self.collect(number, group)

    def prepare(self, rows: Sequence[dict[str, Any]], say: Callable[[str], None]) -> None:
        """Before the first step: whatever can be found out now does not fail later."""
        for reward in self.rewards:
            if reward.prepare:
                reward.prepare(rows, say)

    def metrics(self) -> dict[str, float]:
        """What the rewards count: calls, look-ups, costs."""
        return {name: value for reward in self.rewards if reward.metrics for name, value in reward.metrics().items()}

    def close(self) -> None:
        for reward in self.rewards:
            if reward.close:
                reward.close()
        self.pool.shutdown(wait=False, cancel_futures=True)
        if self.loop is not None:
            self.loop.call_soon_threadsafe(self.loop.stop)

    def _in_order(self, group: int, index: int) -> list[tuple[str, Future]]:
        futures = self.futures[group, index]
        return [(reward.name, futures[reward.name]) for reward in self.rewards]

    def _start(self, reward: Reward, text: str, row: dict[str, Any]) -> Future:
        if inspect.iscoroutinefunction(reward.grade):
            return asyncio.run_coroutine_threadsafe(reward.grade(text, row), self._event_loop())
        return self.pool.submit(reward.grade, text, row)

    def _start_group_functions(
        self, group: int, completions: list[Completion], prompt: str, columns: dict[str, Any]
    ) -> None:
        size = len(completions)
        repeated = {
            name: [value] * size for name, value in columns.items() if name not in ("prompts", "completions", "prompt")
        }
        repeated["completion_ids"] = [completion.ids for completion in completions]
        for reward in self.rewards:
            if reward.function is None:
                continue
            task = self.pool.submit(
                reward.grade_group, [prompt] * size, [completion.text for completion in completions], repeated
            )
            for index in range(size):
                self.futures[group, index][reward.name] = _Element(task, index)

    def _event_loop(self) -> asyncio.AbstractEventLoop:
        if self.loop is None:
            self.loop = asyncio.new_event_loop()
            threading.Thread(target=self.loop.run_forever, name="reward-loop", daemon=True).start()
        return self.loop


class _Element:
    """One entry of a future list, with a future's two methods that are used here."""

    def __init__(self, task: Future, index: int):
        self.task, self.index = task, index

    def done(self) -> bool:
        return self.task.done()

    def result(self) -> Score:
        return self.task.result()[self.index]


def combine(scores: dict[str, Score], rewards: Sequence[Reward], weights: Sequence[float]) -> float | None:
    """The weighted sum; None as soon as one part is None: an unscorable part makes the whole unscorable."""
    values = [scores[reward.name].value for reward in rewards]
    if any(value is None for value in values):
        return None
    return sum(weight * value for weight, value in zip(weights, values, strict=True))

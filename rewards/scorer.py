"""Grade completions while others are still being generated.

Each completion is handed over the moment it ends. Built-in rewards start at once: plain functions on a small thread
pool, coroutines (API calls) on an event loop. A user's `async def` starts when its group is complete, and a user's
plain function when the step waits for its rewards (own.py).

Of several processes that hold one model together, the first one asks the rewards, and all get the grades.
"""

import inspect
import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from grpo.algorithm.schema import Completion, Group, Score, TrainerState, own_words
from grpo.base.errors import PREFLIGHT, UserError, check_all
from grpo.base.event_loop import EventLoop, wait_for
from grpo.base.storage import Json
from grpo.engine.device.peers import Peers
from rewards.own_words import CALLS, ENVIRONMENT, MAX_NUMBER
from rewards.registry import Counts, Grade, Reward, Rows, Say

if TYPE_CHECKING:
    from rewards.own import OwnCall, OwnCalls

NUM_THREADS = 4
NOT_A_REWARD = f"a reward is a number between -{MAX_NUMBER:g} and {MAX_NUMBER:g}, or None"
START = TrainerState()
_log = logging.getLogger("rewards")


@dataclass
class Grading:
    """A group that is being graded.

    grades: of each completion, reward name -> its grade, under way; None: it was not submitted yet. own_calls:
    of users' functions, once the group is complete.
    """

    grades: list[dict[str, Future[Score]] | None]
    own_calls: "list[OwnCall]" = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        return None not in self.grades


class Scorer:
    """The rewards of a run at work: `submit` each completion as it ends, then `collect` the groups.

    All peers make the same calls in the same order.
    """

    own: "OwnCalls | None" = None

    def __init__(self, rewards: Sequence[Reward], weights: Sequence[float] | None = None, peers: Peers | None = None):
        self.rewards = list(rewards)
        self.peers = peers or Peers()
        self.resources = [resource for reward in rewards for resource in reward.resources]
        names = [reward.name for reward in rewards]
        self.weights = dict(zip(names, weights or [1.0] * len(names), strict=True))
        self.pool = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="reward")
        self.loop = EventLoop("rewards")
        if any(reward.function is not None for reward in rewards):
            from rewards.own import OwnCalls  # most runs have no functions of a user

            self.own = OwnCalls()
        self.under_way: dict[Group, Grading] = {}
        self.failed: set[str] = set()  # built-in rewards that have failed on a completion
        self.not_numbers: dict[str, float] = {}  # reward -> the first value that is NaN, infinite or far too large

    def submit(self, group: Group, index: int, state: TrainerState = START) -> None:
        """Start grading completion `index` of `group`; with its last one, start the coroutines that see a group."""
        grading = self._grading_of(group)
        grades = grading.grades[index] = {}
        if self.peers.rank:  # the first one grades
            return
        completion = group.completions[index]
        row = group.prompt.columns | {
            "prompt": group.prompt.text,
            "completion_ids": completion.ids,
            CALLS: completion.calls,
            ENVIRONMENT: completion.environment,
        }
        text = own_words(completion.text, completion.calls)  # never what a tool has said
        for reward in self.rewards:
            if reward.grade is not None and not completion.failure:
                grades[reward.name] = self._start(reward.grade, text, row)
        if grading.is_complete and self.own:
            grading.own_calls = self.own.start(self.rewards, group, state)

    def collect(self, *groups: Group) -> None:
        """Wait for the grades of groups; set each completion's scores, its facts, and its reward: their weighted sum.

        The weights are those of the rewards that apply to the prompt; of all rewards, if those weigh nothing.
        Users' plain functions are called here, while the other rewards go on. So name all groups at once. A group that
        was not submitted, or was collected before, stays as it is.
        """
        waiting = [group for group in groups if group in self.under_way]
        graded = self.peers.of_first(lambda: self._grade(waiting)) if waiting else []
        for group, scores_of_each in zip(waiting, graded, strict=True):
            for completion, scores in zip(group.completions, scores_of_each, strict=True):
                completion.scores = scores
                checking = [scores[reward.name].facts for reward in self.rewards if reward.checks_every_answer]
                completion.facts = checking[0] if checking else []
                if completion.environment:
                    completion.environment.close()
                    completion.environment = None
            scores = group.completions[0].scores
            applying = {name: weight for name, weight in self.weights.items() if scores[name].applies}
            group.weights = applying if any(applying.values()) else self.weights
            for completion in group.completions:
                completion.reward = combine(completion.scores, group.weights)
            del self.under_way[group]

    def grade(self, groups: Sequence[Group]) -> None:
        """Grade finished groups, as evaluation does."""
        for group in groups:
            for index in range(len(group.completions)):
                self.submit(group, index)
        self.collect(*groups)

    def prepare(self, rows: Rows, say: Say) -> None:
        """Check before the first step whatever could fail later."""
        if self.peers.rank == 0:
            checks = [partial(resource.prepare, rows, say) for resource in self.resources]
            check_all(*checks)

    def check_numbers(self) -> None:
        """Raise UserError if a reward has returned NaN, an infinite or a far too large number."""
        if self.not_numbers:
            name, value = next(iter(self.not_numbers.items()))
            raise UserError(
                f"the reward {name} returned {value}",
                NOT_A_REWARD,
                "correct the function, or return None for what it cannot score",
                PREFLIGHT,
            )

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
        self.loop.close()
        if self.own:
            self.own.loop.close()

    def _metrics(self) -> dict[str, float]:
        counted = together(resource.counts() for resource in self.resources)
        return self.own.metrics() | counted if self.own else counted

    def _grading_of(self, group: Group) -> Grading:
        return self.under_way.setdefault(group, Grading([None] * len(group.completions)))

    def _start(self, grade: Grade, text: str, row: Json) -> "Future[Score]":
        if inspect.iscoroutinefunction(grade):
            return self.loop.run(grade(text, row))
        return self.pool.submit(grade, text, row)

    def _grade(self, groups: Sequence[Group]) -> list[list[dict[str, Score]]]:
        """Call users' plain functions on all groups, one after the other; then wait for all grades of each group."""
        for group in groups:
            for call in self.under_way[group].own_calls:
                if self.own and not call.began:
                    self.own.make(call)
        return [self._scores(group) for group in groups]

    def _scores(self, group: Group) -> list[dict[str, Score]]:
        """Wait for a group's grades. Return for each completion: reward name -> score."""
        grading = self.under_way[group]
        scores = []
        own = {call.name: self.own.scores(call) for call in grading.own_calls} if self.own else {}
        for index, (completion, grades) in enumerate(zip(group.completions, grading.grades, strict=True)):
            found = {name: of_group[index] for name, of_group in own.items()}
            found |= {name: self._grade_of(name, future) for name, future in (grades or {}).items()}
            usable = {name: self._usable(name, score) for name, score in found.items()}
            scores.append({name: after_calls(completion, usable.get(name, Score(None))) for name in self.weights})
        return scores

    def _grade_of(self, name: str, future: "Future[Score]") -> Score:
        """Wait for a built-in reward. One that fails on a completion cannot score it, and that never ends a run."""
        wait_for(future)
        try:
            return future.result()
        except UserError:
            raise
        except Exception as error:
            from rewards.own_names import describe_failure  # which knows users' files

            why = describe_failure(error)
        if name not in self.failed:
            self.failed.add(name)
            _log.warning(
                f"warning: the reward {name} failed on a completion, which trains nothing: {why}. "
                f"rewards/{name}/unscored_frac counts such completions; please report this"
            )
        return Score(None, f"the reward failed: {why}")

    def _usable(self, name: str, score: Score) -> Score:
        """Make a score unscorable whose value is no usable number. Warn of the first one of each reward."""
        if score.value is None or abs(score.value) <= MAX_NUMBER:
            return score
        if name not in self.not_numbers:
            self.not_numbers[name] = score.value
            _log.warning(
                f"warning: the reward {name} returned {score.value}; {NOT_A_REWARD}. Such completions train nothing; "
                f"rewards/{name}/unscored_frac counts them"
            )
        return replace(score, value=None, reason=f"the reward returned {score.value}: {NOT_A_REWARD}")


def after_calls(completion: Completion, score: Score) -> Score:
    """Return the score of a completion, with the tools that it called among what was asked; no value if one failed."""
    asked = {f"tool {call.tool}": not call.failure for call in completion.calls}
    if completion.failure:
        reason = f"the tool {completion.calls[-1].tool} gave no result: {completion.failure}"
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

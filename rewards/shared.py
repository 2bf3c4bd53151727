"""The rewards of several processes that hold one model together: the first asks them, and all get the grades."""

from collections.abc import Sequence
from typing import Any

from grpo.base.schema import Group
from grpo.device.peers import Peers
from rewards import custom
from rewards.registry import Reward, Say
from rewards.scorer import START, Scorer


class SharedScorer(Scorer):
    """A Scorer whose rewards only the first of the peers asks. All of them make the same calls in the same order."""

    def __init__(self, rewards: Sequence[Reward], weights: Sequence[float] | None, peers: Peers):
        super().__init__(rewards, weights)
        self.peers = peers

    def prepare(self, rows: Sequence[dict[str, Any]], say: Say) -> None:
        if self.peers.rank == 0:
            super().prepare(rows, say)

    def submit(self, group: Group, index: int, state: custom.TrainerState = START) -> None:
        if self.peers.rank == 0:
            super().submit(group, index, state)
        else:
            group.pending = [{}]

    def collect(self, group: Group) -> None:
        grades = self.peers.of_first(lambda: self._grades_of(group))
        for completion, (scores, reward) in zip(group.completions, grades, strict=True):
            completion.scores, completion.reward = scores, reward
        group.pending = []

    def metrics(self) -> dict[str, float]:
        return self.peers.of_first(super().metrics)

    def _grades_of(self, group: Group) -> list[tuple]:
        super().collect(group)
        return [(completion.scores, completion.reward) for completion in group.completions]


def make_scorer(rewards: Sequence[Reward], weights: Sequence[float] | None, peers: Peers) -> Scorer:
    """Return the scorer of a process and its peers."""
    return Scorer(rewards, weights) if peers.world == 1 else SharedScorer(rewards, weights, peers)

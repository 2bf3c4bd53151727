"""Make a trainer that is ready for steps, with questions and an output directory, and a judge that takes its time."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from grpo.algorithm.schema import Score
from grpo.base.storage import write_json, write_lines
from grpo.config.load import load_config
from grpo.run.run import Run
from grpo.train import GrpoTrainer
from rewards.registry import Reward
from rewards.scorer import Scorer

NUM_QUESTIONS = 64


def letters(prompts: Sequence[str], completions: Sequence[str], **columns: object) -> list[float]:
    """Return the share of 1 among the characters: a reward that costs nothing and differs between completions."""
    return [text.count("1") / max(len(text), 1) for text in completions]


class SlowJudge:
    """A reward that takes its time. All calls of a step are in flight together.

    delays: the seconds that the next calls take; 0 when there are none left. num_ended: calls that gave their score.
    """

    def __init__(self) -> None:
        self.delays: Iterator[float] = iter(())
        self.num_ended = 0

    async def grade(self, completion: str, columns: Mapping[str, Any]) -> Score:
        await asyncio.sleep(next(self.delays, 0.0))
        self.num_ended += 1
        ids = columns["completion_ids"]
        return Score(sum(token % 2 for token in ids) / len(ids))


@contextmanager
def trainer(checkpoint: Path, judge: SlowJudge | None = None, **keys: object) -> Iterator[GrpoTrainer]:
    """Make a trainer of the given configuration, with its files beside the checkpoint.

    judge: its only reward, instead of `letters`.
    """
    folder = checkpoint.parent
    data = folder / "questions.jsonl"
    numbers = range(NUM_QUESTIONS)
    write_lines(data, [{"question": f"What is {n} + {n * n}?", "answer": str(n + n * n)} for n in numbers])
    keys |= {
        "model_name_or_path": str(checkpoint),
        "dataset_id_or_path": str(data),
        "output_dir": str(folder / "run"),
        "overwrite_output_dir": True,
        "reward_funcs": ["bench.steps:letters"],
        "lr_scheduler_type": "constant",
        "max_steps": 1000,
        "report_to": ["none"],
        "disable_tqdm": True,
    }
    write_json(folder / "config.yaml", keys)  # JSON is YAML
    config, _ = load_config(folder / "config.yaml")
    scorer = Scorer([Reward("judge", grade=judge.grade)]) if judge else None
    with Run(config) as run:
        made = GrpoTrainer(config, run, scorer)
        try:
            yield made
        finally:
            made.scorer.close()

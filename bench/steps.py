"""A trainer that is ready to make steps: questions, a config and an output directory in a temporary folder."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from grpo.config.load import load_config
from grpo.run.run import Run
from grpo.train import Trainer

NUM_QUESTIONS = 64


def letters(prompts: Sequence[str], completions: Sequence[str], **columns: object) -> list[float]:
    """A reward that costs nothing and differs between completions: the share of token words with an even number."""
    return [
        sum(word[-1:] in set("02468") for word in text.split("w")) / max(text.count("w"), 1) for text in completions
    ]


@contextmanager
def trainer(checkpoint: Path, folder: Path, **keys: object) -> Iterator[Trainer]:
    """Trainer.train_step() is a whole GRPO step of the given configuration."""
    data = folder / "questions.jsonl"
    questions = [{"question": f"What is {n} + {n * n}?", "answer": str(n + n * n)} for n in range(NUM_QUESTIONS)]
    data.write_text("".join(json.dumps(question) + "\n" for question in questions), encoding="utf-8")
    keys = {
        "model_name_or_path": str(checkpoint),
        "dataset_id_or_path": str(data),
        "output_dir": str(folder / "run"),
        "overwrite_output_dir": True,
        "reward_funcs": ["bench.steps:letters"],
        "max_steps": 1000,
        "report_to": ["none"],
        "disable_tqdm": True,
        **keys,
    }
    config, _ = load_config(None, [f"{name}={json.dumps(value)}" for name, value in keys.items()])
    with Run(config) as run:
        made = Trainer(config, run)
        try:
            yield made
        finally:
            made.rollout.scorer.close()

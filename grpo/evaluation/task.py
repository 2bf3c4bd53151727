"""The task of an evaluation: its model, prompts, questions and reward, decided from a command line."""

from argparse import Namespace
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path

from grpo.base.errors import UserError
from grpo.base.storage import Json
from grpo.config.load import keys_of
from grpo.config.options import TrainConfig
from grpo.config.other_words import NO_BOX
from grpo.data.benchmarks import Benchmark, find_benchmark
from grpo.data.files import read_records
from grpo.data.hub import fetch_data
from grpo.data.objects import Objects
from grpo.data.questions import QuestionData, Questions
from grpo.run.saved import SavedModel, find_saved, read_config

FIELDS = ("question_field", "answer_field", "title_field")
DEFAULT_TEMPLATE = TrainConfig.prompt_template
NO_LIMIT = 10**9  # tokens of a prompt: only the model's positions limit it


@dataclass(frozen=True)
class Task:
    """A model, the questions, and the configuration that says how to ask them.

    data: reads the questions. benchmark: their format, if it is known.
    """

    saved: SavedModel
    config: TrainConfig
    data: QuestionData
    questions: Questions
    benchmark: Benchmark | None


def make_task(model: str, arguments: Namespace, say: Callable[[str], None]) -> Task:
    """Return the task of evaluating `model`; UserError (exit 2) if questions or a reward are missing.

    Typed keys override the benchmark's settings, and these override the run's own configuration.
    Without --data the run's held-out questions are asked, as during training.
    """
    saved = find_saved(model)
    has_config = isinstance(saved.config(), TrainConfig)
    if not arguments.data and not has_config:
        raise UserError("no questions to answer", f"{model} is not a run with questions of its own", "add --data FILE")
    typed = keys_of(arguments.overrides)
    records = _read(arguments.data, arguments.overrides) if arguments.data else []
    name = "/".join(Path(arguments.data or "").parts[-2:])  # of the file with its folder, of a data set with its owner
    benchmark = None if typed & set(FIELDS[:2]) else find_benchmark(records, name)
    reward = _choose_reward(arguments, benchmark, has_config)
    keys = {"model_name_or_path": saved.name, "output_dir": ".", "dataset_id_or_path": arguments.data}
    if reward:  # a run's weights are of its own rewards
        keys |= {"reward_funcs": reward, "reward_weights": "null", "eval_reward_funcs": "null"}
    overrides = [*(f"{name}={value}" for name, value in keys.items() if value), *arguments.overrides]
    config = read_config(saved, overrides)
    if not reward and config.eval_reward_funcs:
        config = replace(config, reward_funcs=config.eval_reward_funcs, reward_weights=None)
    if arguments.data:
        questions = Questions(arguments.data, config.max_samples if "max_samples" in typed else 0)
        config = _fit_to_data(config, records, benchmark, typed)
        if benchmark:
            say(f"{arguments.data} is a file of {benchmark.name}")
        has_prompt = config.system_prompt is not None or config.prompt_template != DEFAULT_TEMPLATE
        if benchmark and not has_prompt:
            config = replace(config, prompt_template=benchmark.prompt)
        if config.prompt_template != DEFAULT_TEMPLATE:
            say(f"each question is asked as {config.prompt_template!r} (prompt_template)")
        if "math" in config.reward_funcs and "boxed" not in f"{config.system_prompt} {config.prompt_template}":
            say(f"note: {NO_BOX}")
    elif not (questions := Questions.held_out(config)):
        raise UserError(
            f"the run {model} has no held-out questions",
            "neither eval_dataset_id_or_path nor eval_size is set",
            "add --data FILE",
        )
    return Task(saved, config, QuestionData(config, Objects({arguments.data: records})), questions, benchmark)


def _read(data: str, typed: Sequence[str]) -> list[Json]:
    split = [override.partition("=")[2] for override in typed if override.startswith("dataset_split=")]
    return read_records(fetch_data(data, *split[-1:]))


def _choose_reward(arguments: Namespace, benchmark: Benchmark | None, has_config: bool) -> str | None:
    """Return the reward to grade with; None: that of the configuration. UserError (exit 2) if there is none."""
    if arguments.reward or not arguments.data:
        return arguments.reward
    if benchmark:
        return benchmark.reward
    if not has_config:
        raise UserError(
            "no reward to grade with",
            f"{arguments.data} is not the file of a benchmark that is known by its columns",
            "add --reward NAME: math, exact, choice, simpleqa, or package.module:function",
        )
    return None


def _fit_to_data(
    config: TrainConfig, records: Sequence[Json], benchmark: Benchmark | None, typed: Set[str]
) -> TrainConfig:
    """Reset the keys of a run's configuration that were meant for other data."""
    fields = [name for name in FIELDS if benchmark or getattr(config, name) not in records[0]]
    changes = {**dict.fromkeys(fields), "max_prompt_length": NO_LIMIT}
    return replace(config, **{name: value for name, value in changes.items() if name not in typed})

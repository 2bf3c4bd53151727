"""From a configuration to the prompts of a run, the number of its steps, and the rewards that grade the answers."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import ceil
from typing import TYPE_CHECKING

from grpo.base.errors import PREFLIGHT, UserError
from grpo.base.schema import Prompt
from grpo.config.options import SftConfig, TrainConfig
from grpo.data.hub import fetch_data
from grpo.data.prompts import ChatEncoder, make_prompts
from grpo.data.rows import Row, fingerprint, read_rows
from rewards.registry import Reward, build_rewards
from rewards.scorer import Scorer

if TYPE_CHECKING:
    from grpo.model.policy import Policy


@dataclass(frozen=True)
class Questions:
    """A selection of questions: the first `max_samples` (0: all) of the rows [start:stop] of a data set."""

    name: str  # of the data set: a file or a hub id
    max_samples: int = 0
    start: int = 0
    stop: int | None = None

    @classmethod
    def to_train(cls, config: TrainConfig) -> "Questions":
        """Select the questions to train on: all but those that eval_size holds out."""
        return cls(config.dataset_id_or_path, config.max_samples, stop=-config.eval_size or None)

    @classmethod
    def held_out(cls, config: TrainConfig) -> "Questions | None":
        """Select the questions to evaluate on during training; None if the configuration names none."""
        if config.eval_size:
            return cls(config.dataset_id_or_path, config.eval_max_samples, start=-config.eval_size)
        if config.eval_dataset_id_or_path:
            return cls(config.eval_dataset_id_or_path, config.eval_max_samples)
        return None


def load_rows(config: TrainConfig, rewards: Sequence[Reward], questions: Questions) -> list[Row]:
    """Read these questions. UserError (exit 3) if there are none, or if a column is missing that a reward needs."""
    name, max_samples = questions.name, questions.max_samples
    path = fetch_data(name, config.dataset_split)
    is_part = questions.start or questions.stop
    fields = (config.question_field, config.answer_field, config.title_field)
    rows = read_rows(path, *fields, 0 if is_part else max_samples, config.seed)
    rows = rows[questions.start : questions.stop][: max_samples or None]
    if not rows:
        raise UserError(
            f"no question is left in {name}",
            f"eval_size holds out {config.eval_size}, and it has no more",
            "lower eval_size",
            PREFLIGHT,
        )
    for reward in rewards:
        check_columns(reward.name, reward.needs, rows, name)
    return rows


def check_columns(reward: str, needs: Sequence[str], rows: Sequence[Row], data: str) -> list[str]:
    """Return the columns of these rows that a reward needs. UserError (exit 3) if one of them is empty in every row.

    If the rows have a column `unanswerable`, which says when to decline, they need no answer.
    """
    filled = {column: True for row in rows for column, value in row.columns.items() if value is not None}
    needed = [column for column in needs if column != "answer" or "unanswerable" not in filled]
    missing = [column for column in needed if column not in filled]
    if missing:
        raise UserError(
            f"the reward {reward} needs the column {' and '.join(missing)}",
            f"the columns of {data} are {', '.join(filled)}",
            f"set {missing[0]}_field, or add the column to the data",
            PREFLIGHT,
        )
    return needed


def prepare_rewards(config: TrainConfig, say: Callable[[str], None], questions: Questions | None = None) -> Scorer:
    """Build the rewards, and check that their columns, services and knowledge base are there.

    questions: those to grade; by default those to train on.
    """
    scorer = Scorer(build_rewards(config.reward_funcs, asdict(config)), config.reward_weights)
    try:
        rows = load_rows(config, scorer.rewards, questions or Questions.to_train(config))
        scorer.prepare([row.columns for row in rows], say)
    except BaseException:
        scorer.close()
        raise
    return scorer


def held_out_scorer(config: TrainConfig, scorer: Scorer) -> Scorer:
    """Return the rewards of the held-out questions, after checking their columns.

    They are those of training, `scorer`, unless eval_reward_funcs names others, or there are no such questions.
    """
    questions = Questions.held_out(config)
    if not questions:
        return scorer
    if config.eval_reward_funcs:
        scorer = Scorer(build_rewards(config.eval_reward_funcs, asdict(config)))
    load_rows(config, scorer.rewards, questions)
    return scorer


def load_prompts(
    config: TrainConfig,
    policy: "Policy",
    rewards: Sequence[Reward],
    questions: Questions,
    say: Callable[[str], None],
) -> tuple[list[Prompt], str]:
    """Return the prompts of these questions and a hash of their content.

    UserError (exit 3) if a column is missing that a reward needs, or if no prompt fits.
    """
    rows = load_rows(config, rewards, questions)
    positions = policy.model.config.max_positions
    limit = min(config.max_prompt_length, positions - config.max_completion_length)
    if limit < 1:
        raise UserError(
            "max_completion_length leaves no room for a prompt",
            f"the model has {positions} positions",
            "lower max_completion_length",
            PREFLIGHT,
        )
    encoder = ChatEncoder(policy.tokenizer)
    prompts, num_too_long = make_prompts(rows, encoder, config.system_prompt, config.prompt_template, limit)
    if num_too_long:
        share = f"{num_too_long} of {len(rows)} prompts of {questions.name}"
        say(f"note: {share} are longer than {limit} tokens and left out")
    return prompts, fingerprint(rows)


def num_steps(config: TrainConfig | SftConfig, num_rows: int, rows_per_step: int) -> int:
    """Return the number of steps of a run over `num_rows` rows of data. rows_per_step: over all ranks."""
    if config.max_steps > 0:
        return config.max_steps
    return ceil(config.num_train_epochs * num_rows / rows_per_step)

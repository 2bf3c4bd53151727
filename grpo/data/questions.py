"""From a configuration to the prompts of a run and the rewards that grade their answers. Both are checked."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from grpo.config.options import TrainConfig
from grpo.data.hub import fetch_data
from grpo.data.prompts import ChatEncoder, make_prompts
from grpo.data.rows import Row, fingerprint, read_rows
from grpo.errors import PREFLIGHT, UserError
from grpo.schema import Prompt
from rewards.registry import Reward, build_rewards
from rewards.scorer import Scorer

if TYPE_CHECKING:
    from grpo.model.policy import Policy


def load_rows(config: TrainConfig, rewards: Sequence[Reward], name: str, max_samples: int) -> list[Row]:
    """Read the data set `name`. Exit 3 if a column is missing that a reward needs."""
    path = fetch_data(name, config.dataset_split)
    fields = (config.question_field, config.answer_field, config.title_field)
    rows = read_rows(path, *fields, max_samples, config.seed)
    filled = {}  # columns with any value, in the order of the file
    for row in rows:
        for column, value in row.columns.items():
            if value is not None:
                filled[column] = True
    for reward in rewards:
        missing = [column for column in reward.needs if column not in filled]
        if "unanswerable" in filled:  # to decline is right there, whatever the answer
            missing = [column for column in missing if column != "answer"]
        if missing:
            raise UserError(
                f"the reward {reward.name} needs the column {missing[0]}",
                f"the columns of {name} are {', '.join(filled)}",
                f"set {missing[0]}_field",
                PREFLIGHT,
            )
    return rows


def prepare_rewards(config: TrainConfig, say: Callable[[str], None]) -> Scorer:
    """Build the rewards of a run and check that their columns, services and knowledge base are there."""
    scorer = Scorer(build_rewards(config.reward_funcs, asdict(config)), config.reward_weights)
    try:
        rows = load_rows(config, scorer.rewards, config.dataset_id_or_path, config.max_samples)
        scorer.prepare([row.columns for row in rows], say)
    except BaseException:
        scorer.close()
        raise
    return scorer


def load_prompts(
    config: TrainConfig,
    policy: "Policy",
    rewards: Sequence[Reward],
    name: str,
    max_samples: int,
    say: Callable[[str], None],
) -> tuple[list[Prompt], str]:
    """Return the prompts of the data set `name` and a hash of its content.

    Exit 3 if a column is missing that a reward needs, or if no prompt fits.
    """
    rows = load_rows(config, rewards, name, max_samples)
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
        say(f"note: {num_too_long} of {len(rows)} prompts of {name} are longer than {limit} tokens and left out")
    return prompts, fingerprint(rows)

"""From a configuration to the prompts of a run, the number of its steps, and the rewards that grade the answers."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

from grpo.algorithm.schema import Prompt
from grpo.base.errors import PREFLIGHT, UserError
from grpo.base.text import did_you_mean
from grpo.config.options import AnyConfig, TrainConfig
from grpo.data.count import DAMAGED, WITH_MEDIA, RowCount, has_media, is_empty
from grpo.data.files import BadRows, noting, shown
from grpo.data.messages import is_damaged
from grpo.data.objects import NO_OBJECTS, Objects
from grpo.data.prompts import ChatEncoder, make_prompts
from grpo.data.rows import FIELDS, Row, check_answer, comparing, fingerprint, read_rows
from grpo.engine.device.peers import Peers
from rewards.exact import is_unanswerable, truths
from rewards.registry import Reward, build_rewards
from rewards.scorer import Scorer

if TYPE_CHECKING:
    from grpo.policy import Policy


@dataclass(frozen=True)
class Questions:
    """A selection of questions: the first `max_samples` (0: all) of the rows [start:stop] of a data set."""

    name: str  # of the data set: a file or a hub id
    max_samples: int = 0
    start: int = 0
    stop: int | None = None
    split: str | None = None  # of a folder or a hub id; None: dataset_split

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
            return cls(config.eval_dataset_id_or_path, config.eval_max_samples, split=config.eval_dataset_split)
        return None


@dataclass(eq=False)
class QuestionData:
    """The questions of a configuration. Each data set is read once.

    objects: what a program passes, or has read. files: data set and split -> its rows.
    """

    config: TrainConfig
    objects: Objects = NO_OBJECTS
    files: dict[tuple[str, str], tuple[list[Row], BadRows]] = field(default_factory=dict)

    def load(self, questions: Questions, rewards: Sequence[Reward] = ()) -> tuple[list[Row], RowCount]:
        """Return these questions, and how many rows were left out because they cannot be asked or graded.

        UserError (exit 3) if rows are bad (see skip_bad_rows), none is left, or a column is missing that a reward
        needs.
        """
        rows, bad = self._read(questions.name, questions.split or self.config.dataset_split)
        rows = rows[questions.start : questions.stop][: questions.max_samples or None]
        count = RowCount(questions.name, len(rows) + len(bad), self.config.skip_bad_rows, dict(bad))
        for reward in rewards if rows else ():
            check_columns(reward.name, reward.needs, rows, questions.name)
        needing = comparing(rewards)
        kept = []
        for row in rows:
            if has_media(row.columns):
                count.left_out[WITH_MEDIA] += 1
            elif needing and is_empty(row.columns.get("answer")) and not is_unanswerable(row.columns):
                count.left_out["without an answer"] += 1
            else:
                with noting(count.bad, row.index + 1):
                    check_answer(needing, row.columns.get("answer"), Path(questions.name), row.index + 1)
                    kept.append(row)
        count.leave_out_bad()
        damaged = [row for row in kept if is_damaged([row.columns["question"], row.columns.get("answer")])]
        count.note(DAMAGED, [f"row {row.index + 1}" for row in damaged])
        if "math" in needing:
            count_prose(kept, count)
        if not kept:
            fix = "use other data" if count.left_out else "lower eval_size"
            why = str(count) if count.left_out else f"eval_size holds out {self.config.eval_size}, and it has no more"
            raise UserError(f"no question is left in {questions.name}", why, fix, PREFLIGHT)
        return kept, count

    def _read(self, name: str, split: str) -> tuple[list[Row], BadRows]:
        if (name, split) not in self.files:
            config = self.config
            bad: BadRows = {}
            given = self.objects.rows.get(name)
            path = Path(name)
            if not (given or path.is_file()):
                from grpo.data.hub import fetch_data  # of a folder, or of what is not here

                path = fetch_data(name, split)
            rows = read_rows(
                path,
                config.question_field,
                config.answer_field,
                config.title_field,
                config.seed,
                given,
                bad,
            )
            self.files[name, split] = rows, bad
        return self.files[name, split]


def check_columns(reward: str, needs: Sequence[str], rows: Sequence[Row], data: str) -> None:
    """Check the columns of these rows that a reward needs. UserError (exit 3) if one of them is empty in every row.

    If the rows have a column `unanswerable`, which says when to decline, they need no answer.
    """
    filled = {column: True for row in rows for column, value in row.columns.items() if value is not None}
    can_lack = {*filled, "answer"} if "unanswerable" in filled else filled
    missing = [column for column in needs if column not in can_lack]
    if missing:
        name = missing[0]
        other = f"set {name}_field to one of them, or " if name in FIELDS else ""
        raise UserError(
            f"the reward {reward} needs the column {' and '.join(missing)}",
            f"the columns of {data} are {', '.join(filled)}",
            f"{other}add the column to the data{did_you_mean(name, list(filled))}",
            PREFLIGHT,
        )


def count_prose(rows: Sequence[Row], count: RowCount) -> None:
    """Note in `count` how many rows have sentences as their answers, which the reward `math` finds in no completion."""
    from rewards.boxed import is_prose  # with the mathematics, which other rewards do without

    found = []
    for row in rows:
        answers = truths(row.columns.get("answer"))
        if answers and all(map(is_prose, answers)):
            found.append(f"row {row.index + 1}: {shown(answers[0])}")
    count.note("answers that are sentences, to which math finds nothing equal", found)


def prepare_rewards(
    data: QuestionData, say: Callable[[str], None], questions: Questions | None = None, peers: Peers | None = None
) -> Scorer:
    """Build the rewards, and check that their columns, services and knowledge base are there.

    questions: those to grade; by default those to train on. peers: processes that share the grades (rewards/scorer.py).
    """
    config = data.config
    scorer = Scorer(
        build_rewards(config.reward_funcs, asdict(config), data.objects.rewards), config.reward_weights, peers
    )
    try:
        rows, _ = data.load(questions or Questions.to_train(config), scorer.rewards)
        scorer.prepare([row.columns for row in rows], say)
    except BaseException:
        scorer.close()
        raise
    return scorer


def held_out_scorer(data: QuestionData, scorer: Scorer, peers: Peers | None = None) -> Scorer:
    """Return the rewards of the held-out questions, after checking their columns.

    They are those of training, `scorer`, unless eval_reward_funcs names others, or there are no such questions.
    """
    config = data.config
    questions = Questions.held_out(config)
    if not questions:
        return scorer
    if config.eval_reward_funcs:
        scorer = Scorer(build_rewards(config.eval_reward_funcs, asdict(config), data.objects.rewards), peers=peers)
    data.load(questions, scorer.rewards)
    return scorer


@dataclass(frozen=True)
class PromptSet:
    """The prompts of some questions. data_hash: of the questions. count: the rows that were used and left out."""

    prompts: list[Prompt]
    data_hash: str
    count: RowCount


def load_prompts(
    data: QuestionData, policy: "Policy", questions: Questions, rewards: Sequence[Reward] = ()
) -> PromptSet:
    """Return the prompts of these questions. UserError (exit 3) as in QuestionData.load, or if no prompt fits."""
    config = data.config
    rows, count = data.load(questions, rewards)
    positions = policy.model.config.max_positions
    room = positions - config.max_completion_length
    if room < 1:
        raise UserError(
            "max_completion_length leaves no room for a prompt",
            f"the model has {positions} positions",
            "lower max_completion_length",
            PREFLIGHT,
        )
    of_model = room, f"the model's {positions} positions without max_completion_length"
    limit, source = min(of_model, (config.max_prompt_length, "max_prompt_length"))
    encoder = ChatEncoder(policy.tokenizer)
    system_prompt = config.system_prompt
    if config.tools or config.environment:
        from grpo.tools.functions import protocol_of, system_prompt_of  # most runs have no tools

        encoder = protocol_of(config, policy.tokenizer, data.objects.tools).encoder
        system_prompt = system_prompt_of(config, encoder)
    prompts = make_prompts(rows, encoder, system_prompt, config.prompt_template, limit, count, source)
    return PromptSet(prompts, fingerprint(rows), count)


def longest_sequence(data: QuestionData, policy: "Policy", prompts: Sequence[Prompt]) -> int:
    """Return the tokens of the longest prompt, trained or held out, with a completion: one cache serves both.

    prompts: those to train on.
    """
    config = data.config
    held_out = Questions.held_out(config)
    others = load_prompts(data, policy, held_out).prompts if held_out else []
    longest = max(len(prompt.ids) for prompt in (*prompts, *others))
    if config.environment:  # it may add to them
        room = policy.model.config.max_positions - config.max_completion_length
        longest = max(longest, min(config.max_prompt_length, room))
    return longest + config.max_completion_length


def num_steps(config: AnyConfig, num_rows: int, rows_per_step: int) -> int:
    """Return the number of steps of a run over `num_rows` rows of data. rows_per_step: over all ranks."""
    if config.max_steps > 0:
        return config.max_steps
    return ceil(config.num_train_epochs * num_rows / rows_per_step)

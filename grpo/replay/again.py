"""Make a step of a run again, and compare it with what the run has recorded.

It begins at the newest checkpoint before the step, or where the run began, and makes the steps in between, too.
"""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from math import isfinite
from pathlib import Path

from grpo.algorithm.credit import TokenPlaces
from grpo.algorithm.schema import Group, Score, TrainerState
from grpo.base.errors import UserError, redact
from grpo.base.folders import MANIFEST_FILE
from grpo.base.storage import Json, read_json, read_mapping
from grpo.config.load import load_config, replicas_of
from grpo.config.options import TrainConfig
from grpo.data.questions import QuestionData, prepare_rewards
from grpo.policy import Policy
from grpo.replay.parts import Look, Observer, Seen
from grpo.run.checkpoint import COUNTERS_FILE, checkpoints, problem_with, step_of
from grpo.run.diagnosis.record import CONFIG_FILE, METRICS_FILE, Answer, Record, read_lines, read_record
from grpo.run.log import completion_records
from grpo.run.run import SilentRun
from grpo.train import GrpoTrainer
from rewards.own_names import short_name
from rewards.prompts import tag_of
from rewards.registry import Reward, built_in, expand
from rewards.scorer import START, Scorer

CHANGING = """
    *time* tokens_per_second peak_memory_gb micro_batches skipped_steps judge/* decomposer/* kb/* log/*
""".split()  # metrics that the clock, the machine or a service decides
# Inputs that may have changed since.
ANSWERED = ("reward_funcs", "eval_reward_funcs", "tools", "environment", "knowledge_base")
SAMPLER = "sampler/*"  # with tools, who is sampled beside whom depends on the clock, and so do the last bits of these
MAX_NOTES = 3  # answers that differ, which are told


@dataclass(frozen=True)
class Replay:
    """A step made again. start: the step of the checkpoint that it began with.

    num_recorded: answers of the step that completions/ holds; num_same: those made again, token by token, with the same
    reward and advantage. num_equal: metrics of the step with the same bits, out of num_compared. missing: what the run
    should have recorded of the step, and has not. notes: what differs, also in the program.
    """

    run: str
    step: int
    start: int
    look: Look
    num_recorded: int
    num_same: int
    num_equal: int
    num_compared: int
    missing: list[str]
    notes: list[str]

    @property
    def differs(self) -> bool:
        """Return whether something is not what the run has recorded, or is not recorded."""
        return bool(self.missing) or self.num_same < self.num_recorded or self.num_equal < self.num_compared


class Remembered(Scorer):
    """The grades of a run, as completions/ has them. A group that is not there as it is now is graded again.

    answers: of a step. make: what grades, made when it is first needed.
    """

    def __init__(self, config: TrainConfig, answers: Callable[[int], list[Answer]], make: Callable[[], Scorer]):
        rewards = []
        for name in expand(config.reward_funcs):
            known = built_in(name)  # of it nothing else is needed: it grades nothing
            title = tag_of(name) if name == config.environment else short_name(name)
            rewards.append(Reward(title, needs=known.needs, checks_every_answer=known.checks_every_answer))
        super().__init__(rewards, config.reward_weights)
        self.answers = answers
        self.make = make
        self.grader = None
        self.states: dict[Group, TrainerState] = {}

    def submit(self, group: Group, index: int, state: TrainerState = START) -> None:
        self._grading_of(group)
        self.states[group] = state

    def _grade(self, groups: Sequence[Group]) -> list[list[dict[str, Score]]]:
        scores = {group: self._recorded(group) for group in groups}
        others = [group for group in groups if not scores[group]]
        if others:
            self.grader = self.grader or self.make()
            for group in others:
                for index in range(len(group.completions)):
                    self.grader.submit(group, index, self.states[group])
            self.grader.collect(*others)
        return [scores[group] or [completion.scores for completion in group.completions] for group in groups]

    def _recorded(self, group: Group) -> list[dict[str, Score]]:
        """Return the scores of a group that completions/ holds; [] if it does not, or has others."""
        answers = find_group(self.answers(self.states[group].global_step + 1), group)
        names = {reward.name for reward in self.rewards}
        if answers and all(names == answer.grades.keys() for answer in answers):
            return recorded_scores(answers)
        return []

    def close(self) -> None:
        super().close()
        if self.grader:
            self.grader.close()


def find_group(answers: Sequence[Answer], group: Group) -> list[Answer]:
    """Return the recorded answers of a group, if they are what its completions say; else []."""
    texts = [completion.text for completion in group.completions]
    of_row = [answer for answer in answers if answer.row == group.prompt.row]
    for start in range(0, len(of_row), len(texts)):
        found = of_row[start : start + len(texts)]
        if [answer.completion for answer in found] == texts:
            return found
    return []


def recorded_scores(answers: Sequence[Answer]) -> list[dict[str, Score]]:
    """Return the scores of a group. A reward applies unless it gave no value, and the sum has one without it."""
    is_paid = any(answer.reward is not None for answer in answers)
    gave_values = {name for answer in answers for name, (value, _) in answer.grades.items() if value is not None}
    scores: list[dict[str, Score]] = []
    for answer in answers:
        of_answer = {}
        for name, (value, reason) in answer.grades.items():
            of_answer[name] = Score(
                value,
                reason,
                answer.outcome or None,
                applies=name in gave_values or not is_paid,
                details=answer.details.get(name, {}),
                facts=answer.facts.get(name, []),
            )
        scores.append(of_answer)
    return scores


def replay(path: str | Path, step: int, row: int | None = None, overrides: Sequence[str] = ()) -> Replay:
    """Make a step (from 1) of a run again; look at the tokens of a row (as numbered in completions/).

    row: by default that with the largest share. overrides: keys to change, such as device=cpu.
    UserError (exit 2) if the run has no such step, or the step no such row, and if an input has changed that is not in
    ANSWERED.
    """
    record = read_record(path)
    config = _config_of(record, step, overrides)
    run = SilentRun(config)
    data = QuestionData(config)
    answers = lru_cache(maxsize=1)(record.answers)
    scorer = Remembered(config, answers, lambda: prepare_rewards(data, run.say))
    with ExitStack() as ending:
        ending.callback(run.bring_back)
        ending.callback(scorer.close)
        kind = partial(Observer, number=step, row=row)
        trainer = GrpoTrainer(config, run, scorer, data, kind)
        if trainer.tools:
            ending.callback(trainer.tools.close)
        if config.resume_from_checkpoint:
            trainer.restore()
        start = trainer.step
        while trainer.step < step:
            trainer.run_step()
        metrics, _ = trainer.summarise_step()
        if scorer.grader:
            run.say("some answers differ from those of completions/, or are not there: they were graded again")
        return _compared(record, step, start, trainer, metrics, run.said)


def _config_of(record: Record, step: int, overrides: Sequence[str]) -> TrainConfig:
    """Return the configuration that made a step, on this process alone, and that begins at the checkpoint before it."""
    if "reward_funcs" not in record.config:
        what = f"{record.path} is no run of stage 2" if record.config else f"{record.path} has no {CONFIG_FILE}"
        raise UserError(what, "only its steps can be made again", "name a run of grpo.train")
    saved = checkpoints(record.path)
    intact = [one for one in saved if not problem_with(one)]
    logged = [metrics["step"] for metrics in record.steps]
    last = max([*logged, *map(step_of, saved)], default=0)
    if not 1 <= step <= last:
        raise UserError(f"the run has no step {step}", f"it has made {last}", "name one of them")
    folder = next((one for one in intact if step_of(one) < step), None)
    later = [one for one in saved if step_of(one) >= step and (one / CONFIG_FILE).exists()]
    nearest = later[-1] if later else record.path  # a resumed run may have other keys than it began with
    config, _ = load_config(nearest / CONFIG_FILE, overrides, is_run=False)
    manifests = [read_mapping(one / MANIFEST_FILE) for one in (folder, *later) if one]
    world = next((manifest["world_size"] for manifest in manifests if manifest), 1)
    tokens = config.max_tokens_per_micro_batch
    if intact and not (tokens or folder):  # the last bits of sums depend on it; what resumes knows it by itself
        tokens = read_json(intact[-1] / COUNTERS_FILE)["micro_batch_tokens"]
    return replace(
        config,
        max_tokens_per_micro_batch=tokens,
        allow_changes=(*config.allow_changes, *ANSWERED),
        resume_from_checkpoint=str(folder) if folder else False,
        gradient_accumulation_steps=config.gradient_accumulation_steps * world // replicas_of(config),
        tensor_parallel_size=1,
    )


def _compared(
    record: Record, step: int, start: int, trainer: GrpoTrainer, metrics: dict[str, float], said: Sequence[str]
) -> Replay:
    """Compare a step with the run's record."""
    look = trainer.learner.look
    groups = trainer.learned.generated
    if look is None:  # of several updates, none was made
        why = "every completion is masked, or dynamic sampling has kept no group"
        raise UserError(f"step {step} trains nothing", why, "choose another step")
    told = [text for text in said if text.startswith(("note: ", "warning: ", "some "))]
    notes = [text.removeprefix("note: ") for text in told]
    made = _numbered(json.loads(redact(json.dumps(completion_records(groups)))))
    recorded = _numbered(read_lines(record.path / "completions" / f"step-{step:06d}.jsonl"))
    same = 0
    differences = []
    for place in filter(made.get, recorded):
        old = recorded[place]
        new = made[place]
        unequal = [name for name in dict.fromkeys([*new, *old]) if old.get(name) != new.get(name)]
        same += not unequal
        for name in unequal:
            difference = _difference(name, old.get(name), new.get(name), trainer.policy)
            differences.append(f"row {place[0]}, answer {place[1]}: {difference}")
    notes += differences[:MAX_NOTES]
    was = next((line for line in record.steps if line["step"] == step), {})
    changing = [*CHANGING, SAMPLER] if trainer.tools else CHANGING
    compared = [name for name in metrics if was and not any(fnmatchcase(name, pattern) for pattern in changing)]
    unequal = [name for name in compared if not _is_same(was.get(name), metrics[name])]
    notes += [f"{name} was {was.get(name)!r}, is now {metrics[name]!r}" for name in unequal]
    is_logged = step in (1, trainer.total_steps) or step % trainer.config.logging_steps == 0
    is_due = trainer.config.log_completions and is_logged
    missing = [METRICS_FILE] * (not was)
    missing += ["completions/"] * (is_due and len(recorded) < len(made))
    for seen in look.shown:
        add_texts(seen, trainer.policy)
    return Replay(
        run=str(record.path),
        step=step,
        start=start,
        look=look,
        num_recorded=len(recorded),
        num_same=same,
        num_equal=len(compared) - len(unequal),
        num_compared=len(compared),
        missing=missing,
        notes=notes,
    )


def _is_same(was: float | None, now: float) -> bool:
    return was == now or not (isfinite(now) or isfinite(was or 0))  # neither is a number


def _numbered(answers: Sequence[Json]) -> dict[tuple[int, int], Json]:
    """Return answers by their row, and by their number among the answers to it, from 1."""
    found = {}
    numbers = Counter()
    for answer in answers:
        row = answer["row"]
        numbers[row] += 1
        found[row, numbers[row]] = answer
    return found


def _difference(name: str, old: object, new: object, policy: Policy) -> str:
    """Say how a value of an answer differs from the recorded one; of tokens, from which one on."""
    if name != "ids":
        return f"{name} was {old!r}, is now {new!r}"
    old = old or []
    pairs = enumerate(zip(old, new, strict=False))
    same = next((number for number, (was, now) in pairs if was != now), min(len(old), len(new)))
    texts = [policy.decode(ids[same : same + 8]) for ids in (old, new)]
    return f"from token {same + 1} on it was {texts[0]!r}, and is now {texts[1]!r}"


def add_texts(seen: Seen, policy: Policy) -> None:
    """Add to each token its text; to one that ends no character, and to a special one, its name."""
    places = TokenPlaces(seen.completion, policy.decode)
    for token in seen.tokens:
        start = places.start(token["place"])
        end = places.start(token["place"] + 1)
        text = seen.completion.text[start:end]
        token["text"] = text or str(policy.tokenizer.convert_ids_to_tokens(token["id"]))

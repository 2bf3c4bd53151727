"""What a run will take: its steps, tokens, time, and calls of services.

The time is that of the run's first step, made in memory by the run's own code. Prompts and completions are cut to a few
tokens at first, then to more of them, up to the complete step. If that would take too long, the time of the longest
step that was made is scaled up by its tokens.
"""

from dataclasses import dataclass, replace
from math import ceil
from statistics import fmean

from grpo.algorithm.rollout import groups_per_replica
from grpo.algorithm.schema import Group, Prompt, Score, completions_of
from grpo.base.text import show_duration
from grpo.config.options import SftConfig, TrainConfig, keys_that
from grpo.data.questions import num_steps
from grpo.engine.model import memory
from grpo.run.case import Case, NotChecked, need, rounded
from grpo.run.guard import Guard
from grpo.run.run import SilentRun
from grpo.sft import Examples, SftTrainer
from grpo.train import GrpoTrainer, TrainingData
from rewards.registry import Reward
from rewards.scorer import Scorer
from rewards.services import Checkup, services_of

LIMIT_S = 60.0  # after the first two steps, a larger one is made only if it is likely to end before this
FIRST_TOKENS = 16  # of prompts and completions
GENERATING = "generating"
PHASES = {"time/generate": GENERATING, "time/reference": "reference", "time/train": "training"}
NO_REWARD = Reward("nothing", lambda text, row: Score(0.0))


@dataclass(frozen=True)
class StepTime:
    """The seconds of a complete step by phase, and what was measured."""

    phases: dict[str, float]
    measured: str


class Rehearsal:
    """A trainer that makes first steps whose prompts and completions are cut. Subclasses define what a row is.

    source: of the rows. num_rows: of a step. longest: tokens of the longest prompt or completion. Subclasses have
    `cut(tokens)`, the source with prompts and completions of at most so many tokens; and `full_tokens()`, the estimated
    tokens of prompts (from the data) and of completions (from the last step) in a complete step.
    """

    trainer: GrpoTrainer | SftTrainer
    source: TrainingData | Examples
    num_rows: int
    longest: int

    def time_step(self, limit_s: float = LIMIT_S) -> StepTime:
        """Measure the longest step that `limit_s` allows; return the times of a complete one."""
        tokens = FIRST_TOKENS
        spent = sum(self.make_step(tokens).values())  # warms up
        while True:
            phases = self.make_step(tokens)
            seconds = sum(phases.values())
            spent += seconds
            more = min(2 * tokens, self.longest)
            if more <= tokens or spent + seconds * more / tokens > limit_s:
                break
            tokens = more
        groups = self.trainer.learned.groups
        lengths = [len(completion.ids) for completion in completions_of(groups)]
        measured = f"{self.num_rows} rows, completions of {fmean(lengths):.0f} tokens"
        if tokens < self.longest:
            measured += f" (cut at {tokens} to save time, and scaled up)"
        prompts, completions = self.full_tokens()  # generation grows with the tokens generated, the rest with all
        scale_of_all = (prompts + completions) / sum(map(num_packed, groups))
        scale_of_generated = completions / sum(lengths)
        scaled = {}
        for name, seconds in phases.items():
            scale = scale_of_generated if name == GENERATING else scale_of_all
            scaled[name] = seconds * scale
        return StepTime(scaled, measured)

    def make_step(self, tokens: int) -> dict[str, float]:
        """Make the run's first step, cut to so many tokens; return its seconds by phase."""
        self.trainer.begin(self.cut(tokens))
        Guard(self.trainer).run_step()
        times = self.trainer.clock.result()
        return {name: times[phase] for phase, name in PHASES.items() if times[phase]}


class GrpoRehearsal(Rehearsal):
    """First steps of stage 2. A row is a question with its completions, which are not graded."""

    def __init__(self, config: TrainConfig):
        config = replace(config, dynamic_sampling=False, knowledge_base=None)  # they are for grades
        config = replace(config, tools=())  # which are not called before a run
        self.trainer = GrpoTrainer(config, SilentRun(config), Scorer([NO_REWARD]))
        self.source: TrainingData = self.trainer.source
        self.num_rows = groups_per_replica(config)
        longest_prompt = max(len(prompt.ids) for prompt in self.source.prompts)
        self.longest = max(config.max_completion_length, longest_prompt)

    def cut(self, tokens: int) -> TrainingData:
        prompts = [_cut_prompt(prompt, tokens) for prompt in self.source.prompts]
        most = min(tokens, self.source.max_completion_length)
        return replace(self.source, prompts=prompts, max_completion_length=most)

    def full_tokens(self) -> tuple[float, float]:
        """A completion that was cut off counts with the maximum length."""
        most = self.source.max_completion_length
        lengths = []
        for completion in completions_of(self.trainer.learned.groups):
            lengths.append(len(completion.ids) if completion.finish_reason == "stop" else most)
        num_completions = self.num_rows * self.trainer.config.num_generations
        prompt = fmean(len(prompt.ids) for prompt in self.source.prompts)
        return self.num_rows * prompt, num_completions * fmean(lengths)


class SftRehearsal(Rehearsal):
    """First steps of stage 1. A row is an example."""

    def __init__(self, config: SftConfig):
        self.trainer = SftTrainer(config, SilentRun(config))
        self.source: Examples = self.trainer.source
        self.num_rows = self.source.rows_per_step
        longest_prompt = max(len(example.prompt.ids) for example in self.source.all)
        longest_answer = max(len(example.completions[0].ids) for example in self.source.all)
        self.longest = max(longest_prompt, longest_answer)

    def cut(self, tokens: int) -> Examples:
        return replace(self.source, all=[_cut_example(example, tokens) for example in self.source.all])

    def full_tokens(self) -> tuple[float, float]:
        prompt = fmean(len(example.prompt.ids) for example in self.source.all)
        example = fmean(map(num_packed, self.source.all))
        return self.num_rows * prompt, self.num_rows * (example - prompt)


def _cut_example(example: Group, tokens: int) -> Group:
    """Return an example with the end of its prompt, and the beginning of its answer."""
    (answer,) = example.completions
    kept = {name: getattr(answer, name)[:tokens] for name in ("ids", "logps", "cuts")}
    return Group(_cut_prompt(example.prompt, tokens), [replace(answer, **kept)])


def _cut_prompt(prompt: Prompt, tokens: int) -> Prompt:
    """Return a prompt of which only the end is left."""
    return replace(prompt, ids=prompt.ids[-tokens:])


def num_packed(group: Group) -> int:
    """Count the tokens of a group, whose prompt is computed once."""
    return len(group.prompt.ids) + sum(len(completion.ids) for completion in group.completions)


def check_room(case: Case) -> None:
    """Raise NotChecked if the run cannot be tried here."""
    if case.memory_gb:
        raise NotChecked("not checked: the GPU is not here")
    if case.config.tensor_parallel_size > 1:
        raise NotChecked(f"not checked: {case.config.tensor_parallel_size} processes share the model")
    needed, free = need(case.needed_bytes, "the memory"), memory.free_bytes(case.device)
    if needed > free:
        raise NotChecked(f"not checked: it takes {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are free")


def rehearse(case: Case) -> Rehearsal:
    """Load the trainer of a run. If stage 1 has to run first, stage 2 is tried with stage 1's model."""
    config, start = case.config, case.start
    if isinstance(config, SftConfig):
        return SftRehearsal(start)
    if isinstance(start, SftConfig):
        start = replace(config, **{name: getattr(start, name) for name in keys_that("model")})
    if "eval" not in case.rows:  # there is no such data, or it has a fault, which is told by itself
        start = replace(start, eval_dataset_id_or_path=None)
    return GrpoRehearsal(start)


# --- estimates -------------------------------------------------------------------------------------------------------


def steps(case: Case) -> str:
    """Count steps and tokens, on one device."""
    config = case.config
    longest = need(case.longest, "the data")
    rows, number = rows_per_step(config), steps_of(case)
    if isinstance(config, SftConfig):
        return f"{number:,} steps of {rows} answers on one device, of {rows * longest:,} tokens at most"
    longest = max(len(prompt.ids) for prompt in case.prompts) + config.max_completion_length
    groups = rows // config.num_generations
    generated = rows * config.max_completion_length
    found = [
        f"{number:,} steps of {rows} completions on one device ({groups} questions x {config.num_generations})",
        f"the largest has {rows * longest:,} tokens, of which {generated:,} are generated",
        f"all of them {rounded(number * generated)} at most",
    ]
    epochs = number * groups / len(case.prompts)
    return "; ".join([*found, f"each question {epochs:.1f} times"])


def rows_per_step(config: TrainConfig | SftConfig) -> int:
    """Return the completions, or the examples, of a step on one device."""
    return config.per_device_train_batch_size * config.gradient_accumulation_steps


def steps_of(case: Case) -> int:
    """Return the number of steps of the run on one device."""
    config = case.config
    if isinstance(config, SftConfig):
        return num_steps(config, case.num_examples, rows_per_step(config))
    return num_steps(config, len(case.prompts), rows_per_step(config) // config.num_generations)


def num_held_out(case: Case) -> int:
    return len(case.rows.get("eval", ()))


def evaluations_of(case: Case) -> int:
    """Return how often the run answers the held-out questions: before, after, and every eval_steps."""
    if not num_held_out(case):
        return 0
    every = case.config.eval_steps
    return 2 + (steps_of(case) // every if every else 0)


def duration(case: Case) -> str:
    """Estimate the time of a run from a step that is made here, and from the latency of services."""
    rehearsal, case.rehearsal = need(case.rehearsal, "the sample"), None
    step, number = rehearsal.time_step(), steps_of(case)
    phases, notes = dict(step.phases), [step.measured]
    if isinstance(case.config, TrainConfig):
        for name, checkup in asked(case).items():
            phases[f"{name} (at most)"] = seconds_of_calls(case.config, checkup)
        for name in services_of(case.reward_names):
            if name not in case.checkups:
                notes.append(f"without the {name}")
        if case.config.dynamic_sampling:
            most = case.config.dynamic_sampling_max_rollouts
            notes.append(f"dynamic_sampling generates up to {most} times as much")
    seconds = sum(phases.values())
    terms = " + ".join(f"{name} {seconds:,.2f}" for name, seconds in phases.items())
    found = [f"{seconds:,.2f} s a step: {terms}", f"{number:,} steps take {show_duration(number * seconds)}"]
    evaluations = evaluations_of(case)
    if evaluations:
        of_answers = seconds - phases["training"] - phases.get("reference", 0)
        of_one = of_answers / rows_per_step(case.config)
        total = show_duration(evaluations * num_held_out(case) * of_one)
        found.append(f"{evaluations} evaluations take {total}")
    return "; ".join([*found, f"measured here: {', '.join(notes)}"])


def stage1_duration(case: Case) -> str:
    """Estimate the time of the stage 1 that runs first."""
    config = case.start
    number = num_steps(config, need(case.num_examples, "the data of stage 1"), rows_per_step(config))
    check_room(case)
    step = SftRehearsal(config).time_step()
    seconds = sum(step.phases.values())
    total = show_duration(number * seconds)
    return f"{seconds:,.2f} s a step; {number:,} steps take {total}; measured here: {step.measured}"


def asked(case: Case) -> dict[str, Checkup]:
    """Return the services that were asked over a network, with the tokens of a call as a run will make it."""
    found = {name: checkup for name, checkup in case.checkups.items() if checkup.seconds}
    if "decomposer" in found:  # it reads thoughts, and repeats facts
        checkup, more = found["decomposer"], case.config.max_completion_length
        longer = tuple(tokens + more for tokens in checkup.tokens)
        found["decomposer"] = replace(checkup, tokens=longer)
    return found


def cost(case: Case) -> str:
    """Estimate calls and tokens of the services that are asked over a network, from one question to each."""
    for name in services_of(case.reward_names):
        need(case.checkups.get(name), f"the {name}")
    if not asked(case):
        return "no service is asked over a network"
    need(case.prompts, "the prompts")
    number = steps_of(case) * rows_per_step(case.config) + evaluations_of(case) * num_held_out(case)
    found = []
    for name, checkup in asked(case).items():
        prompts, replies = (rounded(tokens * number) for tokens in checkup.tokens)
        found.append(f"{name}: {number:,} calls at most, {prompts} tokens of prompts and {replies} of replies")
    return "\n".join([*found, f"an item is given up after api_deadline_s = {case.config.api_deadline_s:g} s"])


def seconds_of_calls(config: TrainConfig, checkup: Checkup) -> float:
    """Return the seconds of a step's calls, one per completion, as many at once as the configuration allows."""
    return ceil(rows_per_step(config) / config.api_max_concurrency) * checkup.seconds

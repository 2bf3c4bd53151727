"""The first step of a run, made in memory by the run's own code, and the seconds that it takes.

Prompts and completions are cut to a few tokens at first, then to more of them, up to the complete step. If that would
take too long, the time of the longest step that was made is scaled up by its tokens.
"""

import os
from dataclasses import dataclass, replace
from statistics import fmean

from grpo.algorithm.schema import Group, Score, completions_of
from grpo.config.options import AnyConfig, SftConfig, TrainConfig
from grpo.engine.device.distributed import Ranks, choose_device
from grpo.run.guard import Guard
from grpo.run.run import Run
from grpo.run.signals import Signals
from grpo.sft import SftTrainer
from grpo.train import GrpoTrainer
from rewards.registry import Reward
from rewards.scorer import Scorer

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


class SilentRun(Run):
    """A run that writes nothing and says nothing."""

    def __init__(self, config: AnyConfig):
        nowhere = replace(config, output_dir=os.devnull)
        super().__init__(nowhere, ranks=Ranks(choose_device(config.device)))
        self.signals = Signals(self.ranks)  # which no signal reaches
        self.configure_libraries()

    def say(self, text: str) -> None:
        """Print nothing: other checks report the same."""


class Rehearsal:
    """A trainer that makes first steps whose prompts and completions are cut. Subclasses define what a row is.

    num_rows: of a step. longest: tokens of the longest prompt or completion. Subclasses have `cut(tokens)`, which gives
    the next step prompts and completions of at most so many tokens; and `full_tokens()`, the estimated tokens of
    prompts (from the data) and of completions (from the last step) in a complete step.
    """

    trainer: GrpoTrainer | SftTrainer
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
        lengths = [len(completion.ids) for completion in completions_of(self.trainer.learned.groups)]
        measured = f"{self.num_rows} rows, completions of {fmean(lengths):.0f} tokens"
        if tokens < self.longest:
            measured += f" (cut at {tokens} to save time, and scaled up)"
        prompts, completions = self.full_tokens()  # generation grows with the tokens generated, the rest with all
        scale = (prompts + completions) / sum(map(num_tokens, self.trainer.learned.groups))
        scales = dict.fromkeys(phases, scale) | {GENERATING: completions / sum(lengths)}
        return StepTime({name: seconds * scales[name] for name, seconds in phases.items()}, measured)

    def make_step(self, tokens: int) -> dict[str, float]:
        """Make the run's first step, cut to so many tokens; return its seconds by phase."""
        self.trainer.learner.step = self.trainer.order.position = 0
        self.cut(tokens)
        Guard(self.trainer).run_step()
        times = self.trainer.clock.result()
        return {name: times[phase] for phase, name in PHASES.items() if times[phase]}


class GrpoRehearsal(Rehearsal):
    """First steps of stage 2. A row is a question with its completions, which are not graded."""

    def __init__(self, config: TrainConfig):
        config = replace(config, dynamic_sampling=False, knowledge_base=None)  # they are for grades
        self.trainer = GrpoTrainer(config, SilentRun(config), Scorer([NO_REWARD]))
        rollout = self.trainer.rollout
        self.prompts, self.sampling, self.num_rows = rollout.prompts, rollout.sampling, rollout.groups_per_replica
        self.longest = max(config.max_completion_length, *(len(prompt.ids) for prompt in self.prompts))

    def cut(self, tokens: int) -> None:
        rollout = self.trainer.rollout
        rollout.prompts = [replace(prompt, ids=prompt.ids[-tokens:]) for prompt in self.prompts]
        rollout.sampling = replace(self.sampling, max_new_tokens=min(tokens, self.sampling.max_new_tokens))

    def full_tokens(self) -> tuple[float, float]:
        """A completion that was cut off counts with the maximum length."""
        most = self.sampling.max_new_tokens
        completions = completions_of(self.trainer.learned.groups)
        length = fmean(len(c.ids) if c.finish_reason == "stop" else most for c in completions)
        prompt = fmean(len(prompt.ids) for prompt in self.prompts)
        return self.num_rows * prompt, self.num_rows * self.trainer.config.num_generations * length


class SftRehearsal(Rehearsal):
    """First steps of stage 1. A row is an example."""

    def __init__(self, config: SftConfig):
        self.trainer = SftTrainer(config, SilentRun(config))
        examples = self.trainer.examples
        self.examples, self.num_rows = examples.all, examples.rows_per_step
        lengths = [(len(example.prompt.ids), len(example.completions[0].ids)) for example in self.examples]
        self.longest = max(max(pair) for pair in lengths)

    def cut(self, tokens: int) -> None:
        self.trainer.examples.all = [_cut_example(example, tokens) for example in self.examples]

    def full_tokens(self) -> tuple[float, float]:
        prompt = fmean(len(example.prompt.ids) for example in self.examples)
        return self.num_rows * prompt, self.num_rows * (fmean(map(num_tokens, self.examples)) - prompt)


def _cut_example(example: Group, tokens: int) -> Group:
    """Return an example with the end of its prompt, and the beginning of its answer."""
    (answer,) = example.completions
    kept = {name: getattr(answer, name)[:tokens] for name in ("ids", "logps", "cuts")}
    return Group(replace(example.prompt, ids=example.prompt.ids[-tokens:]), [replace(answer, **kept)])


def num_tokens(group: Group) -> int:
    """Count the tokens of a prompt and of all its completions."""
    return len(group.prompt.ids) + sum(len(completion.ids) for completion in group.completions)

"""The rules that recognise slow failures of a run: one per known failure.

A rule looks at what a run has measured so far and returns a sentence, or None if all is well. Its docstring says what
the failure means and, after "To do:", what helps. The health check applies the rules after every step
(health.py); `python -m grpo.explain` applies them again to the metrics.jsonl of any run.
"""

import inspect
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from grpo.diagnosis.glossary import Metrics

RECENT = 5  # steps that a state has to last
SURE = 3  # steps that suffice where chance plays no part
TREND = 10  # steps at either end of a trend
MOSTLY = 0.8  # share of groups or completions
COLLAPSED = 0.95  # refusal rate from which on the policy has collapsed
ANSWER_RATE_DECAY = 0.9  # of the running mean that shows whether the policy once answered
ANSWER_RATE_STEPS = 100  # that this mean goes back
STANDARD_ERRORS = 2  # that a difference must exceed so that chance does not explain it


@dataclass
class History:
    """What a run has measured so far.

    steps: the metrics of each step, with "step". config: the run's keys. prompt: one prompt, as rendered.
    """

    steps: list[Metrics] = field(default_factory=list)
    config: Mapping[str, Any] = field(default_factory=dict)
    prompt: str = ""

    def recent(self, name: str, number: int = RECENT) -> list[float]:
        """Return a metric of the last `number` steps; [] unless each of them has a finite value."""
        return _finite(self.steps[-number:], name) if len(self.steps) >= number else []

    def lasts(self, name: str, test: Callable[[float], bool], number: int = RECENT) -> bool:
        """Return whether a metric has passed a test in each of the last `number` steps."""
        values = self.recent(name, number)
        return bool(values) and all(map(test, values))

    def trend(self, name: str) -> "Trend | None":
        """Compare a metric over the first and over the last TREND steps that have it; None while they overlap."""
        steps = [step for step in self.steps if _finite([step], name)]
        if len(steps) < 2 * TREND:
            return None
        first, last = _finite(steps[:TREND], name), _finite(steps[-TREND:], name)
        since = int(steps[-TREND]["step"])
        return Trend(statistics.fmean(first), statistics.fmean(last), _standard_error(first, last), since)

    def since(self, number: int = RECENT) -> str:
        """Return "since step N", where N is the first of the last `number` steps."""
        return f"since step {self.steps[-number]['step']}"

    def rewards(self, ending: str) -> Iterator[tuple[str, str]]:
        """Yield the name of each reward with its metric rewards/<name>/<ending>."""
        for metric in self.steps[-1]:
            if metric.startswith("rewards/") and metric.endswith("/" + ending):
                yield metric.removeprefix("rewards/").removesuffix("/" + ending), metric


@dataclass(frozen=True)
class Trend:
    """How a metric has moved: its mean over the first and the last steps, and the standard error of the difference.

    since: the first of the last steps.
    """

    start: float
    end: float
    error: float
    since: int

    @property
    def direction(self) -> int:
        """Return 1 if the metric has risen, -1 if it has fallen, and 0 if chance may explain the difference."""
        change = self.end - self.start
        return (change > STANDARD_ERRORS * self.error) - (change < -STANDARD_ERRORS * self.error)


Rule = Callable[[History], str | None]


def _standard_error(*samples: Sequence[float]) -> float:
    return math.sqrt(sum(statistics.variance(values) / len(values) for values in samples))


def _finite(steps: Sequence[Metrics], name: str) -> list[float]:
    """Return a metric of each step; [] if a step lacks it, or has a value that is not finite."""
    values = [step.get(name) for step in steps]
    return values if all(value is not None and math.isfinite(value) for value in values) else []


# --- nothing to learn from -----------------------------------------------------------------------------------------


def not_finite(history: History) -> str | None:
    """The loss or the gradient overflowed, so the update was skipped and the policy did not change.

    To do: look for a reward that is not a number in completions/; otherwise lower learning_rate, or use
    torch_dtype: bfloat16 instead of float16.
    """
    patience = TREND if history.config.get("torch_dtype") == "float16" else SURE  # float16 first finds its loss scale
    norms = [step.get("grad_norm", 0.0) for step in history.steps[-patience:]]
    if len(norms) < patience or any(map(math.isfinite, norms)):
        return None
    return f"the gradient is not finite {history.since(patience)}: nothing is learned"


def all_unscorable(history: History) -> str | None:
    """A reward returns None for every completion. Such completions count in no mean and have advantage 0.

    To do: read the reasons in completions/; check the columns that the reward needs, and its service.
    """
    for name, metric in history.rewards("unscored_frac"):
        if history.lasts(metric, lambda share: share == 1, SURE):
            return f"the reward {name} could score no completion {history.since(SURE)}: nothing is learned"
    return None


def constant_reward(history: History) -> str | None:
    """Every completion of every group gets the same reward, so nothing tells a good answer from a bad one.

    To do: grade some completions by hand with `python -m rewards.score`; give partial credit, or choose questions that
    the model sometimes gets right.
    """
    values = history.recent("reward", SURE)
    if not values or not history.lasts("reward_std", lambda std: std < 1e-6, SURE):
        return None
    return f"every completion {history.since(SURE)} has the reward {values[-1]:g}: nothing is learned"


def no_signal(history: History) -> str | None:
    """In most groups all rewards are equal. Their advantages are 0, so they cost time and teach nothing.

    To do: choose questions that the model gets right sometimes; raise num_generations or temperature; or set
    dynamic_sampling=true, which replaces such groups.
    """
    share = history.recent("frac_reward_zero_std")
    if not share or min(share) < MOSTLY or constant_reward(history):
        return None
    return f"no signal in {_percent(share)} of the groups {history.since()}, because {_why_equal(history)}"


def _why_equal(history: History) -> str:
    """Return a reason why the rewards of a group are equal."""
    accuracy, refused = history.recent("accuracy"), history.recent("refusal_rate")
    if accuracy and statistics.fmean(accuracy) >= MOSTLY:
        return f"{_percent(accuracy)} of the answers are right: the questions are learned, or were too easy"
    if refused and statistics.fmean(refused) >= MOSTLY:
        return f"{_percent(refused)} of the completions decline to answer"
    if accuracy and statistics.fmean(accuracy) <= 1 - MOSTLY:
        return f"only {_percent(accuracy)} of the answers are right: the questions are too hard"
    if history.lasts("entropy", lambda entropy: entropy < 0.05):
        return "the completions of a group hardly differ"
    return "the rewards hardly tell the completions of a group apart"


def nothing_kept(history: History) -> str | None:
    """Dynamic sampling drops every group, since in each all answers are right or all are wrong.

    To do: choose easier or harder questions, raise num_generations, or raise dynamic_sampling_max_rollouts.
    """
    if not history.lasts("sampling/kept_frac", lambda share: share == 0, SURE):
        return None
    return f"dynamic sampling keeps no group {history.since(SURE)}: nothing is learned"


def format_never_right(history: History) -> str | None:
    """No completion has the format that a reward asks for, so the model cannot find out what is wanted.

    To do: if the chat template opens <think>, let the reward accept completions without it, as the built-in `format`
    does; otherwise describe the format in system_prompt, or teach it by a cold start.
    """
    for name, metric in history.rewards("mean"):
        is_constant = history.lasts(metric.removesuffix("mean") + "std", lambda std: std < 1e-6)
        if "format" in name.lower() and is_constant and history.recent(metric)[-1] <= 0:
            template = ""
            if history.prompt.rstrip().endswith("<think>"):
                template = ", because the chat template opens <think>: completions begin inside the block"
            return (
                f"the reward {name} is {history.recent(metric)[-1]:g} for every completion {history.since()}{template}"
            )
    return None


# --- learning the wrong thing --------------------------------------------------------------------------------------


def refuses_everything(history: History) -> str | None:
    """A policy that used to answer declines nearly everything. Groups that all decline teach nothing.

    A refusal is worth 1, a right answer 2, and a wrong one -1 + fact. So an answer pays only if it is right with a
    probability above (2 - fact) / (3 - fact), which is 2/3 without facts. A step that is too large makes the policy
    refuse what it knows. Then all rewards of a group are equal, and no gradient leads back.

    To do: resume from an earlier checkpoint; lower learning_rate, raise beta, or use more questions whose answers the
    model knows.
    """
    rates = _finite(history.steps[-ANSWER_RATE_STEPS:], "refusal_rate")
    if not rates:
        return None
    *earlier, now = rates
    answered = 0.0
    for refused in earlier:
        answered = ANSWER_RATE_DECAY * answered + (1 - ANSWER_RATE_DECAY) * (1 - refused)
    if now < COLLAPSED or answered <= 1 - COLLAPSED:
        return None
    return f"collapse into refusing: {now:.0%} of the completions decline to answer"


def refuses_known(history: History) -> str | None:
    """The model declines questions that it can answer: a refusal is the safe choice whenever it may be wrong.

    To do: lower learning_rate or stop earlier; raise beta; pay refusals less; use more questions whose answers it
    knows.
    """
    refused = history.trend("refusal_rate_known")
    if not refused or refused.end < 0.2 or refused.end < 2 * refused.start:
        return None
    return (
        f"refusing has begun on known questions since step {refused.since}: where its group knows the answer, "
        f"{refused.end:.0%} of the completions decline, {refused.start:.0%} at the start"
    )


def coverage_falls(history: History) -> str | None:
    """The mean reward rises, but fewer and fewer questions are answered right by any completion of their group.

    The policy improves where it was good already, or declines. It no longer tries what was right only now and then.

    To do: raise beta, temperature or epsilon_high; stop earlier; compare pass@8 before and after with
    `python -m grpo.evaluate --n 8`.
    """
    coverage, reward = history.trend("coverage"), history.trend("reward")
    if not coverage or not reward or reward.direction <= 0:
        return None
    if coverage.direction >= 0 or coverage.start - coverage.end < 0.1:
        return None
    return (
        f"the reward rises while coverage falls: some completion answered {coverage.start:.0%} of the questions right "
        f"at the start, and {coverage.end:.0%} since step {coverage.since}"
    )


def length_without_reward(history: History) -> str | None:
    """Completions get longer without earning more. They cost time and memory, and may end at the length limit.

    To do: use loss_type: dapo or dr_grpo, which do not favour long wrong answers; add soft_overlong_punishment to
    reward_funcs.
    """
    length, reward = history.trend("completions/mean_length"), history.trend("reward")
    if not length or not reward or length.end < 1.3 * length.start or reward.direction > 0:
        return None
    now = f"{length.end:.0f} since step {length.since}"
    return f"length has grown without reward: {length.start:.0f} tokens at the start, {now}"


def cut_off(history: History) -> str | None:
    """Many completions hit the length limit before their answer, and are graded as if they had none.

    To do: raise max_completion_length, ask for shorter answers, or set mask_truncated_completions=true.
    """
    shares = history.recent("completions/clipped_ratio")
    if not shares or min(shares) < 0.25:
        return None
    limit = history.config.get("max_completion_length")
    at = f" of {limit} tokens" if limit else ""
    return f"{_percent(shares)} of the completions are cut off at max_completion_length{at} {history.since()}"


def entropy_died(history: History) -> str | None:
    """The policy has become nearly deterministic: the completions of a group are the same, and nothing new is tried.

    To do: lower learning_rate, or raise temperature, epsilon_high (0.28 in DAPO) or beta.
    """
    entropy, accuracy = history.trend("entropy"), history.recent("accuracy")
    is_learned = accuracy and statistics.fmean(accuracy) >= 0.9
    if not entropy or is_learned or not history.lasts("entropy", lambda now: now < entropy.start / 10):
        return None
    now = statistics.fmean(history.recent("entropy"))
    return f"entropy died {history.since()}: {entropy.start:.2g} nats per token at the start, {now:.2g} now"


def entropy_exploded(history: History) -> str | None:
    """The policy's next tokens have become random, which ends in meaningless text.

    To do: lower learning_rate or temperature, raise beta, and resume from an earlier checkpoint.
    """
    entropy = history.trend("entropy")
    if not entropy or not history.lasts("entropy", lambda now: now > max(3 * entropy.start, entropy.start + 0.5)):
        return None
    now = statistics.fmean(history.recent("entropy"))
    return f"entropy has exploded {history.since()}: {entropy.start:.2g} nats per token at the start, {now:.2g} now"


def rewards_slower(history: History) -> str | None:
    """Steps wait longer and longer for the rewards: a judge or decomposer slows down, or rejects some requests.

    To do: look at judge/retries and judge/failures; change api_max_concurrency; set api_cache; use a faster model.
    """
    wait, step = history.trend("time/reward"), history.trend("step_time")
    if not wait or not step or wait.end < 2 * wait.start or wait.end < 0.2 * step.end:
        return None
    who = "the judge" if "judge/calls" in history.steps[-1] else "the reward"
    return f"{who} got slower: a step waited {wait.start:.2g} s at the start, {wait.end:.2g} s since step {wait.since}"


# --- at the end ----------------------------------------------------------------------------------------------------


def learned_nothing(history: History) -> str | None:
    """The last steps are no better than the first, as far as their spread can tell.

    To do: see the other findings first; otherwise raise learning_rate or max_steps, and look at grad_norm and kl: near
    0 the policy has hardly moved.
    """
    steps = history.steps
    if steps and not any(step.get("advantage_abs_mean", 1.0) for step in steps):
        return "the run learned nothing: no completion of any step had an advantage"
    name, better = ("reward", 1) if history.trend("reward") else ("loss", -1)
    trend = history.trend(name)
    if not trend or trend.direction == better or _learned_at_once(steps, name, better):
        return None
    verdict = "got worse" if trend.direction else "learned nothing that shows"
    numbers = f"{trend.start:.3g} in the first {TREND} steps, and {trend.end:.3g} in the last"
    return f"the run {verdict}: the mean {name} was {numbers}"


def _learned_at_once(steps: Sequence[Metrics], name: str, better: int) -> bool:
    """Return whether the first two steps were worse than each of the last ten, which chance does once in 66 times."""
    first, last = ([better * value for value in _finite(part, name)] for part in (steps[:2], steps[-TREND:]))
    return bool(first and last) and max(first) < min(last)


RULES: tuple[Rule, ...] = (
    not_finite,
    all_unscorable,
    constant_reward,
    no_signal,
    nothing_kept,
    format_never_right,
    refuses_everything,
    refuses_known,
    coverage_falls,
    length_without_reward,
    cut_off,
    entropy_died,
    entropy_exploded,
    rewards_slower,
)
ENDINGS: tuple[Rule, ...] = (learned_nothing,)  # applied when a run has come to its end


def meaning(rule: Rule) -> str:
    """Return what a rule's failure means, from its docstring."""
    return " ".join(inspect.getdoc(rule).partition("To do:")[0].split())


def advice(rule: Rule) -> str:
    """Return what helps, from its docstring."""
    return " ".join(inspect.getdoc(rule).partition("To do:")[2].split())


def _percent(values: Sequence[float]) -> str:
    return f"{statistics.fmean(values):.0%}"

"""The rules that recognise slow failures of a run: one per known failure.

A rule looks at what a run has measured so far and returns a sentence, or None if all is well. Its docstring says what
the failure means and, after "To do:", what helps. The health check applies the rules after every step (health.py);
`python -m grpo.explain` applies them again to the metrics.jsonl of any run.
"""

import inspect
import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from grpo.run.diagnosis.glossary import Metrics
from grpo.run.diagnosis.reasons import MOST, Reason

RECENT = 5  # steps that a state has to last
SURE = 3  # steps that suffice where chance plays no part
TREND = 10  # steps at either end of a trend
MOSTLY = 0.8  # share of groups or completions
LEARNED = 0.9  # share of the answers that are right
UNMOVED = 0.95  # share of the held-out answers that stayed the same, from which on the policy has not moved
COLLAPSED = 0.95  # refusal rate from which on the policy has collapsed
STANDARD_ERRORS = 2  # that a difference must exceed so that chance does not explain it


@dataclass
class History:
    """What a run has measured so far.

    steps: the metrics of each step, with "step". reason: why most completions of the last step that shows its
    completions earned little. config: the run's keys. answers: to each held-out question, before training and now.
    """

    steps: list[Metrics] = field(default_factory=list)
    reason: Reason | None = None
    config: Mapping[str, object] = field(default_factory=dict)
    answers: Sequence[tuple[str, str]] = ()

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
        first = _finite(steps[:TREND], name)
        last = _finite(steps[-TREND:], name)
        since = int(steps[-TREND]["step"])
        error = math.sqrt(sum(statistics.variance(values) / len(values) for values in (first, last)))
        return Trend(statistics.fmean(first), statistics.fmean(last), error, since)

    def since(self, number: int = RECENT) -> str:
        """Return "since step N", where N is the first of the last `number` steps."""
        return f"since step {self.steps[-number]['step']}"

    def unscorable(self, number: int = SURE) -> dict[str, float]:
        """Return the mean share that a reward could not score, for each that had some in all of the last steps."""
        names = [name for name in self.steps[-1] if name.endswith("/unscored_frac") and name.startswith("rewards/")]
        shares = {name.split("/", 1)[1].rpartition("/")[0]: self.recent(name, number) for name in names}
        return {name: statistics.fmean(values) for name, values in shares.items() if values and min(values) > 0}

    def remedy(self) -> str:
        """Return what helps against the reason that most completions share; "" if there is none.

        If most are cut off, the length limit is the reason, unless it cannot explain what they share.
        """
        clipped_ratio = self.steps[-1].get("completions/clipped_ratio", 0)
        if clipped_ratio >= MOST and not (self.reason and self.reason.explains_more_than(clipped_ratio)):
            return f"raise max_completion_length (now {self.config.get('max_completion_length')}), or ask for less."
        return f"{self.reason.remedy}." if self.reason else ""


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


def _finite(steps: Sequence[Metrics], name: str) -> list[float]:
    """Return a metric of each step; [] if a step lacks it, or has a value that is not finite."""
    values = [step[name] for step in steps if math.isfinite(step.get(name, math.nan))]
    return values if len(values) == len(steps) else []


# --- nothing to learn from -----------------------------------------------------------------------------------------


def first_step(history: History) -> str:
    """Say in one line how the completions of the first step fared."""
    step = history.steps[-1]
    found = []
    if step.get("completions/clipped_ratio"):
        found.append(f"{step['completions/clipped_ratio']:.0%} of the completions are cut off at max_completion_length")
    if history.reason:
        found.append(str(history.reason))
    found += [f"{name} cannot score {share:.0%}" for name, share in history.unscorable(1).items()]
    if step.get("micro_batches") == 0:
        found.append("nothing is trained on")
    if step.get("frac_reward_zero_std"):
        share = f"{step['frac_reward_zero_std']:.0%} of the groups"
        teaches = "" if _may_teach_by_equal_rewards(history) else " and teach nothing"
        found.append(f"{share} have equal rewards{teaches} (no signal, in the line of each step)")
    if remedy := history.remedy():
        found.append(f"to do: {remedy.removesuffix('.')}")
    return "; ".join(found) or "every completion ended and could be scored, and every group teaches something"


def unscorable(history: History) -> str | None:
    """A reward gave no finite number for some completions. These count in no mean and have advantage 0.

    To do: read the reasons in completions/; check the columns that the reward needs, and its service.
    """
    found = [f"{name} could not score {share:.0%} of the completions" for name, share in history.unscorable().items()]
    return f"{' and '.join(found)} {history.since(SURE)}" if found else None


def no_signal(history: History) -> str | None:
    """In most groups all rewards are equal. Their advantages are 0, so they cost time and teach nothing.

    To do: choose questions that the model gets right sometimes; give partial credit; raise num_generations or
    temperature; or set dynamic_sampling=true, which replaces such groups.
    """
    is_idle = history.lasts("advantage_abs_mean", lambda size: size == 0, SURE)
    if is_idle or history.lasts("micro_batches", lambda number: number == 0, SURE):
        return f"nothing is learned {history.since(SURE)}, because {_why_equal(history)}"
    share = history.recent("frac_reward_zero_std")
    if not share or min(share) < MOSTLY or _may_teach_by_equal_rewards(history):
        return None
    return f"no signal in {_percent(share)} of the groups {history.since()}, because {_why_equal(history)}"


def _may_teach_by_equal_rewards(history: History) -> bool:
    """Return whether completions with equal rewards may have different advantages.

    They may if declining gets more than its reward (Eq. 14), or if each reward is normalised by itself (Eq. 12).
    """
    is_moved = history.config.get("refusal_target") is not None
    is_by_reward = history.config.get("multi_objective_aggregation") == "normalize_then_sum"
    return is_moved or is_by_reward


def _why_equal(history: History) -> str:
    """Return a reason why the rewards of a group are equal, or why none is trained on."""
    step = history.steps[-1]
    accuracy, refused = (step.get(name, math.nan) for name in ("accuracy", "refusal_rate"))
    if step.get("sampling/kept_frac") == 0:
        return "dynamic sampling keeps no group"
    if step.get("micro_batches") == 0 and step.get("advantage_abs_mean"):
        return "every completion is masked"
    if accuracy >= MOSTLY:
        return f"{accuracy:.0%} of the answers are right: the questions are learned, or were too easy"
    if refused >= MOSTLY:
        return f"{refused:.0%} of the completions decline to answer"
    if history.reason:
        return f"in {history.reason}"
    if accuracy <= 1 - MOSTLY:
        return f"only {accuracy:.0%} of the answers are right: the questions are too hard"
    return "the rewards hardly tell the completions of a group apart"


def stands_still(history: History) -> str | None:
    """Training has left nearly all answers to held-out questions as they were, word for word.

    The rewards differ within groups, so there is something to learn, but the steps are too small or too few. Adapters
    need a learning_rate from 1e-5 to 1e-3; all weights need a tenth of that.

    To do: raise learning_rate (now {learning_rate}), or max_steps (now {max_steps}).
    """
    number = len(history.answers)
    accuracy = history.recent("accuracy")
    same = sum(before == now for before, now in history.answers)
    is_learned = accuracy and statistics.fmean(accuracy) >= LEARNED
    number_of_steps = min(SURE, len(history.steps))
    has_no_signal = history.lasts("frac_reward_zero_std", lambda share: share >= MOSTLY, number_of_steps)
    if not number or same < UNMOVED * number or is_learned or has_no_signal:
        return None
    return f"{same} of {number} held-out answers are word for word those before training"


def says_nothing(history: History) -> str | None:
    """Most held-out answers have neither a letter nor a digit: saying nothing costs least, or ends a text soonest.

    To do: pay a right answer more than a short text; see what an empty one earns with `python -m rewards.audit CONFIG`.
    """
    number = len(history.answers)
    before, now = (sum(not any(map(str.isalnum, pair[side])) for pair in history.answers) for side in (0, 1))
    if not number or now < number / 2:
        return None
    return f"{now} of {number} held-out answers are empty, {before} before training"


# --- learning the wrong thing --------------------------------------------------------------------------------------


def refuses_everything(history: History) -> str | None:
    """A policy that used to answer declines nearly everything. Groups that all decline teach nothing.

    A refusal is worth 1, a right answer 2, and a wrong one -1 + fact. So an answer pays only if it is right with a
    probability above (2 - fact) / (3 - fact), which is 2/3 without facts. A step that is too large makes the policy
    refuse what it knows. Then all rewards of a group are equal, and no gradient leads back.

    To do: resume from an earlier checkpoint; lower learning_rate, raise beta, or use more questions whose answers the
    model knows.
    """
    rates = [step["refusal_rate"] for step in history.steps if _finite([step], "refusal_rate")]
    if not rates or rates[-1] < COLLAPSED or min(rates) > 0.5:
        return None
    return f"collapse into refusing: {rates[-1]:.0%} of the completions decline to answer"


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


def pays_something_else(history: History) -> str | None:
    """The reward rises while fewer answers are right, and no more are declined: something else earns.

    It may be the form, the length, or a text that a judge falls for.

    To do: see what else earns with `python -m rewards.audit CONFIG`, and read the best completions of the last steps.
    """
    earned, right, refused = (history.trend(name) for name in ("reward", "accuracy", "refusal_rate"))
    if not earned or not right or (refused and refused.direction > 0):
        return None
    if earned.direction < 1 or right.direction > -1:
        return None
    return (
        f"the reward has risen from {earned.start:.2g} to {earned.end:.2g} and the share of right answers fallen from "
        f"{right.start:.0%} to {right.end:.0%}, by the means of the first and the last {TREND} steps"
    )


def cut_off(history: History) -> str | None:
    """Many completions hit the length limit before their answer, and are graded as if they had none.

    A policy that learns to answer in fewer tokens needs no help: then the share has halved within these steps.

    To do: raise max_completion_length, ask for shorter answers, or set mask_truncated_completions=true.
    """
    shares = history.recent("completions/clipped_ratio")
    if not shares or min(shares) < 0.25 or shares[-1] < shares[0] / 2:
        return None
    limit = history.config.get("max_completion_length")
    at = f" of {limit} tokens" if limit else ""
    return f"{_percent(shares)} of the completions are cut off at max_completion_length{at} {history.since()}"


def entropy_died(history: History) -> str | None:
    """The policy has become nearly deterministic, so that nothing new is tried.

    To do: lower learning_rate; or raise temperature, epsilon_high (0.28 in DAPO) or beta.
    """
    entropy = history.trend("sampler/entropy")
    accuracy = history.recent("accuracy")
    is_learned = accuracy and statistics.fmean(accuracy) >= LEARNED
    if not entropy or is_learned or not history.lasts("sampler/entropy", lambda now: now < entropy.start / 10):
        return None
    now = statistics.fmean(history.recent("sampler/entropy"))
    return f"entropy died {history.since()}: {entropy.start:.2g} nats per token at the start, {now:.2g} now"


RULES: tuple[Rule, ...] = (
    *(unscorable, no_signal, stands_still, says_nothing),
    *(refuses_everything, refuses_known, pays_something_else, cut_off, entropy_died),
)


def meaning(rule: Rule) -> str:
    """Return what a rule's failure means, from its docstring."""
    return _described(rule)[0]


def advice(rule: Rule, history: History) -> str:
    """Return what helps: against the reason that most completions share, or what the rule's docstring says."""
    is_mostly_cut = rule is cut_off and history.steps[-1]["completions/clipped_ratio"] >= MOST
    remedy = history.remedy() if rule is no_signal or is_mostly_cut else ""
    return remedy or re.sub(r"{(\w+)}", lambda key: str(history.config.get(key[1], "unset")), _described(rule)[1])


def _described(rule: Rule) -> tuple[str, str]:
    """Return the parts of a rule's docstring: what its failure means, and what helps."""
    about, _, remedy = (inspect.getdoc(rule) or "").partition("To do:")
    return " ".join(about.split()), " ".join(remedy.split())


def _percent(values: Sequence[float]) -> str:
    return f"{statistics.fmean(values):.0%}"

"""Failures that show only over several steps: warn if a rule recognises one; end a run that cannot go on."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

from grpo.base.errors import NON_FINITE, SERVICE, UserError
from grpo.base.schema import Completion, Group, completions_of
from grpo.diagnosis.glossary import Metrics
from grpo.diagnosis.reasons import Grades, dominant_reason
from grpo.diagnosis.record import read_metrics
from grpo.diagnosis.rules import ENDINGS, RECENT, RULES, History, Rule, advice, first_step

if TYPE_CHECKING:
    from grpo.optim import Optimizer

MAX_BAD_STEPS = 3  # in a row; then the run ends


@dataclass(frozen=True)
class Symptom:
    """A failure that a rule has recognised, the step, and what helps."""

    rule: Rule
    step: int
    text: str
    advice: str

    @property
    def name(self) -> str:
        """Return the name of the rule in words."""
        return self.rule.__name__.replace("_", " ")

    def __str__(self) -> str:
        return f"step {self.step}: {self.text}"


@dataclass
class Diagnosis:
    """Applies every rule after every step, and reports each rule once. Replaying a run's steps diagnoses it again.

    first_step: how the completions of step 1 fared. last_seen: the last step at which each rule recognised its failure.
    """

    history: History = field(default_factory=History)
    symptoms: list[Symptom] = field(default_factory=list)
    last_seen: dict[Rule, int] = field(default_factory=dict)
    first_step: str = ""

    def check(self, step: int, metrics: Metrics, completions: Sequence[Grades] = ()) -> list[Symptom]:
        """Add a step, and its completions if they are known; return the failures that are recognised first now."""
        self.history.steps.append({"step": step, **metrics})
        if completions:
            self.history.reason = dominant_reason(completions)
        if step == 1 and "completions/mean_length" in metrics:
            self.first_step = first_step(self.history)
        return self._ask(RULES)

    def end(self) -> list[Symptom]:
        """Return the failures that only a complete run can show."""
        return self._ask(ENDINGS) if self.history.steps else []

    def passed(self, symptom: Symptom) -> int | None:
        """Return the last step at which a failure was seen; None if that is one of the last steps of the run."""
        last = self.last_seen[symptom.rule]
        return last if last <= self.history.steps[-1]["step"] - RECENT else None

    def _ask(self, rules: Iterable[Rule]) -> list[Symptom]:
        step = self.history.steps[-1]["step"]
        texts = {rule: rule(self.history) for rule in rules}
        found = [Symptom(rule, step, text, advice(rule, self.history)) for rule, text in texts.items() if text]
        new = [symptom for symptom in found if symptom.rule not in self.last_seen]
        self.last_seen |= {symptom.rule: step for symptom in found}
        self.symptoms += new
        return new


@dataclass
class Health:
    """Checks each step. Ends the run with exit code 5 for steps that are not finite, and 4 for rewards that fail."""

    say: Callable[[str], None]
    max_unscored: float = 1.0  # share of completions
    unscored: int = 0  # steps in a row
    not_finite: int = 0  # steps in a row
    diagnosis: Diagnosis = field(default_factory=Diagnosis)

    def updated(self, optimizer: "Optimizer", grad_norm: float) -> None:
        """Count optimizer steps without a finite gradient. In float16 they are normal until the loss scale is found."""
        if isfinite(grad_norm) or optimizer.scale > 1:
            self.not_finite = 0
        else:
            self.not_finite += 1

    def check(self, step: int, metrics: Metrics, groups: Sequence[Group] = ()) -> None:
        """Check the run after a training step. groups: its completions."""
        if self.not_finite >= MAX_BAD_STEPS:
            raise UserError(
                f"training is not finite: {self.not_finite} steps in a row had no finite gradient",
                "see the last steps of metrics.jsonl",
                "lower learning_rate or max_grad_norm, or use torch_dtype: bfloat16 instead of float16",
                NON_FINITE,
            )
        symptoms = self.diagnosis.check(step, metrics, [grades_of(completion) for completion in completions_of(groups)])
        if step == 1 and self.diagnosis.first_step:
            self.say(f"step 1: {self.diagnosis.first_step}")
        self._announce(symptoms)
        self._check_rewards(metrics)

    def resume(self, run_dir: Path) -> None:
        """Replay the steps before the run was resumed, without announcing their failures again."""
        for metrics in read_metrics(run_dir / "metrics.jsonl")[0]:
            self.diagnosis.check(metrics["step"], metrics)

    def end(self) -> None:
        """Announce the failures that only a complete run can show, such as that it has learned nothing."""
        self._announce(self.diagnosis.end())
        if self.diagnosis.symptoms:
            names = [f"{symptom.name} (step {symptom.step})" for symptom in self.diagnosis.symptoms]
            self.say(f"warnings of this run: {', '.join(names)}; `python -m grpo.explain RUN` says more")

    def _announce(self, symptoms: Iterable[Symptom]) -> None:
        for symptom in symptoms:
            self.say(f"warning: {symptom}. To do: {symptom.advice}")

    def _check_rewards(self, metrics: Metrics) -> None:
        """End the run when a built-in reward stays unscorable. A user's own function may skip what it likes."""
        built_in = [name for name in metrics if ":" not in name]
        shares = {name: metrics[name] for name in built_in if name.endswith("/unscored_frac")}
        worst = max(shares, key=shares.get, default=None)
        if worst is None or shares[worst] <= self.max_unscored:
            self.unscored = 0
            return
        self.unscored += 1
        if self.unscored >= MAX_BAD_STEPS:
            raise UserError(
                f"{worst} was above {self.max_unscored:.0%} for {MAX_BAD_STEPS} steps, now {shares[worst]:.0%}",
                "completions/ holds the reason of each",
                "restore the service, or raise max_unscored, and continue with resume_from_checkpoint=true; "
                "if titles are missing, set missing_title_policy in another run",
                SERVICE,
            )


def grades_of(completion: Completion) -> Grades:
    """Return what each reward gave for a completion, and why."""
    return {name: (score.value, score.reason) for name, score in completion.scores.items()}

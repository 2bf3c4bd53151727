"""Failures that show only over several steps: warn if a rule recognises one; end a run that cannot go on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path

from grpo.algorithm.schema import Group, completions_of
from grpo.base.errors import NON_FINITE, SERVICE, UserError
from grpo.base.storage import Json
from grpo.run.diagnosis.glossary import Metrics
from grpo.run.diagnosis.reasons import Grades, dominant_reason
from grpo.run.diagnosis.record import METRICS_FILE, Answer, read_metrics, read_record
from grpo.run.diagnosis.rules import RECENT, RULES, History, Rule, advice, first_step

MAX_BAD_STEPS = 3  # in a row; then the run ends


@dataclass
class Symptom:
    """A failure that a rule has recognised, the first and the last step at which it has, and what helps."""

    rule: Rule
    step: int
    text: str
    advice: str
    last_step: int


@dataclass
class Diagnosis(History):
    """Applies every rule after every step, and reports each rule once. Replaying a run's steps diagnoses it again.

    symptoms: the failures so far, by the name of their rule in words. first_step: how the completions of step 1 fared.
    """

    symptoms: dict[str, Symptom] = field(default_factory=dict)
    first_step: str = ""

    def check(self, step: int, metrics: Metrics, completions: Sequence[Grades] = ()) -> list[Symptom]:
        """Add a step, and its completions if they are known; return the failures that are recognised first now."""
        self.steps.append({"step": step, **metrics})
        if completions:
            self.reason = dominant_reason(completions)
        if step == 1 and "completions/mean_length" in metrics:
            self.first_step = first_step(self)
        return self._apply_rules(step)

    def compare(self, answers: Sequence[tuple[Answer, Answer]]) -> list[Symptom]:
        """Add the answers to held-out questions, before training and now; return the failures that they show."""
        self.answers = [(before.completion, now.completion) for before, now in answers]
        return self._apply_rules(int(self.steps[-1]["step"])) if self.steps else []

    def _apply_rules(self, step: int) -> list[Symptom]:
        new = []
        for rule in RULES:
            name = rule.__name__.replace("_", " ")
            text = rule(self)
            if text and name not in self.symptoms:
                self.symptoms[name] = Symptom(rule, step, text, advice(rule, self), step)
                new.append(self.symptoms[name])
            elif text:
                self.symptoms[name].last_step = step
        return new

    def has_passed(self, symptom: Symptom) -> bool:
        """Return whether a failure was not seen in the last steps."""
        return symptom.last_step <= self.steps[-1]["step"] - RECENT


class Health(Diagnosis):
    """Says what each step shows. Ends the run with exit code 5 for steps that are not finite, and 4 for rewards that
    fail: if the share of completions that a built-in reward cannot score stays above max_unscored.
    """

    def __init__(self, say: Callable[[str], None], config: Json, max_unscored: float):
        super().__init__(config=config)
        self.say = say
        self.max_unscored = max_unscored
        self.unscored = self.not_finite = 0  # steps in a row

    def updated(self, grad_norm: float, has_overflowed: bool) -> None:
        """Count updates without a finite gradient. In float16 it may overflow until the loss scale is found."""
        if isfinite(grad_norm) or has_overflowed:
            self.not_finite = 0
        else:
            self.not_finite += 1

    def after_step(self, step: int, metrics: Metrics, groups: Sequence[Group] = ()) -> None:
        """Check the run after a training step. groups: its completions."""
        if self.not_finite >= MAX_BAD_STEPS:
            raise UserError(
                f"training is not finite: {self.not_finite} steps in a row had no finite loss or gradient",
                "see the last steps of metrics.jsonl",
                "lower learning_rate or max_grad_norm, or use torch_dtype: bfloat16 instead of float16",
                NON_FINITE,
            )
        grades: list[Grades] = []
        for completion in completions_of(groups):
            grades.append({name: (score.value, score.reason) for name, score in completion.scores.items()})
        symptoms = self.check(step, metrics, grades)
        if step == 1 and self.first_step:
            self.say(f"step 1: {self.first_step}")
        self._announce(symptoms)
        self._check_rewards(metrics)

    def _announce(self, symptoms: Sequence[Symptom]) -> None:
        for symptom in symptoms:
            self.say(f"warning: step {symptom.step}: {symptom.text}. To do: {symptom.advice}")

    def resume(self, run_dir: Path) -> None:
        """Replay the steps before the run was resumed, without announcing their failures again."""
        for metrics in read_metrics(run_dir / METRICS_FILE)[0]:
            self.check(int(metrics["step"]), metrics)

    def end(self, run_dir: Path) -> None:
        """Look at what became of the held-out answers, and repeat the names of the failures that were announced."""
        self._announce(self.compare(read_record(run_dir).answered_twice()))
        if self.symptoms:
            names = [f"{name} (step {symptom.step})" for name, symptom in self.symptoms.items()]
            self.say(f"warnings of this run: {', '.join(names)}; `python -m grpo.explain RUN` says more")

    def _check_rewards(self, metrics: Metrics) -> None:
        """End the run when a built-in reward stays unscorable. A user's own function may skip what it likes."""
        shares = [(metrics[name], name) for name in metrics if name.endswith("/unscored_frac") and ":" not in name]
        worst, name = max(shares, default=(0.0, ""))
        if worst <= self.max_unscored:
            self.unscored = 0
            return
        self.unscored += 1
        if self.unscored >= MAX_BAD_STEPS:
            raise UserError(
                f"{name} was above {self.max_unscored:.0%} for {MAX_BAD_STEPS} steps, now {worst:.0%}",
                "completions/ holds the reason of each",
                "restore the service, or raise max_unscored, and continue with resume_from_checkpoint=true; "
                "if titles are missing, set missing_title_policy in another run",
                SERVICE,
            )

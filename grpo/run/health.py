"""What can go wrong slowly: steps that are not finite, rewards that cannot be computed, a policy that stops
answering."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite

from grpo.errors import NON_FINITE, SERVICE, UserError
from grpo.optim import Optimizer

IN_A_ROW = 3  # steps before a run ends
REFUSES_ALL = 0.95  # refusal rate that is called a collapse
MEMORY = 0.9  # of the running mean that tells whether the run once answered


@dataclass
class Health:
    """Looks at each step's metrics. `check` raises UserError: exit 5 for steps that are not finite, exit 4 for rewards
    that fail.

    The arithmetic of the collapse: a refusal is worth 1, a right answer 2, a wrong one -1 + fact, so answering pays
    only where the answer is right with a probability above (2 - fact) / (3 - fact), 2/3 without facts. A step that
    pushes too far makes the policy refuse what it knows; then all rewards of a group are equal, and no gradient leads
    back.
    """

    say: Callable[[str], None]
    max_unscored: float = 1.0  # share of completions
    unscored: int = 0  # steps in a row
    not_finite: int = 0
    answered: float = 0.0  # running mean of 1 - refusal rate
    has_collapsed: bool = False

    def updated(self, optimizer: Optimizer, grad_norm: float) -> None:
        """After each optimizer step. An overflow in float16 is no fault while the next step's scale is smaller."""
        self.not_finite = 0 if isfinite(grad_norm) or optimizer.scale > 1 else self.not_finite + 1

    def check(self, step: int, metrics: Mapping[str, float]) -> None:
        """After each training step."""
        if self.not_finite >= IN_A_ROW:
            raise UserError(
                f"training is not finite: {self.not_finite} steps in a row had no finite gradient",
                "see the last steps of metrics.jsonl, and completions/ for a reward that is not a number",
                "correct such a reward; else lower learning_rate or max_grad_norm, or use torch_dtype: bfloat16 instead of float16",
                NON_FINITE,
            )
        self._collapse(step, metrics)
        built_in = [
            name for name in metrics if name.endswith("/unscored_frac") and ":" not in name
        ]  # a user's function may skip what it likes
        worst = max(built_in, key=metrics.get, default=None)
        self.unscored = self.unscored + 1 if worst and metrics[worst] > self.max_unscored else 0
        if self.unscored >= IN_A_ROW:
            raise UserError(
                f"{worst} was above {self.max_unscored:.0%} for {IN_A_ROW} steps, now {metrics[worst]:.0%}",
                "completions/ holds the reason of each",
                "mend the service, or set max_unscored (missing titles: missing_title_policy "
                "in another run); then go on with resume_from_checkpoint=true",
                SERVICE,
            )

    def _collapse(self, step: int, metrics: Mapping[str, float]) -> None:
        if "refusal_rate" not in metrics:
            return
        if metrics["refusal_rate"] >= REFUSES_ALL and self.answered > 1 - REFUSES_ALL and not self.has_collapsed:
            self.has_collapsed = True
            self.say(
                f"warning: step {step}: collapse into refusing: {metrics['refusal_rate']:.0%} of the completions decline to answer, and groups that "
                "all decline teach nothing. Go back to an earlier checkpoint; lower learning_rate, raise beta, or ask more of what the model knows"
            )
        self.answered = MEMORY * self.answered + (1 - MEMORY) * (1 - metrics["refusal_rate"])

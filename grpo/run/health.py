"""Faults that show only over several steps.

These are steps that are not finite, rewards that cannot be computed, and a policy that stops answering.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite

from grpo.errors import NON_FINITE, SERVICE, UserError
from grpo.optim import Optimizer

MAX_BAD_STEPS = 3  # in a row; then the run ends
COLLAPSED = 0.95  # refusal rate from which on the policy has collapsed
ANSWER_RATE_DECAY = 0.9  # of the running mean that shows whether the policy once answered


@dataclass
class Health:
    """Checks each step. Ends the run with exit code 5 for steps that are not finite, and 4 for rewards that fail.

    Why a policy collapses into refusing: a refusal is worth 1, a right answer 2, and a wrong one -1 + fact. So an
    answer pays only if it is right with a probability above (2 - fact) / (3 - fact), which is 2/3 without facts. A step
    that is too large makes the policy refuse what it knows. Then all rewards of a group are equal, and no gradient
    leads back.
    """

    say: Callable[[str], None]
    max_unscored: float = 1.0  # share of completions
    unscored: int = 0  # steps in a row
    not_finite: int = 0  # steps in a row
    answered: float = 0.0  # running mean of 1 - refusal rate
    has_collapsed: bool = False

    def updated(self, optimizer: Optimizer, grad_norm: float) -> None:
        """Count optimizer steps without a finite gradient. In float16 they are normal until the loss scale is found."""
        if isfinite(grad_norm) or optimizer.scale > 1:
            self.not_finite = 0
        else:
            self.not_finite += 1

    def check(self, step: int, metrics: Mapping[str, float]) -> None:
        """Check the run after a training step."""
        if self.not_finite >= MAX_BAD_STEPS:
            raise UserError(
                f"training is not finite: {self.not_finite} steps in a row had no finite gradient",
                "see the last steps of metrics.jsonl, and completions/ for a reward that is not a number",
                "correct such a reward; else lower learning_rate or max_grad_norm, "
                "or use torch_dtype: bfloat16 instead of float16",
                NON_FINITE,
            )
        if "refusal_rate" in metrics:
            self._check_collapse(step, metrics["refusal_rate"])
        self._check_rewards(metrics)

    def _check_collapse(self, step: int, refusal_rate: float) -> None:
        """Warn, once, when a policy that used to answer refuses everything."""
        once_answered = self.answered > 1 - COLLAPSED
        if refusal_rate >= COLLAPSED and once_answered and not self.has_collapsed:
            self.has_collapsed = True
            self.say(
                f"warning: step {step}: collapse into refusing: {refusal_rate:.0%} of the completions decline to "
                "answer, and groups that all decline teach nothing. Resume from an earlier checkpoint; lower "
                "learning_rate, raise beta, or use more questions whose answers the model knows"
            )
        self.answered = ANSWER_RATE_DECAY * self.answered + (1 - ANSWER_RATE_DECAY) * (1 - refusal_rate)

    def _check_rewards(self, metrics: Mapping[str, float]) -> None:
        """End the run when a built-in reward stays unscorable. A user's own function may skip what it likes."""
        shares = {}
        for name, value in metrics.items():
            is_users = ":" in name
            if name.endswith("/unscored_frac") and not is_users:
                shares[name] = value
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

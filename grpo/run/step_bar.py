"""The progress bar of a run, and the short texts about a step that the log prints too."""

import sys

from tqdm import tqdm

from grpo.base.errors import escape
from grpo.diagnosis.glossary import Metrics

PHASES = {  # metric: what the run is doing meanwhile
    "time/generate": "generating",
    "time/reference": "reference pass",
    "time/reward": "waiting for rewards",
    "time/train": "training",
}
TEXTS = {  # metric: its text; the most important metrics first, since a narrow terminal cuts the last ones off
    "loss": "loss {:.4f}",  # of stage 1; that of stage 2 says nothing
    "reward": "reward {:+.2f}",
    "reward_std": "±{:.2f}",
    "accuracy": "right {:.0%}",
    "refusal_rate": "refused {:.0%}",
    "frac_reward_zero_std": "no signal {:.0%}",
    "completions/mean_length": "length {:.0f}",
    "tokens_per_second": "{:,.0f} tok/s",
    "grad_norm": "grad {:.3f}",
    "kl": "kl {:z.4f}",
}
BAR = "{n_fmt}/{total_fmt} {bar:8} {remaining} left  {desc}{postfix}"


class StepBar:
    """Shows on a terminal the metrics of the last step, what the run is doing, and the time left."""

    def __init__(self, total_steps: int, first_step: int, is_hidden: bool):
        self.bar = tqdm(
            total=total_steps,
            initial=first_step,
            bar_format=BAR,
            dynamic_ncols=True,
            smoothing=0,  # the time left is by the mean of all steps
            mininterval=0,
            disable=is_hidden or None,  # None: unless stderr is a terminal
        )

    def advance(self, metrics: Metrics) -> None:
        """Show the metrics of a step that is done."""
        self.bar.set_postfix_str(describe(metrics), refresh=False)
        self.bar.update()

    def show(self, phase: str) -> None:
        """Show what the run is doing now: a key of PHASES, or "" for training."""
        self.bar.set_description_str(PHASES[phase or "time/train"])

    def say(self, text: str) -> None:
        """Print a line without breaking the bar."""
        tqdm.write(escape(text), file=sys.stderr)

    def close(self) -> None:
        """Leave the last state on the terminal."""
        self.bar.set_description_str("")
        self.bar.close()


def describe(metrics: Metrics) -> str:
    """Return the metrics that matter, the most important ones first. Without a reference, kl is left out."""
    hidden = {"loss"} if "reward" in metrics else set()
    hidden |= set() if metrics.get("time/reference") else {"kl"}
    shown = metrics.keys() - hidden
    return "  ".join(text.format(metrics[name]) for name, text in TEXTS.items() if name in shown)


def longest_phase(metrics: Metrics) -> str:
    """Return a text about the phase that took the longest in a step; "" if none is known."""
    phases = {name: metrics[name] for name in PHASES if name in metrics}
    if not phases:
        return ""
    longest = max(phases, key=phases.get)
    return f"  longest: {PHASES[longest]} {phases[longest]:.1f} s of {metrics['step_time']:.1f} s"

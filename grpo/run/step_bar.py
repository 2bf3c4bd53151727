"""The progress of a run: a bar on a terminal, and plain lines elsewhere."""

import math
import re
import sys
import time

from tqdm import tqdm

from grpo.base.errors import escape
from grpo.base.progress import PLAIN_SECONDS
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
    "kl": "kl {:.4f}",
}
BAR = "{n_fmt}/{total_fmt} {bar:8} {remaining} left  {desc}{postfix}"


class StepBar:
    """Shows the metrics of the last step, what the run waits for, and the time left."""

    def __init__(self, total_steps: int, first_step: int, is_hidden: bool, has_lines: bool = False):
        """Show the bar. has_lines: whether the log prints lines of its own, which plain ones here would repeat."""
        is_terminal = sys.stderr.isatty()
        self.is_plain = not (is_hidden or is_terminal or has_lines)
        self.total, self.first, self.step = total_steps, first_step, first_step
        self.printed = 0.0
        is_bar_hidden = is_hidden or not is_terminal
        self.bar = tqdm(
            total=total_steps,
            initial=first_step,
            bar_format=BAR,
            dynamic_ncols=True,
            smoothing=0,  # the time left is by the mean of all steps
            mininterval=0,
            disable=is_bar_hidden,
        )

    def advance(self, metrics: Metrics) -> None:
        """Show the metrics of a step that is done."""
        self.step += 1
        self.bar.set_postfix_str("  ".join(describe(metrics)), refresh=False)
        self.bar.update()
        is_due = self.step in (self.first + 1, self.total) or time.monotonic() - self.printed > PLAIN_SECONDS
        if self.is_plain and is_due:
            self.printed = time.monotonic()
            texts = [f"step {self.step}/{self.total}", *describe(metrics)]
            self.say("  ".join(texts) + longest_phase(metrics))

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


def describe(metrics: Metrics) -> list[str]:
    """Return the metrics that matter as short texts, the most important ones first."""
    hidden = ["loss"] if "reward" in metrics else []
    unknown = [] if metrics.get("time/reference") else ["kl"]  # no reference was asked
    unknown += [name for name in TEXTS if not math.isfinite(metrics.get(name, 0.0))]
    texts = {name: text for name, text in TEXTS.items() if name in metrics and name not in hidden}
    texts |= {name: re.sub("{.*}", "–", text) for name, text in texts.items() if name in unknown}
    return [text.format(metrics[name]) for name, text in texts.items()]


def longest_phase(metrics: Metrics) -> str:
    """Return a text about the phase that took the longest in a step; "" if none is known."""
    phases = {name: metrics[name] for name in PHASES if name in metrics}
    if not phases:
        return ""
    longest = max(phases, key=phases.get)
    return f"  longest: {PHASES[longest]} {phases[longest]:.1f} s of {metrics['step_time']:.1f} s"

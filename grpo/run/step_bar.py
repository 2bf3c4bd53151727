"""The progress of a run: one line that is updated in place on a terminal, and plain lines elsewhere."""

import math
import re
import shutil
import sys
import time

from tqdm import tqdm

from grpo.base.errors import escape
from grpo.base.progress import PLAIN_SECONDS
from grpo.diagnosis.glossary import Metrics

PHASES = {  # metric: what the run is doing meanwhile, in full and in short
    "time/generate": ("generating", "gen"),
    "time/reference": ("reference pass", "ref"),
    "time/reward": ("waiting for rewards", "judge"),
    "time/train": ("training", "train"),
}
TEXTS = {  # metric: its text on a wide terminal, and on a narrow one; the most important metrics first
    "loss": ("loss {:.4f}", "loss {:.4f}"),  # of stage 1; that of stage 2 says nothing
    "reward": ("reward {:+.2f}", "rew {:+.2f}"),
    "reward_std": ("±{:.2f}", "±{:.2f}"),
    "accuracy": ("right {:.0%}", "acc {:.0%}"),
    "refusal_rate": ("refused {:.0%}", "ref {:.0%}"),
    "frac_reward_zero_std": ("no signal {:.0%}", "nosig {:.0%}"),
    "completions/mean_length": ("length {:.0f}", "len {:.0f}"),
    "tokens_per_second": ("{:,.0f} tok/s", "{:.0f} tok/s"),
    "grad_norm": ("grad {:.3f}", ""),
    "kl": ("kl {:.4f}", ""),
}
WIDE = 110  # columns from which a terminal is wide
UNLIMITED = 1000  # columns of a plain line


class StepBar:
    """Shows the metrics of the last step, what the run waits for, and the time left."""

    def __init__(self, total_steps: int, first_step: int, is_hidden: bool, has_lines: bool = False):
        """Show the bar. has_lines: whether the log prints lines of its own, which plain ones here would repeat."""
        self.total, self.first, self.step = total_steps, first_step, first_step
        self.is_terminal = sys.stderr.isatty()
        self.is_plain = not is_hidden and not self.is_terminal and not has_lines
        self.metrics: Metrics = {}
        self.phase, self.started, self.printed = "", time.monotonic(), 0.0
        is_bar_hidden = is_hidden or not self.is_terminal
        self.bar = tqdm(total=total_steps, initial=first_step, bar_format="{desc}", disable=is_bar_hidden)

    def advance(self, metrics: Metrics) -> None:
        """Show the metrics of a step that is done."""
        self.step += 1
        self.metrics = metrics
        self._refresh()
        is_due = self.step in (self.first + 1, self.total) or time.monotonic() - self.printed > PLAIN_SECONDS
        if self.is_plain and is_due:
            self.printed = time.monotonic()
            self.say(f"step {self.line(UNLIMITED)}{longest_phase(metrics)}")

    def show(self, phase: str) -> None:
        """Show what the run is doing now: a key of PHASES, or "" for training."""
        self.phase = phase or "time/train"
        self._refresh()

    def say(self, text: str) -> None:
        """Print a line without breaking the bar."""
        tqdm.write(escape(text), file=sys.stderr)

    def close(self) -> None:
        """Leave the last state on the terminal."""
        self.phase = ""
        self._refresh()
        self.bar.close()

    def line(self, columns: int) -> str:
        """Return the state in at most `columns` characters; metrics that do not fit are left out."""
        is_wide = columns >= WIDE
        first, last = f"{self.step}/{self.total}", self._outlook(is_wide)
        shown: list[str] = []
        for part in describe(self.metrics, is_wide):
            if len(_join(is_wide, first, *shown, part, *last)) <= columns:
                shown.append(part)
        return _join(is_wide, first, *shown, *last)[:columns]

    def _refresh(self) -> None:
        if not self.bar.disable:
            self.bar.set_description_str(self.line(shutil.get_terminal_size().columns - 1))

    def _outlook(self, is_wide: bool) -> list[str]:
        """Return texts about what the run is doing, and the time left."""
        outlook = []
        if self.phase and not self.is_plain:
            outlook.append(PHASES[self.phase][not is_wide])
        done = self.step - self.first
        if done and self.step < self.total:
            seconds = (time.monotonic() - self.started) / done * (self.total - self.step)
            outlook.append(tqdm.format_interval(seconds) + (" left" if is_wide else ""))
        return outlook


def describe(metrics: Metrics, is_wide: bool) -> list[str]:
    """Return the metrics that matter as short texts, the most important ones first."""
    hidden = ["loss"] if "reward" in metrics else []
    unknown = [] if metrics.get("time/reference") else ["kl"]  # no reference was asked
    unknown += [name for name in TEXTS if not math.isfinite(metrics.get(name, 0.0))]
    texts = {name: texts[not is_wide] for name, texts in TEXTS.items() if name in metrics and name not in hidden}
    texts |= {name: re.sub("{.*}", "–", text) for name, text in texts.items() if name in unknown}
    return [text.format(metrics[name]) for name, text in texts.items() if text]


def longest_phase(metrics: Metrics) -> str:
    """Return a text about the phase that took the longest in a step; "" if none is known."""
    phases = {name: metrics[name] for name in PHASES if name in metrics}
    if not phases:
        return ""
    longest = max(phases, key=phases.get)
    return f"  longest: {PHASES[longest][0]} {phases[longest]:.1f} s of {metrics['step_time']:.1f} s"


def _join(is_wide: bool, *parts: str) -> str:
    return ("  " if is_wide else " ").join(parts)

"""What a run tells: metrics.jsonl, TensorBoard, completions with the reason of every reward, one progress bar.

GLOSSARY defines every metric once, under TRL's names where TRL has one; logging any other name is an error.
"""

import json
import math
import os
import re
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from grpo.errors import CONFIG, UserError, escape, is_storage_error, redact
from grpo.schema import Completion, Group, Prompt
from grpo.storage import failpoint, write_atomically

GLOSSARY = {  # <name> stands for a reward's name
    "step": "steps done: generated batches that were trained on",
    "epoch": "passes over the data, as a fraction",
    "loss": "Eq. 7 summed over the step, mean over num_iterations; about 0 on-policy, where grad_norm tells whether it learns",
    "learning_rate": "of this step",
    "grad_norm": "L2 norm of the gradient before clipping, of the last iteration",
    "num_tokens": "prompt and completion tokens processed since the start, all ranks; a shared prompt counts once per completion",
    "reward": "mean of the weighted sum of rewards over scorable completions",
    "reward_std": "standard deviation of these, over all groups",
    "frac_reward_zero_std": "share of groups without a learning signal: all rewards equal, or fewer than two scorable",
    "advantage_abs_mean": "mean |advantage| over completions: 0 means nothing is learned",
    "accuracy": "share of completions whose answer is right, by the first reward that can tell",
    "refusal_rate": "share of completions that decline to answer",
    "rewards/<name>/mean": "mean over scorable completions",
    "rewards/<name>/std": "standard deviation over scorable completions",
    "rewards/<name>/unscored_frac": "share of completions that this reward could not score; or of those that needed "
    "the judge, the knowledge base or the decomposer and got no answer, if that share is larger",
    "kl": "mean k3 estimate (Eq. 6) per completion token, nats",
    "entropy": "mean entropy per completion token of the distribution sampled from, nats",
    "clip_ratio/low_mean": "share of tokens whose ratio is below 1 - epsilon with a negative advantage",
    "clip_ratio/high_mean": "share of tokens whose ratio is above 1 + epsilon_high with a positive advantage",
    "clip_ratio/region_mean": "sum of the two",
    "completions/mean_length": "tokens, the end token included",
    "completions/min_length": "tokens",
    "completions/max_length": "tokens",
    "completions/mean_terminated_length": "tokens, of completions that ended by themselves",
    "completions/clipped_ratio": "share that hit max_completion_length",
    "sampler/logp_diff_mean": "mean |log-prob of the sampler - of the trainer| per token: the arithmetic's noise, nats",
    "sampler/logp_diff_max": "largest such difference, nats",
    "sampling/kept_groups": "share of generated groups that were trained on (dynamic_sampling)",
    "step_time": "seconds",
    "time/generate": "seconds of the step spent sampling",
    "time/reference": "seconds in the reference policy's pass",
    "time/reward": "seconds waiting for rewards after sampling",
    "time/train": "seconds in forward, backward and update",
    "tokens_per_second": "completion tokens per second of the whole step, all ranks",
    "peak_memory_gb": "largest memory in use so far: of the GPU, or of the process on a CPU, GB",
    "micro_batches": "forward-backward passes of the step",
    "skipped_steps": "steps without an update since the start, because something was not finite",
    "eval/accuracy": "share of held-out questions answered right",
    "eval/hallucination_rate": "wrong among the held-out questions that were answered",
    "eval/refusal_rate": "share of held-out questions that were declined",
    "eval/reward": "mean reward on held-out questions",
    "eval/unscored_frac": "share of held-out answers that could not be scored",
    "eval/mean_length": "tokens of held-out answers",
    "eval/supported_frac": "share of the facts stated in held-out answers that the knowledge base supports",
    "kb/lookups_exact": "titles of this step found as they are (several processes: kb/*, judge/*, decomposer/* are those of the first)",
    "kb/lookups_parts": "titles found by their parts between semicolons",
    "kb/lookups_search": "titles not found, for which full-text search guessed documents",
    "kb/lookups_missing": "titles not found at all",
    "kb/unscored": "completions whose factuality could not be told",
    "kb/facts_per_completion": "facts per completion whose factuality was asked for",
    "kb/supported_frac": "share of their facts that the knowledge base supports",
    "kb/refuted_frac": "share that it contradicts",
    "kb/unknown_frac": "share of which it says nothing",
    "judge/calls": "requests to the judge so far; the other judge/* and decomposer/* count likewise",
    "judge/retries": "requests that were tries after the first",
    "judge/failures": "requests that failed",
    "judge/unscorable": "items without a usable answer",
    "judge/cache_hits": "items answered from the cache",
    "judge/prompt_tokens": "tokens sent",
    "judge/completion_tokens": "tokens received",
    "judge/cost": "US dollars, by judge_prices",
    "decomposer/calls": "as judge/calls",
    "decomposer/retries": "as judge/retries",
    "decomposer/failures": "as judge/failures",
    "decomposer/unscorable": "as judge/unscorable",
    "decomposer/cache_hits": "as judge/cache_hits",
    "decomposer/prompt_tokens": "tokens sent",
    "decomposer/completion_tokens": "tokens received",
    "decomposer/cost": "US dollars, by decomposer_prices",
    "tokens": "stage 1: answer tokens trained on in this step",
}
SHOWN = {  # on the progress bar
    "loss": ("loss", ".4f"),
    "reward": ("reward", "+.2f"),
    "accuracy": ("accuracy", ".0%"),
    "completions/mean_length": ("length", ".0f"),
    "refusal_rate": ("refused", ".0%"),
    "kl": ("kl", ".4f"),
    "grad_norm": ("grad", ".3f"),
    "frac_reward_zero_std": ("no signal", ".0%"),
    "tokens_per_second": ("tok/s", ",.0f"),
}
_PATTERNS = [re.compile(re.escape(name).replace("<name>", r"[^/]+")) for name in GLOSSARY]


class Log:
    """Writes one run's metrics. Only rank 0 has one. A full disk costs lines, told once per file, and never stops the
    training."""

    def __init__(
        self,
        run_dir: Path,
        config_text: str,
        total_steps: int,
        first_step: int,
        report_to: Sequence[str],
        run_name: str | None,
        show_bar: bool,
    ):
        self.completions = run_dir / "completions"
        self.warned: set[str] = set()
        self.metrics: int | None = _continue_lines(run_dir / "metrics.jsonl", first_step)
        self.bar = tqdm(total=total_steps, initial=first_step, disable=not show_bar, dynamic_ncols=True, unit="step")
        self.trackers: dict[str, Any] = {}
        for name in report_to:
            if name != "none":
                self._attempt(name, self._open_tracker, name, run_dir, run_name, config_text, first_step)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """A line of metrics.jsonl, and the trackers."""
        unknown = [name for name in metrics if not any(pattern.fullmatch(name) for pattern in _PATTERNS)]
        if unknown:
            raise KeyError(f"metrics without an entry in the glossary: {unknown}")
        finite = {name: value if math.isfinite(value) else None for name, value in metrics.items()}  # JSON has no NaN
        failpoint("log-append")
        self._attempt("metrics.jsonl", _append, self.metrics, json.dumps({"step": step, **finite}) + "\n")
        failpoint("log-appended")
        for name, tracker in self.trackers.items():
            self._attempt(name, tracker.scalars, step, metrics)

    def advance(self, metrics: Mapping[str, float]) -> None:
        """Moves the progress bar by a step."""
        self.bar.set_postfix_str(
            "  ".join(f"{label} {metrics[name]:{style}}" for name, (label, style) in SHOWN.items() if name in metrics),
            refresh=False,
        )
        self.bar.update()

    def say(self, text: str) -> None:
        """A line on the terminal that does not break the progress bar."""
        tqdm.write(escape(text), file=sys.stderr)

    def write_completions(self, step: int, groups: Sequence[Group], num_to_show: int) -> None:
        """completions/step-N.jsonl: each completion with its rewards, reasons and advantage."""
        rows = [completion_row(group.prompt, completion) for group in groups for completion in group.completions]
        self._attempt("completions/", self._write_rows, self.completions / f"step-{step:06d}.jsonl", rows)
        for row in rows[:num_to_show]:
            self.say(f"--- step {step}, reward {row['reward']}\n{row['prompt']}\n>>> {row['completion']}")
        for name, tracker in self.trackers.items():
            self._attempt(
                name,
                tracker.text,
                step,
                "completions",
                "\n\n".join(f"reward {row['reward']}: {row['completion']}" for row in rows[:4]),
            )

    def close(self) -> None:
        self.bar.close()
        if self.metrics is not None:
            os.close(self.metrics)
            self.metrics = None
        for name, tracker in self.trackers.items():
            self._attempt(name, tracker.close)

    def _open_tracker(self, name: str, *about: Any) -> None:
        self.trackers[name] = _TRACKERS[name](*about)

    def _write_rows(self, path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
        self.completions.mkdir(exist_ok=True)
        write_atomically(path, redact("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)))

    def _attempt(self, name: str, write: Callable[..., None], *values: Any) -> None:
        try:
            write(*values)
        except OSError as error:
            if name not in self.warned:
                self.warned.add(name)
                self.say(f"warning: {name} cannot be written ({error}); the training goes on")


def completion_row(prompt: Prompt, completion: Completion) -> dict[str, Any]:
    """Return what is written about a completion to completions/ and beside an evaluation."""
    scores = completion.scores
    return {
        "row": prompt.row,
        "prompt": prompt.text,
        "completion": completion.text,
        "finish_reason": completion.finish_reason,
        "num_tokens": len(completion.ids),
        "reward": _json(completion.reward),
        "advantage": _json(completion.advantage),
        "rewards": {name: _json(score.value) for name, score in scores.items()},
        "reasons": {name: score.reason for name, score in scores.items()},
        "details": {name: score.details for name, score in scores.items() if score.details},
    }


def _json(value: float | None) -> float | str | None:
    """JSON has no NaN: what is not finite is written as text; null is kept for what could not be scored."""
    return value if value is None or math.isfinite(value) else str(value)


def _continue_lines(path: Path, first_step: int) -> int:
    """A descriptor to append to metrics.jsonl; lines of steps that a resumed run does again are dropped."""
    if path.exists():
        kept = []
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                if json.loads(line)["step"] <= first_step:
                    kept.append(line + "\n")
            except (ValueError, KeyError, TypeError, RecursionError):
                continue  # the last line of a killed run may be cut off
        write_atomically(path, "".join(kept))
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)


def _append(descriptor: int, line: str) -> None:
    """A whole line or nothing."""
    size, data = os.fstat(descriptor).st_size, line.encode()
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except OSError:
        os.truncate(descriptor, size)
        raise


class _TensorBoard:
    def __init__(self, run_dir: Path, run_name: str | None, config_text: str, first_step: int):
        from torch.utils.tensorboard import SummaryWriter

        threading.excepthook = _pass_over_full_disks
        self.writer = SummaryWriter(str(run_dir / "tb"), purge_step=first_step + 1)
        self.writer.add_text("config", f"```\n{config_text}\n```")

    def scalars(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self.writer.add_scalar(name, value, step)

    def text(self, step: int, name: str, text: str) -> None:
        self.writer.add_text(
            name, "    " + escape(redact(text)).replace("\n", "\n    "), step
        )  # an indented block is not rendered

    def close(self) -> None:
        self.writer.close()


def _pass_over_full_disks(failure: threading.ExceptHookArgs) -> None:
    """TensorBoard writes in a thread and raises its failure again in the next call: it is no news there."""
    if not is_storage_error(failure.exc_value):
        threading.__excepthook__(failure)


class _Online:
    """swanlab and wandb share these few calls."""

    def __init__(self, module_name: str, run_dir: Path, run_name: str | None, config_text: str, first_step: int):
        import importlib

        import yaml

        try:
            self.module = importlib.import_module(module_name)
        except ImportError:
            raise UserError(
                f"report_to names {module_name}, which is not installed",
                "",
                f"pip install {module_name}, or remove it from report_to",
                CONFIG,
            ) from None
        self.run = self.module.init(project="grpo", name=run_name or run_dir.name, config=yaml.safe_load(config_text))

    def scalars(self, step: int, metrics: Mapping[str, float]) -> None:
        self.module.log(dict(metrics), step=step)

    def text(self, step: int, name: str, text: str) -> None:
        pass  # completions stay on this machine

    def close(self) -> None:
        self.module.finish()


_TRACKERS = {
    "tensorboard": _TensorBoard,
    "swanlab": lambda *args: _Online("swanlab", *args),
    "wandb": lambda *args: _Online("wandb", *args),
}

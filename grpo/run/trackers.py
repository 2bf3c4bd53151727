"""Trackers, which get the metrics as well as metrics.jsonl: TensorBoard, and the online services swanlab and wandb.

Each has three methods: `scalars` records the metrics of a step, `text` records a text, `close` writes what is left.
"""

import importlib
import threading
from collections.abc import Mapping
from pathlib import Path

import yaml

from grpo.errors import CONFIG, UserError, escape, is_storage_error, redact


class TensorBoard:
    """Writes event files to tb/. A resumed run replaces the steps that it repeats."""

    def __init__(self, run_dir: Path, config_text: str, first_step: int):
        from torch.utils.tensorboard import SummaryWriter

        threading.excepthook = _ignore_full_disks
        self.writer = SummaryWriter(str(run_dir / "tb"), purge_step=first_step + 1)
        self.writer.add_text("config", f"```\n{config_text}\n```")

    def scalars(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self.writer.add_scalar(name, value, step)

    def text(self, step: int, name: str, text: str) -> None:
        indented = "    " + escape(redact(text)).replace("\n", "\n    ")  # so that it is not rendered as Markdown
        self.writer.add_text(name, indented, step)

    def close(self) -> None:
        self.writer.close()


def _ignore_full_disks(failure: threading.ExceptHookArgs) -> None:
    """Drop a storage error in TensorBoard's thread: its next call raises the same error to the log."""
    if not is_storage_error(failure.exc_value):
        threading.__excepthook__(failure)


class OnlineTracker:
    """Sends metrics to swanlab or wandb, which share these few calls. Completions stay on this machine."""

    def __init__(self, module_name: str, run_name: str, config_text: str):
        try:
            self.module = importlib.import_module(module_name)
        except ImportError:
            raise UserError(
                f"report_to names {module_name}, which is not installed",
                "",
                f"pip install {module_name}, or remove it from report_to",
                CONFIG,
            ) from None
        self.module.init(project="grpo", name=run_name, config=yaml.safe_load(config_text))

    def scalars(self, step: int, metrics: Mapping[str, float]) -> None:
        self.module.log(dict(metrics), step=step)

    def text(self, step: int, name: str, text: str) -> None:
        pass

    def close(self) -> None:
        self.module.finish()


Tracker = TensorBoard | OnlineTracker


def open_tracker(name: str, run_dir: Path, run_name: str | None, config_text: str, first_step: int) -> Tracker:
    """Start the tracker `name`: tensorboard, swanlab or wandb."""
    if name == "tensorboard":
        return TensorBoard(run_dir, config_text, first_step)
    return OnlineTracker(name, run_name or run_dir.name, config_text)

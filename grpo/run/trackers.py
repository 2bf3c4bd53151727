"""Trackers, which get the metrics in addition to metrics.jsonl: TensorBoard, swanlab, wandb and trackio.

Each has three methods: `scalars` records the metrics of a step, `text` records a text, `close` writes what is left.
A resumed run goes on as the same run of its service, which knows it by the id in run_state.json.
A service asks for a login itself when it starts; if it fails, the run goes on without it.
"""

import importlib
import os
import threading
from functools import partial
from pathlib import Path

import yaml

from grpo.base.errors import CONFIG, check_all, escape, explained, is_storage_error, redact
from grpo.config.options import AnyConfig
from grpo.diagnosis.glossary import Metrics

MODULES = {"tensorboard": "torch.utils.tensorboard", "swanlab": "swanlab", "wandb": "wandb", "trackio": "trackio"}


class TensorBoard:
    """Writes event files to tb/. A resumed run replaces the steps that it repeats."""

    def __init__(self, run_dir: Path, config_text: str, first_step: int):
        from torch.utils.tensorboard import SummaryWriter

        threading.excepthook = _ignore_full_disks
        self.writer = SummaryWriter(str(run_dir / "tb"), purge_step=first_step + 1)
        self.writer.add_text("config", f"```\n{config_text}\n```")

    def scalars(self, step: int, metrics: Metrics) -> None:
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
    """Sends metrics to swanlab, wandb or trackio, which share these few calls. Completions stay on this machine."""

    def __init__(self, name: str, config: AnyConfig, config_text: str, run_id: str):
        self.module = importlib.import_module(MODULES[name])
        self.module.init(**_place(name, config, run_id), resume="allow", config=yaml.safe_load(config_text))

    def scalars(self, step: int, metrics: Metrics) -> None:
        self.module.log(dict(metrics), step=step)

    def text(self, step: int, name: str, text: str) -> None:
        pass

    def close(self) -> None:
        self.module.finish()


Tracker = TensorBoard | OnlineTracker


def open_tracker(name: str, config: AnyConfig, config_text: str, first_step: int, run_id: str) -> Tracker:
    """Start the tracker `name`, one of MODULES."""
    if name == "tensorboard":
        return TensorBoard(Path(config.output_dir), config_text, first_step)
    return OnlineTracker(name, config, config_text, run_id)


def _place(name: str, config: AnyConfig, run_id: str) -> dict[str, str]:
    """Return project, run and owner under a service's own names. The configuration overrides environment variables."""
    run_name = config.run_name or Path(config.output_dir).name
    if name == "wandb":
        project = config.wandb_project or os.environ.get("WANDB_PROJECT") or config.project
        place = {"project": project, "name": run_name, "entity": config.wandb_entity, "id": run_id}
    elif name == "swanlab":
        project = config.swanlab_project or os.environ.get("SWANLAB_PROJ_NAME") or config.project
        place = {"project": project, "experiment_name": run_name, "workspace": config.swanlab_workspace, "id": run_id}
    else:  # trackio resumes by name alone
        place = {"project": config.project, "name": f"{run_name}-{run_id[:6]}"}
    return {word: value for word, value in place.items() if value}


def check_trackers(config: AnyConfig) -> str:
    """Return the names of a run's trackers; UserError (exit 2) if one is not installed."""
    names = [name for name in config.report_to if name != "none"]
    check_all(*[partial(_check_tracker, name) for name in names if name in MODULES])
    return ", ".join(names) or "none"


def _check_tracker(name: str) -> None:
    fix = f"pip install {name}, or remove it from report_to"
    with explained(Exception, f"report_to names {name}, which is not installed", fix, CONFIG):  # it can raise anything
        importlib.import_module(MODULES[name])

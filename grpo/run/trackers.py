"""Trackers, which get the metrics in addition to metrics.jsonl: TensorBoard, swanlab, wandb and trackio.

Each has two methods: `log` records the metrics of a step, `finish` writes what is left. The services' own modules have
them. A resumed run goes on as the same run of its service, which knows it by the id in run_state.json.
"""

import importlib
import os
import threading
from functools import partial
from pathlib import Path
from typing import Protocol

import yaml

from grpo.base.errors import CONFIG, check_all, explained, is_storage_error, reason
from grpo.config.load import to_yaml
from grpo.config.options import AnyConfig
from grpo.run.diagnosis.glossary import Metrics

MODULES = {"tensorboard": "torch.utils.tensorboard", "swanlab": "swanlab", "wandb": "wandb", "trackio": "trackio"}
LOGINS = {  # what a service wants to know before it takes metrics
    "swanlab": "SWANLAB_API_KEY=..., or SWANLAB_MODE=offline for none",
    "wandb": "WANDB_API_KEY=..., or WANDB_MODE=offline for none",
}
PROJECT_VARIABLES = {"swanlab": "SWANLAB_PROJ_NAME", "wandb": "WANDB_PROJECT"}


class Tracker(Protocol):
    def log(self, metrics: Metrics, step: int) -> None: ...

    def finish(self) -> None: ...


class TensorBoard:
    """Writes event files to tb/. A resumed run replaces the steps that it repeats."""

    def __init__(self, run_dir: Path, config_text: str, first_step: int):
        from torch.utils.tensorboard import SummaryWriter  # for runs that report to it

        self.excepthook = threading.excepthook
        threading.excepthook = _ignore_full_disks
        self.writer = SummaryWriter(str(run_dir / "tb"), purge_step=first_step + 1)
        self.writer.add_text("config", f"```\n{config_text}\n```")

    def log(self, metrics: Metrics, step: int) -> None:
        for name, value in metrics.items():
            self.writer.add_scalar(name, value, step)

    def finish(self) -> None:
        self.writer.close()
        threading.excepthook = self.excepthook


def _ignore_full_disks(failure: threading.ExceptHookArgs) -> None:
    """Drop a storage error in TensorBoard's thread: its next call raises the same error to the log."""
    if not (failure.exc_value and is_storage_error(failure.exc_value)):
        threading.__excepthook__(failure)


def open_tracker(name: str, config: AnyConfig, first_step: int, run_id: str) -> Tracker:
    """Start the tracker `name`, one of MODULES. Completions stay on this machine."""
    if name == "tensorboard":
        return TensorBoard(Path(config.output_dir), to_yaml(config), first_step)
    service = importlib.import_module(name)
    try:
        service.init(**_place(name, config, run_id), resume="allow", config=yaml.safe_load(to_yaml(config)))
    except Exception as error:  # of any kind
        if name not in LOGINS:
            raise
        raise RuntimeError(f"{reason(error)}; export {LOGINS[name]}") from error
    return service


def _place(name: str, config: AnyConfig, run_id: str) -> dict[str, str]:
    """Return project and run under a service's own names. The configuration overrides environment variables."""
    run = config.run_name or Path(config.output_dir).name
    project = config.project or os.environ.get(PROJECT_VARIABLES.get(name, "")) or "grpo"
    owner = {"wandb": "entity", "swanlab": "workspace"}.get(name)
    names = {
        "wandb": {"name": run, "id": run_id},
        "swanlab": {"experiment_name": run, "id": run_id},
        "trackio": {"name": f"{run}-{run_id[:6]}"},  # it resumes by name alone
    }
    owned = {owner: config.workspace} if owner and config.workspace else {}
    return {"project": project, **owned, **names[name]}


def check_trackers(config: AnyConfig) -> str:
    """Return a run's trackers, and what was not tested of them; UserError (exit 2) if one is not installed."""
    names = [name for name in config.report_to if name != "none"]
    check_all(*[partial(_check_tracker, name) for name in names])
    logins = [
        f"{name} is installed, its login is not tested: export {LOGINS[name]}" for name in names if name in LOGINS
    ]
    return "; ".join([", ".join(names) or "none", *logins])


def _check_tracker(name: str) -> None:
    fix = f"pip install {name}, or remove it from report_to"
    with explained(Exception, f"report_to names {name}, which is not installed", fix, CONFIG):  # it can raise anything
        importlib.import_module(MODULES[name])

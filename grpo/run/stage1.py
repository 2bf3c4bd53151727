"""The stage 1 that a configuration of stage 2 names by cold_start: its own configuration, and its result."""

import json
from dataclasses import replace
from pathlib import Path

from grpo.base.errors import UserError
from grpo.config.load import load_config
from grpo.config.options import FORM, SftConfig, TrainConfig, keys_that
from grpo.data import form
from grpo.data.worlds.world import locate
from grpo.engine.model.adapter import is_adapter
from grpo.run.cold_starts import check_origin


def load_stage1(config: TrainConfig) -> tuple[SftConfig, list[str]]:
    """Load the stage 1 config that a stage 2 config names, or make that of `form`; and its notices."""
    overrides = stage1_overrides(config)
    if config.cold_start == FORM:
        return form.stage1(config), []
    return load_config(config.cold_start, overrides, SftConfig)


def stage1_overrides(config: TrainConfig) -> list[str]:
    """Return the keys of stage 1 that the stage 2 config sets, as on a command line.

    What the stage 2 config says about the model is meant for stage 1, which comes first. Both stages run in the same
    processes, so as many of them share the model. In a toy world stage 1 belongs to the run: it lies in the run's
    directory and shares its seed.
    """
    overrides = [f"disable_tqdm={config.disable_tqdm}", f"tensor_parallel_size={config.tensor_parallel_size}"]
    if config.toy_world:
        output_dir = Path(config.output_dir) / "cold_start"
        overrides += [f"output_dir={output_dir}", f"toy_dir={config.toy_dir}", f"seed={config.seed}"]
    if config.model_name_or_path and is_adapter(Path(config.model_name_or_path)):
        raise UserError(
            "model_name_or_path is an adapter, and cold_start names a stage 1",
            f"{config.model_name_or_path} looks like the result of a stage 1 already",
            "set cold_start=null to start from it; or give the base model, from which stage 1 starts",
        )
    for name in keys_that("model"):
        value = getattr(config, name)
        if value != getattr(SftConfig, name):
            overrides.append(f"{name}={json.dumps(value) if isinstance(value, dict) else value}")
    return overrides


def after_stage1(stage1: SftConfig, config: TrainConfig) -> TrainConfig | None:
    """Return the configuration of a stage 2 whose stage 1 is done; None if it has to run first.

    UserError (exit 2) if the result that is there is that of another stage 1.
    """
    final = Path(stage1.output_dir) / "final"
    if not final.exists():
        return None
    check_origin(final, locate(stage1), config.cold_start)
    return start_from(final, config)


def start_from(final: Path, config: TrainConfig) -> TrainConfig:
    """Return the configuration of a stage 2 that starts from the result of stage 1."""
    return replace(config, model_name_or_path=str(final), adapter_name_or_path=None, cold_start=None)

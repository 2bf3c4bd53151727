"""The stage 1 that comes first in a run of stage 2, by `cold_start`: its configuration, and when its result is used.

A finished stage 1 is used again, where it lies, only if it would be made the same: origin.json in its final/ holds the
keys, and hashes of the data and of the base model, that it was made from.
"""

import hashlib
import json
from dataclasses import asdict, replace
from pathlib import Path

from grpo.base.errors import CONFIG, UserError
from grpo.base.storage import Json, read_mapping
from grpo.config.load import examine_config
from grpo.config.options import FORM, SftConfig, TrainConfig, keys_that
from grpo.data.files import files_of
from grpo.data.registry import find_sources
from grpo.data.rows import digest
from grpo.data.worlds.world import locate
from grpo.engine.model.adapter import is_adapter
from grpo.policy import find_folders
from grpo.run import form
from grpo.run.provenance import differences, file_hash

ORIGIN_FILE = "origin.json"  # in the final/ of a stage 1
LENGTH = {"max_steps", "num_train_epochs"}  # free for a resumed run, but they decide what a finished one has learned


def load_stage1(config: TrainConfig) -> tuple[SftConfig, list[str], list[str]]:
    """Load the stage 1 config that a stage 2 config names, or make that of `form`; and its notices and mistakes."""
    if config.cold_start == FORM:
        return form.stage1(config), [], []
    if not (config.cold_start and Path(config.cold_start).is_file()):
        raise UserError(
            f"cold_start: there is no file {config.cold_start}",
            f"it was sought in {Path.cwd()}, and in the folder of the config that names it and those above",
            "set cold_start=FILE, or cold_start=null model_name_or_path=MODEL to start without a stage 1",
        )
    return examine_config(config.cold_start, stage1_overrides(config), SftConfig)


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


def is_done(stage1: SftConfig, config: TrainConfig) -> bool:
    """Return whether a stage 1 is finished. UserError (exit 2) says what differs if its result is another one's."""
    final = final_of(stage1)
    if not final.exists():
        return False
    made = read_mapping(final / ORIGIN_FILE)
    wanted = origin_of(locate(stage1))
    changes = [f"{name}: {before} -> {now}" for name, (before, now) in differences(made, wanted).items()]
    if "data" not in made:
        changes = [f"it does not say what it was made from ({ORIGIN_FILE})"]
    if changes:
        raise UserError(
            f"the finished stage 1 in {final} is not what {config.cold_start} makes now",
            "; ".join(changes),
            f"to make it again, remove {final.parent}, or set another output_dir in {config.cold_start}; "
            f"to use it nevertheless, set cold_start=null model_name_or_path={final}",
            CONFIG,
        )
    return True


def origin_of(config: SftConfig) -> Json:
    """Return what a stage 1 is made from, as JSON: its keys, and hashes of its data and of its base model."""
    folders = find_folders(config)
    places = (folders.model, folders.adapter, folders.tokenizer)
    base = [path for place in places if place for path in sorted(place.glob("*.*"))]
    base += [Path(config.chat_template)] if config.chat_template else []
    data = []
    for source in find_sources(config):
        layout = dict(source.layout)
        data += [(hashlib.sha256(file.read_bytes()).hexdigest(), layout) for file in files_of(source.path)]
    left_out = {*keys_that("free"), *keys_that("local")} - LENGTH
    origin = {name: value for name, value in asdict(config).items() if name not in left_out}
    origin["data"] = digest(data)
    origin["base model"] = digest([path.name, file_hash(path)] for path in base if path.is_file())
    return json.loads(json.dumps(origin))


def final_of(stage1: SftConfig) -> Path:
    """Return the folder of the model that a stage 1 makes."""
    return Path(stage1.output_dir) / "final"


def start_from(stage1: SftConfig, config: TrainConfig) -> TrainConfig:
    """Return the configuration of a stage 2 that starts from the result of stage 1."""
    return replace(config, model_name_or_path=str(final_of(stage1)), adapter_name_or_path=None, cold_start=None)

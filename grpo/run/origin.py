"""The origin of a finished stage 1: what it was made from, so that only a run that would make the same reuses it."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from grpo.base.errors import CONFIG, UserError
from grpo.base.storage import Json, read_mapping
from grpo.config.options import SftConfig
from grpo.data.files import files_of
from grpo.data.registry import find_sources
from grpo.data.rows import digest
from grpo.model.policy import find_parts
from grpo.run.fingerprint import file_fingerprint
from grpo.run.resume import FREE, differences

ORIGIN_FILE = "origin.json"
COMPARED_BY_CONTENT = (
    "model_name_or_path",
    "model_revision",
    "adapter_name_or_path",
    "tokenizer_name_or_path",
    "chat_template",
    "dataset_id_or_path",
    "dataset_split",
    "dataset_dir",
    "toy_dir",
)
FREE_OF_STAGE_1 = (FREE | set(COMPARED_BY_CONTENT)) - {"max_steps", "num_train_epochs"}


def origin_of(config: SftConfig) -> Json:
    """Return what a stage 1 is made from: its keys, and hashes of its data and of its base model."""
    keys = {name: value for name, value in asdict(config).items() if name not in FREE_OF_STAGE_1}
    parts = find_parts(config)
    places = (parts.model, parts.adapter, parts.tokenizer)
    base = [path for place in places if place for path in sorted(place.glob("*.*"))]
    base += [Path(config.chat_template)] if config.chat_template else []
    sources = find_sources(config.dataset_id_or_path, config.dataset_split, config.dataset_dir)
    data = [(file, dict(source.layout)) for source in sources for file in files_of(source.path)]
    origin = {
        "config": keys,
        "data": digest([hashlib.sha256(file.read_bytes()).hexdigest(), layout] for file, layout in data),
        "base": digest([path.name, file_fingerprint(path)] for path in base if path.is_file()),
    }
    return json.loads(json.dumps(origin))


def check_origin(final: Path, config: SftConfig, config_path: str) -> None:
    """Check that the finished stage 1 in `final` is what `config` would make; UserError (exit 2) says what differs."""
    made = read_mapping(final / ORIGIN_FILE)
    if isinstance(made.get("config"), dict):
        changes = list(_changes(made, origin_of(config)))
    else:
        changes = [f"it does not say what it was made from ({ORIGIN_FILE})"]
    if changes:
        raise UserError(
            f"the finished stage 1 in {final} is not what {config_path} makes now",
            "; ".join(changes),
            f"to make it again, remove {final.parent}, or set another output_dir in {config_path}; "
            f"to use it nevertheless, set cold_start=null model_name_or_path={final}",
            CONFIG,
        )


def _changes(made: Json, wanted: Json) -> Iterable[str]:
    for name, (before, now) in differences(made["config"], wanted["config"]).items():
        yield f"{name}: {before} -> {now}"
    if made.get("data") != wanted["data"]:
        yield "the data has changed"
    if made.get("base") != wanted["base"]:
        yield "it was made from another base model"

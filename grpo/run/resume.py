"""What a resumed run may change: the keys in FREE silently, those in WARNED with a notice, all others not at all.

`allow_changes` names exceptions: keys, or inputs such as the data set and the base weights.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from grpo.base.errors import CONFIG, UserError
from grpo.base.storage import Json, read_json
from grpo.config.load import load_config, to_yaml
from grpo.config.options import AnyConfig, keys_that
from grpo.run.checkpoint import MANIFEST_FILE
from grpo.run.run_dir import CONFIG_FILE

FREE, WARNED = set(keys_that("free")), set(keys_that("warned"))


def check_changes(folder: Path, config: AnyConfig, num_ranks: int) -> list[str]:
    """Compare a run with the checkpoint it resumes from; return notices. UserError (exit 2) if it may not resume."""
    manifest = read_json(folder / MANIFEST_FILE)
    saved_ranks = manifest.get("world_size", 1)
    if saved_ranks != num_ranks:
        raise UserError(
            f"the run in {config.output_dir} was made by {saved_ranks} processes, this is one of {num_ranks}",
            "the batch of a step depends on their number",
            f"start it with torchrun --nproc-per-node {saved_ranks}, or start a new run in another output_dir",
            CONFIG,
        )
    saved, _ = load_config(folder / CONFIG_FILE, kind=type(config))
    before, now = _plain(saved), _plain(config)
    changes = differences(before, now)
    for name, value in hidden_values(config).items():
        if manifest.get("hidden_values", {}).get(name, value) != value:
            changes.setdefault(name, (now[name], "the same with another value of the variable"))
    frozen = {name: f"{old} -> {new}" for name, (old, new) in changes.items() if name not in FREE | WARNED}
    _refuse_changes("configuration", frozen, config)
    return [f"{name} was {old}, is now {new}" for name, (old, new) in changes.items() if name not in FREE]


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return what differs between two mappings: name -> value before, value now."""
    pairs = {name: (before.get(name), now.get(name)) for name in sorted({*before, *now})}
    return {name: (old, new) for name, (old, new) in pairs.items() if old != new}


def check_inputs(before: Mapping[str, str], now: Mapping[str, str], config: AnyConfig) -> None:
    """Compare the fingerprints of a run's inputs with those in the checkpoint. UserError (exit 2) if one changed."""
    changes = {name: "its content has changed" for name in now if before.get(name, now[name]) != now[name]}
    _refuse_changes(", ".join(changes).replace("_", " "), changes, config)


def _refuse_changes(what: str, changes: Mapping[str, str], config: AnyConfig) -> None:
    """Raise UserError (exit 2) for changes that `allow_changes` does not name."""
    refused = [name for name in changes if name not in config.allow_changes]
    if refused:
        raise UserError(
            f"the run in {config.output_dir} was made with another {what}",
            "; ".join(f"{name}: {changes[name]}" for name in refused),
            f"set these back, start anew in another output_dir, or accept them: allow_changes={','.join(refused)}",
            CONFIG,
        )


def hidden_values(config: AnyConfig) -> dict[str, str]:
    """Return a hash of each value that config.resolved.yaml holds as ${VARIABLE}."""
    written = _plain(config)
    found = {}
    for name, value in asdict(config).items():
        value = list(value) if isinstance(value, tuple) else value
        if written.get(name, value) != value:
            found[name] = hashlib.sha256(repr(value).encode()).hexdigest()
    return found


def _plain(config: AnyConfig) -> Json:
    """Return the keys as they are written to config.resolved.yaml."""
    return yaml.safe_load(to_yaml(config))

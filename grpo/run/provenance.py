"""What a run is made from, and whether that is still the same. It is compared three times:

- between the processes of a run, before they begin (`environment`, `inputs_of`);
- with the checkpoint that a run resumes from (`check_changes`, `check_inputs`): keys in FREE may change silently, those
  in WARNED with a notice, and others if `allow_changes` names them;
- with a finished stage 1, which is used again only if it would be made the same (`check_origin`).
"""

import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import version
from math import prod
from pathlib import Path
from typing import Any

import yaml

import grpo
from grpo.base.errors import CONFIG, UserError
from grpo.base.storage import Json, read_json, read_mapping
from grpo.config.load import load_config, to_yaml
from grpo.config.options import AnyConfig, SftConfig, keys_that
from grpo.data.files import files_of
from grpo.data.registry import find_sources
from grpo.data.rows import digest
from grpo.model.policy import Policy, find_parts
from grpo.run.checkpoint import MANIFEST_FILE
from grpo.run.run_dir import CONFIG_FILE

FREE, WARNED = set(keys_that("free")), set(keys_that("warned"))
ORIGIN_FILE = "origin.json"  # in the final/ of a stage 1
BY_CONTENT = {  # keys of stage 1 whose files are compared, and not their paths
    *("model_name_or_path", "model_revision", "adapter_name_or_path", "tokenizer_name_or_path", "chat_template"),
    *("dataset_id_or_path", "dataset_split", "dataset_dir", "toy_dir"),
}
LENGTH = {"max_steps", "num_train_epochs"}  # free for a resumed run, but they decide what a finished one has learned
BATCH = ("per_device_train_batch_size", "gradient_accumulation_steps")
BLOCK_BYTES, MAX_BLOCKS = 1 << 20, 256  # a file of up to 256 MB is read completely
PACKAGES = ("grpo", "kernels", "rewards", "knowledge")
LIBRARIES = ("torch", "transformers", "safetensors", "numpy")


def environment(config: AnyConfig) -> dict[str, str]:
    """Return what all processes of a run must have in common before they can work together: versions and keys."""
    root = Path(grpo.__file__).parents[1]
    paths = [path for package in PACKAGES for path in sorted((root / package).rglob("*.py"))]
    source = digest([str(path.relative_to(root)), path.read_text(encoding="utf-8")] for path in paths)[:12]
    found = {"Python": sys.version.split()[0], "grpo": f"{grpo.__version__}, source {source}"}
    found |= {library: version(library) for library in LIBRARIES}
    found |= {name: repr(value) for name, value in asdict(config).items() if name not in keys_that("local")}
    return found


def inputs_of(policy: Policy, data_hash: str, knowledge_base: str | None = None) -> dict[str, str]:
    """Return a hash of each input of a run, by the names that `allow_changes` knows."""
    weights = [path for folder in policy.folders for path in sorted(folder.glob("*.safetensors"))]
    adapters = [path for folder in policy.folders for path in folder.glob("adapter_config.json")]
    tokenizer = policy.tokenizer
    backend = getattr(tokenizer, "backend_tokenizer", None)  # a slow tokenizer has none
    definition = backend.to_str() if backend else sorted(tokenizer.get_vocab().items())
    inputs = {
        "dataset": data_hash,
        "base_weights": digest([repr(policy.model.config), *map(file_hash, weights + adapters)]),
        "tokenizer": digest([definition, tokenizer.all_special_ids, policy.eos_ids]),
        "chat_template": digest([tokenizer.chat_template]),
    }
    if knowledge_base:
        from knowledge.store.layout import identity  # it brings SQLite

        inputs["knowledge_base"] = identity(knowledge_base)
    return inputs


def file_hash(path: Path) -> str:
    """Return a hash of a file's size and content: of MAX_BLOCKS blocks, evenly spaced, if it has more of them.

    Weights of another training differ in every block. A single changed number in a large file may go unnoticed.
    """
    size = path.stat().st_size
    content = hashlib.sha256(str(size).encode())
    last = max(size - 1, 0) // BLOCK_BYTES
    numbers = range(last + 1)
    if len(numbers) > MAX_BLOCKS:
        numbers = [last * index // (MAX_BLOCKS - 1) for index in range(MAX_BLOCKS)]
    with open(path, "rb") as file:
        for number in numbers:
            file.seek(number * BLOCK_BYTES)
            content.update(file.read(BLOCK_BYTES))
    return content.hexdigest()


def check_changes(folder: Path, config: AnyConfig, num_replicas: int) -> list[str]:
    """Compare a run with the checkpoint it resumes from; return notices. UserError (exit 2) if it may not resume.

    num_replicas: processes, divided by those that share a model.
    """
    manifest = read_json(folder / MANIFEST_FILE)
    saved, _ = load_config(folder / CONFIG_FILE, kind=type(config))
    before, now = _compared(saved, manifest.get("world_size", 1)), _compared(config, num_replicas)
    changes = differences(before, now)
    for name, value in hidden_values(config).items():
        if manifest.get("hidden_values", {}).get(name, value) != value:
            changes.setdefault(name, (now[name], "the same with another value of the variable"))
    frozen = {name: f"{old} -> {new}" for name, (old, new) in changes.items() if name not in FREE | WARNED}
    _refuse_changes("configuration", frozen, config)
    return [f"{name} was {old}, is now {new}" for name, (old, new) in changes.items() if name not in FREE]


def _compared(config: AnyConfig, num_replicas: int) -> Json:
    """Return the keys to compare: the batch size of a step in place of its factors, which matter to bnpo alone."""
    keys = _written(config)
    sizes = [keys.pop(name) for name in BATCH] + [num_replicas]
    divided = f", {' x '.join(map(str, sizes))}" if keys.get("loss_type") == "bnpo" else ""
    return keys | {BATCH[0]: f"{prod(sizes)} in all processes{divided}"}


def check_inputs(before: Mapping[str, str], now: Mapping[str, str], config: AnyConfig) -> None:
    """Compare the inputs of a run with those of the checkpoint. UserError (exit 2) if one has changed."""
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


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return what differs between two mappings: name -> value before, value now."""
    pairs = {name: (before.get(name), now.get(name)) for name in sorted({*before, *now})}
    return {name: (old, new) for name, (old, new) in pairs.items() if old != new}


def hidden_values(config: AnyConfig) -> dict[str, str]:
    """Return a hash of each value that config.resolved.yaml holds as ${VARIABLE}."""
    written = _written(config)
    values = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(config).items()}
    hidden = {name: value for name, value in values.items() if written.get(name, value) != value}
    return {name: hashlib.sha256(repr(value).encode()).hexdigest() for name, value in hidden.items()}


def _written(config: AnyConfig) -> Json:
    """Return the keys as they are written to config.resolved.yaml."""
    return yaml.safe_load(to_yaml(config))


def origin_of(config: SftConfig) -> Json:
    """Return what a stage 1 is made from, as JSON: its keys, and hashes of its data and of its base model."""
    parts = find_parts(config)
    places = (parts.model, parts.adapter, parts.tokenizer)
    base = [path for place in places if place for path in sorted(place.glob("*.*"))]
    base += [Path(config.chat_template)] if config.chat_template else []
    sources = find_sources(config.dataset_id_or_path, config.dataset_split, config.dataset_dir)
    data = []
    for source in sources:
        layout = dict(source.layout)
        data += [(hashlib.sha256(file.read_bytes()).hexdigest(), layout) for file in files_of(source.path)]
    left_out = (FREE | BY_CONTENT) - LENGTH
    origin = {
        "config": {name: value for name, value in asdict(config).items() if name not in left_out},
        "data": digest(data),
        "base": digest([path.name, file_hash(path)] for path in base if path.is_file()),
    }
    return json.loads(json.dumps(origin))


def check_origin(final: Path, config: SftConfig, config_path: str) -> None:
    """Check that the finished stage 1 in `final` is what `config` would make; UserError (exit 2) says what differs."""
    made, wanted = read_mapping(final / ORIGIN_FILE), origin_of(config)
    if isinstance(made.get("config"), dict):
        keys = differences(made["config"], wanted["config"])
        changes = [f"{name}: {before} -> {now}" for name, (before, now) in keys.items()]
        contents = {"data": "the data has changed", "base": "it was made from another base model"}
        changes += [text for name, text in contents.items() if made.get(name) != wanted[name]]
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

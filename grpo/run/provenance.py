"""What a run is made from, keys, inputs and program, and where it runs. It is compared twice:

- between the processes of a run, before they begin (`environment`, `inputs_of`);
- with the checkpoint that a run resumes from (`check_changes`, `check_inputs`). Keys in FREE may change silently, those
  in WARNED, the program and the machine with a notice. Other keys, and the inputs, stop the run unless `allow_changes`
  names them.
"""

import hashlib
import platform
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from importlib.metadata import version
from math import prod
from pathlib import Path

import torch
import yaml

import grpo
from grpo.base.errors import CONFIG, UserError
from grpo.base.folders import MANIFEST_FILE
from grpo.base.storage import Json, read_json
from grpo.config.load import load_config, to_yaml
from grpo.config.options import AnyConfig, keys_that
from grpo.data.rows import digest
from grpo.engine.device import kernel_choice
from grpo.policy import Policy
from grpo.run.diagnosis.record import CONFIG_FILE

FREE = set(keys_that("free"))
WARNED = set(keys_that("warned"))
BATCH = ("per_device_train_batch_size", "gradient_accumulation_steps")
BLOCK_BYTES, MAX_BLOCKS = 1 << 20, 256  # a file of up to 256 MB is read completely
PACKAGES = ("grpo", "kernels", "rewards", "knowledge")
LIBRARIES = ("torch", "transformers", "safetensors", "numpy")


def environment(config: AnyConfig) -> dict[str, str]:
    """Return what all processes of a run must have in common before they can work together: versions and keys."""
    local = keys_that("local")
    keys = {name: repr(value) for name, value in asdict(config).items() if name not in local}
    return program() | keys


def program() -> dict[str, str]:
    """Return the versions of Python, of this program with its source, and of the libraries."""
    root = Path(grpo.__file__).parents[1]
    paths = [path for package in PACKAGES for path in sorted((root / package).rglob("*.*"))]
    paths = [path for path in paths if path.suffix in (".py", ".c")]
    source = digest([str(path.relative_to(root)), path.read_text(encoding="utf-8")] for path in paths)[:12]
    found = {"Python": sys.version.split()[0], "grpo": f"{grpo.__version__}, source {source}"}
    return found | {library: version(library) for library in LIBRARIES}


def machine(device: torch.device) -> dict[str, str]:
    """Return what of a machine decides the bits of a run: its processor, its threads, and the kernels that work there.

    The process must have been configured (`libraries.configure`).
    """
    kernels = {"kernels": kernel_choice.describe(device)}
    if device.type == "cuda":
        return {"device": torch.cuda.get_device_name(device), **kernels}
    processor = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
    return {"device": f"{device.type}, {processor}", "threads": str(torch.get_num_threads()), **kernels}


def inputs_of(policy: Policy, data_hash: str, config: AnyConfig) -> dict[str, str]:
    """Return a hash of each input of a run, by the names that `allow_changes` knows; a file's name may follow them."""
    patterns = ("*.safetensors", "adapter_config.json")
    hashes = [file_hash(path) for one in patterns for folder in policy.folders for path in sorted(folder.glob(one))]
    tokenizer = policy.tokenizer
    backend = getattr(tokenizer, "backend_tokenizer", None)  # a slow tokenizer has none
    definition = backend.to_str() if backend else sorted(tokenizer.get_vocab().items())
    inputs = {
        "dataset": data_hash,
        "base_weights": digest([repr(policy.model.config), *hashes]),
        "tokenizer": digest([definition, tokenizer.all_special_ids, policy.eos_ids]),
        "chat_template": digest([tokenizer.chat_template]),
    }
    if knowledge_base := getattr(config, "knowledge_base", None):
        from knowledge.store.database import identity  # it brings SQLite

        inputs["knowledge_base"] = identity(knowledge_base)
    for key in ("reward_funcs", "eval_reward_funcs", "tools", "environment"):
        names = getattr(config, key, None) or ()
        for path in files_of_functions([names] if isinstance(names, str) else names):
            name = f"{key} ({path.name})"
            inputs[name] = inputs.get(name, "") + file_hash(path)
    return inputs | hidden_values(config)


def files_of_functions(names: Iterable[str]) -> list[Path]:
    """Return the files of a user's own functions, which are named like `path/file.py:function` or `module:function`."""
    files = set()
    for name in names:
        where = name.rpartition(":")[0]
        path = Path(where.removesuffix(".py") + ".py")
        file = path if path.is_file() else getattr(sys.modules.get(where), "__file__", None)
        if file:  # one of a notebook has none
            files.add(Path(file).resolve())
    return sorted(files)


def file_hash(path: Path) -> str:
    """Return a hash of a file's size and content: of MAX_BLOCKS blocks, evenly spaced, if it has more of them.

    Weights of another training differ in every block. A single changed number in a large file may go unnoticed.
    """
    size = path.stat().st_size
    content = hashlib.sha256(str(size).encode())
    last = max(size - 1, 0) // BLOCK_BYTES
    numbers = {last * index // (MAX_BLOCKS - 1) for index in range(MAX_BLOCKS)}  # all, if these are enough
    with open(path, "rb") as file:
        for number in sorted(numbers):
            file.seek(number * BLOCK_BYTES)
            content.update(file.read(BLOCK_BYTES))
    return content.hexdigest()


def differences(before: Mapping[str, object], now: Mapping[str, object]) -> dict[str, tuple[object, object]]:
    """Return what differs between two mappings: name -> value before, value now."""
    names = sorted({*before, *now})
    return {name: (before.get(name), now.get(name)) for name in names if before.get(name) != now.get(name)}


def hidden_values(config: AnyConfig) -> dict[str, str]:
    """Return a hash of each value that config.resolved.yaml holds as ${VARIABLE}: further inputs of a run."""
    in_file = written(config)
    hidden = {}
    for name, value in asdict(config).items():
        value = list(value) if isinstance(value, tuple) else value
        if in_file.get(name, value) != value:
            text = repr(value).encode()
            hidden[name] = hashlib.sha256(text).hexdigest()
    return hidden


def written(config: AnyConfig) -> Json:
    """Return the keys as they are written to config.resolved.yaml."""
    return yaml.safe_load(to_yaml(config))


# --- what has changed since a checkpoint -----------------------------------------------------------------------------


def check_changes(folder: Path, config: AnyConfig, num_replicas: int, device: torch.device | None = None) -> list[str]:
    """Compare a run with the checkpoint it resumes from; return notices. UserError (exit 2) if it may not resume.

    num_replicas: processes, divided by those that share a model. device: of this machine, to compare that as well.
    What an older checkpoint does not say is not compared.
    """
    manifest = read_json(folder / MANIFEST_FILE)
    saved, _ = load_config(folder / CONFIG_FILE, kind=type(config))
    changes = differences(_compared(saved, manifest.get("world_size", 1)), _compared(config, num_replicas))
    frozen = {name: f"{old} -> {new}" for name, (old, new) in changes.items() if name not in FREE | WARNED}
    _refuse_changes(folder, "configuration", frozen, config)
    here = program() | (machine(device) if device else {})
    there = manifest.get("program", {}) | manifest.get("machine", {})
    changes |= differences({name: there.get(name, fact) for name, fact in here.items()}, here)
    return [f"{name} was {old}, is now {new}" for name, (old, new) in changes.items() if name not in FREE]


def _compared(config: AnyConfig, num_replicas: int) -> Json:
    """Return the keys to compare: the batch size of a step in place of its factors, which matter to bnpo alone."""
    keys = written(config)
    sizes = [keys.pop(name) for name in BATCH] + [num_replicas]
    divided = f", {' x '.join(map(str, sizes))}" if keys.get("loss_type") == "bnpo" else ""
    return keys | {BATCH[0]: f"{prod(sizes)} in all processes{divided}"}


def check_inputs(folder: Path, before: Mapping[str, str], now: Mapping[str, str], config: AnyConfig) -> None:
    """Compare the inputs of a run with those of a checkpoint. UserError (exit 2) if one has changed.

    An input that the checkpoint does not know is not compared.
    """
    changed = [name for name in now if before.get(name, now[name]) != now[name]]
    what = ", ".join(changed).replace("_", " ")
    _refuse_changes(folder, what, dict.fromkeys(changed, "its content has changed"), config)


def _refuse_changes(folder: Path, what: str, changes: Mapping[str, str], config: AnyConfig) -> None:
    """Raise UserError (exit 2) for changes that `allow_changes` does not name."""
    refused = [name for name in changes if name.partition(" ")[0] not in config.allow_changes]
    names = dict.fromkeys(name.partition(" ")[0] for name in refused)
    if refused:
        raise UserError(
            f"{folder} was made with another {what}",
            "; ".join(f"{name}: {changes[name]}" for name in refused),
            f"set these back, start anew in another output_dir, or accept them: allow_changes={','.join(names)}",
            CONFIG,
        )

"""What a run is made from. It is compared three times:

- between the processes of a run, before they begin (`environment`, `inputs_of`, `hidden_values`);
- with the checkpoint that a run resumes from (resume.py);
- with a finished stage 1, which is used again only if it would be made the same (`check_origin`).
"""

import ast
import hashlib
import json
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

import grpo
from grpo.base.errors import CONFIG, UserError
from grpo.base.storage import Json, read_mapping
from grpo.config.load import to_yaml
from grpo.config.options import AnyConfig, SftConfig, keys_that
from grpo.data.files import files_of
from grpo.data.prompts import render
from grpo.data.registry import find_sources
from grpo.data.rows import digest
from grpo.engine.model.policy import Policy, find_parts

EXAMPLE = "example_prompt"  # of the inputs; it may change: some chat templates print the date
ORIGIN_FILE = "origin.json"  # in the final/ of a stage 1
LENGTH = {"max_steps", "num_train_epochs"}  # free for a resumed run, but they decide what a finished one has learned
BLOCK_BYTES, MAX_BLOCKS = 1 << 20, 256  # a file of up to 256 MB is read completely
PACKAGES = ("grpo", "kernels", "rewards", "knowledge")
LIBRARIES = ("torch", "transformers", "safetensors", "numpy")


def environment(config: AnyConfig) -> dict[str, str]:
    """Return what all processes of a run must have in common before they can work together: versions and keys."""
    return program() | {name: repr(value) for name, value in asdict(config).items() if name not in keys_that("local")}


def program() -> dict[str, str]:
    """Return the versions of Python, of this program with its source, and of the libraries."""
    root = Path(grpo.__file__).parents[1]
    paths = [path for package in PACKAGES for path in sorted((root / package).rglob("*.py"))]
    source = digest([str(path.relative_to(root)), path.read_text(encoding="utf-8")] for path in paths)[:12]
    found = {"Python": sys.version.split()[0], "grpo": f"{grpo.__version__}, source {source}"}
    return found | {library: version(library) for library in LIBRARIES}


def inputs_of(policy: Policy, data_hash: str, config: AnyConfig) -> dict[str, str]:
    """Return a hash of each input of a run, by the names that `allow_changes` knows; a file's name may follow them."""
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
        EXAMPLE: render(tokenizer, [{"role": "user", "content": "x"}]),
    }
    if knowledge_base := getattr(config, "knowledge_base", None):
        from knowledge.store.layout import identity  # it brings SQLite

        inputs["knowledge_base"] = identity(knowledge_base)
    for key in ("reward_funcs", "eval_reward_funcs"):
        for file, content in code_of(getattr(config, key, None) or ()).items():
            inputs[f"{key} ({file})"] = content
    return inputs | hidden_values(config)


def code_of(rewards: Iterable[str]) -> dict[str, str]:
    """Return a hash of each file of the user's rewards, by its name; also of the files near it that it imports.

    rewards: names such as `path/file.py:function`. A comment, or another layout of the code, makes no difference.
    """
    found: dict[Path, str] = {}
    waiting = [path.resolve() for path in map(_file_of, rewards) if path]
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        with suppress(OSError, SyntaxError, ValueError):  # it is no Python text; then it is not looked at
            code = ast.parse(path.read_bytes())
            found[path] = ast.dump(code)
            waiting += _imported_files(code, path.parent)
    names = sorted({path.name for path in found})
    return {name: digest(sorted(found[path] for path in found if path.name == name)) for name in names}


def _file_of(reward: str) -> Path | None:
    """Return the file that defines a user's reward; None if it has none, as in a notebook."""
    where = reward.rpartition(":")[0]
    path = Path(where.removesuffix(".py") + ".py")
    file = path if path.is_file() else getattr(sys.modules.get(where), "__file__", None)
    return Path(file) if file else None


def _imported_files(code: ast.AST, folder: Path) -> list[Path]:
    """Return the files in or below a folder that a module there imports."""
    modules = set()
    for node in ast.walk(code):
        if isinstance(node, ast.ImportFrom):
            modules |= {node.module or "", *(f"{node.module or ''}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
    paths = [folder / module.strip(".").replace(".", "/") for module in modules if module.strip(".")]
    files = [file for path in paths for file in (path.with_suffix(".py"), path / "__init__.py")]
    return [file for file in files if file.is_file()]


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


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return what differs between two mappings: name -> value before, value now."""
    pairs = {name: (before.get(name), now.get(name)) for name in sorted({*before, *now})}
    return {name: (old, new) for name, (old, new) in pairs.items() if old != new}


def hidden_values(config: AnyConfig) -> dict[str, str]:
    """Return a hash of each value that config.resolved.yaml holds as ${VARIABLE}: further inputs of a run."""
    in_file = written(config)
    values = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(config).items()}
    hidden = {name: value for name, value in values.items() if in_file.get(name, value) != value}
    return {name: hashlib.sha256(repr(value).encode()).hexdigest() for name, value in hidden.items()}


def written(config: AnyConfig) -> Json:
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
    left_out = {*keys_that("free"), *keys_that("local")} - LENGTH
    origin = {name: value for name, value in asdict(config).items() if name not in left_out}
    origin["data"] = digest(data)
    origin["base model"] = digest([path.name, file_hash(path)] for path in base if path.is_file())
    return json.loads(json.dumps(origin))


def check_origin(final: Path, config: SftConfig, config_path: str) -> None:
    """Check that the finished stage 1 in `final` is what `config` would make; UserError (exit 2) says what differs."""
    made, wanted = read_mapping(final / ORIGIN_FILE), origin_of(config)
    changes = [f"{name}: {before} -> {now}" for name, (before, now) in differences(made, wanted).items()]
    if "data" not in made:
        changes = [f"it does not say what it was made from ({ORIGIN_FILE})"]
    if changes:
        raise UserError(
            f"the finished stage 1 in {final} is not what {config_path} makes now",
            "; ".join(changes),
            f"to make it again, remove {final.parent}, or set another output_dir in {config_path}; "
            f"to use it nevertheless, set cold_start=null model_name_or_path={final}",
            CONFIG,
        )

"""Fingerprints of a run's inputs and environment, which a resumed run and all processes of a run must share."""

import hashlib
import sys
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

import grpo
from grpo.config.options import AnyConfig, keys_that
from grpo.data.rows import digest
from grpo.model.policy import Policy

BLOCK_BYTES, MAX_BLOCKS = 1 << 20, 256  # a file of up to 256 MB is read completely
PACKAGES = ("grpo", "kernels", "rewards", "knowledge")
LIBRARIES = ("torch", "transformers", "safetensors", "numpy")


def input_fingerprints(policy: Policy, data_hash: str, knowledge_base: str | None = None) -> dict[str, str]:
    """Return a hash of each input of a run, by the names that `allow_changes` knows."""
    weights = [path for folder in policy.folders for path in sorted(folder.glob("*.safetensors"))]
    adapters = [path for folder in policy.folders for path in folder.glob("adapter_config.json")]
    tokenizer = policy.tokenizer
    knowledge = {}
    if knowledge_base:
        from knowledge.store.identity import identity  # it brings SQLAlchemy

        knowledge = {"knowledge_base": identity(knowledge_base)}
    return {
        "dataset": data_hash,
        "base_weights": digest([repr(policy.model.config), *map(file_fingerprint, weights + adapters)]),
        "tokenizer": digest([_definition(tokenizer), tokenizer.all_special_ids, policy.eos_ids]),
        "chat_template": digest([tokenizer.chat_template]),
        **knowledge,
    }


def _definition(tokenizer) -> object:
    """Return the definition of a tokenizer: normalization, merges, added tokens; of a slow one, its vocabulary."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return backend.to_str() if backend else sorted(tokenizer.get_vocab().items())


def file_fingerprint(path: Path) -> str:
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


def environment(config: AnyConfig) -> dict[str, str]:
    """Return what all processes of a run must have in common before they can work together: versions and keys."""
    found = {"Python": sys.version.split()[0], "grpo": f"{grpo.__version__}, source {_source_fingerprint()}"}
    found |= {library: version(library) for library in LIBRARIES}
    found |= {name: repr(value) for name, value in asdict(config).items() if name not in keys_that("local")}
    return found


def _source_fingerprint() -> str:
    root = Path(grpo.__file__).parents[1]
    paths = [path for package in PACKAGES for path in sorted((root / package).rglob("*.py"))]
    return digest([str(path.relative_to(root)), path.read_text(encoding="utf-8")] for path in paths)[:12]

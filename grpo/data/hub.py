"""Find models and data sets: a path that exists is used; any other name of the form owner/name is a hub id."""

import re
from pathlib import Path

from grpo.errors import PREFLIGHT, UserError

MODEL_FILES = ["*.safetensors", "*.safetensors.index.json", "*.json", "*.jinja", "*.model", "merges.txt", "vocab.txt"]
DATA_FILES = ["*.json", "*.jsonl", "*.csv", "*.parquet"]
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def fetch_model(name_or_path: str, revision: str = "main") -> Path:
    """Return the folder of a checkpoint, adapter or tokenizer, and download it first if it is a hub id."""
    if Path(name_or_path).is_dir():
        return Path(name_or_path)
    return _download(name_or_path, revision, "model", MODEL_FILES)


def fetch_adapter(name_or_path: str) -> Path:
    """Return the folder of the adapter that a run starts from."""
    try:
        return fetch_model(name_or_path)
    except UserError as error:
        fix = "adapter_name_or_path is where a run starts from; leave it out to make a new adapter in output_dir"
        raise UserError(error.what.replace("model", "adapter", 1), error.why, fix, error.exit_code) from None


def find_model(name: str, near: Path) -> str:
    """Return the model that a file in the folder `near` names: a hub id, or the absolute path of a folder.

    A relative path is tried from the current folder first, then from `near` and from the folders above it.
    """
    for start in (Path(), near, *near.resolve().parents):
        if (start / name / "config.json").is_file():
            return str((start / name).resolve())
    return name


def fetch_data(name_or_path: str, split: str = "train") -> Path:
    """Return the file of a data set: of a hub data set its only one, or the one whose name contains `split`."""
    if Path(name_or_path).is_file():
        return Path(name_or_path)
    folder = _download(name_or_path, "main", "dataset", DATA_FILES)
    files = [path for pattern in DATA_FILES for path in folder.rglob(pattern)]
    files = sorted(path for path in files if path.name != "dataset_infos.json")
    files = [path for path in files if path.suffix != ".parquet"] or files  # where both are there, they hold the same
    chosen = files if len(files) == 1 else [path for path in files if split in path.stem]
    if len(chosen) != 1:
        names = ", ".join(path.name for path in files) or "no file"
        raise UserError(
            f"the hub data set {name_or_path} has no single {split} file",
            f"found: {names} (JSON, JSONL, CSV or Parquet)",
            "set dataset_split to a word of the file's name, or download the file and give its path",
            PREFLIGHT,
        )
    return chosen[0]


def _download(name: str, revision: str, kind: str, patterns: list[str]) -> Path:
    """Download the files of a hub repository that match the patterns, unless they are in the cache."""
    if not _HUB_ID.fullmatch(name):
        raise UserError(
            f"{kind} {name} does not exist",
            "there is no such file or folder, and it is not a hub id (owner/name)",
            f"check the path: it is taken relative to {Path.cwd()}",
            PREFLIGHT,
        )
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, repo_type=kind, revision=revision, allow_patterns=patterns))
    except Exception as error:  # many kinds: not found, gated, offline, timeout, full disk
        first_line = str(error).partition("\n")[0]
        raise UserError(
            f"cannot fetch the {kind} {name} (revision {revision})",
            f"{type(error).__name__}: {first_line}",
            "there is no such local path; check the id, your network, HF_ENDPOINT and HF_TOKEN",
            PREFLIGHT,
        ) from None

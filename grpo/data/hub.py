"""Where models and data sets come from: a path is used as it is, anything else of the form owner/name is a hub id."""

import re
from pathlib import Path

from grpo.errors import PREFLIGHT, UserError

MODEL_FILES = ["*.safetensors", "*.safetensors.index.json", "*.json", "*.jinja", "*.model", "merges.txt", "vocab.txt"]
DATA_FILES = ["*.json", "*.jsonl", "*.csv"]
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def fetch_model(name_or_path: str, revision: str = "main") -> Path:
    """The folder of a checkpoint, adapter or tokenizer; downloaded once if it is a hub id."""
    if Path(name_or_path).is_dir():
        return Path(name_or_path)
    return _download(name_or_path, revision, "model", MODEL_FILES)


def fetch_data(name_or_path: str, split: str = "train") -> Path:
    """The file of a data set; of a hub data set the one whose name holds the word `split`, or its only one."""
    if Path(name_or_path).is_file():
        return Path(name_or_path)
    folder = _download(name_or_path, "main", "dataset", DATA_FILES)
    files = sorted(
        path for pattern in DATA_FILES for path in folder.rglob(pattern) if path.name != "dataset_infos.json"
    )
    chosen = files if len(files) == 1 else [path for path in files if split in path.stem]
    if len(chosen) != 1:
        raise UserError(
            f"the hub data set {name_or_path} has no single {split} file",
            f"found: {', '.join(path.name for path in files) or 'none'} (JSON, JSONL or CSV)",
            "set dataset_split to a word of the file's name, or download the file and give its path",
            PREFLIGHT,
        )
    return chosen[0]


def _download(name: str, revision: str, kind: str, patterns: list[str]) -> Path:
    if not _HUB_ID.fullmatch(name):
        raise UserError(
            f"{kind} {name} does not exist",
            "there is no such file or folder, and it is no hub id (owner/name) either",
            f"check the path: it is taken relative to {Path.cwd()}",
            PREFLIGHT,
        )
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, repo_type=kind, revision=revision, allow_patterns=patterns))
    except Exception as error:  # the library raises many kinds: not found, gated, offline, timeouts, full disk
        raise UserError(
            f"cannot fetch the {kind} {name} (revision {revision})",
            f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}",
            "there is no such local path; check the id, your network, HF_ENDPOINT and HF_TOKEN",
            PREFLIGHT,
        ) from None

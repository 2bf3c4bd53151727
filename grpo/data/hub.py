"""Find models and data sets: a path that exists is used; any other name of the form owner/name is a hub id."""

import re
from pathlib import Path

import yaml

from grpo.base.errors import PREFLIGHT, UserError, explained
from grpo.data.files import STATE_FILE

MODEL_FILES = ["*.safetensors", "*.safetensors.index.json", "*.json", "*.jinja", "*.model", "merges.txt", "vocab.txt"]
CARD = "README.md"
DATA_FILES = ["*.json", "*.jsonl", "*.csv", "*.tsv", "*.json.gz", "*.jsonl.gz", "*.csv.gz", "*.parquet"]
NOT_DATA = ("dataset_infos.json", "dataset_info.json", "dataset_dict.json", STATE_FILE)
_LATER_PART = re.compile(r"-(?!0{5})\d{5}-of-\d{5}\.")  # of a file in several parts, all but the first
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def fetch_model(name_or_path: str, revision: str = "main") -> Path:
    """Return the folder of a checkpoint, adapter or tokenizer, and download it first if it is a hub id."""
    if Path(name_or_path).is_dir():
        return Path(name_or_path)
    if Path(name_or_path).is_file():
        why = "a checkpoint is a folder with config.json, weights and tokenizer"
        raise UserError(f"{name_or_path} is a file", why, f"give its folder, {Path(name_or_path).parent}", PREFLIGHT)
    return _download(name_or_path, revision, "model", MODEL_FILES)


def fetch_adapter(name_or_path: str) -> Path:
    """Return the folder of the adapter that a run starts from."""
    try:
        return fetch_model(name_or_path)
    except UserError as error:
        fix = "adapter_name_or_path is where a run starts from; leave it out to make a new adapter in output_dir"
        raise UserError(error.what.replace("model", "adapter", 1), error.why, fix, error.exit_code) from None


def find_model(name: str, near: Path) -> str:
    """Return the model that a file in the folder `near` names: a hub id, or a folder's or GGUF file's absolute path.

    A relative path is tried from the current folder first, then from `near` and from the folders above it.
    """
    for start in (Path(), near, *near.resolve().parents):
        if (start / name).is_file() or (start / name / "config.json").is_file():
            return str((start / name).resolve())
    return name


def fetch_data(name: str, split: str = "train") -> Path:
    """Return the file or folder of a data set, which `files.read_records` reads.

    name: a file, a folder, or a hub id; `owner/name:config` names one of the configurations of a hub data set. split:
    which part of a folder or a hub data set to use.
    """
    if Path(name).is_file():
        return Path(name)
    if Path(name).is_dir():
        return _choose_file(Path(name), name, None, split)
    repository, _, config = name.partition(":")
    return _choose_file(_download(repository, "main", "dataset", [*DATA_FILES, CARD]), name, config or None, split)


def _choose_file(folder: Path, name: str, config: str | None, split: str) -> Path:
    """Return the only data file of a folder, or the one of this split; the first part of a file in several parts."""
    if (folder / STATE_FILE).is_file():
        return folder
    if (folder / f"{split}/{STATE_FILE}").is_file():  # a DatasetDict, written by save_to_disk
        return folder / split
    files = sorted(path for pattern in DATA_FILES for path in folder.rglob(pattern))
    files = [path for path in files if path.name not in NOT_DATA]
    files = _files_of_config(folder, files, config, split) or files
    files = [path for path in files if "parquet" not in path.suffix] or files  # if both are there, they hold the same
    files = [path for path in files if not _LATER_PART.search(path.name)]
    chosen = files if len(files) == 1 else [path for path in files if split in str(path.relative_to(folder))]
    if len(chosen) != 1:
        names = ", ".join(str(path.relative_to(folder)) for path in files) or "no file"
        raise UserError(
            f"the data set {name} has no single {split} file",
            f"found: {names} (JSON, JSONL, CSV or Parquet)",
            "set dataset_split to a word of the file's name; name a configuration of a hub data set as "
            "owner/name:config; or give the path of a file",
            PREFLIGHT,
        )
    return chosen[0]


def _files_of_config(folder: Path, files: list[Path], config: str | None, split: str) -> list[Path]:
    """Return the files of a configuration: those that the data set's card lists, or those in its folder; [] if none."""
    for entry in _card_configs(folder / CARD):
        is_wanted = entry.get("config_name") == config if config else entry.get("default")
        listed = entry.get("data_files") if is_wanted else None
        for part in listed if isinstance(listed, list) else ():
            if isinstance(part, dict) and part.get("split") == split:
                patterns = part.get("path") or []
                patterns = patterns if isinstance(patterns, list) else [patterns]
                found = [path for path in files if any(path.match(pattern) for pattern in patterns)]
                if found:
                    return found
    if not config:
        return []
    found = [path for path in files if config in path.relative_to(folder).parts[:-1] or path.stem.startswith(config)]
    if not found:
        raise UserError(
            f"the data set has no configuration {config}",
            f"its files are {', '.join(str(path.relative_to(folder)) for path in files[:20])}",
            "correct the name after the colon",
            PREFLIGHT,
        )
    return found


def _card_configs(card: Path) -> list[dict]:
    """Return the configurations that the front matter of a data set's card describes."""
    from huggingface_hub import metadata_load

    try:
        configs = (metadata_load(card) or {}).get("configs") or []
        return [entry for entry in configs if isinstance(entry, dict)]
    except (OSError, ValueError, TypeError, AttributeError, yaml.YAMLError):
        return []


def _download(name: str, revision: str, kind: str, patterns: list[str]) -> Path:
    """Download the files of a hub repository that match the patterns, unless they are in the cache."""
    if not _HUB_ID.fullmatch(name):
        raise UserError(
            f"{kind} {name} does not exist",
            "there is no such file or folder, and it is not a hub id (owner/name)",
            "check the path" + ("" if Path(name).is_absolute() else f": it is taken relative to {Path.cwd()}"),
            PREFLIGHT,
        )
    from huggingface_hub import snapshot_download

    fix = "there is no such local path; check the id, your network, HF_ENDPOINT and HF_TOKEN"
    with explained(Exception, f"cannot fetch the {kind} {name} (revision {revision})", fix):  # of many kinds
        return Path(snapshot_download(name, repo_type=kind, revision=revision, allow_patterns=patterns))

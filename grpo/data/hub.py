"""Find models and data sets: a path that exists is used; any other name of the form owner/name is a hub id."""

import re
from fnmatch import fnmatch
from pathlib import Path

from grpo.base.errors import PREFLIGHT, UserError, explained
from grpo.data.files import STATE_FILE

SMALL_FILES = "*.json *.jinja *.model merges.txt vocab.txt".split()  # of a model: its config and its tokenizer
WEIGHTS = ["*.safetensors"]
NO_ADAPTER = "check the path; leave adapter_name_or_path out to make a new adapter in output_dir"
LOCAL = {  # kind -> how to name a local one instead
    "dataset": "dataset_id_or_path=FILE",
    "adapter": "adapter_name_or_path=FOLDER",
    "entailment model": "nli_model=FOLDER",
}
DATA_FILES = "*.json *.jsonl *.csv *.tsv *.json.gz *.jsonl.gz *.csv.gz *.parquet".split()
NOT_DATA = "dataset_infos.json", "dataset_info.json", "dataset_dict.json", STATE_FILE
_LATER_PART = re.compile(r"-(?!0{5})\d{5}-of-\d{5}\.")  # of a file in several parts, all but the first
_FIRST_PART = re.compile(r"-0{5}-of-\d{5}(?=\.)")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def fetch_model(name_or_path: str, revision: str = "main", kind: str = "model", weights: bool = True) -> Path:
    """Return the folder of a checkpoint, adapter or tokenizer, and download it first if it is a hub id.

    kind: what messages call it, such as "adapter". weights: False downloads config and tokenizer alone, a few MB.
    """
    path = Path(name_or_path)
    if path.is_dir():
        return path
    if path.is_file():
        raise UserError(
            f"{path} is a file",
            "a checkpoint is a folder with config.json, weights and tokenizer",
            f"give its folder, {path.parent}",
            PREFLIGHT,
        )
    return _download(name_or_path, revision, kind, SMALL_FILES + WEIGHTS * weights)


def fetch_data(name: str, split: str = "train", hint: str = "") -> Path:
    """Return the file or folder of a data set, which `files.read_records` reads.

    name: a file, a folder, or a hub id; `owner/name:config` names one of the configurations of a hub data set. split:
    which part of a folder or a hub data set to use. hint: what else to do if there is none.
    """
    path = Path(name)
    if path.is_file():
        return path
    if path.is_dir():
        return _choose_file(path, name, "", split)
    repository, _, config = name.partition(":")
    repository = repository if _HUB_ID.fullmatch(repository) else name  # whole, as a message shows it
    return _choose_file(_download(repository, "main", "dataset", DATA_FILES, hint), name, config, split)


def _choose_file(folder: Path, name: str, config: str, split: str) -> Path:
    """Return the only data file of a folder, or the one of this split; the first part of a file in several parts.

    config: the name of the files' folder, or the beginning of their names.
    """
    for candidate in (folder, folder / split):  # the second in a DatasetDict, written by save_to_disk
        if (candidate / STATE_FILE).is_file():
            return candidate
    found = sorted(path for pattern in DATA_FILES for path in folder.rglob(pattern) if path.name not in NOT_DATA)
    names = [str(path.relative_to(folder)) for path in found if not _LATER_PART.search(path.name)]
    chosen = [one for one in names if config in Path(one).parts[:-1] or Path(one).name.startswith(config)]
    word = re.compile(rf"(?<![a-z]){re.escape(split)}(?![a-z])", re.IGNORECASE)  # latest.jsonl is no test
    chosen = list(filter(word.search, chosen)) or chosen
    others = [one for one in chosen if not one.endswith(".parquet")]
    same_rows = set(map(_stem, others))
    chosen = others + [one for one in chosen if _stem(one) not in same_rows]
    if len(chosen) != 1:
        raise UserError(
            f"the data set {name} has no single {split} file",
            f"found: {', '.join(names) or 'no file'} (JSON, JSONL, CSV or Parquet)",
            "set dataset_split to a word of the file's name; name a configuration of a hub data set as "
            "owner/name:config; or give the path of a file",
            PREFLIGHT,
        )
    return folder / chosen[0]


def _stem(name: str) -> str:
    """Return a file's name without its kind, and without the number of a part."""
    return _FIRST_PART.sub("", Path(name).name).partition(".")[0]


def _download(name: str, revision: str, kind: str, patterns: list[str], hint: str = "") -> Path:
    """Download the files of a hub repository that match the patterns, unless they are in the cache."""
    if not _HUB_ID.fullmatch(name) or any(fnmatch(name, pattern) for pattern in patterns):
        why = f"there is no such file or folder in {Path.cwd()}, and it is not a hub id (owner/name)"
        fix = NO_ADAPTER if kind == "adapter" else f"check the path{hint}"
        raise UserError(f"{kind} {name} does not exist", why, fix, PREFLIGHT)
    from huggingface_hub import snapshot_download  # takes a second

    fix = (
        "check the id (no file or folder has this name), your network, HF_ENDPOINT (a mirror) and HF_TOKEN (private "
        f"and gated ones); offline, name a local copy: {LOCAL.get(kind, 'model_name_or_path=FOLDER')}"
    )
    with explained(Exception, f"cannot fetch the {kind} {name} (revision {revision})", fix):  # of many kinds
        repo_type = "dataset" if kind == "dataset" else "model"
        return Path(snapshot_download(name, repo_type=repo_type, revision=revision, allow_patterns=patterns))

"""LLaMA-Factory's registry of data sets: dataset_info.json says which file a name stands for, and its rows' layout.

{"knowrl_coldstart": {"file_name": "knowrl_coldstart.json", "formatting": "sharegpt",
                      "columns": {"messages": "conversations"}, "tags": {"user_tag": "human"}}}
"""

from dataclasses import dataclass, field
from pathlib import Path

from grpo.base.errors import PREFLIGHT, UserError, explained, reason
from grpo.base.storage import read_json
from grpo.data.files import Record, read_records, row_error
from grpo.data.hub import fetch_data

REGISTRY_FILE = "dataset_info.json"
DEFAULT_FOLDER = Path("data")  # of LLaMA-Factory
COLUMNS = {"prompt": "instruction", "query": "input", "response": "output", "history": "history", "system": "system"}
MARKS = {"kto_tag": "label", "images": "images", "videos": "videos", "audios": "audios"}  # see conversations.py
TAGS = {
    "role_tag": "from",
    "content_tag": "value",
    "user_tag": "human",
    "assistant_tag": "gpt",
    "system_tag": "system",
}


@dataclass(frozen=True)
class Source:
    """A file of conversations. layout: its entry in the registry; {} if it has one of our own layouts."""

    path: Path
    layout: Record = field(default_factory=dict)

    def read(self) -> list[Record]:
        """Return the rows, as `conversations.read_messages` takes them."""
        records = read_records(self.path)[: self.layout.get("num_samples")]
        return [self._translate(number, record) for number, record in enumerate(records, 1)] if self.layout else records

    def _translate(self, number: int, record: Record) -> Record:
        columns = self.layout.get("columns", {})
        try:
            marks = {ours: record.get(columns.get(theirs, ours)) for theirs, ours in MARKS.items()}
            if self.layout.get("formatting", "alpaca") == "alpaca":
                return marks | {ours: record.get(columns.get(theirs, ours)) for theirs, ours in COLUMNS.items()}
            messages = [self._turn(turn) for turn in record[columns.get("messages", "conversations")]]
            return marks | {"messages": messages, "system": record.get(columns.get("system"))}
        except (KeyError, TypeError, AttributeError) as error:
            what = f"does not have the columns that {REGISTRY_FILE} says"
            why = f"{reason(error)}; its columns are {', '.join(record)}"
            fix = f"correct columns and tags of its entry in {REGISTRY_FILE}"
            raise row_error(self.path, number, what, why, fix) from None

    def _turn(self, turn: Record) -> Record:
        tags = TAGS | self.layout.get("tags", {})
        roles = {tags["user_tag"]: "user", tags["assistant_tag"]: "assistant", tags["system_tag"]: "system"}
        role = turn[tags["role_tag"]]
        return {"role": roles.get(role, role), "content": turn[tags["content_tag"]]}


def find_sources(name: str, split: str, folder: str | None) -> list[Source]:
    """Return the files that `name` stands for: a file, a hub id, or registered names, separated by commas.

    folder: that of dataset_info.json; None: DEFAULT_FOLDER, if it holds one. UserError (exit 3) if nothing is found.
    """
    if Path(name).exists():
        return [Source(fetch_data(name, split))]
    registry_path = Path(folder or DEFAULT_FOLDER) / REGISTRY_FILE
    registry = _read_registry(registry_path) if folder or registry_path.is_file() else {}
    names = [part.strip() for part in name.split(",")]
    if folder is None and not set(names) & set(registry):
        return [Source(_fetch(name, split))]
    missing = [part for part in names if part not in registry]
    if missing:
        raise UserError(
            f"{registry_path} does not register {', '.join(missing)}",
            f"it registers {', '.join(registry) or 'nothing'}",
            "correct dataset_id_or_path (dataset), or add an entry",
            PREFLIGHT,
        )
    return [_source(part, registry[part], registry_path) for part in names]


def _fetch(name: str, split: str) -> Path:
    try:
        return fetch_data(name, split)
    except UserError as error:
        if "/" in name:
            raise
        fix = f"give the path of a file, or in dataset_dir the folder of the {REGISTRY_FILE} that registers {name}"
        raise UserError(error.what, error.why, fix, error.exit_code) from None


def _read_registry(path: Path) -> Record:
    with explained((OSError, ValueError, RecursionError), f"cannot read {path}", "correct dataset_dir"):
        registry = read_json(path)
    if not isinstance(registry, dict) or not all(isinstance(entry, dict) for entry in registry.values()):
        raise UserError(f"{path} is not a registry of data sets", "it must hold {name: {…}}", "correct it", PREFLIGHT)
    return registry


def _source(name: str, entry: Record, registry_path: Path) -> Source:
    path = registry_path.parent / str(entry.get("file_name"))
    if "file_name" in entry and path.is_file():
        problem = "" if not entry.get("ranking") else "it holds preferences, not conversations"
    elif "hf_hub_url" in entry:
        path, problem = fetch_data(entry["hf_hub_url"], entry.get("split", "train")), ""
    else:
        problem = f"there is no file {path}" if "file_name" in entry else "it names no file_name and no hf_hub_url"
    if problem:
        raise UserError(f"{registry_path}: {name} cannot be used", problem, "correct the entry", PREFLIGHT)
    return Source(path, entry)

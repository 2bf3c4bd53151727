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
ROLE_TAGS = {"user_tag": "human", "assistant_tag": "gpt", "system_tag": "system"}
TAGS = {"role_tag": "from", "content_tag": "value"} | ROLE_TAGS


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
        roles = {tags[tag]: tag.removesuffix("_tag") for tag in ROLE_TAGS}
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
        return [Source(fetch_data(name, split))]
    missing = [part for part in names if part not in registry]
    if missing:
        raise UserError(
            f"{registry_path} does not register {', '.join(missing)}",
            f"it registers {', '.join(registry) or 'nothing'}",
            "correct dataset_id_or_path (dataset), or add an entry",
            PREFLIGHT,
        )
    return [_source(part, registry[part], registry_path) for part in names]


def _read_registry(path: Path) -> Record:
    with explained((OSError, ValueError, RecursionError), f"cannot read {path}", "correct it, or dataset_dir"):
        registry = read_json(path)
        if not isinstance(registry, dict) or not all(isinstance(entry, dict) for entry in registry.values()):
            raise ValueError("a registry of data sets must hold {name: {…}}")
    return registry


def _source(name: str, entry: Record, registry_path: Path) -> Source:
    path, problem = registry_path.parent / str(entry.get("file_name")), ""
    if entry.get("ranking"):
        problem = "it holds preferences, not conversations"
    elif "hf_hub_url" in entry and not path.is_file():
        path = fetch_data(entry["hf_hub_url"], entry.get("split", "train"))
    elif not path.is_file():
        problem = f"it names no hf_hub_url, and there is no file {path}"
    if problem:
        raise UserError(f"{registry_path}: {name} cannot be used", problem, "correct the entry", PREFLIGHT)
    return Source(path, entry)

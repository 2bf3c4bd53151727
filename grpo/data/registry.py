"""LLaMA-Factory's registry of data sets: dataset_info.json says which file a name stands for, and its rows' layout.

{"knowrl_coldstart": {"file_name": "knowrl_coldstart.json", "formatting": "sharegpt",
                      "columns": {"messages": "conversations"}, "tags": {"user_tag": "human"}}}
"""

from dataclasses import dataclass
from pathlib import Path

from grpo.base.errors import PREFLIGHT, UserError, explained
from grpo.base.storage import Json, read_json
from grpo.config.options import SftConfig
from grpo.data.files import BadRows, noting, read_records
from grpo.data.hub import fetch_data

REGISTRY_FILE = "dataset_info.json"
DEFAULT_FOLDER = Path("data")  # of LLaMA-Factory
COLUMNS = {"prompt": "instruction", "query": "input", "response": "output", "history": "history", "system": "system"}
READ = {"file_name", "file_sha1", "formatting", "columns", "tags"}  # keys of an entry
TAGS = {
    "role_tag": "from",
    "content_tag": "value",
    "user_tag": "human",
    "assistant_tag": "gpt",
    "system_tag": "system",
}


@dataclass(frozen=True)
class ConversationFile:
    """A file of conversations. layout: its entry in the registry; {} if it has one of our own layouts."""

    path: Path
    layout: Json

    def read(self, bad: BadRows) -> list[Json]:
        """Return the rows, as `read_conversation` takes them. bad: gets those that cannot be read, which are empty."""
        records = read_records(self.path, bad)
        for index, record in enumerate(records if self.layout else ()):
            records[index] = {}
            with noting(bad, index + 1):
                records[index] = self._translate(index + 1, record)
        return records

    def _translate(self, number: int, record: Json) -> Json:
        """Give the columns of a row the names that `read_conversation` knows."""
        columns = self.layout.get("columns", {})
        tags = TAGS | self.layout.get("tags", {})
        record = record | {"tools": record.get(columns.get("tools", "tools"))}
        if self.layout.get("formatting", "alpaca") == "alpaca":
            return record | {ours: record.get(columns.get(theirs, ours)) for theirs, ours in COLUMNS.items()}
        roles = {tags[f"{role}_tag"]: role for role in ("user", "assistant", "system")}
        with explained(
            (KeyError, TypeError),
            f"{self.path}: row {number} does not have the columns that {REGISTRY_FILE} says: {', '.join(record)}",
            f"correct columns and tags of its entry in {REGISTRY_FILE}",
        ):
            messages = []
            for turn in record[columns.get("messages", "conversations")]:
                role = turn[tags["role_tag"]]
                messages.append(turn | {"from": roles.get(role, role), "value": turn[tags["content_tag"]]})
        return record | {"conversations": messages, "system": record.get(columns.get("system"))}


def find_sources(config: SftConfig) -> list[ConversationFile]:
    """Return the files that stage 1 reads: a file, one of the hub, or registered ones, whose names commas separate.

    They are registered in the dataset_info.json of dataset_dir; without that key, of DEFAULT_FOLDER, if it holds one.
    UserError (exit 3) if nothing is found.
    """
    name, folder = config.dataset_id_or_path, config.dataset_dir
    path = Path(folder or DEFAULT_FOLDER) / REGISTRY_FILE
    registry = _read_registry(path) if folder or path.is_file() else {}
    names = [part.strip() for part in name.split(",")]
    if Path(name).exists() or (folder is None and not set(names) & set(registry)):
        path = fetch_data(name, config.dataset_split, "; a name in dataset_info.json needs its folder as dataset_dir")
        return [ConversationFile(path, {})]
    missing = [part for part in names if part not in registry]
    if missing:
        raise UserError(
            f"{path} does not register {', '.join(missing)}",
            f"it registers {', '.join(registry) or 'nothing'}",
            "correct dataset_id_or_path (dataset), or add an entry",
            PREFLIGHT,
        )
    for part in names:
        if unread := [key for key, value in registry[part].items() if value and key not in READ]:
            raise UserError(
                f"{path}: {part} has {', '.join(unread)}, which would change what is read",
                f"an entry is read by {', '.join(sorted(READ))}",
                "make a file that holds just the rows to train on, and register that",
                PREFLIGHT,
            )
    return [ConversationFile(path.parent / str(registry[part].get("file_name")), registry[part]) for part in names]


def _read_registry(path: Path) -> Json:
    with explained((OSError, ValueError, RecursionError), f"cannot read {path}", "correct it, or dataset_dir"):
        registry = read_json(path)
        if not isinstance(registry, dict) or not all(isinstance(entry, dict) for entry in registry.values()):
            raise ValueError("a registry of data sets must hold {name: {…}}")
    return registry

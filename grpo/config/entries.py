"""From YAML files and command-line arguments to entries: each key as it was written, and where."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from grpo.base.errors import CONFIG, UserError, explained
from grpo.base.storage import PlainLoader
from grpo.config.foreign import is_section
from grpo.config.values import NULLS, as_written, coerce, expand_variables

COMMAND_LINE, CALL = "command line", "train()"  # sources that are no files
DATA_SUFFIXES = (".jsonl", ".csv", ".parquet", ".gz")
_NEXT_OPTION = re.compile(r"--|[\w.-]+=")  # an argument that begins so is not the value of the flag before it


@dataclass(frozen=True)
class Entry:
    """A key and its value, as they were written.

    name: with the names of its sections, such as `model.path`. value: see values.py. source: a file's path or the
    command line. line: 0 on the command line.
    """

    name: str
    value: Any
    source: str
    line: int = 0

    @property
    def where(self) -> str:
        return f"{self.source}:{self.line}" if self.line else self.source


def join_flags(arguments: Sequence[str]) -> list[str]:
    """Rewrite flags as `key=value`: `--key value`, `--key=value`, and `--key`, which means true.

    >>> join_flags(["run.yaml", "--max-samples", "10", "--bf16", "beta=0.1"])
    ['run.yaml', 'max_samples=10', 'bf16=true', 'beta=0.1']
    """
    joined, waiting = [], list(arguments)
    while waiting:
        argument = waiting.pop(0)
        if not argument.startswith("--"):
            joined.append(argument)
            continue
        name, equals, value = argument.removeprefix("--").partition("=")
        if not equals:
            has_value = waiting and not _NEXT_OPTION.match(waiting[0])
            value = waiting.pop(0) if has_value else "true"
        joined.append(f"{name.replace('-', '_')}={value}")
    return joined


def split_arguments(argv: Sequence[str]) -> tuple[str | None, list[str]]:
    """Return the path of the config, `FILE` or `--config FILE`, and the other arguments as `key=value`."""
    path, overrides = None, []
    for argument in join_flags(argv):
        name, equals, value = argument.partition("=")
        if path is None and name == "config" and equals:
            path = value
        elif path is None and (not equals or os.path.isfile(argument)):
            path = argument
        else:
            overrides.append(argument)
    return path, overrides


def read_overrides(overrides: Sequence[str], problems: list[str]) -> list[Entry]:
    """Read `key=value` arguments, or flags; add messages about mistakes to `problems`."""
    entries = []
    for argument in join_flags(overrides):
        name, equals, text = argument.partition("=")
        if not equals:
            problems.append(f"{COMMAND_LINE}: {argument!r} is not key=value")
        elif name == "base":
            problems.append(f"{COMMAND_LINE}: base can be set only in a file")
        else:
            entries.append(Entry(name, None if text in NULLS else text, COMMAND_LINE))
    return entries


def read_call(keys: Mapping[str, Any], problems: list[str]) -> list[Entry]:
    """Return the keys that a program passes, as if a file in the current folder held them."""
    root = yaml.compose(to_text(keys), Loader=PlainLoader)
    own = [replace(entry, line=0) for entry in _read_section("", root, CALL)]
    return _with_bases(own, [Path(CALL)], problems)


def to_text(keys: Mapping[str, Any]) -> str:
    """Return keys and their values as YAML without aliases."""
    return yaml.dump(keys, Dumper=_WithoutAliases, allow_unicode=True, sort_keys=False)


class _WithoutAliases(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def read_files(chain: list[Path], problems: list[str]) -> list[Entry]:
    """Return the entries of the last file of the chain, after those of its bases, whose keys it may set again.

    chain: the file of the command, its base, the base of that, and so on. Adds messages about mistakes to `problems`.
    """
    return _with_bases(_read_file(chain[-1], problems), chain, problems)


def _with_bases(own: list[Entry], chain: list[Path], problems: list[str]) -> list[Entry]:
    """Put the entries of the base that a file names, if it does, before the file's own ones."""
    bases = [entry for entry in own if entry.name == "base"]
    entries = [entry for entry in own if entry.name != "base"]
    if not bases:
        return entries
    try:
        base = _find_base(bases, chain)
    except ValueError as error:
        problems.append(f"{bases[-1].where}: base: {error}")
        return entries
    return read_files([*chain, base], problems) + entries


def _find_base(bases: list[Entry], chain: list[Path]) -> Path:
    """Return the file that a file names as its base. ValueError says why it cannot be used."""
    if len(bases) > 1:
        raise ValueError(f"it was set at {bases[0].where} already")
    path = chain[-1].parent / coerce(expand_variables(bases[0].value), str)
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    if path.resolve() in [file.resolve() for file in chain]:
        raise ValueError(f"a file cannot be based on itself: {' -> '.join(map(str, [*chain, path]))}")
    return path


def find_beside(name: str, entry: Entry) -> str:
    """Return the path of a file that a config names: from the current folder, or else from its own and those above.

    A name that is nowhere stays as it is.
    """
    if entry.source == COMMAND_LINE or Path(name).is_file():
        return name
    folder = Path(entry.source).parent
    found = [place / name for place in (folder, *folder.resolve().parents) if (place / name).is_file()]
    return str(found[0]) if found else name


def _read_file(path: Path, problems: list[str]) -> list[Entry]:
    """Read the keys of one file, with their lines."""
    fix = (
        "give the path of a YAML file, such as configs/tiny_math.yaml; "
        "a model and data are keys: model_name_or_path=MODEL dataset_id_or_path=FILE"
    )
    if path.suffix in DATA_SUFFIXES:
        raise UserError(f"{path} is not a config", "its name is that of a file of data", fix, CONFIG)
    with explained((OSError, UnicodeDecodeError), f"cannot read the config {path}", fix, CONFIG):
        text = path.read_text(encoding="utf-8-sig")
    try:
        root = yaml.compose(text, Loader=PlainLoader)
        if root is not None and not isinstance(root, yaml.MappingNode):
            raise yaml.YAMLError("the file must hold `key: value` lines")
        return _read_section("", root, str(path)) if root else []
    except Exception as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        problems.append(f"{where}: not valid YAML: {getattr(error, 'problem', None) or error}")
        return []


def _read_section(section: str, node: yaml.MappingNode, source: str) -> list[Entry]:
    """Read the keys of a mapping and of the sections inside it. `section` ends with a dot, or is ""."""
    entries = []
    for key_node, value_node in node.value:
        name = f"{section}{as_written(key_node)}"
        if isinstance(value_node, yaml.MappingNode) and is_section(name):
            entries += _read_section(f"{name}.", value_node, source)
        else:
            entries.append(Entry(name, as_written(value_node), source, key_node.start_mark.line + 1))
    return entries

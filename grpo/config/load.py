"""Read a YAML file and `key=value` arguments into one frozen configuration.

Reading is strict. It reports all mistakes in keys and values together, then all in combinations (exit code 2): unknown
keys, keys set twice, wrong types, values out of bounds, and combinations that cannot work.

- `base: other.yaml` takes all keys from another file first. Its path is relative to the file that names it.
- `${VAR}` and `${VAR:-default}` stand for environment variables. Their values are secrets, unless they are paths that
  exist: no output holds them.
- `5e-6` is a number, though YAML 1.1 reads it as text.
- Nothing in a configuration is ever run.
"""

import os
import typing
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from grpo.config.combinations import find_problems
from grpo.config.options import (
    ALIASES,
    IGNORED,
    MADE_BY_TOY_WORLD,
    NOT_REPEATED,
    REQUIRED,
    AnyConfig,
    TrainConfig,
    describe_keys,
)
from grpo.config.values import check_bounds, coerce, did_you_mean, expand_variables
from grpo.errors import CONFIG, UserError, keep_secret, refer
from rewards.api.endpoint import MODEL_VARIABLES
from rewards.registry import NEED_KNOWLEDGE, expand

MAX_BASES = 4  # files that a configuration may be based on, one on the other
COMMAND_LINE = "command line"
DTYPE_FLAGS = {"bf16": "bfloat16", "fp16": "float16"}  # `bf16: true` means `torch_dtype: bfloat16`
HELP = """
CONFIG is a YAML file with the keys below. A key on the command line overrides the one in the file.
`base: FILE` in a config takes every key that the config does not set from another config.
"""
YAML_ERRORS = (  # PyYAML raises more than its own errors, such as on a bad date or tag
    yaml.YAMLError,
    ValueError,
    TypeError,
    AttributeError,
    KeyError,
    OverflowError,
    RecursionError,
)


@dataclass(frozen=True)
class _Entry:
    """A key as it was written. `source` is a file's path or the command line; `line` is 0 on the command line."""

    name: str
    value: Any
    source: str
    line: int = 0

    @property
    def where(self) -> str:
        return f"{self.source}:{self.line}" if self.line else self.source


def parse_arguments(argv: list[str], kind: type, doc: str) -> tuple[AnyConfig, list[str]]:
    """Read the arguments `CONFIG [key=value ...]` of a command; -h prints the first line of `doc`, and every key."""
    if not argv or argv[0] in ("-h", "--help"):
        print(doc.partition("\n")[0] + "\n" + HELP + describe_keys(kind))
        raise SystemExit(0 if argv else CONFIG)
    return load_config(argv[0], argv[1:], kind)


def load_config(
    path: str | Path | None, overrides: Sequence[str] = (), kind: type = TrainConfig
) -> tuple[AnyConfig, list[str]]:
    """Return the configuration, and notices about keys that have no effect or another name here.

    Without a path, everything comes from `overrides` and the defaults. UserError (exit 2) lists all mistakes.
    """
    problems: list[str] = []
    entries = _read_files([Path(path)], problems) if path else []
    entries += _read_overrides(overrides, problems)
    values, notices = _resolve(entries, kind, problems)
    if kind is TrainConfig:
        notices += _fill_from_environment(values)
    if not problems:
        problems = _missing_keys(values, kind)
    if not problems:
        config = kind(**values)
        problems = find_problems(config)
    for name, value in values.items():
        if name.endswith("_api_key_env"):
            keep_secret(value)
    if problems:
        count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
        raise UserError(
            f"{path or COMMAND_LINE}: {count} in the configuration",
            "\n     ".join(problems),
            "correct the keys named above; grpo/config/options.py lists every key",
            CONFIG,
        )
    return config, notices


def to_yaml(config: AnyConfig) -> str:
    """Return the configuration as YAML, from which `load_config` makes an equal one. Secrets stay ${VARIABLE}."""
    values = {}
    for name, value in asdict(config).items():
        if value is not None and name not in NOT_REPEATED:
            values[name] = _as_written(value)
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def _as_written(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_as_written(item) for item in value]
    written = refer(str(value))
    return value if written == str(value) else written


# --- reading -------------------------------------------------------------------------------------------------------


def _read_files(chain: list[Path], problems: list[str]) -> list[_Entry]:
    """Read the last file of the chain after the files that it is based on, whose keys it may set again.

    chain: the file of the command, its base, the base of that, and so on.
    """
    own = _read_file(chain[-1], problems)
    bases = [entry for entry in own if entry.name == "base"]
    entries = [entry for entry in own if entry.name != "base"]
    if not bases:
        return entries
    try:
        base = _find_base(bases, chain)
    except ValueError as error:
        problems.append(f"{bases[-1].where}: base: {error}")
        return entries
    return _read_files([*chain, base], problems) + entries


def _find_base(bases: list[_Entry], chain: list[Path]) -> Path:
    """Return the file that a file names as its base. ValueError says why it cannot be used."""
    if len(bases) > 1:
        raise ValueError(f"it was set at {bases[0].where} already")
    path = chain[-1].parent / coerce(expand_variables(bases[0].value), str)
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    if path.resolve() in [file.resolve() for file in chain]:
        raise ValueError(f"a file cannot be based on itself: {' -> '.join(map(str, [*chain, path]))}")
    if len(chain) > MAX_BASES:
        raise ValueError(f"more than {MAX_BASES} files are based on each other")
    return path


def _read_file(path: Path, problems: list[str]) -> list[_Entry]:
    """Read the keys of one file, with their lines."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"cannot read the config {path}",
            str(error),
            "give the path of a YAML file, such as configs/tiny_math.yaml",
            CONFIG,
        ) from None
    try:
        return _parse(text, str(path))
    except YAML_ERRORS as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        problems.append(f"{where}: not valid YAML: {getattr(error, 'problem', None) or error}")
        return []


def _parse(text: str, source: str) -> list[_Entry]:
    if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, Loader=yaml.SafeLoader)):
        # Nested aliases: nine lines of them can stand for a billion values.
        raise yaml.YAMLError("aliases (*name) are not used here")
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if root is None:
        return []
    if not isinstance(root, yaml.MappingNode):
        raise yaml.YAMLError("the file must hold `key: value` lines")
    entries = []
    for key_node, value_node in root.value:
        loader = yaml.SafeLoader("")
        name = str(loader.construct_object(key_node, deep=True))
        value = loader.construct_object(value_node, deep=True)
        entries.append(_Entry(name, value, source, key_node.start_mark.line + 1))
    return entries


def _read_overrides(overrides: Sequence[str], problems: list[str]) -> list[_Entry]:
    """Read `key=value` arguments. A value is YAML, or else text."""
    entries = []
    for argument in overrides:
        name, equals, text = argument.removeprefix("--").partition("=")
        if not equals:
            problems.append(f"{COMMAND_LINE}: {argument!r} is not key=value")
            continue
        if name == "base":
            problems.append(f"{COMMAND_LINE}: base can be set only in a file")
            continue
        try:
            value = text if "*" in text else yaml.safe_load(text)
        except YAML_ERRORS:
            value = text
        entries.append(_Entry(name, value, COMMAND_LINE))
    return entries


# --- from entries to values ----------------------------------------------------------------------------------------


def _resolve(entries: list[_Entry], kind: type, problems: list[str]) -> tuple[dict[str, Any], list[str]]:
    """Translate names and convert values. Later sources win; a file may set a key only once."""
    keys = {field.name: field for field in fields(kind)}
    hints = typing.get_type_hints(kind)
    values: dict[str, Any] = {}
    set_by: dict[str, _Entry] = {}
    notices: list[str] = []
    for entry in entries:
        name, value = _translate(entry, keys, notices)
        if name in DTYPE_FLAGS:
            continue  # `bf16: false` says nothing
        if name in IGNORED and name not in keys:
            notices.append(f"{entry.where}: {name} is not used: {IGNORED[name]}")
            continue
        if name not in keys:
            problems.append(f"{entry.where}: unknown key {name}{did_you_mean(name, [*keys, *ALIASES])}")
            continue
        try:
            value = coerce(expand_variables(value), hints[name])
            check_bounds(value, keys[name].metadata)
        except (ValueError, OverflowError) as error:
            problems.append(f"{entry.where}: {name}: {error}")
            continue
        before = set_by.get(name)
        if before and before.source == entry.source != COMMAND_LINE:
            if before.name == entry.name or values[name] != value:
                problems.append(f"{entry.where}: {entry.name} was set at {before.where} already, as {before.name}")
        values[name] = value
        set_by[name] = entry
    return values, notices


def _translate(entry: _Entry, keys: dict[str, Any], notices: list[str]) -> tuple[str, Any]:
    """Return name and value of an entry in the words of options.py."""
    name = entry.name.rstrip(":")  # KnowRL's grpo.yaml has `swanlab_experiment_name::`
    if name != entry.name:
        notices.append(f"{entry.where}: {entry.name} is read as {name}")
    if name in DTYPE_FLAGS and entry.value is True:
        return "torch_dtype", DTYPE_FLAGS[name]
    if ALIASES.get(name) in keys:
        return ALIASES[name], entry.value
    return name, entry.value


def _fill_from_environment(values: dict[str, Any]) -> list[str]:
    """Set what KnowRL's program takes from its environment, so that a resumed run has the same; return notices."""
    notices = []
    has_knowledge = values.get("knowledge_base") or os.environ.get("FACTSCORE_DB_PATH")
    if values.get("reward_funcs") is None and has_knowledge:
        values["reward_funcs"] = ("knowrl_v2",)  # KnowRL's files name no rewards, because its program has only these
        notices.append("reward_funcs is not set, but a knowledge base is, as for KnowRL: using knowrl_v2")
    rewards = expand(values.get("reward_funcs") or ())
    if {"correctness", *NEED_KNOWLEDGE} & set(rewards):
        for name, variables in MODEL_VARIABLES.items():
            models = [os.environ[variable] for variable in variables if os.environ.get(variable)]
            if values.get(f"{name}_model") is None and models:
                values[f"{name}_model"] = models[0]
    return notices


def _missing_keys(values: dict[str, Any], kind: type) -> list[str]:
    """Name the keys that must be set and are not."""
    needed = [name for name in REQUIRED if name in kind.__dataclass_fields__]
    if values.get("toy_world"):
        needed = [name for name in needed if name not in MADE_BY_TOY_WORLD]
    return [f"{name} is not set" for name in needed if values.get(name) is None]

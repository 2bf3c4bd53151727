"""Read a YAML file and `key=value` arguments into one frozen configuration.

Reading is strict. It reports all mistakes together (exit code 2): unknown keys, keys set twice, missing keys, wrong
types, values out of bounds, and combinations that cannot work, unless one of their keys is a mistake already.

- `base: other.yaml` takes all keys from another file first. Its path is relative to the file that names it.
- Keys may be grouped in sections, and have the names that other tools use (foreign.py).
- `${VAR}` and `${VAR:-default}` stand for environment variables. Their values are secrets, which no output holds,
  unless they are paths that exist. `~/` at the beginning is the home directory.
- Nothing in a configuration is ever run.
"""

import os
import re
import typing
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import yaml

from grpo.base.errors import CONFIG, UserError, keep_secret, refer
from grpo.base.text import closest
from grpo.config.combinations import find_problems
from grpo.config.entries import (
    CALL,
    COMMAND_LINE,
    Entry,
    find_beside,
    read_call,
    read_files,
    read_overrides,
    split_arguments,
)
from grpo.config.foreign import (
    ALIASES,
    HARMLESS,
    IGNORED,
    NEUTRAL,
    REFUSED,
    SECTIONS,
    SWITCHES,
    find_match,
    readings,
)
from grpo.config.help import describe_keys
from grpo.config.options import FORM, OF_FACTS, AnyConfig, SftConfig, TrainConfig, keys_that
from grpo.config.supplied import NO_REWARD, supply
from grpo.config.values import BOOLEANS, Values, check_bounds, coerce, expand_variables, types_of

STAGES = {SftConfig: "stage 1 (python -m grpo.sft)", TrainConfig: "stage 2 (python -m grpo.train)"}
HELP = """
CONFIG is a YAML file with the keys below. A key on the command line overrides the one in the file; `--key value` and
`--key=value` mean the same as `key=value`, and `--config FILE` the same as FILE.
`base: FILE` in a config takes every key that the config does not set from another config.
"""
WITHOUT_CONFIG = """
Give it a CONFIG, such as one of configs/*.yaml, or these keys: {required}.
-h lists all keys with their defaults and meanings.
"""


def parse_arguments(argv: list[str], kind: type, doc: str) -> tuple[AnyConfig, list[str]]:
    """Read the arguments `CONFIG [key=value ...]` of a command; -h prints the first line of `doc`, and every key."""
    if not argv or {"-h", "--help"} & set(argv):
        needed = WITHOUT_CONFIG.format(required=", ".join(keys_that("required", kind)))
        print(doc.partition("\n")[0] + "\n" + (f"{HELP}\n{describe_keys(kind)}" if argv else needed))
        raise SystemExit(0 if argv else CONFIG)
    return load_config(*split_arguments(argv), kind)


def load_config(
    path: str | Path | Mapping[str, Any] | None,
    overrides: Sequence[str] = (),
    kind: type = TrainConfig,
    is_run: bool = True,
) -> tuple[AnyConfig, list[str]]:
    """Return the configuration, and notices about keys that have no effect or another name here.

    path: of a file; or the keys that a program passes, with their values. overrides: `key=value`, or flags as on a
    command line. Without a path, everything comes from them and the defaults.
    is_run: the keys that a run needs must be set. UserError (exit 2) lists all mistakes.
    """
    config, notices, problems = examine_config(path, overrides, kind, is_run)
    if problems:
        count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
        raise UserError(
            f"{CALL if isinstance(path, Mapping) else path or COMMAND_LINE}: {count} in the configuration",
            "\n     ".join(problems),
            "correct or remove the keys named above; `python -m grpo.train -h` (or grpo.sft) lists every key",
            CONFIG,
        )
    return config, notices


def examine_config(
    path: str | Path | Mapping[str, Any] | None, overrides: Sequence[str], kind: type, is_run: bool = True
) -> tuple[AnyConfig, list[str], list[str]]:
    """Return configuration, notices and mistakes. Keys with mistakes get their defaults; missing ones are None."""
    problems: list[str] = []
    entries = read_call(path, problems) if isinstance(path, Mapping) else []
    entries += read_files([Path(path)], problems) if isinstance(path, str | Path) and path else []
    is_complete = not problems  # a file that could not be read may hold the missing keys
    entries += read_overrides(overrides, problems)
    reader = _Reader(kind, problems)
    for entry in entries:
        reader.read(entry)
    values, notices = reader.values, []
    for instead, unused in reader.unused.items():
        verb = "is" if len(unused) == 1 else "are"
        notices.append(f"{next(iter(unused.values())).where}: {', '.join(unused)} {verb} not used: {instead}")
    notices += supply(values, reader.names, kind)
    for name, value in values.items():
        if name.endswith("_api_key_env"):
            keep_secret(value)
    config = _settle(kind(**values))
    for name in reader.set_by.keys() - values.keys():
        if value := getattr(config, name):  # 0 and false mean "none" themselves
            notices.append(f"{reader.set_by[name].where}: {name} is null: its default {value} is used")
    if not is_complete:
        return config, notices, problems
    doubtful, missing = reader.doubtful, []  # a consequence of a mistake is not reported as a second one
    for name in _missing_keys(values, kind) if is_run else ():
        if name not in doubtful:
            missing.append(NO_REWARD if name == "reward_funcs" else f"{name} is not set")
            doubtful.add(name)
    impossible = [text for text in find_problems(config) if not doubtful & set(re.findall(r"\w+", text))]
    return config, notices, [*problems, *missing, *impossible]


def _settle(config: AnyConfig) -> AnyConfig:
    """Set the keys that another key decides: with GDPO scale_rewards, with questions_per_step the batch of a replica.

    questions_per_step is kept if replicas cannot share it equally.
    """
    if getattr(config, "multi_objective_aggregation", "") == "normalize_then_sum":
        config = replace(config, scale_rewards="batch")
    num_replicas = replicas_of(config)
    questions = getattr(config, "questions_per_step", None)
    if not questions or questions % num_replicas:
        return config
    completions = questions // num_replicas * config.num_generations
    return replace(
        config, per_device_train_batch_size=completions, gradient_accumulation_steps=1, questions_per_step=None
    )


def replicas_of(config: AnyConfig) -> int:
    """Return how many copies of the model the run has: its processes, divided by those that share one."""
    return max(int(os.environ.get("WORLD_SIZE", 1)) // config.tensor_parallel_size, 1)


def keys_of(overrides: Sequence[str]) -> set[str]:
    """Return the keys of stage 2 that `key=value` arguments set, under whatever names."""
    reader = _Reader(TrainConfig, [])
    for entry in read_overrides(overrides, []):
        reader.read(entry)
    return set(reader.values)


def to_yaml(config: AnyConfig) -> str:
    """Return the configuration as YAML, from which `load_config` makes an equal one. Secrets stay ${VARIABLE}."""
    values = {}
    for name, value in asdict(config).items():
        if value is not None and name not in keys_that("once"):
            values[name] = _with_references(value)
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def _with_references(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_with_references(item) for item in value]
    written = refer(str(value))
    return value if written == str(value) else written


class _Reader:
    """Turns entries into values of the keys of one stage. Later sources win; a file may set a key only once.

    values: key -> value, without the keys that are null where null is no value. doubtful: keys whose intended value is
    not known. names: as the files have them. unused: what happens instead -> keys that are not used.
    """

    def __init__(self, kind: type, problems: list[str]):
        self.kind, self.problems = kind, problems
        self.keys = {field.name: field for field in fields(kind)}
        self.hints = typing.get_type_hints(kind)
        self.values: Values = {}
        self.set_by: dict[str, Entry] = {}
        self.doubtful: set[str] = set()
        self.names: set[str] = set()
        self.unused: dict[str, dict[str, Entry]] = {}

    def read(self, entry: Entry) -> None:
        """Read one entry into `values`, `unused` or `problems`."""
        name = entry.name.rstrip(": ")  # KnowRL's grpo.yaml has `swanlab_experiment_name::`
        known = [*self.keys, *ALIASES, *SWITCHES, *REFUSED, *IGNORED]
        name = next((reading for reading in readings(name) if find_match(known, reading)), name)
        self.names.add(name)
        word = str(entry.value).lower()
        word = str(BOOLEANS.get(word, word)).lower()  # yes is true
        refused, ignored = find_match(REFUSED, name), find_match(IGNORED, name)
        if name in self.keys or ALIASES.get(name) in self.keys:
            self._set(entry, name if name in self.keys else ALIASES[name], entry.value)
        elif word in SWITCHES.get(name, {}):
            self._set(entry, *SWITCHES[name][word])
        elif refused:
            if word not in HARMLESS.get(refused, NEUTRAL):
                problem = f"{name}: {entry.value} is not available here: {REFUSED[refused]}"
                self.problems.append(f"{entry.where}: {problem}")
        elif ignored:
            self.unused.setdefault(IGNORED[ignored], {}).setdefault(name, entry)
        elif name not in SWITCHES and not (name in SECTIONS and entry.value is None):  # `bf16: false` says nothing
            self.problems.append(f"{entry.where}: unknown key {entry.name}{self._hint(name)}")

    def _set(self, entry: Entry, name: str, value: Any) -> None:
        """Set a key to a value, or report why that is a mistake."""
        hint = self.hints[name]
        try:
            value = expand_variables(value)
            if name == "scale_rewards":  # a switch in older files of TRL
                value = {"true": "group", "false": "none"}.get(str(value).lower(), value)
            if value is not None:
                value = coerce(value, hint)
                check_bounds(value, self.keys[name].metadata)
            if name == "cold_start" and value not in (None, FORM):
                value = find_beside(value, entry)
        except (ValueError, OverflowError) as error:
            self.problems.append(f"{entry.where}: {entry.name}: {error}")
            self.doubtful.add(name)
            return
        before = self.set_by.get(name)
        if before and before.source == entry.source != COMMAND_LINE:
            value = self._join(name, value, entry, before)
        self.set_by[name] = entry
        if value is None and type(None) not in types_of(hint):
            self.values.pop(name, None)
        else:
            self.values[name] = value

    def _join(self, name: str, value: Any, entry: Entry, before: Entry) -> Any:
        """Return the value of a key that one file sets twice: under two names it may, if these agree."""
        earlier = self.values.get(name)
        if before.name != entry.name:
            for unsaid in (None, "auto"):  # it leaves the choice to the other name
                if unsaid in (earlier, value):
                    return value if earlier == unsaid else earlier
            if name == "report_to":
                return tuple(item for item in dict.fromkeys((*earlier, *value)) if item != "none")
            if name == "lora_r" and 0 in (earlier, value):  # use_peft: false
                return 0
        if before.name == entry.name or earlier != value:
            self.problems.append(f"{entry.where}: {entry.name} was set at {before.where} already, as {before.name}")
        return value

    def _hint(self, name: str) -> str:
        """Return the end of a message about an unknown key: where it belongs, or what it resembles."""
        for kind, stage in STAGES.items():
            if {name, ALIASES.get(name)} & {field.name for field in fields(kind)}:
                return f": it belongs to {stage}"
        own_aliases = [alias for alias, key in ALIASES.items() if key in self.keys]
        close = closest(name.rpartition(".")[2], [*self.keys, *own_aliases])
        self.doubtful.add(ALIASES.get(close, close))
        return f"; did you mean {close}?" if close else "; remove it"


def _missing_keys(values: Values, kind: type) -> list[str]:
    """Return the keys that must be set and are not."""
    needed = [name for name in keys_that("required", kind) if values.get(name) is None]
    toy_world = values.get("toy_world")
    made = set(keys_that("toy", kind)) if toy_world else set()
    if toy_world in OF_FACTS:  # it makes data, no model
        made.remove("model_name_or_path")
    elif values.get("cold_start") not in (None, FORM):
        made.add("model_name_or_path")
    return [name for name in needed if name not in made]

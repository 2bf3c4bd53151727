"""Read a YAML file and `key=value` arguments into one frozen configuration.

Reading is strict. It reports all mistakes together (exit code 2): unknown keys, keys set twice, missing keys, wrong
types, values out of bounds, and combinations that cannot work, unless one of their keys is a mistake already.

- `base: other.yaml` takes all keys from another file first. Its path is relative to the file that names it.
- Keys may be grouped in sections, and have the names that other tools use (other_words.py).
- `${VAR}` and `${VAR:-default}` stand for environment variables. Their values are secrets, which no output holds,
  unless they are paths that exist. `~/` at the beginning is the home directory.
- Nothing in a configuration is ever run.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path

import yaml

from grpo.base.errors import CONFIG, UserError, keep_secret, refer
from grpo.config.combinations import find_problems
from grpo.config.options import FORM, OF_FACTS, AnyConfig, Stage, TrainConfig, keys_that
from grpo.config.other_words import ALIASES, NO_REWARD, SWITCH_NAMES, supply
from grpo.config.reader import CALL, COMMAND_LINE, Reader, join_flags
from grpo.config.values import Values

Source = str | Path | Mapping[str, object] | None  # a file; or the keys that a program passes, with their values
HELP = """
CONFIG is a YAML file with the keys below. A key on the command line overrides the one in the file; `--key value` and
`--key=value` mean the same as `key=value`, and `--config FILE` the same as FILE.
`base: FILE` in a config takes every key that the config does not set from another config.
"""
WITHOUT_CONFIG = """
Give it a CONFIG, such as one of configs/*.yaml, or these keys: {required}.
-h lists all keys with their defaults and meanings.
"""

# --- from a command or a program to a configuration -----------------------------------------------------------------


def parse_arguments(argv: list[str], kind: type[Stage], doc: str) -> tuple[Stage, list[str]]:
    """Read the arguments `CONFIG [key=value ...]` of a command; -h prints the first line of `doc`, and every key."""
    if not argv or {"-h", "--help"} & set(argv):
        from grpo.config.help import describe_keys  # of all keys

        needed = WITHOUT_CONFIG.format(required=", ".join(keys_that("required", kind)))
        print(doc.partition("\n")[0] + "\n" + (f"{HELP}\n{describe_keys(kind)}" if argv else needed))
        raise SystemExit(0 if argv else CONFIG)
    return load_config(*split_arguments(argv), kind)


def load_config(
    source: Source,
    overrides: Sequence[str] = (),
    kind: type[Stage] = TrainConfig,  # type: ignore[assignment]
    is_run: bool = True,
) -> tuple[Stage, list[str]]:
    """Return the configuration, and notices about keys that have no effect or another name here.

    overrides: `key=value`, or flags as on a command line. Without a source, everything comes from them and the
    defaults. is_run: what training needs must be there, too. UserError (exit 2) lists all mistakes.
    """
    config, notices, problems = examine_config(source, overrides, kind, is_run)
    if problems:
        count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
        raise UserError(
            f"{CALL if isinstance(source, Mapping) else source or COMMAND_LINE}: {count} in the configuration",
            "\n     ".join(problems),
            "correct or remove the keys named above; `python -m grpo.train -h` (or grpo.sft) lists every key",
            CONFIG,
        )
    return config, notices


def examine_config(
    source: Source,
    overrides: Sequence[str],
    kind: type[Stage],
    is_run: bool = True,
) -> tuple[Stage, list[str], list[str]]:
    """Return configuration, notices and mistakes. Keys with mistakes get their defaults; missing ones are None."""
    reader = Reader(kind)
    if isinstance(source, Mapping):
        reader.read_text(to_text(source), (Path(CALL),))
    elif source:
        reader.read_file(Path(source), ())
    reader.read_overrides(overrides)
    values = reader.values
    notices = [*reader.notices(), *supply(values, reader.names, kind)]
    for name, value in values.items():
        if name.endswith("_api_key_env"):
            keep_secret(value)
    config = kind(**values)
    config = replace(config, **_batch_of(config))
    problems, doubtful = reader.problems, reader.doubtful
    if reader.is_torn:  # what could not be read may hold the missing keys
        return config, notices, problems
    for name in _missing_keys(values, kind) if is_run else ():
        if name not in doubtful:
            problems.append(NO_REWARD if name == "reward_funcs" else f"{name} is not set")
            doubtful.add(name)
    for problem in find_problems(config, is_run):  # a consequence of a mistake is not reported as a second one
        if not doubtful & set(re.findall(r"\w+", problem)):
            problems.append(problem)
    return config, notices, problems


def _batch_of(config: AnyConfig) -> Values:
    """Return the batch of a replica in place of questions_per_step; {} if the replicas cannot share it equally."""
    number = getattr(config, "questions_per_step", None) or 0
    share, rest = divmod(number, replicas_of(config))
    if rest or not number:
        return {}
    completions = share * config.num_generations
    return {
        "per_device_train_batch_size": completions,
        "gradient_accumulation_steps": 1,
        "questions_per_step": None,
    }


def replicas_of(config: AnyConfig) -> int:
    """Return how many copies of the model the run has: its processes, divided by those that share one."""
    return max(int(os.environ.get("WORLD_SIZE", 1)) // config.tensor_parallel_size, 1)


def _missing_keys(values: Values, kind: type) -> list[str]:
    """Return the keys that must be set and are not."""
    toy_world = values.get("toy_world")
    made = set(keys_that("toy", kind)) if toy_world else set()
    if toy_world in OF_FACTS:  # it makes data, no model
        made.remove("model_name_or_path")
    elif values.get("cold_start") not in (None, FORM):
        made.add("model_name_or_path")
    return [name for name in keys_that("required", kind) if values.get(name) is None and name not in made]


def is_known(name: str) -> bool:
    """Return whether a name is that of a key of stage 2, or stands for one."""
    return name in {field.name for field in fields(TrainConfig)} | ALIASES.keys() | SWITCH_NAMES


def keys_of(overrides: Sequence[str]) -> set[str]:
    """Return the keys of stage 2 that `key=value` arguments set, under whatever names."""
    reader = Reader(TrainConfig)
    reader.read_overrides(overrides)
    return set(reader.values)


# --- what a command line holds --------------------------------------------------------------------------------------


def split_arguments(argv: Sequence[str]) -> tuple[str | None, list[str]]:
    """Return the path of the config, `FILE` or `--config FILE`, and the other arguments as `key=value`."""
    joined = join_flags(argv)
    named = next((argument for argument in joined if "=" not in argument or argument.startswith("config=")), None)
    overrides = [argument for argument in joined if argument is not named]
    return named and named.removeprefix("config="), overrides


# --- as text again --------------------------------------------------------------------------------------------------


def to_yaml(config: AnyConfig) -> str:
    """Return the configuration as YAML, from which `load_config` makes an equal one. Secrets stay ${VARIABLE}."""
    once = keys_that("once")
    values = {name: value for name, value in asdict(config).items() if value is not None and name not in once}
    return to_text({name: _with_references(value) for name, value in values.items()})


def _with_references(value: object) -> object:
    if isinstance(value, tuple):
        return [_with_references(item) for item in value]
    written = refer(str(value))
    return value if written == str(value) else written


def to_text(keys: Mapping[str, object]) -> str:
    """Return keys and their values as YAML without aliases."""
    return yaml.dump(keys, Dumper=_WithoutAliases, allow_unicode=True, sort_keys=False)


class _WithoutAliases(yaml.SafeDumper):
    def ignore_aliases(self, data: object) -> bool:
        return True

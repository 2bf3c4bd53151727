"""A YAML file and `key=value` arguments to one frozen config. Strict: every mistake is reported, all of them at once.

Unknown keys, duplicate keys, wrong types, values out of bounds and combinations that cannot work end in exit code 2
with file, line and key. `${VAR}` and `${VAR:-default}` stand for environment variables. `5e-6` is a number, though YAML
1.1 reads it as text. Nothing in a config is ever run.
"""

import difflib
import os
import re
import types
import typing
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from grpo.config.options import ALIASES, IGNORED, MADE_BY_TOY_WORLD, REQUIRED, UNREPEATABLE, SftConfig, TrainConfig
from grpo.errors import CONFIG, UserError, is_secret_name
from rewards.api.endpoint import MODEL_VARIABLES
from rewards.registry import NEED_KNOWLEDGE, expand

AnyConfig = TrainConfig | SftConfig
NOT_YAML = (
    yaml.YAMLError,
    ValueError,
    TypeError,
    AttributeError,
    KeyError,
    OverflowError,
    RecursionError,
)  # what PyYAML raises, on a bad date or tag
MAX_SHOWN = 200  # characters of a wrong value in a message
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


@dataclass(frozen=True)
class _Entry:
    """A key as it was written: `where` is file:line or the command line."""

    name: str
    value: Any
    where: str


def parse_arguments(argv: list[str], kind: type, doc: str) -> tuple[AnyConfig, list[str]]:
    """`CONFIG [key=value ...]` of a command to its config and notices; -h shows `doc` and every key."""
    if not argv or argv[0] in ("-h", "--help"):
        print(doc.strip() + "\n\nEvery key can be set in CONFIG or as key=value:\n" + describe_keys(kind))
        raise SystemExit(0 if argv else CONFIG)
    return load_config(argv[0], argv[1:], kind)


def load_config(
    path: str | Path | None, overrides: Sequence[str] = (), kind: type = TrainConfig
) -> tuple[AnyConfig, list[str]]:
    """The config and the notices about keys that are read but not used as elsewhere. UserError (exit 2) lists all
    mistakes. path: None takes everything from `overrides` and the defaults."""
    problems: list[str] = []
    entries = (_read_file(Path(path), problems) if path else []) + _read_overrides(overrides, problems)
    values, notices = _resolve(entries, kind, problems)
    if (
        kind is TrainConfig
        and values.get("reward_funcs") is None
        and (values.get("knowledge_base") or os.environ.get("FACTSCORE_DB_PATH"))
    ):
        values["reward_funcs"] = ["knowrl_v2"]  # KnowRL's files name no rewards: its program has only these
        notices.append("reward_funcs is not set, but a knowledge base is, as for KnowRL: knowrl_v2")
    if {"correctness", *NEED_KNOWLEDGE} & set(
        expand(values.get("reward_funcs") or ())
    ):  # so that a resumed run has the same
        for name, variables in MODEL_VARIABLES.items():
            if values.get(f"{name}_model") is None:
                values[f"{name}_model"] = next(filter(None, map(os.environ.get, variables)), None)
    if not problems:
        made = MADE_BY_TOY_WORLD if values.get("toy_world") else ()
        problems += [
            f"{name} is not set"
            for name in REQUIRED
            if name in kind.__dataclass_fields__ and values.get(name) is None and name not in made
        ]
    if not problems:
        config = kind(**values)
        problems += check(config)
    if problems:
        raise UserError(
            f"{path or 'command line'}: {len(problems)} problem{'s' if len(problems) > 1 else ''} in the configuration",
            "\n     ".join(problems),
            "correct the keys named above; grpo/config/options.py lists every key",
            CONFIG,
        )
    return config, notices


def check(c: AnyConfig) -> list[str]:
    """What is wrong with a combination of keys."""
    problems = []
    if isinstance(c, TrainConfig):
        rows = c.per_device_train_batch_size * c.gradient_accumulation_steps
        if rows % c.num_generations:
            problems.append(
                f"per_device_train_batch_size x gradient_accumulation_steps = {rows} completions do not make whole groups of "
                f"num_generations = {c.num_generations}"
            )
        rewards = expand(c.reward_funcs)
        if c.reward_weights and len(c.reward_weights) != len(rewards):
            problems.append(
                f"reward_weights has {len(c.reward_weights)} entries, reward_funcs stands for {len(rewards)}: {', '.join(rewards)}"
            )
        if len(set(rewards)) != len(rewards):
            problems.append("reward_funcs names a reward twice")
        if (c.top_p < 1 or c.top_k) and c.num_iterations > 1:
            problems.append(
                "top_p and top_k need num_iterations: 1, since what they keep is only known for the policy that sampled"
            )
        if "{question}" not in c.prompt_template:
            problems.append("prompt_template does not contain {question}")
        if any(name in NEED_KNOWLEDGE for name in expand([*c.reward_funcs, *(c.eval_reward_funcs or ())])) and not (
            c.knowledge_base or os.environ.get("FACTSCORE_DB_PATH") or c.toy_world == "encyclopedia"
        ):
            problems.append(
                "factuality without a knowledge base: neither knowledge_base nor FACTSCORE_DB_PATH is set; build one with "
                "`python -m knowledge.build SOURCE OUT.db` and set knowledge_base: OUT.db"
            )
        if (
            "soft_overlong_punishment" in (*c.reward_funcs, *(c.eval_reward_funcs or ()))
            and not 0 < c.soft_punish_cache <= c.max_completion_length
        ):
            problems.append("soft_overlong_punishment needs 0 < soft_punish_cache <= max_completion_length")
    if c.max_steps == 0:
        problems.append("max_steps is 0: nothing to do")
    if c.lora_r == 0 and c.adapter_name_or_path and c.lora_dropout:
        problems.append("lora_dropout without an adapter (lora_r is 0)")
    unknown = set(c.report_to) - {"tensorboard", "swanlab", "wandb", "none"}
    if unknown:
        problems.append(f"report_to: unknown {', '.join(sorted(unknown))}")
    return problems


def to_yaml(config: AnyConfig) -> str:
    """The resolved config as YAML that `load_config` reads back to an equal config."""
    values = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in asdict(config).items()
        if name not in UNREPEATABLE
    }
    return yaml.safe_dump(
        {name: value for name, value in values.items() if value is not None}, sort_keys=False, allow_unicode=True
    )


def describe_keys(kind: type) -> str:
    """All keys of a config with default and meaning, grouped as in options.py."""
    lines = []
    for base in kind.__mro__[1:-1]:
        lines.append(f"\n{base.__name__.removesuffix('Keys').lower()}:")
        lines += [f"  {f.name}: {f.default!r:<12} {f.metadata['doc']}" for f in fields(base)]
    return "\n".join(lines)


# --- reading ----------------------------------------------------------------------------------------------------------


def _read_file(path: Path, problems: list[str]) -> list[_Entry]:
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
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, Loader=yaml.SafeLoader)):
            raise yaml.YAMLError(
                "aliases (*name) are not used here"
            )  # nested, nine lines of them stand for a billion values
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        if root is None:
            return []
        if not isinstance(root, yaml.MappingNode):
            raise yaml.YAMLError("the file must hold `key: value` lines")
        entries = []
        for key_node, value_node in root.value:
            where = f"{path}:{key_node.start_mark.line + 1}"
            loader = yaml.SafeLoader("")
            entries.append(
                _Entry(
                    str(loader.construct_object(key_node, deep=True)),
                    loader.construct_object(value_node, deep=True),
                    where,
                )
            )
        return entries
    except NOT_YAML as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        problems.append(f"{where}: not valid YAML: {getattr(error, 'problem', None) or error}")
        return []


def _read_overrides(overrides: Sequence[str], problems: list[str]) -> list[_Entry]:
    entries = []
    for argument in overrides:
        name, equals, text = argument.removeprefix("--").partition("=")
        if not equals:
            problems.append(f"command line: {argument!r} is not key=value")
            continue
        try:
            entries.append(_Entry(name, text if "*" in text else yaml.safe_load(text), "command line"))
        except NOT_YAML:
            entries.append(_Entry(name, text, "command line"))
    return entries


def _resolve(entries: list[_Entry], kind: type, problems: list[str]) -> tuple[dict[str, Any], list[str]]:
    """Names to their canonical form, values to their types; later entries win over the file only from the command
    line."""
    known, hints = {f.name: f for f in fields(kind)}, typing.get_type_hints(kind)
    values, seen, notices = {}, {}, []
    for entry in entries:
        name = entry.name.rstrip(":")  # KnowRL's grpo.yaml has `swanlab_experiment_name::`
        if name != entry.name:
            notices.append(f"{entry.where}: {entry.name} is read as {name}")
        if name in ("bf16", "fp16"):
            if entry.value is not True:
                continue
            entry, name = _Entry(name, {"bf16": "bfloat16", "fp16": "float16"}[name], entry.where), "torch_dtype"
        elif ALIASES.get(name) in known:
            name = ALIASES[name]
        if name in IGNORED and name not in known:
            notices.append(f"{entry.where}: {name} is not used: {IGNORED[name]}")
            continue
        if name not in known:
            close = difflib.get_close_matches(name, [*known, *ALIASES], n=1)
            problems.append(f"{entry.where}: unknown key {name}" + (f"; did you mean {close[0]}?" if close else ""))
            continue
        try:
            value = coerce(_expand(entry.value), hints[name])
            _check_bounds(value, known[name].metadata)
        except (ValueError, OverflowError) as error:
            problems.append(f"{entry.where}: {name}: {error}")
            continue
        if name in seen and entry.where != "command line" and (values[name] != value or seen[name].name == entry.name):
            problems.append(f"{entry.where}: {entry.name} was set at {seen[name].where} already, as {seen[name].name}")
        values[name], seen[name] = value, entry
    return values, notices


def _expand(value: Any) -> Any:
    """${VAR} and ${VAR:-default} in text, also inside lists."""
    if isinstance(value, list):
        return [_expand(item) for item in value]
    if not isinstance(value, str):
        return value

    def substitute(match: re.Match) -> str:
        if is_secret_name(match[1]):
            raise ValueError(
                f"{match[1]} holds a secret, which would be written to config.resolved.yaml; name the variable (judge_api_key_env) instead"
            )
        found = os.environ.get(match[1], match[2])
        if found is None:
            raise ValueError(
                f"the environment variable {match[1]} is not set (write ${{{match[1]}:-default}} to allow that)"
            )
        return found

    return _VARIABLE.sub(substitute, value)


def coerce(value: Any, hint: Any) -> Any:
    """The value as the hinted type; ValueError with what was wanted."""
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    for option in options:
        try:
            return _coerce_one(value, option)
        except (ValueError, OverflowError):
            continue
    wanted = " or ".join(
        {
            type(None): "null",
            list[str]: "a list of names",
            list[float]: "a list of numbers",
            bool: "true or false",
            str: "text",
            int: "a whole number",
            float: "a number",
        }.get(option, str(option))
        for option in options
    )
    raise ValueError(f"wants {wanted}, got {_shown(value)}")


def _shown(value: Any) -> str:
    """A value in a message: an integer of more digits than Python prints has none to show."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        text = f"a {type(value).__name__}"
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "…"


def _coerce_one(value: Any, wanted: Any) -> Any:
    if wanted is type(None):
        if value is None:
            return None
    elif wanted is bool:
        if isinstance(value, bool) or (isinstance(value, str) and value.lower() in ("true", "false")):
            return value if isinstance(value, bool) else value.lower() == "true"
    elif wanted is int:
        if not isinstance(value, bool) and (
            isinstance(value, int)
            or re.fullmatch(r"[+-]?\d+", str(value))
            or (isinstance(value, float) and value.is_integer())
        ):
            return int(value)
    elif wanted is float:
        number = float(value) if isinstance(value, (int, float, str)) and not isinstance(value, bool) else float("nan")
        if number - number == 0:  # neither nan nor infinite
            return number
    elif wanted is str:
        if isinstance(value, (str, int, float)) and not isinstance(value, bool):
            return str(value)
    elif wanted in (list[str], list[float]):
        items = (
            [item.strip() for item in value.split(",")]
            if isinstance(value, str)
            else value
            if isinstance(value, list)
            else [value]
        )
        return tuple(_coerce_one(item, typing.get_args(wanted)[0]) for item in items)
    raise ValueError


def _check_bounds(value: Any, bounds: typing.Mapping[str, Any]) -> None:
    if bounds["choices"] and not any(
        value is choice or (value == choice and type(value) is type(choice)) for choice in bounds["choices"]
    ):
        close = difflib.get_close_matches(str(value), [c for c in bounds["choices"] if isinstance(c, str)], n=1)
        raise ValueError(
            f"must be one of {', '.join(str(c) for c in bounds['choices'])}; got {_shown(value)}"
            + (f"; did you mean {close[0]}?" if close else "")
        )
    for number in value if isinstance(value, tuple) else (value,):
        if isinstance(number, (int, float)) and not isinstance(number, bool):
            if (
                (bounds["low"] is not None and number < bounds["low"])
                or (bounds["high"] is not None and number > bounds["high"])
                or (bounds["above"] is not None and number <= bounds["above"])
            ):
                limits = [
                    f"at least {bounds['low']}" if bounds["low"] is not None else "",
                    f"above {bounds['above']}" if bounds["above"] is not None else "",
                    f"at most {bounds['high']}" if bounds["high"] is not None else "",
                ]
                raise ValueError(f"must be {' and '.join(filter(None, limits))}; got {number}")

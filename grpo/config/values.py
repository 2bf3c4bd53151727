"""Convert what YAML has read to the declared types, expand environment variables, and check bounds."""

import difflib
import operator
import os
import re
import types
import typing
from collections.abc import Mapping
from typing import Any

from grpo.base.errors import is_secret_name, keep_secret

Values = dict[str, Any]  # key -> value
LIMITS = {"low": ("at least", operator.ge), "above": ("above", operator.gt), "high": ("at most", operator.le)}
NULLS = ("", "~", "null", "Null", "NULL", "None")
MAX_SHOWN = 200  # characters of a wrong value in a message
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


def expand_variables(value: Any) -> Any:
    """Replace ${VAR}, ${VAR:-default} and a leading ~/ in a text or a list of texts. ValueError says what is wrong."""
    if isinstance(value, list):
        return [expand_variables(item) for item in value]
    if isinstance(value, str):
        value = _VARIABLE.sub(_read_variable, value)
        return os.path.expanduser(value) if value.startswith("~/") else value
    return value


def _read_variable(match: re.Match) -> str:
    name, default = match.groups()
    if is_secret_name(name):
        raise ValueError(
            f"{name} holds a secret, which would be written to config.resolved.yaml; "
            "name the variable (judge_api_key_env) instead"
        )
    found = os.environ.get(name)
    if not found and default is not None:  # as in a shell, an empty variable counts as unset here
        return default
    if found is None:
        raise ValueError(f"the environment variable {name} is not set (write ${{{name}:-default}} to allow that)")
    if name in os.environ and not os.path.exists(found):  # a path that exists is no secret
        keep_secret(name)
    return found


def as_type(value: Any, text: str | None, hint: Any) -> Any:
    """Return the text as it was written if the type `hint` takes text; otherwise the value that YAML has read.

    YAML reads 0123 as 83, `yes` as true, and `{question}` as a mapping. null stays null, and true and false stay
    booleans if the type takes booleans, too.
    """
    options = _options(hint)
    if value is None and (text or "") in NULLS:
        return None
    if str not in options or text is None or (bool in options and isinstance(value, bool)):
        return value
    return text


def _options(hint: Any) -> tuple:
    return typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)


def coerce(value: Any, hint: Any) -> Any:
    """Convert a value to the type `hint`, or to the first of several that fits. ValueError says what was wanted."""
    options = _options(hint)
    for option in options:
        try:
            return _TYPES[option][1](value)
        except (ValueError, OverflowError):
            continue
    wanted = " or ".join(_TYPES[option][0] for option in options)
    raise ValueError(f"wants {wanted}, got {_shown(value)}")


def _to_null(value: Any) -> None:
    if value is not None:
        raise ValueError


def _to_bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise ValueError


def _to_int(value: Any) -> int:
    if isinstance(value, bool):
        raise ValueError
    if isinstance(value, int):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if re.fullmatch(r"[+-]?\d+", str(value)):
        return int(value)
    raise ValueError


def _to_float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError
    number = float(value)
    if number - number != 0:  # infinite, or not a number
        raise ValueError
    return number


def _to_text(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValueError
    return str(value)


def _to_items(value: Any) -> list:
    """Split a text at commas; return a list unchanged, and any other value as a list of one."""
    if isinstance(value, str):
        return [item.strip() for item in value.split(",")]
    if isinstance(value, list):
        return value
    return [value]


def _to_mapping(value: Any) -> dict:
    if not isinstance(value, dict) or not all(isinstance(name, str) and name.isidentifier() for name in value):
        raise ValueError
    return value


_TYPES = {  # the name of each type in a message, and its conversion
    type(None): ("null", _to_null),
    bool: ("true or false", _to_bool),
    int: ("a whole number", _to_int),
    float: ("a number", _to_float),
    str: ("text", _to_text),
    dict: ("a mapping of names to values", _to_mapping),
    list[str]: ("a list of names", lambda value: tuple(map(_to_text, _to_items(value)))),
    list[float]: ("a list of numbers", lambda value: tuple(map(_to_float, _to_items(value)))),
}


def check_bounds(value: Any, bounds: Mapping[str, Any]) -> None:
    """Check a value, and each entry of a list, against the bounds of its key (see options.key). ValueError if wrong."""
    if bounds["choices"]:
        _check_choice(value, bounds["choices"])
    for number in value if isinstance(value, tuple) else (value,):
        if isinstance(number, (int, float)) and not isinstance(number, bool):
            _check_limits(number, bounds)


def _check_choice(value: Any, choices: tuple) -> None:
    if any(value == choice and type(value) is type(choice) for choice in choices):
        return
    names = [choice for choice in choices if isinstance(choice, str)]
    close = did_you_mean(closest(str(value), names))
    raise ValueError(f"must be one of {', '.join(map(str, choices))}; got {_shown(value)}{close}")


def _check_limits(number: float, bounds: Mapping[str, Any]) -> None:
    tests = [(test, bounds[name]) for name, (_, test) in LIMITS.items() if bounds[name] is not None]
    if not all(test(number, limit) for test, limit in tests):
        raise ValueError(f"{describe_limits(bounds)}; got {number}")


def describe_limits(bounds: Mapping[str, Any]) -> str:
    """Return the bounds of a number in words; "" if there are none."""
    texts = [f"{word} {bounds[name]}" for name, (word, _) in LIMITS.items() if bounds[name] is not None]
    return f"must be {' and '.join(texts)}" if texts else ""


def closest(name: str, candidates: list[str]) -> str:
    """Return the candidate that `name` resembles most; "" if it resembles none."""
    return next(iter(difflib.get_close_matches(name, candidates, n=1)), "")


def did_you_mean(close: str) -> str:
    """Return the end of a message that suggests a word; "" for none."""
    return f"; did you mean {close}?" if close else ""


def _shown(value: Any) -> str:
    """Return a value as it appears in a message."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # Python does not print an integer of thousands of digits
        text = f"a {type(value).__name__}"
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "…"

"""Convert what YAML has read to the declared types, expand environment variables, and check bounds."""

import math
import operator
import os
import re
import types
import typing
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from grpo.base.errors import is_secret_name, keep_secret
from grpo.base.text import did_you_mean

Values = dict[str, Any]  # key -> value
LIMITS = {"low": ("at least", operator.ge), "above": ("above", operator.gt), "high": ("at most", operator.le)}
NULLS = ("", "~", "null", "Null", "NULL", "None")
TINY, HUGE = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)
KINDS = {  # the types of keys, as messages name them
    type(None): "null",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    dict: "a mapping of names to values",
    list[str]: "a list of names",
    list[float]: "a list of numbers",
}
FITS = {  # whether a value that is not true or false can be converted
    int: lambda value: not isinstance(value, float) or value.is_integer(),
    float: lambda value: math.isfinite(float(value)),
    str: lambda value: isinstance(value, (str, int, float)),
    dict: lambda value: all(map(str.isidentifier, value.keys())),
}
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
    options = types_of(hint)
    if value is None and (text or "") in NULLS:
        return None
    if str not in options or text is None or (bool in options and isinstance(value, bool)):
        return value
    return text


def types_of(hint: Any) -> tuple:
    """Return the types that a key takes."""
    return typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)


def coerce(value: Any, hint: Any) -> Any:
    """Convert a value to the type `hint`, or to the first of several that fits. ValueError says what was wanted."""
    for kind in types_of(hint):
        with suppress(ValueError, OverflowError, TypeError, KeyError, AttributeError):
            return _convert(value, kind)
    raise ValueError(f"wants {' or '.join(KINDS[kind] for kind in types_of(hint))}, got {_shown(value)}")


def _convert(value: Any, kind: Any) -> Any:
    """Convert a value to one of KINDS. A list may be written as a text with commas, or as a single value."""
    if typing.get_origin(kind) is list:
        items = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else [value]
        items = [item.strip() if isinstance(item, str) else item for item in items]
        return tuple(_convert(item, *typing.get_args(kind)) for item in items)
    if kind is bool:
        return {"true": True, "false": False}[str(value).lower()]
    if isinstance(value, bool) or not FITS[kind](value):
        raise ValueError
    return kind(value)


def check_bounds(value: Any, bounds: Mapping[str, Any]) -> None:
    """Check a value, and each entry of a list, against the bounds of its key (see options.key). ValueError if wrong."""
    if bounds["choices"] and not any(value == choice and type(value) is type(choice) for choice in bounds["choices"]):
        names = [choice for choice in bounds["choices"] if isinstance(choice, str)]
        one_of = ", ".join(map(str, bounds["choices"]))
        raise ValueError(f"must be one of {one_of}; got {_shown(value)}{did_you_mean(str(value), names)}")
    for number in value if isinstance(value, tuple) else (value,):
        if isinstance(number, (int, float)) and not isinstance(number, bool):
            if any(bounds[name] is not None and not test(number, bounds[name]) for name, (_, test) in LIMITS.items()):
                raise ValueError(f"{describe_limits(bounds)}; got {number}")
            if isinstance(number, int) and abs(number) >= 2**63:
                raise ValueError(f"a whole number must lie below 2**63; got {_shown(number)}")
            if isinstance(number, float) and number and not TINY <= abs(number) <= HUGE:
                becomes = "0" if abs(number) < 1 else "infinite"
                raise ValueError(f"{number} is {becomes} in float32, in which it is used")


def describe_limits(bounds: Mapping[str, Any]) -> str:
    """Return the bounds of a number in words; "" if there are none."""
    texts = [f"{word} {bounds[name]}" for name, (word, _) in LIMITS.items() if bounds[name] is not None]
    return f"must be {' and '.join(texts)}" if texts else ""


def _shown(value: Any) -> str:
    """Return a value as it appears in a message."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # Python does not print an integer of thousands of digits
        text = f"a {type(value).__name__}"
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "…"

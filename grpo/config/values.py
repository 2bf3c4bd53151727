"""Convert texts to the declared types, expand environment variables, and check bounds.

A value is what was written, before YAML gives it a type: a text, a list of values, a mapping, or None for null. So
`learning_rate: 5e-6` is a number, though YAML 1.1 reads it as text, and `run_name: 0123` stays as it was written.
"""

import math
import operator
import os
import re
import types
import typing
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeAlias

import numpy as np
import yaml

from grpo.base.errors import is_secret_name, keep_secret
from grpo.base.storage import PlainLoader
from grpo.base.text import did_you_mean
from grpo.config.options import ENVIRONMENT, Bounds

Values = dict[str, Any]  # key -> value
Written: TypeAlias = "str | list[Written] | dict[str, object] | None"
NULLS = ("~", "null", "Null", "NULL", "None")
BOOLEANS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
TINY = float(np.finfo(np.float32).tiny)
HUGE = float(np.finfo(np.float32).max)
KINDS = {  # the types of keys, as messages name them
    type(None): "null",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    dict: "a mapping of names to values",
    tuple[str, ...]: "a list of names",
    tuple[int, ...]: "a list of whole numbers",
    tuple[float, ...]: "a list of numbers",
}
# The bounds of a number -> their words, and what holds of a number within them.
LIMITS: dict[str, tuple[str, Callable]] = {
    "low": ("at least", operator.ge),
    "above": ("above", operator.gt),
    "high": ("at most", operator.le),
}
PUBLIC = {variable for variables in ENVIRONMENT.values() for variable in variables}  # they hold no secrets
MAX_SHOWN = 200  # characters of a wrong value in a message
_DEFAULT = r"[^}]*"
for _ in range(3):  # ${A:-${B:-${C:-d}}}
    _DEFAULT = rf"(?:\$\{{{_DEFAULT}\}}|[^}}])*"
_VARIABLE = re.compile(rf"\$\{{([A-Za-z_][A-Za-z0-9_]*)(?::-({_DEFAULT}))?\}}")


def as_written(node: yaml.Node, is_typed: bool = False) -> Any:
    """Return the value of a YAML node. is_typed: with YAML's types, as the values in a mapping have them.

    YAMLError if it has a tag that would run something or is unknown, or a key twice, of which YAML would take the last.
    """
    if node.tag not in yaml.SafeLoader.yaml_constructors:
        raise yaml.MarkedYAMLError(None, None, f"there is no tag {node.tag}", node.start_mark)
    if isinstance(node, yaml.MappingNode):
        values: Values = {}
        for key, value in node.value:
            if key.value in values:
                raise yaml.MarkedYAMLError(None, None, f"{key.value} is there twice", node.start_mark)
            values[key.value] = as_written(value, is_typed=True)
        return values
    if isinstance(node, yaml.SequenceNode):
        return [as_written(item, is_typed) for item in node.value]
    if is_typed:
        return yaml.SafeLoader("").construct_object(node)
    is_null = node.style is None and node.value in ("", *NULLS)
    return None if is_null else node.value


def expand_variables(value: Written) -> Written:
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
        return _VARIABLE.sub(_read_variable, default)
    if found is None:
        raise ValueError(f"the environment variable {name} is not set (write ${{{name}:-default}} to allow that)")
    is_secret = name not in PUBLIC and not os.path.exists(found)  # a path that exists is none
    if is_secret and name in os.environ:
        keep_secret(name)
    return found


def check_variable(name: str) -> None:
    """Raise ValueError for what is no environment variable's name. It is not repeated, since it may be a key."""
    is_name = re.fullmatch("[A-Z_][A-Z0-9_]*", name)
    if not is_name or not ("_" in name or name in os.environ):  # a key in capitals is hardly a variable that is set
        raise ValueError("wants an environment variable's name, of A-Z, 0-9 and _; put the key into that variable")


def types_of(hint: object) -> tuple:
    """Return the types that a key takes."""
    return typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)


def coerce(value: Written, hint: object) -> Any:
    """Convert a value to the type `hint`, or to the first of several that fits. ValueError says what was wanted."""
    for kind in types_of(hint):
        with suppress(ValueError, OverflowError, TypeError, KeyError, AttributeError, RecursionError, yaml.YAMLError):
            return _convert(value, kind)
    raise ValueError(f"wants {' or '.join(KINDS[kind] for kind in types_of(hint))}, got {shown(value)}")


def _convert(value: Any, kind: Any) -> Any:
    """Convert a value to one of KINDS. A list may be written as a text with commas, or as a single value."""
    is_list = typing.get_origin(kind) is tuple
    if isinstance(value, str) and (kind is dict or (is_list and value.startswith("["))):
        value = as_written(yaml.compose(value, Loader=PlainLoader))  # YAML on the command line
    if is_list:
        items = value.split(",") if isinstance(value, str) else value
        return tuple(_convert(item.strip(), typing.get_args(kind)[0]) for item in items)
    if kind is dict:
        if not all(map(str.isidentifier, value.keys())):
            raise ValueError
        return value
    if not isinstance(value, str):
        raise ValueError
    if kind is int and re.fullmatch(r"[+-]?\d+\.0*", value):
        value = value.partition(".")[0]
    converted = BOOLEANS[value.lower()] if kind is bool else kind(value)
    is_rounded_to_0 = not converted and re.search("[1-9]", value.lower().partition("e")[0])
    if kind is float and (not math.isfinite(converted) or is_rounded_to_0):
        raise ValueError
    return converted


def check_bounds(value: object, bounds: Bounds) -> None:
    """Check a value, and each entry of a list, against the bounds of its key. ValueError if wrong."""
    choices = bounds.get("choices", ())
    for item in value if isinstance(value, tuple) else (value,):
        if choices and item not in choices:
            close = did_you_mean(str(item), [choice for choice in choices if isinstance(choice, str)])
            raise ValueError(f"must be one of {', '.join(map(str, choices))}; got {shown(item)}{close}")
        if isinstance(item, int | float) and not isinstance(item, bool):
            _check_number(item, bounds)


def _check_number(number: float, bounds: Bounds) -> None:
    for name, (_, is_within) in LIMITS.items():
        if name in bounds and not is_within(number, bounds.get(name)):
            raise ValueError(f"{describe_limits(bounds)}; got {shown(number)}")
    smallest, largest = (TINY, HUGE) if isinstance(number, float) else (1, 2**63 - 1)
    if number and not smallest <= abs(number) <= largest:
        raise ValueError(f"{shown(number)} is too large or too small to compute with")


def describe_limits(bounds: Bounds) -> str:
    """Return the bounds of a number in words; "" if there are none."""
    texts = [f"{words} {bounds.get(name)}" for name, (words, _) in LIMITS.items() if name in bounds]
    return f"must be {' and '.join(texts)}" if texts else ""


def shown(value: object) -> str:
    """Return a value as it appears in a message."""
    return f"{value!r:.{MAX_SHOWN}}"

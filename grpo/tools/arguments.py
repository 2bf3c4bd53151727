"""Arguments of a call, against the description of its tool: that of transformers' `get_json_schema`."""

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any


@cache
def checker() -> Any:
    """Return the validator of descriptions. They write `nullable` for what may be null; 1.0 is no integer."""
    from jsonschema import Draft4Validator, Draft202012Validator, validators  # most runs have no typed tools

    changed = {name: _unless_null(rule) for name, rule in Draft202012Validator.VALIDATORS.items()}
    return validators.extend(Draft202012Validator, changed, type_checker=Draft4Validator.TYPE_CHECKER)


def _unless_null(rule: Callable[..., Any]) -> Callable[..., Iterator]:
    def checked(validator, wanted, value, schema):
        if value is not None or not schema.get("nullable"):
            yield from rule(validator, wanted, value, schema) or ()

    return checked


def misfit(tool: str, arguments: Any, schema: Mapping[str, Any]) -> str:
    """Return why arguments do not fit the description of a tool's parameters; "" if they do.

    >>> misfit("add", {"a": "x"}, {"properties": {"a": {"type": "integer"}}})
    "add.a: 'x' is not of type 'integer'"
    """
    closed = {**schema, "additionalProperties": False}
    error = next(checker()(closed).iter_errors(arguments), None)
    if error is None:
        return ""
    place = error.json_path.replace("$", tool, 1)
    return f"{place}: {error.message}"

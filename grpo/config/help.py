"""What -h shows of the keys: their defaults, meanings and bounds."""

import inspect
import re
import textwrap
from dataclasses import Field, fields
from functools import cache

import yaml

from grpo.config.options import keys_that
from grpo.config.values import describe_limits

COLUMN, WIDTH = 42, 120  # where meanings begin and end
_DECLARATION = re.compile(r'^    (\w+): [^=]+ = key\(.*?\)\n    """(.*?)"""', re.DOTALL | re.MULTILINE)


@cache
def meanings(kind: type) -> dict[str, str]:
    """Return what each key of a stage means: the text under its declaration."""
    texts: dict[str, str] = {}
    for group in kind.__mro__[1:-1]:
        texts |= _DECLARATION.findall(inspect.getsource(group))
    return {name: " ".join(text.split()) for name, text in texts.items()}


def describe_keys(kind: type) -> str:
    """Return a text with every key, its default, meaning and bounds: those to know first, then the groups above."""
    first = keys_that("first", kind)
    groups = {"the keys to know first": first}
    for group in kind.__mro__[1:-1]:
        title = group.__name__.removesuffix("Keys").lower()
        groups[title] = [key.name for key in fields(group) if key.name not in first]
    declared = {key.name: key for key in fields(kind)}
    texts = []
    for title, names in groups.items():
        lines = [_describe(declared[name], meanings(kind)[name]) for name in names]
        texts.append("\n".join([f"{title}:", *lines]))
    return "\n\n".join(texts) + "\n"


def _describe(declared: Field, meaning: str) -> str:
    """Return the lines of a key."""
    facts = declared.metadata["facts"]
    default = as_yaml(None if "supplied" in facts else declared.default)
    default = "required" if "required" in facts else default.replace(".0e-0", "e-")  # YAML's form is 1.0e-08
    bounds = declared.metadata["bounds"]
    choices = bounds.get("choices")
    allowed = f"one of: {', '.join(map(as_yaml, choices))}" if choices else describe_limits(bounds)
    about = f"{meaning} {allowed.capitalize()}." if allowed else meaning
    name = f"  {declared.name}: {default} ".ljust(COLUMN)
    return textwrap.fill(
        about,
        WIDTH,
        initial_indent=name,
        subsequent_indent=" " * COLUMN,
        break_on_hyphens=False,
    )


def as_yaml(value: object) -> str:
    """Return a value as YAML, on one line."""
    value = list(value) if isinstance(value, tuple) else value
    return yaml.safe_dump(value, default_flow_style=True).removesuffix("...\n").strip()

"""What -h shows of the keys: their defaults, meanings and bounds."""

import argparse
import ast
import inspect
from dataclasses import Field, fields
from functools import cache, partial
from itertools import pairwise
from typing import Any

import yaml

from grpo.config.options import keys_that
from grpo.config.values import describe_limits

COLUMN, WIDTH = 42, 120  # where meanings begin and end


@cache
def meanings(kind: type) -> dict[str, str]:
    """Return what each key of a stage means: the text under its declaration."""
    texts = {}
    for group in kind.__mro__[1:-1]:
        for declaration, text in pairwise(ast.parse(inspect.getsource(group)).body[0].body):
            if isinstance(declaration, ast.AnnAssign):
                texts[declaration.target.id] = " ".join(text.value.value.split())
    return texts


def describe_keys(kind: type) -> str:
    """Return a text with every key, its default, meaning and bounds: those to know first, then the groups above."""
    docs, first = meanings(kind), keys_that("first", kind)
    groups = {"the keys to know first": first}
    for group in kind.__mro__[1:-1]:
        groups[group.__name__.removesuffix("Keys").lower()] = [
            key.name for key in fields(group) if key.name not in first
        ]
    layout = partial(argparse.HelpFormatter, max_help_position=COLUMN, width=WIDTH)
    parser = argparse.ArgumentParser(usage=argparse.SUPPRESS, add_help=False, formatter_class=layout)
    for title, names in groups.items():
        section = parser.add_argument_group(title)
        for name in names:
            declared = kind.__dataclass_fields__[name]
            about = f"{docs[name]}{_describe_bounds(declared)}".replace("%", "%%")
            facts = declared.metadata["facts"]
            default = as_yaml(None if "supplied" in facts else declared.default)
            default = "required" if "required" in facts else default.replace(".0e-0", "e-")  # YAML's form is 1.0e-08
            section.add_argument(name, metavar=f"{name}: {default}", help=about)
    return parser.format_help()


def _describe_bounds(declared: Field) -> str:
    choices, limits = declared.metadata["choices"], describe_limits(declared.metadata)
    return f" One of: {', '.join(map(as_yaml, choices))}." if choices else f" {limits.capitalize()}." * bool(limits)


def as_yaml(value: Any) -> str:
    """Return a value as YAML, on one line."""
    value = list(value) if isinstance(value, tuple) else value
    return yaml.safe_dump(value, default_flow_style=True).removesuffix("...\n").strip()

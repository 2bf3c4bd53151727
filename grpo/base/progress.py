"""Messages of a command, during its work and after it: on stderr, so that stdout holds only results."""

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from tqdm import tqdm

from grpo.base.errors import CONFIG, escape, explained

Item = TypeVar("Item")
PLAIN_SECONDS = 10.0  # between lines where no terminal shows a bar


@contextmanager
def counting(total: int | None, what: str, unit: str) -> Iterator[Callable[[int], None]]:
    """Show how many of `total` are done: a bar on a terminal, else a line now and then.

    Yields a function that adds to the count.
    what: the activity, such as "answering". unit: of the count, such as "answers". total: None if unknown.
    """
    look = {"dynamic_ncols": True}
    if not sys.stderr.isatty():
        lines = f"{what}: {{n_fmt}} of {{total_fmt}} {unit} after {{elapsed}}\n"
        look = {"bar_format": lines, "mininterval": PLAIN_SECONDS, "miniters": 1, "delay": PLAIN_SECONDS}
    with tqdm(total=total, desc=what, unit=f" {unit}", leave=False, **look) as bar:
        yield bar.update


def counted(items: Iterable[Item], total: int | None, what: str, unit: str) -> Iterator[Item]:
    """Yield the items, and show how many of them have passed; see `counting`."""
    with counting(total, what, unit) as add:
        for item in items:
            yield item
            add(1)


def command_parser(module: str, doc: str, **options: Any) -> argparse.ArgumentParser:
    """Make the parser of `python -m module`. doc: its help text, whose line breaks are kept."""
    layout = argparse.RawDescriptionHelpFormatter
    return argparse.ArgumentParser(prog=f"python -m {module}", description=doc, formatter_class=layout, **options)


def check_output(path: Path, option: str = "--output") -> None:
    """Create the folder of an output file; UserError if the file cannot be written. Call it before the work begins."""
    is_new = not path.exists()
    with explained(OSError, f"cannot write {path}", f"give {option} the path of a file", CONFIG):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("a").close()
    if is_new:
        path.unlink()


def say_next(result: object, *commands: list[object]) -> None:
    """Print where the result of a command is, and which commands to type next. Only rank 0 prints."""
    if os.environ.get("RANK", "0") != "0":
        return
    print(escape(f"result: {result}"), file=sys.stderr)
    label = "next:"
    for command in dict.fromkeys(shlex.join(map(str, command)) for command in commands):
        print(escape(f"{label:7} python -m {command}"), file=sys.stderr)
        label = ""

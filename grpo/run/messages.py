"""What a run tells its user: lines on stderr, and debug.log. If writing there fails, the run goes on."""

import os
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tqdm import tqdm

from grpo.base.errors import Kinds, escape, reason, redact

USUAL_COLUMNS = 80


def tell(text: str) -> None:
    """Print lines without secrets, and without breaking a progress bar. On a terminal, no word is broken, either."""
    text = escape(redact(text))
    if sys.stderr.isatty():
        text = "\n".join(wrap(line, terminal_columns()) for line in text.split("\n"))
    tqdm.write(text, file=sys.stderr)


def terminal_columns() -> int:
    """Return the width of the terminal that shows stderr; a usual one if that cannot be known."""
    with suppress(OSError, ValueError):
        return os.get_terminal_size(sys.stderr.fileno()).columns or USUAL_COLUMNS
    return USUAL_COLUMNS


def wrap(line: str, columns: int, indent: str = "  ") -> str:
    """Break a line between words, and indent what follows; a path or a command stays one word if it has no spaces."""
    if len(line) < columns:
        return line
    return textwrap.fill(line, columns - 1, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


@contextmanager
def tolerated(name: str, warned: set[str], kinds: Kinds = OSError, say: Callable[[str], None] = tell) -> Iterator[None]:
    """Go on if the code inside fails to write to `name`. Warn about it once: `warned` holds the names so far."""
    try:
        yield
    except kinds as error:
        if name not in warned:
            warned.add(name)
            say(f"warning: writing to {name} failed ({reason(error)}); training continues")


class DebugLog:
    """Appends to debug.log, without secrets. path: None writes nothing."""

    def __init__(self, path: Path | None):
        self.path = path
        self.warned: set[str] = set()

    def write(self, level: str, text: str) -> None:
        """Write a line, or a traceback. level: INFO or ERROR."""
        if self.path is None:
            return
        with (
            tolerated(self.path.name, self.warned),
            open(self.path, "a", encoding="utf-8", errors="backslashreplace") as file,
        ):
            file.write(f"{now()} {level} {redact(text)}\n")


def now() -> str:
    """Return the time as files hold it."""
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")

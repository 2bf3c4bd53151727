"""What a run tells its user: lines on stderr, and debug.log. If writing there fails, the run goes on."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tqdm import tqdm

from grpo.base.errors import Kinds, escape, reason, redact


def tell(text: str) -> None:
    """Print a line without secrets, and without breaking a progress bar."""
    tqdm.write(escape(redact(text)), file=sys.stderr)


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
    """Appends to debug.log, without secrets."""

    def __init__(self, path: Path):
        self.path = path
        self.warned: set[str] = set()

    def write(self, level: str, text: str) -> None:
        """Write a line, or a traceback. level: INFO or ERROR."""
        with (
            tolerated(self.path.name, self.warned),
            open(self.path, "a", encoding="utf-8", errors="backslashreplace") as file,
        ):
            file.write(f"{now()} {level} {redact(text)}\n")


def now() -> str:
    """Return the time as files hold it."""
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")

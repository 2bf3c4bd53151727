"""Errors for people: what happened, why, and what to type next; and the exit code of each kind.

Every command wraps its `main` in `run_main`, so that a mistake ends in three lines on stderr, never in a traceback.
torchrun turns every failure into exit code 1, so a run also writes code and reason to `run_state.json` (see run_dir.py).
"""

import sys
import traceback
from collections.abc import Callable

INTERNAL, CONFIG, PREFLIGHT, SERVICE, NON_FINITE, STORAGE, BUSY, MEMORY = 1, 2, 3, 4, 5, 6, 7, 8
SIGINT, SIGTERM = 130, 143


class UserError(Exception):
    """A failure that the user can mend.

    what: what is wrong and where (a key, a file and line); why: the cause; fix: what to do or type;
    exit_code: one of the constants above.
    """

    def __init__(self, what: str, why: str = "", fix: str = "", exit_code: int = CONFIG):
        super().__init__(what)
        self.what, self.why, self.fix, self.exit_code = what, why, fix, exit_code

    def __str__(self) -> str:
        lines = [("error", self.what), ("why", self.why), ("fix", self.fix)]
        return "\n".join(f"{name}: {text}" for name, text in lines if text)


class Interrupted(Exception):
    """The run was asked to stop by a signal and has saved what it had; exit_code says which signal."""

    def __init__(self, exit_code: int):
        super().__init__(f"stopped by {'SIGINT' if exit_code == SIGINT else 'SIGTERM'}")
        self.exit_code = exit_code


def describe(error: BaseException) -> tuple[int, str]:
    """Exit code and message of any exception that ends a command."""
    if isinstance(error, (UserError, Interrupted)):
        return error.exit_code, str(error)
    if isinstance(error, KeyboardInterrupt):
        return SIGINT, "stopped by SIGINT"
    where = traceback.extract_tb(error.__traceback__)[-1]
    what = f"{type(error).__name__}: {error}".strip()
    return INTERNAL, str(UserError(what, f"an internal error at {where.filename}:{where.lineno} in {where.name}",
                                   "the traceback is in debug.log of the output directory; without one, set GRPO_TRACEBACK=1 to see it here"))


def run_main(main: Callable[[list[str]], int | None]) -> None:
    """Runs `main(argv)` and ends the process with its exit code; failures end in at most three lines on stderr."""
    import os
    try:
        code = main(sys.argv[1:]) or 0
    except SystemExit:
        raise
    except BrokenPipeError:
        code = 0  # the reader of our output went away, as `| head` does
        sys.stdout = open(os.devnull, "w")
    except BaseException as error:
        if os.environ.get("GRPO_TRACEBACK"):
            traceback.print_exc()
        code, message = describe(error)
        print(message, file=sys.stderr)
    sys.exit(code)

"""Errors for people: what happened, why, and what to type next; and the exit code of each kind.

Every command wraps its `main` in `run_main`, so that a mistake ends in three lines on stderr, never in a traceback.
torchrun turns every failure into exit code 1, so a run also writes code and reason to `run_state.json` (see
run_dir.py).
"""

import errno
import os
import re
import sys
import traceback
from collections.abc import Callable

INTERNAL, CONFIG, PREFLIGHT, SERVICE, NON_FINITE, STORAGE, BUSY, MEMORY = 1, 2, 3, 4, 5, 6, 7, 8
SIGINT, SIGTERM = 130, 143
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)
MIN_SECRET = 6  # characters; a shorter value is a placeholder, and perhaps an ordinary word
_SECRET_NAME = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|PASSWD)(S?$|S?_)")


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
    """The run was asked to stop by a signal; exit_code says which signal."""

    def __init__(self, exit_code: int):
        super().__init__(
            f"stopped by {'SIGINT' if exit_code == SIGINT else 'SIGTERM'}; resume_from_checkpoint=true goes on with the run"
        )
        self.exit_code = exit_code


def describe(error: BaseException) -> tuple[int, str]:
    """Exit code and message of any exception that ends a command."""
    code, text = _describe(error)
    return code, redact(text)


def _describe(error: BaseException) -> tuple[int, str]:
    if isinstance(error, (UserError, Interrupted)):
        return error.exit_code, str(error)
    if isinstance(error, KeyboardInterrupt):
        return SIGINT, "stopped by SIGINT"
    what = f"{type(error).__name__}: {error}".strip()
    if is_storage_error(error):
        return STORAGE, str(
            UserError(
                "the disk does not take what is written",
                what,
                "free some space; a run goes on with resume_from_checkpoint=true",
            )
        )
    if "OutOfMemory" in type(error).__name__ or isinstance(error, MemoryError) or "can't allocate memory" in what:
        return MEMORY, str(
            UserError(
                "out of memory",
                what.partition("\n")[0],
                "lower max_num_seqs, max_tokens_per_micro_batch, max_completion_length or "
                "max_prompt_length, or set gradient_checkpointing=true",
            )
        )
    where = traceback.extract_tb(error.__traceback__)[-1]
    return INTERNAL, str(
        UserError(
            what,
            f"an internal error at {where.filename}:{where.lineno} in {where.name}",
            "the traceback is in debug.log of the output directory; without one, set GRPO_TRACEBACK=1 to see it here",
        )
    )


def is_storage_error(error: BaseException) -> bool:
    """A full or failing disk: it comes as OSError, and from safetensors as its own error or a RuntimeError."""
    if isinstance(error, OSError):
        return error.errno in FULL
    text = str(error).lower()
    return type(error).__name__ in ("SafetensorError", "RuntimeError") and any(
        word in text for word in ("no space", "os error", "file too large", "i/o error")
    )


def is_secret_name(name: str) -> bool:
    """Whether an environment variable of this name holds a secret."""
    return _SECRET_NAME.search(name.upper()) is not None


def redact(text: str) -> str:
    """The text without the value of any environment variable that holds a secret, whatever put it there."""
    for name, value in os.environ.items():
        if is_secret_name(name) and len(value.strip()) >= MIN_SECRET:
            text = text.replace(value.strip(), f"[{name}]")
    return text


def escape(text: str) -> str:
    """Foreign text with control characters made visible: a completion must not be able to steer the terminal."""
    return "".join(
        c if c in "\n\t" or c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text
    )


def run_main(main: Callable[[list[str]], int | None]) -> None:
    """Runs `main(argv)` and ends the process with its exit code; failures end in at most three lines on stderr."""
    try:
        code = main(sys.argv[1:]) or 0
    except SystemExit:
        raise
    except BrokenPipeError:
        code = 0  # the reader of our output went away, as `| head` does
        sys.stdout = open(os.devnull, "w")
    except BaseException as error:
        if os.environ.get("GRPO_TRACEBACK"):
            print(redact(traceback.format_exc()), file=sys.stderr)
        code, message = describe(error)
        print(escape(message), file=sys.stderr)
        if code in (SIGINT, SIGTERM):
            sys.stdout.flush()
            os._exit(code)  # a thread that hangs (a user's reward) does not hold up a process that was told to stop
    sys.exit(code)

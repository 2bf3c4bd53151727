"""Errors for people: what happened, why, and what to type next; and the exit code of each kind.

Every command wraps its `main` in `run_main`, so that a mistake ends in three lines on stderr, never in a traceback.
torchrun turns every failure into exit code 1, so a run also writes exit code and reason to `run_state.json` (see
run/run_dir.py).
"""

import errno
import os
import re
import sys
import traceback
from collections.abc import Callable

INTERNAL, CONFIG, PREFLIGHT, SERVICE, NON_FINITE, STORAGE, BUSY, MEMORY = 1, 2, 3, 4, 5, 6, 7, 8
SIGINT, SIGTERM = 130, 143
STORAGE_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)
STORAGE_WORDS = ("no space", "os error", "file too large", "i/o error")  # in errors without an errno
MIN_SECRET = 6  # characters; a shorter value is a placeholder, and perhaps an ordinary word
_SECRET_NAME = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|PASSWD)(S?$|S?_)")


class UserError(Exception):
    """A failure that the user can correct.

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
    """A signal asked the run to stop. exit_code says which signal."""

    def __init__(self, exit_code: int):
        name = "SIGINT" if exit_code == SIGINT else "SIGTERM"
        super().__init__(f"stopped by {name}; continue the run with resume_from_checkpoint=true")
        self.exit_code = exit_code


def describe(error: BaseException) -> tuple[int, str]:
    """Return exit code and message of any exception that ends a command. The message holds no secret."""
    if isinstance(error, KeyboardInterrupt):
        return SIGINT, "stopped by SIGINT"
    if not isinstance(error, (UserError, Interrupted)):
        error = _explain(error)
    return error.exit_code, redact(str(error))


def _explain(error: BaseException) -> UserError:
    """Turn an exception that no part of the program expected into an error for people."""
    what = f"{type(error).__name__}: {error}".strip()
    if is_storage_error(error):
        return UserError(
            "cannot write to the disk",
            what,
            "free some space; continue a run with resume_from_checkpoint=true",
            STORAGE,
        )
    if "OutOfMemory" in type(error).__name__ or isinstance(error, MemoryError) or "can't allocate memory" in what:
        return UserError(
            "out of memory",
            what.partition("\n")[0],
            "lower max_num_seqs, max_tokens_per_micro_batch, max_completion_length or max_prompt_length, "
            "or set gradient_checkpointing=true",
            MEMORY,
        )
    where = traceback.extract_tb(error.__traceback__)[-1]
    return UserError(
        what,
        f"an internal error at {where.filename}:{where.lineno} in {where.name}",
        "the traceback is in debug.log of the output directory; without one, set GRPO_TRACEBACK=1 to see it here",
        INTERNAL,
    )


def is_storage_error(error: BaseException) -> bool:
    """Whether the disk is full or fails. safetensors reports that as its own error or as a RuntimeError."""
    if isinstance(error, OSError):
        return error.errno in STORAGE_ERRNOS
    text = str(error).lower()
    is_from_safetensors = type(error).__name__ in ("SafetensorError", "RuntimeError")
    return is_from_safetensors and any(word in text for word in STORAGE_WORDS)


def is_secret_name(name: str) -> bool:
    """Whether an environment variable of this name holds a secret."""
    return _SECRET_NAME.search(name.upper()) is not None


def redact(text: str) -> str:
    """Replace the value of every environment variable that holds a secret by the variable's name."""
    for name, value in os.environ.items():
        if is_secret_name(name) and len(value.strip()) >= MIN_SECRET:
            text = text.replace(value.strip(), f"[{name}]")
    return text


def escape(text: str) -> str:
    """Make control characters visible, so that a completion cannot steer the terminal."""
    return "".join(char if char in "\n\t" or char.isprintable() else _escape_char(char) for char in text)


def _escape_char(char: str) -> str:
    return char.encode("unicode_escape", "surrogatepass").decode()


def run_main(main: Callable[[list[str]], int | None]) -> None:
    """Run `main(argv)` and end the process with its exit code; a failure prints at most three lines on stderr."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a terminal may lack a character that a model has written
            stream.reconfigure(errors="backslashreplace")
    try:
        code = main(sys.argv[1:]) or 0
    except SystemExit:
        raise
    except BrokenPipeError:  # the reader of stdout has closed it, as `| head` does
        code = 0
        sys.stdout = open(os.devnull, "w")
    except BaseException as error:
        if os.environ.get("GRPO_TRACEBACK"):
            print(redact(traceback.format_exc()), file=sys.stderr)
        code, message = describe(error)
        print(escape(message), file=sys.stderr)
        if code in (SIGINT, SIGTERM):
            sys.stdout.flush()
            os._exit(code)  # do not wait for threads: a user's reward may hang in one
    sys.exit(code)

"""Errors for people: what happened, why, and what to type next; and the exit code of each kind.

Every command wraps its `main` in `run_main`, so that a mistake ends in three lines on stderr, never in a traceback.
torchrun turns every failure into exit code 1, so a run also writes exit code and reason to `run_state.json` (see
run/run_dir.py).
"""

import errno
import html
import json
import os
import re
import shlex
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn, TextIO
from urllib.parse import quote, quote_plus

INTERNAL, CONFIG, PREFLIGHT, SERVICE, NON_FINITE, STORAGE, BUSY, MEMORY = 1, 2, 3, 4, 5, 6, 7, 8
SIGHUP, SIGINT, SIGTERM = 129, 130, 143  # 128 + the number of the signal
STORAGE_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)
PATH_ERRNOS = (errno.ENAMETOOLONG, errno.ELOOP)
STORAGE_WORDS = ("no space", "os error", "file too large", "i/o error", "disk is full")  # in errors without an errno
STORAGE_ERRORS = ("SafetensorError", "RuntimeError", "Exception", "OperationalError")  # tokenizers raises the third
_OUT_OF_MEMORY = re.compile(  # the words of torch, CUDA, cuBLAS, cuDNN, NCCL, oneDNN and the C++ library
    r"out of memory|(can't|cannot|failed to|unable to) allocate|not enough memory|bad_alloc|alloc_failed"
    r"|memoryallocation|could not create a (primitive|memory)(?! desc)",
    re.IGNORECASE,
)
Kinds = type[BaseException] | tuple[type[BaseException], ...]
OF_USERS = ("tool", "tools", "own rewards")  # threads that may be in a user's function for ever
NO_STREAM = (OSError, ValueError, AttributeError)  # of a stream that is full, closed, or not there
MIN_SECRET = 6  # characters; a shorter value is a placeholder, and perhaps an ordinary word
_SECRET_NAME = re.compile(r"(KEY|TOKEN|SECRET|PASS|PASSWORD|PASSWD|PASSPHRASE)S?\d*($|_)")
_named_secrets: set[str] = set()  # environment variables that the configuration names


class UserError(Exception):
    """A failure that the user can correct.

    what: what is wrong and where (a key, a file and line); why: the cause; fix: what to do or type;
    exit_code: one of the constants above.
    """

    def __init__(self, what: str, why: str = "", fix: str = "", exit_code: int = CONFIG):
        self.what, self.why, self.fix = map(redact, (what, why, fix))  # a traceback shows them, too
        super().__init__(self.what)
        self.exit_code = exit_code

    def __str__(self) -> str:
        lines = [("error", self.what), ("why", self.why), ("fix", self.fix)]
        return "\n".join(f"{name}: {text}" for name, text in lines if text)

    def _render_traceback_(self) -> list[str]:
        """Return the lines that a notebook shows instead of a traceback."""
        return escape(describe(self)[1]).split("\n")


class Interrupted(KeyboardInterrupt):
    """A signal asked the run to stop. exit_code says which signal.

    It is a KeyboardInterrupt, because the signal handler raises it at any point of the program: libraries would catch
    an Exception, and anyio would wrap any other BaseException in a group.
    """

    _render_traceback_ = UserError._render_traceback_

    def __init__(self, exit_code: int):
        name = signal.Signals(exit_code - 128).name
        super().__init__(f"stopped by {name}; continue with {_same_command('resume_from_checkpoint=true')}")
        self.exit_code = exit_code


def _same_command(key: str) -> str:
    """Return the command that runs here, with one more key; the key alone where torchrun or a program has begun."""
    name = getattr(sys.modules["__main__"].__spec__, "name", "")
    is_ours = name.startswith("grpo.") and os.environ.get("WORLD_SIZE", "1") == "1"
    return shlex.join(dict.fromkeys(["python", "-m", name, *sys.argv[1:], key])) if is_ours else key


def check_all(*checks: Callable[[], object]) -> None:
    """Make all checks. If some fail, raise one UserError that joins their messages, with the exit code of the first."""
    errors = []
    for check in checks:
        try:
            check()
        except UserError as error:
            errors.append(error)
    if errors:
        texts = zip(*[(error.what, error.why, error.fix) for error in errors], strict=True)
        raise UserError(*["; ".join(filter(None, dict.fromkeys(text))) for text in texts], errors[0].exit_code)


def reason(error: BaseException) -> str:
    """Return an exception's message as one line, with the exception's name unless it comes from the system."""
    is_of_system = isinstance(error, OSError) and bool(error.strerror)
    said = str(error).strip().partition("\n")[0]
    return said if is_of_system else f"{type(error).__name__}: {said}".removesuffix(": ")


@contextmanager
def explained(kinds: Kinds, what: str, fix: str, exit_code: int = PREFLIGHT) -> Iterator[None]:
    """Turn exceptions of these kinds into a UserError, whose `why` is the exception's message.

    A UserError says more itself, and so does what ends a command that is out of memory.
    """
    try:
        yield
    except kinds as error:
        if isinstance(error, UserError) or is_out_of_memory(error):
            raise
        raise UserError(what, reason(error), fix, exit_code) from None


def describe(error: BaseException) -> tuple[int, str]:
    """Return exit code and message for an exception that ends a command. The message holds no secret."""
    if isinstance(error, KeyboardInterrupt) and not isinstance(error, Interrupted):
        return SIGINT, "stopped by SIGINT"
    if not isinstance(error, Interrupted):
        error = as_user_error(error)
    return error.exit_code, redact(str(error))


def as_user_error(error: BaseException) -> UserError:
    """Turn an exception that no part of the program expected into a UserError."""
    if isinstance(error, UserError):
        return error
    what = f"{type(error).__name__}: {error}".strip()
    if is_storage_error(error):
        return UserError(
            "cannot write to the disk",
            what,
            "free some space; continue a run with resume_from_checkpoint=true",
            STORAGE,
        )
    if is_out_of_memory(error):
        return UserError(
            "out of memory",
            what.partition("\n")[0],
            "lower max_num_seqs, max_tokens_per_micro_batch, max_completion_length or max_prompt_length, "
            "or set gradient_checkpointing=true",
            MEMORY,
        )
    if getattr(error, "errno", None) in PATH_ERRNOS or what.startswith("RuntimeError: Symlink loop"):
        return UserError(
            "a path cannot be used", what, "shorten it, or correct the link that leads to itself", PREFLIGHT
        )
    where = traceback.extract_tb(error.__traceback__)[-1]
    return UserError(
        what,
        f"an internal error at {where.filename}:{where.lineno} in {where.name}",
        "the traceback is in debug.log of the output directory; without one, set GRPO_TRACEBACK=1 to see it here",
        INTERNAL,
    )


def is_storage_error(error: BaseException) -> bool:
    """Return whether the disk is full or fails. Libraries written in Rust, and SQLite, say so only in the text."""
    if isinstance(error, OSError):
        return error.errno in STORAGE_ERRNOS
    text = str(error).lower()
    return type(error).__name__ in STORAGE_ERRORS and any(word in text for word in STORAGE_WORDS)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether a GPU or this machine is out of memory. Most libraries say so only in the text of their error."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    kinds = [kind.__name__ for kind in type(error).__mro__]
    if "MemoryError" in kinds or "OutOfMemoryError" in kinds:
        return True
    return "RuntimeError" in kinds and _OUT_OF_MEMORY.search(str(error)) is not None


def is_secret_name(name: str) -> bool:
    """Return whether an environment variable of this name holds a secret."""
    return _SECRET_NAME.search(name.upper()) is not None


def keep_secret(name: str) -> None:
    """Treat the value of this environment variable as a secret from now on, whatever its name."""
    _named_secrets.add(name)


def redact(text: str) -> str:
    """Replace the value of every environment variable that holds a secret by the variable's name."""
    values = {}
    for name, value in os.environ.items():
        value = value.strip()
        if len(value) >= MIN_SECRET and (name in _named_secrets or is_secret_name(name)):
            values.update(dict.fromkeys(_forms(value), f"[{name}]"))
    return _replace(text, values)


def _forms(value: str) -> tuple[str, ...]:
    """Return a text unchanged, and as JSON, Python's repr, HTML and URLs write it."""
    quoted = (json.dumps(value), json.dumps(value, ensure_ascii=False), repr(value))
    in_urls = (quote(value), quote(value, safe=""), quote_plus(value))
    return value, *(text[1:-1] for text in quoted), html.escape(value), *in_urls


def refer(text: str) -> str:
    """Replace the value of each variable that the configuration names by ${VARIABLE}, as the configuration has it."""
    variables = dict(os.environ)  # which can be asked for any text, also one that no variable may have as its name
    values = {variables.get(name, ""): f"${{{name}}}" for name in _named_secrets}
    return _replace(text, {value: name for value, name in values.items() if len(value) >= MIN_SECRET})


def _replace(text: str, replacements: dict[str, str]) -> str:
    """Replace some texts, the longest first, since one may contain another."""
    for old in sorted(replacements, key=len, reverse=True):
        text = text.replace(old, replacements[old])
    return text


def escape(text: str) -> str:
    """Make control characters visible, so that a completion cannot steer the terminal."""
    return "".join(
        char if char in "\n\t" or char.isprintable() else char.encode("unicode_escape", "surrogatepass").decode()
        for char in text
    )


class WithoutSecrets:
    """A stream that redacts everything written to it, even by libraries and by a user's reward. There may be none.

    ignored: exceptions to ignore, such as those of a full disk, so that the work goes on without its messages.
    """

    def __init__(self, stream: TextIO | None, *ignored: type[BaseException]):
        self.stream = stream
        self.ignored = ignored

    def write(self, text: str) -> int:
        with suppress(*self.ignored):
            return self.stream.write(redact(text))
        return len(text)

    def flush(self) -> None:
        with suppress(*self.ignored):
            self.stream.flush()

    def isatty(self) -> bool:
        with suppress(*NO_STREAM):
            return self.stream.isatty()
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def run_main(main: Callable[[list[str]], int | None]) -> None:
    """Run `main(argv)` and end the process with its exit code; a failure prints at most three lines on stderr."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a terminal may lack a character that a model has written
            stream.reconfigure(errors="backslashreplace")
    if not WithoutSecrets(sys.stderr).isatty():  # bars of libraries, which read this when they are imported
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    sys.stdout, sys.stderr = WithoutSecrets(sys.stdout, AttributeError), WithoutSecrets(sys.stderr, *NO_STREAM)
    try:
        code = main(sys.argv[1:]) or 0
        sys.stdout.flush()
    except SystemExit:
        raise
    except BrokenPipeError:  # the reader of stdout has closed it, as `| head` does
        code = 0
        sys.stdout = open(os.devnull, "w")
    except BaseException as error:
        if os.environ.get("GRPO_TRACEBACK"):
            print(traceback.format_exc(), file=sys.stderr)
        code, message = describe(error)
        print(escape(message), file=sys.stderr)
        if code == STORAGE:  # stdout itself may have failed, and Python would flush it again at the end
            sys.stdout = open(os.devnull, "w")
        if code > 128:  # a signal: do not wait for threads, since a user's reward may hang in one
            exit_now(code)
    is_alone = os.environ.get("WORLD_SIZE", "1") == "1"
    if not is_alone or any(thread.name in OF_USERS for thread in threading.enumerate()):
        # Everything is closed. Python's own end would let a thread that is still in torch abort the process: gloo's
        # (github.com/pytorch/pytorch/pull/179291), or that of a tool that was given up.
        exit_now(code)
    sys.exit(code)


def exit_now(code: int) -> NoReturn:
    """End the process without Python's clean-up."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(code)

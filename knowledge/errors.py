"""What goes wrong with a knowledge base, each with what was found, what was wanted and what to type."""

from grpo.errors import PREFLIGHT, STORAGE, UserError

BUILD_COMMAND = "python -m knowledge.build SOURCE.jsonl {path}"


class KnowledgeBusy(UserError):
    """The database stayed locked for the whole waiting time: that look-up cannot be scored, the next one may
    succeed."""

    def __init__(self, path: str, waited_s: float):
        super().__init__(
            f"{path} is locked",
            f"another process has held its write lock for {waited_s:g} s",
            "wait for that process or end it; a knowledge base in use must not be written to",
            PREFLIGHT,
        )


def bad_file(
    path, found: str, wanted: str = "an SQLite file with a table documents(title, text)", fix: str = ""
) -> UserError:
    """A file that is not a usable knowledge base; exit code 3."""
    return UserError(
        f"{path}: {found}", f"wanted {wanted}", fix or "build it: " + BUILD_COMMAND.format(path=path), PREFLIGHT
    )


def no_room(path, needs: str, cause: object) -> UserError:
    """Writing failed, as on a full disk; exit code 6. Nothing that was there before is touched."""
    return UserError(
        f"could not write {path}", f"{cause}; {needs}", "free some space, or name an output on another disk", STORAGE
    )

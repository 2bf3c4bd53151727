"""Say what goes wrong with a knowledge base: what was found, what was wanted and what to type."""

from grpo.base.errors import PREFLIGHT, STORAGE, UserError


class KnowledgeBusy(UserError):
    """The database stayed locked for the complete waiting time.

    That look-up cannot be scored; the next one may succeed.
    """

    def __init__(self, path: str, waited_s: float):
        super().__init__(
            f"{path} is locked",
            f"another process has held its write lock for {waited_s:g} s",
            "wait for that process or end it; nothing may write to a knowledge base in use",
            PREFLIGHT,
        )


def bad_file(
    path, found: str, wanted: str = "an SQLite file with a table documents(title, text)", fix: str = ""
) -> UserError:
    """Describe a file that is not a usable knowledge base; exit code 3."""
    return UserError(
        f"{path}: {found}",
        f"wanted {wanted}",
        fix or f"build it: python -m knowledge.build SOURCE.jsonl {path}",
        PREFLIGHT,
    )


def no_room(path, cause: object) -> UserError:
    """Describe a failure to write, such as a full disk; exit code 6. What was there before is unchanged."""
    needs = "a build needs up to 5 times its text in the folder of the output while it runs, 2 to 2.5 times afterwards"
    return UserError(
        f"could not write {path}", f"{cause}; {needs}", "free some space, or name an output on another disk", STORAGE
    )

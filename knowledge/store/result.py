"""What a knowledge base answers."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Passage:
    """A passage found. id: title#number, the same whether or not there is an index; score: BM25, higher is better,
    comparable only within one result; 0 shares no word with the query (within titles only)."""

    id: str
    title: str
    text: str
    score: float


@dataclass(frozen=True)
class Lookup:
    """The documents that a title names.

    how: "exact" (the whole string is a title), "parts" (some of its parts between semicolons are), "search" (none is:
    `titles` are guesses by full-text search), "missing" (nothing at all). missing: the parts that are no titles.
    """

    wanted: str
    titles: tuple[str, ...]
    how: str
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class Coverage:
    """How the titles of a data set were found: counts that add up to `total`, and a few that were not."""

    total: int
    exact: int
    parts: int
    search: int
    missing: int
    examples_missing: tuple[str, ...] = ()

    @property
    def found(self) -> float:
        """Share found as titles, 0 to 1; guesses by search do not count."""
        return (self.exact + self.parts) / self.total if self.total else 1.0

    def __str__(self) -> str:
        return (
            f"{self.found:.1%} of {self.total} titles found ({self.exact} exact, {self.parts} by parts), "
            f"{self.search} guessed by search, {self.missing} missing"
        )

"""Say what a knowledge base answers: passages, the documents of a title, the coverage of many titles."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Passage:
    """A passage that was found.

    id: title#number, the same with and without an index. score: BM25, higher is better; compare it only within one
    result. A score of 0 means that no word is shared with the query, which happens only in a search within titles.
    """

    id: str
    title: str
    text: str
    score: float


@dataclass(frozen=True)
class Lookup:
    """The documents that a title names.

    how: "exact" (the string is a title), "parts" (some of its parts between semicolons are titles), "search" (none is,
    and `titles` are guesses by full-text search) or "missing" (nothing was found). missing: the parts that are no
    titles.
    """

    wanted: str
    titles: tuple[str, ...]
    how: str
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class Coverage:
    """How the titles of a data set were found: counts that add up to `total`, and a few titles that were not found.

    num_parts: the titles that are joined in these, each counted once. missing_parts: those of them that are not there.
    """

    total: int
    exact: int
    parts: int
    search: int
    missing: int
    examples_missing: tuple[str, ...] = ()
    num_parts: int = 0
    missing_parts: tuple[str, ...] = ()

    @property
    def found(self) -> float:
        """Return the share that was found as titles, 0 to 1; guesses by search do not count."""
        return (self.exact + self.parts) / self.total if self.total else 1.0

    def __str__(self) -> str:
        return (
            f"{self.found:.1%} of {self.total} titles found ({self.exact} exact, {self.parts} by parts), "
            f"{self.search} guessed by search, {self.missing} missing; "
            f"of {self.num_parts} single titles {len(self.missing_parts)} missing"
        )

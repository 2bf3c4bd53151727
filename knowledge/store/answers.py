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
    """How the titles of a data set were found, each looked up once."""

    lookups: tuple[Lookup, ...]

    def count(self, *ways: str) -> int:
        return sum(lookup.how in ways for lookup in self.lookups)

    @property
    def found(self) -> float:
        """Return the share that was found as titles, 0 to 1; guesses by search do not count."""
        return self.count("exact", "parts") / len(self.lookups) if self.lookups else 1.0

    @property
    def missing(self) -> list[str]:
        """Return the titles that are not there, each by itself also where a row joins several."""
        return list(dict.fromkeys(title for lookup in self.lookups for title in lookup.missing))

    def __str__(self) -> str:
        return (
            f"{self.found:.1%} of {len(self.lookups)} titles found ({self.count('exact')} exact, "
            f"{self.count('parts')} by parts), {self.count('search')} guessed by search, {self.count('missing')} "
            f"missing; {len(self.missing)} single titles missing"
        )

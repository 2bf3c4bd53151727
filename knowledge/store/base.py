"""Look up titles in a knowledge base, and search it by BM25, in some documents or in all.

    base = KnowledgeBase("wiki.db")
    found = base.lookup("Alex;AleX")                                  # Lookup(titles=("Alex", "AleX"), how="parts")
    base.search("Alex was born in 1962", k=5, titles=found.titles)    # the best passages of these documents
    base.search("who was born in 1962", k=5)                          # the best passages of all

Many threads may use one object. The file is never written to.
"""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Self

from knowledge.store.database import ReadOnlyDatabase, bad_file, check_file
from knowledge.store.fulltext import search_all
from knowledge.store.passages import Passage, split_stored
from knowledge.store.rank import rank
from knowledge.store.tokens import tokens
from knowledge.text import clean

MAX_CACHED_DOCUMENTS = 512  # searched last, with their token counts: about 10 kB per passage
TITLES = "SELECT title FROM documents WHERE title IN (SELECT value FROM json_each(?))"
TEXT = "SELECT text FROM documents WHERE title = ?"
NUM_GUESSES = 3  # titles that a look-up by full-text search may return


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
    """How the titles of a data set were found, each looked up once.

    ways: how many in each way (Lookup.how). missing: titles that are not there, each by itself also where a row joins
    several.
    """

    ways: Counter[str]
    missing: list[str]

    @property
    def found(self) -> float:
        """Return the share that was found as titles, 0 to 1; guesses by search do not count."""
        return (self.ways["exact"] + self.ways["parts"]) / self.ways.total() if self.ways else 1.0

    def __str__(self) -> str:
        ways = self.ways
        return (
            f"{self.found:.1%} of {ways.total()} titles found ({ways['exact']} exact, {ways['parts']} by parts), "
            f"{ways['search']} guessed by search, {ways['missing']} missing; {len(self.missing)} single titles missing"
        )


class KnowledgeBase:
    """Open our own, KnowRL's or FActScore's file, and check it: ours by its digests, others by SQLite.

    UserError (exit 3) says what was found instead, and how to build a knowledge base. Every method may raise
    KnowledgeBusy if the file is locked for 5 s, and UserError (exit 3) if it is damaged, or was changed or replaced
    while in use.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path).absolute()  # a user's reward may change the directory
        self._database = ReadOnlyDatabase(self.path)
        try:
            meta = check_file(self._database)
        except BaseException:
            self._database.close()
            raise
        self._num_passages = meta.get("passages")
        self.has_index = bool(meta)  # KnowRL's and FActScore's files have no full-text index
        self._passages = lru_cache(MAX_CACHED_DOCUMENTS)(self._read_passages)

    def lookup(self, title: str, guess: bool = True) -> Lookup:
        """Find the documents of a title.

        They are those of the exact title, else of its parts between semicolons, else guesses by full-text search. Case
        and diacritics count. guess: whether to guess, in a file with a full-text index.
        """
        wanted = clean(title).strip()
        if wanted and self._stored([wanted]):
            return Lookup(title, (wanted,), "exact")
        stripped = map(str.strip, wanted.split(";"))
        parts = list(filter(None, dict.fromkeys(stripped)))
        stored = self._stored(parts)
        missing = tuple(part for part in parts if part not in stored)
        if stored:
            return Lookup(title, tuple(part for part in parts if part in stored), "parts", missing)
        guesses = []
        if guess and self.has_index:
            guesses = search_all(self._database, self._num_passages, wanted, 2 * NUM_GUESSES)
        titles = list(dict.fromkeys(passage.title for passage in guesses))
        return Lookup(title, tuple(titles[:NUM_GUESSES]), "search" if titles else "missing", missing)

    def search(self, query: str, k: int = 5, titles: Iterable[str] | None = None) -> list[Passage]:
        """Return the k best passages by BM25 for a text, best first; any string is safe.

        KnowRL's query for a fact is its title and the fact, with k = 5, in the documents of the title.

        titles: search only in the passages of these documents (exact titles; an unknown title has no passages). As in
        KnowRL, the statistics are those of just these passages, and passages that share no token with the text come
        last with score 0, so the result has k passages if the documents have as many. This needs no index.
        None: search over everything; see check_search. A document's title then counts as part of its passages, and all
        results share a token with the text.
        """
        if k < 1:
            raise ValueError(f"k must be at least 1, not {k}")
        if titles is None:
            self.check_search()
            return search_all(self._database, self._num_passages, query, k)
        passages = [pair for title in dict.fromkeys(map(clean, titles)) for pair in self._passages(title)]
        ranked = rank(tokens(query), [counts for _, counts in passages])
        return [replace(passages[place][0], score=score) for score, place in ranked[:k]]

    def coverage(self, titles: Iterable[str], guess: bool = True) -> Coverage:
        """Count how many of these titles are found, and how; one that is repeated counts once. guess: see lookup."""
        lookups = [self.lookup(title, guess) for title in dict.fromkeys(titles)]
        missing = dict.fromkeys(title for lookup in lookups for title in lookup.missing)
        return Coverage(Counter(lookup.how for lookup in lookups), list(missing))

    def check_search(self) -> None:
        """Raise UserError (exit 3) if the file has no full-text index."""
        if not self.has_index:
            raise bad_file(
                self.path,
                "it has no full-text index",
                "an index of all texts, as our builds have",
                f"python -m knowledge.build {self.path} OUT.db, and use OUT.db",
            )

    def close(self) -> None:
        """Free the connections and the cache."""
        self._database.close()
        self._passages.cache_clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _stored(self, titles: list[str]) -> set[str]:
        """Return those of the titles that are documents."""
        return {title for (title,) in self._database.rows(TITLES, json.dumps(titles))}

    def _read_passages(self, title: str) -> list[tuple[Passage, Counter]]:
        """Return the passages of a document, without a score, and their tokens; cached as self._passages."""
        documents = self._database.rows(TEXT, title)
        texts = [text for (document,) in documents for text in split_stored(str(document or ""))]
        return [
            (Passage(f"{title}#{number}", title, text, 0.0), Counter(tokens(text))) for number, text in enumerate(texts)
        ]

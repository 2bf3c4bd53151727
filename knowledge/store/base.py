"""The knowledge base as the rewards see it: titles to documents, and BM25 search in some documents or over everything.

    base = KnowledgeBase.open("wiki.db")
    found = base.lookup("Alex;AleX")                                  # Lookup(titles=("Alex", "AleX"), how="parts")
    base.search("Alex was born in 1962", k=5, titles=found.titles)    # the best passages of these documents
    base.search("who was born in 1962", k=5)                          # the best passages of all

One object may be used by many threads, and in the child after a fork. The file is never written to.
"""

import json
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Self

from knowledge.store.database import BUSY_TIMEOUT_S, ReadOnlyDatabase
from knowledge.store.fulltext import FullTextIndex
from knowledge.store.passages import split_stored
from knowledge.store.rank import Bag, rank
from knowledge.store.recognise import OURS, Kind, check_header, recognise, require_fts5
from knowledge.store.result import Coverage, Lookup, Passage
from knowledge.store.side_index import build_side_index, read_side_index, side_index_path
from knowledge.store.tokens import tokens

MAX_CACHED_DOCUMENTS = 512  # searched last, with their token counts: about 10 kB per passage
NUM_GUESSES = 3  # titles that a look-up by full-text search may return
NUM_EXAMPLES = 5

TITLES = "SELECT title FROM documents WHERE title IN (SELECT value FROM json_each(?))"
TEXT = "SELECT text FROM documents WHERE title = ?"


class KnowledgeBase:
    """Open it with `KnowledgeBase.open`; a context manager. Every method may raise KnowledgeBusy when the file is
    locked for 5 s, and UserError (exit 3) when it is damaged, or replaced while in use."""

    def __init__(self, database: ReadOnlyDatabase, kind: Kind, side_index: Path):
        self.path, self.kind = database.path, kind
        self._database, self._side_index = database, side_index
        self._index = FullTextIndex(database, kind.meta, kind.markers) if kind.owner == OURS else None
        self._passages = lru_cache(MAX_CACHED_DOCUMENTS)(self._read_passages)

    @classmethod
    def open(
        cls, path: str | Path, side_index: str | Path | None = None, busy_timeout_s: float = BUSY_TIMEOUT_S
    ) -> Self:
        """Our own, KnowRL's or FActScore's file. UserError (exit 3) says what was found instead, and how to build one.

        side_index: where the full-text index of a file that is not ours is or shall be (default: beside it, or in the
        cache folder).
        """
        path = Path(path)
        check_header(path)
        database = ReadOnlyDatabase(path, busy_timeout_s=busy_timeout_s)
        try:
            base = cls(database, recognise(database), Path(side_index) if side_index else side_index_path(path))
            base._use_side_index()
        except BaseException:
            database.close()
            raise
        return base

    @property
    def can_search_everything(self) -> bool:
        """Is there a full-text index? Without one, search(titles=None) builds it first, which takes minutes per GB."""
        return self._index is not None

    def lookup(self, title: str) -> Lookup:
        """The documents of a title: the exact title; else its parts between semicolons, each exact; else guesses by
        full-text search.

        Case and diacritics count. Guesses are made only where a full-text index is there already.
        """
        wanted = title.strip()
        if self._stored([wanted]):
            return Lookup(title, (wanted,), "exact")
        parts = list(dict.fromkeys(part for piece in wanted.split(";") if (part := piece.strip())))
        stored = self._stored(parts)
        missing = tuple(part for part in parts if part not in stored)
        if stored:
            return Lookup(title, tuple(part for part in parts if part in stored), "parts", missing)
        guesses = self._index.search(wanted, 2 * NUM_GUESSES) if self._index else []
        titles = tuple(dict.fromkeys(passage.title for passage in guesses))[:NUM_GUESSES]
        return Lookup(title, titles, "search" if titles else "missing", missing)

    def search(self, query: str, k: int = 5, titles: Iterable[str] | None = None) -> list[Passage]:
        """The k best passages by BM25 for a text, best first; any string is safe.

        KnowRL's query for a fact is its title and the fact, k = 5, in the documents of the title.

        titles: search in the passages of these documents only (exact titles; unknown ones have none), with statistics
        of just these passages, as KnowRL does; needs no index. Also as there, passages that share no token with the
        text come last, in their order, with score 0: k passages if the documents have as many. None: over everything,
        where a document's title counts as part of its passages, and all results share a token with the text.
        """
        if k < 1:
            raise ValueError(f"k must be at least 1, not {k}")
        if titles is None:
            self.prepare_search()
            return self._index.search(query, k)
        passages = [passage for title in dict.fromkeys(titles) for passage in self._passages(title)]
        best = rank(tokens(query), [bag for _, _, _, bag in passages])[:k]
        return [
            Passage(f"{title}#{number}", title, text, score)
            for score, position in best
            for title, number, text, _ in (passages[position],)
        ]

    def coverage(self, titles: Iterable[str]) -> Coverage:
        """How many of these titles (a data set's title column, repetitions counted once) are found, and how."""
        found = [self.lookup(title) for title in dict.fromkeys(titles)]
        counts = {how: sum(lookup.how == how for lookup in found) for how in ("exact", "parts", "search", "missing")}
        examples = [lookup.wanted for lookup in found if lookup.how in ("search", "missing")]
        return Coverage(len(found), **counts, examples_missing=tuple(examples[:NUM_EXAMPLES]))

    def prepare_search(self) -> None:
        """Makes sure that there is a full-text index: for KnowRL's and FActScore's files the first call builds the side
        index, once for all processes. UserError: no FTS5 (exit 3), no room for it (exit 6)."""
        if not self._index:
            require_fts5(self.path)
            build_side_index(self.path, self._side_index, self.kind.markers)
            self._use_side_index()

    def close(self) -> None:
        """Frees the connections and the cache."""
        self._database.close()
        self._passages.cache_clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _use_side_index(self) -> None:
        """Attaches the side index, if there is one that fits; our own files hold their index themselves."""
        meta = None if self._index else read_side_index(self.path, self._side_index)
        if meta:
            alone, self._database = (
                self._database,
                ReadOnlyDatabase(self.path, self._side_index, self._database.busy_timeout_s),
            )
            self._index = FullTextIndex(self._database, meta, self.kind.markers)
            alone.close()

    def _stored(self, titles: list[str]) -> set[str]:
        """Those of the titles that are documents. A title that no file can hold (NUL, a lone surrogate) is none."""
        sound = [title for title in titles if is_storable(title)]
        return {title for (title,) in self._database.rows(TITLES, json.dumps(sound))} if sound else set()

    def _read_passages(self, title: str) -> list[tuple[str, int, str, Bag]]:
        """(title, number, text, bag) of each passage of a document, none if there is no such title; cached as
        self._passages."""
        rows = self._database.rows(TEXT, title) if is_storable(title) else []
        texts = split_stored(str(rows[0][0] or ""), self.kind.markers) if rows else []
        return [(title, number, text, Bag.of(tokens(text))) for number, text in enumerate(texts)]


def is_storable(title: str) -> bool:
    """Can SQLite hold this text? Not with a NUL in it, nor half of a surrogate pair."""
    return "\0" not in title and not any("\ud800" <= letter <= "\udfff" for letter in title)

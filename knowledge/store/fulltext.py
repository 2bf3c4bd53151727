"""Search over everything: SQLite's FTS5 scores the passages that hold the rarest words of a query.

Common words cost and rare words decide. FTS5 scores every passage that holds a query token, at 1 to 3 microseconds
each, and a word like "city" may stand in a third of a million passages of a 1 GB base. So the tokens are taken from the
rarest on while their passages add up to at most 5 % of the base (`max_rows`); the others do not count.
"""

import json
from collections.abc import Iterable

from knowledge.store.database import ReadOnlyDatabase
from knowledge.store.passages import split_stored
from knowledge.store.result import Passage
from knowledge.store.tokens import tokens

# How many passages FTS5 may have to score for one query: a share of the base, within bounds. 30 ms at most.
SHARE_OF_ROWS, MIN_ROWS, MAX_ROWS = 0.05, 2000, 60_000
MAX_TOKENS = 32  # rarest tokens of a very long query

COUNTS = "SELECT term, passages FROM knowledge_terms WHERE term IN (SELECT value FROM json_each(?))"
# rowid <= ? ends the search early where only common words are sought; rank is bm25(), the lower the better
BEST = """
    SELECT doc.title, best.number - doc.first, documents.text, -best.score
    FROM (
        SELECT rowid AS number, rank AS score FROM knowledge_index
        WHERE knowledge_index MATCH ? AND rowid <= ? ORDER BY rank LIMIT ?
    ) AS best
    JOIN knowledge_documents AS doc ON doc.first = (
        SELECT max(first) FROM knowledge_documents WHERE first <= best.number
    )
    JOIN documents ON documents.title = doc.title
    ORDER BY best.score, doc.title, best.number"""


class FullTextIndex:
    """Search the index tables of `database`; `meta` is their record. Has no state."""

    def __init__(self, database: ReadOnlyDatabase, meta: dict):
        self._database = database
        self.num_passages: int = meta["passages"]
        self.max_rows = min(MAX_ROWS, max(MIN_ROWS, int(self.num_passages * SHARE_OF_ROWS)))

    def search(self, query: str, k: int) -> list[Passage]:
        """Return the k best passages, best first, and by title and number where scores are equal.

        The list is empty if no passage holds a token of the query.
        """
        num_with = self._num_with(dict.fromkeys(tokens(query)))
        rare = []
        num_rows = 0
        for token, number in num_with.items():
            num_rows += number
            if num_rows > self.max_rows or len(rare) == MAX_TOKENS:
                break
            rare.append(quote(token))
        if rare:
            return self._matches(" OR ".join(rare), self.num_passages, k)
        return self._common_words_only(list(num_with.items()), k)

    def _num_with(self, wanted: Iterable[str]) -> dict[str, int]:
        """Return in how many passages each token is, rarest first; tokens that are in none are left out."""
        found = map(tuple, self._database.rows(COUNTS, json.dumps(list(wanted))))
        return dict(sorted(found, key=lambda item: (item[1], item[0])))

    def _common_words_only(self, words: list[tuple[str, int]], k: int) -> list[Passage]:
        """Return first the passages that hold all words, then those that hold all but the commonest, and so on.

        A single common word is sought from the start of the file, until it was met about max_rows times.
        """
        found: dict[str, Passage] = {}
        while words and len(found) < k:
            last = self.num_passages
            if len(words) == 1:
                last = last * self.max_rows // words[0][1]
            for passage in self._matches(" AND ".join(quote(token) for token, _ in words), last, k):
                found.setdefault(passage.id, passage)
            words = words[:-1]
        return list(found.values())[:k]

    def _matches(self, expression: str, last: int, k: int) -> list[Passage]:
        """Return the k best passages for FTS5's expression, up to the passage number `last`."""
        found = []
        for title, number, document, score in self._database.rows(BEST, expression, last, k):
            text = split_stored(document)[number]
            found.append(Passage(f"{title}#{number}", title, text, score))
        return found


def quote(token: str) -> str:
    """Return a token as an FTS5 string: never an operator, a column or a prefix, whatever it holds."""
    return '"' + token.replace('"', '""') + '"'

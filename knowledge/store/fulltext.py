"""Search over everything: SQLite finds candidates by the rarest words, BM25 in Python (rank.py) orders them by all.

Common words cost and rare words decide. FTS5 scores every passage that holds a query token, at 1 to 3 microseconds
each, and a word like "city" may stand in a third of a million passages of a 1 GB base. So the tokens are taken from the
rarest on while their passages add up to at most 5 % of the base (`max_rows`); the others count only in the second
scoring. Slow twin: `rank.rank` over all passages.
"""

import json
import zlib
from collections.abc import Iterable

from knowledge.errors import bad_file
from knowledge.store.database import ReadOnlyDatabase
from knowledge.store.index import decompress
from knowledge.store.passages import split_stored
from knowledge.store.rank import Bag, bm25, idf
from knowledge.store.result import Passage
from knowledge.store.tokens import tokens

# How many passages FTS5 may have to score for one query: a share of the base, within bounds. 30 ms at most.
SHARE_OF_ROWS, MIN_ROWS, MAX_ROWS = 0.05, 2000, 60_000
MAX_TOKENS = 32  # rarest tokens of a very long query
# Passages that Python scores again: 3 k, and one more per 1500 that compete.
CANDIDATES_PER_RESULT, ROWS_PER_CANDIDATE = 3, 1500

TERMS = "SELECT term, passages FROM knowledge_terms WHERE term IN (SELECT value FROM json_each(?))"
# rowid <= ? ends the search early where only common words are sought; rank is bm25()
CANDIDATES = """
    SELECT best.number - doc.first, doc.title, documents.text, knowledge_tokens.tokens
    FROM (
        SELECT rowid AS number FROM knowledge_index
        WHERE knowledge_index MATCH ? AND rowid <= ? ORDER BY rank LIMIT ?
    ) AS best
    JOIN knowledge_documents AS doc ON doc.first = (
        SELECT max(first) FROM knowledge_documents WHERE first <= best.number
    )
    JOIN documents ON documents.title = doc.title
    JOIN knowledge_tokens ON knowledge_tokens.passage = best.number"""
Candidate = tuple[int, str, str, bytes]  # number in its document, title, text of the document, tokens of the passage


class FullTextIndex:
    """Search the index tables that are in `database` or attached to it; `meta` is their record. Has no state."""

    def __init__(self, database: ReadOnlyDatabase, meta: dict, markers: bool):
        self._database, self._markers = database, markers
        self.num_passages: int = meta["passages"]
        self.mean_length: float = meta["tokens"] / max(self.num_passages, 1)
        self.max_rows = min(MAX_ROWS, max(MIN_ROWS, int(self.num_passages * SHARE_OF_ROWS)))

    def search(self, query: str, k: int) -> list[Passage]:
        """Return the k best passages, best first, and by title and number where scores are equal.

        The list is empty if no passage holds a token of the query.
        """
        num_with = self._num_with(dict.fromkeys(tokens(query)))
        weights = {token: idf(self.num_passages, number) for token, number in num_with.items()}
        scored = []
        limit = CANDIDATES_PER_RESULT * k + self.max_rows // ROWS_PER_CANDIDATE
        for number, title, document, stored in self._candidates(num_with, limit):
            score = bm25(weights, Bag.of(self._tokens(stored)), self.mean_length)
            scored.append((-score, title, number, document))
        found = []
        for score, title, number, document in sorted(scored)[:k]:
            text = split_stored(document, self._markers)[number]
            found.append(Passage(f"{title}#{number}", title, text, -score))
        return found

    def _tokens(self, stored: bytes) -> list[str]:
        try:
            return decompress(stored)
        except (zlib.error, UnicodeDecodeError) as error:
            raise bad_file(self._database.path, f"damaged: {error}", "a sound index", "build it again") from None

    def _num_with(self, wanted: Iterable[str]) -> dict[str, int]:
        """Return in how many passages each token is, rarest first; tokens that are in none are left out."""
        found = map(tuple, self._database.rows(TERMS, json.dumps(list(wanted))))
        return dict(sorted(found, key=lambda item: (item[1], item[0])))

    def _candidates(self, num_with: dict[str, int], limit: int) -> list[Candidate]:
        """Return the passages that FTS5's bm25 puts first for the rarest tokens."""
        rare = []
        num_rows = 0
        for token, number in num_with.items():
            num_rows += number
            if num_rows > self.max_rows or len(rare) == MAX_TOKENS:
                break
            rare.append(quote(token))
        if rare:
            return self._database.rows(CANDIDATES, " OR ".join(rare), self.num_passages, limit)
        return self._common_words_only(list(num_with.items()), limit)

    def _common_words_only(self, words: list[tuple[str, int]], limit: int) -> list[Candidate]:
        """Return first the passages that hold all words, then those that hold all but the commonest, and so on.

        A single common word is sought from the start of the file, until it was met about max_rows times.
        """
        found: dict[Candidate, None] = {}
        while words and len(found) < limit:
            all_words = " AND ".join(quote(token) for token, _ in words)
            last = self.num_passages
            if len(words) == 1:
                last = last * self.max_rows // words[0][1]
            found |= dict.fromkeys(self._database.rows(CANDIDATES, all_words, last, limit))
            words = words[:-1]
        return list(found)


def quote(token: str) -> str:
    """Return a token as an FTS5 string: never an operator, a column or a prefix, whatever it holds."""
    return '"' + token.replace('"', '""') + '"'

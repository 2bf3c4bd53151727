"""Search over everything: SQLite finds candidates by the rarest words, BM25 in Python (rank.py) orders them by all words.

Common words cost and rare ones decide. FTS5 scores every passage that holds a query token at 1 to 3 microseconds each, and a word
like "city" may stand in a third of a million passages of a 1 GB base. So the tokens are taken from the rarest on while their passages
add up to at most 5 % of the base (`max_rows`); the others count only in the second scoring. Slow twin: `rank.rank` over all passages.
"""

import json
from collections.abc import Iterable

from knowledge.store.connect import ReadOnlyDatabase
from knowledge.store.passages import split_stored
from knowledge.store.rank import Bag, bm25, idf
from knowledge.store.result import Passage
from knowledge.store.spelling import is_misspelling, spelling_key
from knowledge.store.tokens import tokens

SHARE_OF_ROWS, MIN_ROWS, MAX_ROWS = (
    0.05,
    2000,
    60_000,
)  # passages that FTS5 may have to score for one query: 30 ms at most
MAX_TOKENS = 32  # rarest tokens of a very long query
CANDIDATES_PER_RESULT, ROWS_PER_CANDIDATE = 3, 1500  # passages scored again in Python: 3 k, and more where more compete

TERMS = "SELECT term, passages FROM knowledge_terms WHERE term IN (SELECT value FROM json_each(?))"
SPELLINGS = "SELECT letters, term FROM knowledge_spellings WHERE letters IN (SELECT value FROM json_each(?))"
# rowid <= ? cuts the search short where only common words are sought; rank is bm25()
CANDIDATES = """
    SELECT best.number - doc.first, doc.title, documents.text
    FROM (SELECT rowid AS number FROM knowledge_index WHERE knowledge_index MATCH ? AND rowid <= ? ORDER BY rank LIMIT ?) AS best
    JOIN knowledge_documents AS doc ON doc.first = (SELECT max(first) FROM knowledge_documents WHERE first <= best.number)
    JOIN documents ON documents.title = doc.title"""


class FullTextIndex:
    """The index tables of `database`, in it or attached to it; meta: their record. Holds no state of its own."""

    def __init__(self, database: ReadOnlyDatabase, meta: dict, markers: bool):
        self._database, self._markers = database, markers
        self.num_passages: int = meta["passages"]
        self.mean_length: float = meta["tokens"] / max(meta["passages"], 1)
        self.max_rows = min(MAX_ROWS, max(MIN_ROWS, int(self.num_passages * SHARE_OF_ROWS)))

    def search(self, query: str, k: int) -> list[Passage]:
        """The k best passages, best first, ties by title and number. [] if no token of the query is in any passage."""
        num_with = self._num_with(dict.fromkeys(tokens(query)))
        weights = {token: idf(self.num_passages, number) for token, number in num_with.items()}
        scored = []
        for number, title, text in self._candidates(
            num_with, CANDIDATES_PER_RESULT * k + self.max_rows // ROWS_PER_CANDIDATE
        ):
            passage = split_stored(text, self._markers)[number]
            score = bm25(weights, Bag.of(tokens(f"{title}\n{passage}")), self.mean_length)
            scored.append((-score, title, number, passage))
        return [
            Passage(f"{title}#{number}", title, passage, -score) for score, title, number, passage in sorted(scored)[:k]
        ]

    def _num_with(self, wanted: Iterable[str]) -> dict[str, int]:
        """How many passages hold each token, rarest first; likely spellings stand in for tokens that none holds."""
        wanted = list(wanted)
        num_with = self._look_up(wanted)
        unseen = {token: letters for token in wanted if token not in num_with and (letters := spelling_key(token))}
        if unseen:
            spellings = self._database.rows(SPELLINGS, json.dumps(sorted(set(unseen.values()))))
            num_with |= self._look_up(
                sorted(
                    {
                        term
                        for token, letters in unseen.items()
                        for same_letters, term in spellings
                        if same_letters == letters and is_misspelling(token, term)
                    }
                )
            )
        return dict(sorted(num_with.items(), key=lambda item: (item[1], item[0])))

    def _look_up(self, terms: list[str]) -> dict[str, int]:
        return dict(map(tuple, self._database.rows(TERMS, json.dumps(terms)))) if terms else {}

    def _candidates(self, num_with: dict[str, int], limit: int) -> list[tuple[int, str, str]]:
        """(number in its document, title, text of the document) of the passages that FTS5's bm25 puts first for the rarest tokens."""
        rare, cost = [], 0
        for token, number in num_with.items():
            cost += number
            if cost > self.max_rows or len(rare) == MAX_TOKENS:
                break
            rare.append(quote(token))
        if rare:
            return self._database.rows(CANDIDATES, " OR ".join(rare), self.num_passages, limit)
        return self._common_words_only(list(num_with.items()), limit)

    def _common_words_only(self, words: list[tuple[str, int]], limit: int) -> list[tuple[int, str, str]]:
        """Every word is common: first the passages that hold all of them, then those that hold all but the commonest, and so on.

        A single common word is sought from the start of the file, only as far as to meet it about max_rows times.
        """
        found: dict[tuple[int, str], tuple[int, str, str]] = {}
        while words and len(found) < limit:
            every, last = " AND ".join(quote(token) for token, _ in words), self.num_passages
            if len(words) == 1:
                last = last * self.max_rows // words[0][1]
            found |= {
                (number, title): (number, title, text)
                for number, title, text in self._database.rows(CANDIDATES, every, last, limit)
            }
            words = words[:-1]
        return list(found.values())


def quote(token: str) -> str:
    """A token as an FTS5 string: never an operator, a column or a prefix, whatever it holds."""
    return '"' + token.replace('"', '""') + '"'

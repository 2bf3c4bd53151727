"""The full-text index over everything: the writer of its tables, and the search by SQLite's FTS5.

    knowledge_index       FTS5 without content: the tokens of a passage (title and text) under the passage's number
    knowledge_terms       in how many passages a token occurs: what it costs in a query
    knowledge_documents   number of a document's first passage -> title; a passage belongs to the last document that
                          starts before it
    knowledge_meta        format version, counts, a digest of all titles and passages

In our own files these tables stand next to `documents(title, text)`. KnowRL's and FActScore's files have
none of them, and are never written to.

Common words cost and rare words decide. FTS5 scores every passage that holds a query token, at 1 to 3 microseconds
each, and a word like "city" may stand in a third of a million passages of a 1 GB base. So the tokens are taken from the
rarest on while their passages add up to at most 5 % of the base (`max_rows`); the others do not count. Of a query of
common words alone, the rarest is sought in the first part of the base.
"""

import hashlib
import json
from sqlite3 import Connection

from knowledge.store.database import FORMAT_VERSION, ReadOnlyDatabase
from knowledge.store.passages import Passage, split_stored
from knowledge.store.tokens import TOKENS_VERSION, tokens

BATCH_ROWS = 1000  # rows handed to SQLite at once
HASH_BYTES = 64 << 20  # FTS5 gathers this much of the index in memory before it writes a segment
CACHE_KIB = 64 << 10  # SQLite's page cache during the build

# How many passages FTS5 may have to score for one query: a share of the base, within bounds. 30 ms at most.
SHARE_OF_ROWS, MIN_ROWS, MAX_ROWS = 0.05, 2000, 60_000
MAX_TOKENS = 32  # rarest tokens of a very long query

# `documents` is KnowRL's table, so KnowRL's code can read our files. The 'ascii' tokenizer splits at ASCII separators
# only, so it returns our tokens unchanged, in any script and any version of SQLite.
CREATE = (
    "CREATE TABLE documents (title TEXT NOT NULL PRIMARY KEY, text TEXT NOT NULL)",
    "CREATE VIRTUAL TABLE knowledge_index USING fts5(tokens, content='', tokenize='ascii')",
    "CREATE TABLE knowledge_terms (term TEXT NOT NULL PRIMARY KEY, passages INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE knowledge_documents (first INTEGER NOT NULL PRIMARY KEY, title TEXT NOT NULL)",
    "CREATE TABLE knowledge_meta (key TEXT NOT NULL PRIMARY KEY, value TEXT NOT NULL)",
)
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
VOCABULARY = "CREATE VIRTUAL TABLE temp.vocabulary USING fts5vocab(main, knowledge_index, row)"


class IndexWriter:
    """Fill the tables of a new database, document by document; `finish` merges the index and writes the counts.

    Nothing here sorts, so SQLite needs no temporary files. It takes HASH_BYTES + CACHE_KIB + one document of memory,
    whatever the size of the source.
    """

    def __init__(self, connection: Connection):
        self.connection = connection
        self.num_documents = 0
        self.num_passages = 0
        self._content = hashlib.sha256()
        self._rows: list[tuple[int, str]] = []
        self._run = connection.execute
        self._run(f"PRAGMA cache_size=-{CACHE_KIB}")
        for statement in CREATE:
            self._run(statement)
        for option in (("hashsize", HASH_BYTES), ("automerge", 0), ("crisismerge", 16)):
            self._run("INSERT INTO knowledge_index(knowledge_index, rank) VALUES (?, ?)", option)

    def add(self, title: str, text: str, passages: list[str]) -> bool:
        """Add one document, of which `text` is stored and the passages are sought; False if its title is there."""
        if not self._run("INSERT OR IGNORE INTO documents VALUES (?, ?)", (title, text)).rowcount:
            return False
        self._run("INSERT INTO knowledge_documents VALUES (?, ?)", (self.num_passages + 1, title))
        self.num_documents += 1
        self._content.update(json.dumps([title, passages]).encode())
        title_tokens = tokens(title)
        for passage in passages:
            self.num_passages += 1
            self._rows.append((self.num_passages, " ".join(title_tokens + tokens(passage))))
        if len(self._rows) >= BATCH_ROWS:
            self._flush()
        return True

    def finish(self) -> None:
        """Merge the index to one segment, and write knowledge_meta."""
        self._flush()
        self._run("INSERT INTO knowledge_index(knowledge_index) VALUES ('optimize')")
        self._run(VOCABULARY)
        self._run("INSERT INTO knowledge_terms SELECT term, doc FROM temp.vocabulary")
        self._run("DROP TABLE temp.vocabulary")
        meta = {
            "content": self._content.hexdigest(),
            "format_version": FORMAT_VERSION,
            "tokens_version": TOKENS_VERSION,
            "documents": self.num_documents,
            "passages": self.num_passages,
        }
        for key, value in sorted(meta.items()):
            self._run("INSERT INTO knowledge_meta VALUES (?, ?)", (key, json.dumps(value)))

    def _flush(self) -> None:
        self.connection.executemany("INSERT INTO knowledge_index(rowid, tokens) VALUES (?, ?)", self._rows)
        self._rows = []


def search_all(database: ReadOnlyDatabase, num_passages: int, query: str, k: int) -> list[Passage]:
    """Return the k best of all passages, best first, and by title and number where scores are equal.

    The list is empty if no passage holds a token of the query.
    """
    max_rows = min(MAX_ROWS, max(MIN_ROWS, int(num_passages * SHARE_OF_ROWS)))
    wanted = list(dict.fromkeys(tokens(query)))
    counted = database.rows(COUNTS, json.dumps(wanted))  # (token, number of passages with it)
    rarest_first = sorted(counted, key=lambda item: (item[1], item[0]))
    if not rarest_first:
        return []
    rare = []
    num_rows = 0
    for token, number in rarest_first:
        num_rows += number
        if num_rows > max_rows or len(rare) == MAX_TOKENS:
            break
        rare.append(token)
    last = num_passages
    if not rare:  # common words only: the rarest of them, from the start until it was met about max_rows times
        token, number = rarest_first[0]
        rare = [token]
        last = last * max_rows // number
    # Tokens are letters and digits, and within quotes no operator or column.
    match = " OR ".join(f'"{token}"' for token in rare)
    return [
        Passage(f"{title}#{number}", title, split_stored(document)[number], score)
        for title, number, document, score in database.rows(BEST, match, last, k)
    ]

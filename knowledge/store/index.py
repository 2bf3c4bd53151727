"""Write the full-text index: its tables, filled in constant memory.

    knowledge_index       FTS5 without content: the tokens of a passage (title and text) under the passage's number
    knowledge_terms       in how many passages a token occurs: what it costs in a query
    knowledge_documents   number of a document's first passage -> title; a passage belongs to the last document that
                          starts before it
    knowledge_meta        format version, counts, a digest of all titles and passages (identity.py)

In our own files these tables stand next to `documents(title, text)`, which is KnowRL's table, so KnowRL's code can read
our files. KnowRL's and FActScore's files have none of them, and are never written to.
"""

import hashlib
import json
from sqlite3 import Connection

from knowledge.store.tokens import TOKENS_VERSION, tokens

FORMAT_VERSION = 4
BATCH_ROWS = 1000  # rows handed to SQLite at once
HASH_BYTES = 64 << 20  # FTS5 gathers this much of the index in memory before it writes a segment
CACHE_KIB = 64 << 10  # SQLite's page cache during the build

DOCUMENTS_TABLE = "CREATE TABLE documents (title TEXT PRIMARY KEY, text TEXT NOT NULL)"
INDEX_TABLES = {
    # The 'ascii' tokenizer splits at ASCII separators only, so it returns our tokens unchanged, in any script and any
    # version of SQLite.
    "knowledge_index": "CREATE VIRTUAL TABLE knowledge_index USING fts5(tokens, content='', tokenize='ascii')",
    "knowledge_terms": "CREATE TABLE knowledge_terms (term TEXT PRIMARY KEY, passages INTEGER NOT NULL) WITHOUT ROWID",
    "knowledge_documents": "CREATE TABLE knowledge_documents (first INTEGER PRIMARY KEY, title TEXT NOT NULL)",
    "knowledge_meta": "CREATE TABLE knowledge_meta (key TEXT PRIMARY KEY, value TEXT NOT NULL)",
}

VOCABULARY = "CREATE VIRTUAL TABLE temp.vocabulary USING fts5vocab(main, knowledge_index, row)"


class IndexWriter:
    """Fill the index tables of a new database, document by document; `finish` merges the index and writes the counts.

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
        for table in INDEX_TABLES.values():
            self._run(table)
        for option in (("hashsize", HASH_BYTES), ("automerge", 0), ("crisismerge", 16)):
            self._run("INSERT INTO knowledge_index(knowledge_index, rank) VALUES (?, ?)", option)

    def add(self, title: str, passages: list[str]) -> None:
        """Add one document with its passages, in order; a document without passages is not indexed."""
        if not passages:
            return
        self._run("INSERT INTO knowledge_documents VALUES (?, ?)", (self.num_passages + 1, title))
        self.num_documents += 1
        self._content.update(json.dumps([title, passages]).encode())
        title_tokens = tokens(title)
        for passage in passages:
            self.num_passages += 1
            self._rows.append((self.num_passages, " ".join(title_tokens + tokens(passage))))
        if len(self._rows) >= BATCH_ROWS:
            self._flush()

    def finish(self) -> None:
        """Merge the index to one segment, and write the record of it."""
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
        rows = [(key, json.dumps(value)) for key, value in sorted(meta.items())]
        self.connection.executemany("INSERT INTO knowledge_meta VALUES (?, ?)", rows)

    def _flush(self) -> None:
        self.connection.executemany("INSERT INTO knowledge_index(rowid, tokens) VALUES (?, ?)", self._rows)
        self._rows = []

"""The full-text index: its tables, and the writer that fills them in constant memory.

    knowledge_index       FTS5 without content: a passage's tokens (title and text, made by tokens.py) under the passage's number
    knowledge_documents   number of a document's first passage -> title; a passage belongs to the last document that starts before it
    knowledge_terms       in how many passages a token occurs: what it costs in a query, and what it tells
    knowledge_spellings   letters of a word -> the words written with them (spelling.py)
    knowledge_meta        format version, counts, checksum of the content

In our own files these tables lie beside `documents(title, text)`, which is KnowRL's table: its code can read our files.
For KnowRL's and FActScore's files, which are never written to, they lie in a side index file of their own.
"""

import hashlib
import json
from collections.abc import Iterable
from itertools import islice

from sqlalchemy import Connection

from knowledge.store.spelling import spelling_key
from knowledge.store.tokens import TOKENS_VERSION, tokens

FORMAT_VERSION = 1
BATCH_ROWS = 1000  # rows handed to SQLite at once
HASH_BYTES = 64 << 20  # FTS5 gathers this much of the index in memory before it writes a segment
CACHE_KIB = 64 << 10  # SQLite's page cache during the build

DOCUMENTS_TABLE = "CREATE TABLE documents (title TEXT PRIMARY KEY, text TEXT NOT NULL)"
INDEX_TABLES = (
    # The 'ascii' tokenizer takes tokens apart at ASCII separators only, so it returns ours unchanged, in any script and
    # any SQLite version. Without column sizes bm25() knows no lengths, which passages of like size need little, and
    # takes half the time; it only proposes candidates. It does need positions (detail=full) to count.
    "CREATE VIRTUAL TABLE knowledge_index USING fts5(tokens, content='', columnsize=0, tokenize='ascii')",
    "CREATE TABLE knowledge_documents (first INTEGER PRIMARY KEY, title TEXT NOT NULL)",
    "CREATE TABLE knowledge_terms (term TEXT PRIMARY KEY, passages INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE knowledge_spellings (letters TEXT, term TEXT, PRIMARY KEY (letters, term)) WITHOUT ROWID",
    "CREATE TABLE knowledge_meta (key TEXT PRIMARY KEY, value TEXT NOT NULL)",
)
INDEX_NAMES = {"knowledge_index", "knowledge_documents", "knowledge_terms", "knowledge_spellings", "knowledge_meta"}
CONTENT = {  # every row that a search can touch, for the checksums
    "documents": "SELECT title, text FROM main.documents ORDER BY rowid",
    "knowledge_index_data": "SELECT id, block FROM main.knowledge_index_data ORDER BY id",
    "knowledge_documents": "SELECT first, title FROM main.knowledge_documents ORDER BY first",
    "knowledge_terms": "SELECT term, passages FROM main.knowledge_terms ORDER BY term",
    "knowledge_spellings": "SELECT letters, term FROM main.knowledge_spellings ORDER BY letters, term",
}
VOCABULARY = "CREATE VIRTUAL TABLE temp.vocabulary USING fts5vocab(main, knowledge_index, row)"


class IndexWriter:
    """Fills the index tables of a fresh database, document by document; `finish` merges the segments and writes the
    statistics.

    Nothing here sorts, so SQLite needs no temporary files. Memory: HASH_BYTES + CACHE_KIB + one document, whatever the
    source's size.
    """

    def __init__(self, connection: Connection):
        self.connection = connection
        self.num_documents = self.num_passages = self.num_tokens = 0
        self._rows: list[tuple[int, str]] = []
        connection.exec_driver_sql(f"PRAGMA cache_size=-{CACHE_KIB}")
        for table in INDEX_TABLES:
            connection.exec_driver_sql(table)
        for option, value in (("hashsize", HASH_BYTES), ("automerge", 0), ("crisismerge", 16)):
            connection.exec_driver_sql(
                "INSERT INTO knowledge_index(knowledge_index, rank) VALUES (?, ?)", (option, value)
            )

    def add(self, title: str, passages: list[str]) -> None:
        """One document with its passages, in order; a document without passages is not indexed."""
        if not passages:
            return
        self.connection.exec_driver_sql("INSERT INTO knowledge_documents VALUES (?, ?)", (self.num_passages + 1, title))
        self.num_documents += 1
        title_tokens = tokens(title)
        for passage in passages:
            passage_tokens = title_tokens + tokens(passage)
            self.num_passages += 1
            self.num_tokens += len(passage_tokens)
            self._rows.append((self.num_passages, " ".join(passage_tokens)))
        if len(self._rows) >= BATCH_ROWS:
            self._flush()

    def finish(self, **meta: object) -> None:
        """Merges the index to one segment; writes the term statistics, the spellings, the counts, and the checksum of
        each table."""
        self._flush()
        self.connection.exec_driver_sql("INSERT INTO knowledge_index(knowledge_index) VALUES ('optimize')")
        num_terms = self._write_terms()
        tables = {name for (name,) in self.connection.exec_driver_sql("SELECT name FROM main.sqlite_master")}
        checksums = {
            name: checksum(self.connection.exec_driver_sql(sql)) for name, sql in CONTENT.items() if name in tables
        }
        meta |= {
            "format_version": FORMAT_VERSION,
            "tokens_version": TOKENS_VERSION,
            "documents": self.num_documents,
            "passages": self.num_passages,
            "tokens": self.num_tokens,
            "terms": num_terms,
            "checksums": checksums,
        }
        self.connection.exec_driver_sql(
            "INSERT INTO knowledge_meta VALUES (?, ?)",
            [(key, json.dumps(value)) for key, value in sorted(meta.items())],
        )

    def _flush(self) -> None:
        if self._rows:
            self.connection.exec_driver_sql("INSERT INTO knowledge_index(rowid, tokens) VALUES (?, ?)", self._rows)
            self._rows.clear()

    def _write_terms(self) -> int:
        """One pass over the vocabulary, in its order; returns its size."""
        self.connection.exec_driver_sql(VOCABULARY)
        vocabulary = iter(self.connection.exec_driver_sql("SELECT term, doc FROM temp.vocabulary"))
        num_terms = 0
        while rows := list(islice(vocabulary, 10 * BATCH_ROWS)):
            num_terms += len(rows)
            self.connection.exec_driver_sql("INSERT INTO knowledge_terms VALUES (?, ?)", [tuple(row) for row in rows])
            if spellings := [(letters, term) for term, _ in rows if (letters := spelling_key(term))]:
                self.connection.exec_driver_sql("INSERT INTO knowledge_spellings VALUES (?, ?)", spellings)
        self.connection.exec_driver_sql("DROP TABLE temp.vocabulary")
        return num_terms


def read_meta(rows: Iterable[tuple[str, str]]) -> dict[str, object]:
    """The meta table as Python values."""
    return {key: json.loads(value) for key, value in rows}


def checksum(rows: Iterable[tuple]) -> str:
    """sha256 of the rows of a SELECT."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(ascii(tuple(row)).encode())
    return digest.hexdigest()

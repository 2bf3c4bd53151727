"""Define the tables of a knowledge base and the statements on them, by SQLAlchemy.

Each statement is compiled once, to SQL with a ? for each value, so that to run it costs no more than a string. No
statement holds user text.
"""

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite
from sqlalchemy.schema import CreateTable

METADATA = sa.MetaData()
# KnowRL's table, so KnowRL's code can read our files
DOCUMENTS = sa.Table(
    "documents",
    METADATA,
    sa.Column("title", sa.Text, primary_key=True),
    sa.Column("text", sa.Text, nullable=False),
)
TERMS = sa.Table(
    "knowledge_terms",
    METADATA,
    sa.Column("term", sa.Text, primary_key=True),
    sa.Column("passages", sa.Integer, nullable=False),
    sqlite_with_rowid=False,
)
FIRST_PASSAGES = sa.Table(
    "knowledge_documents",
    METADATA,
    sa.Column("first", sa.Integer, primary_key=True),
    sa.Column("title", sa.Text, nullable=False),
)
META = sa.Table(
    "knowledge_meta",
    METADATA,
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
)
# The 'ascii' tokenizer splits at ASCII separators only, so it returns our tokens unchanged, in any script and any
# version of SQLite.
FULL_TEXT = sa.text("CREATE VIRTUAL TABLE knowledge_index USING fts5(tokens, content='', tokenize='ascii')")


def compiled(statement: sa.ClauseElement) -> str:
    """Write a statement in SQLite's SQL, with a ? for each value, in order."""
    return str(statement.compile(dialect=sqlite.dialect(paramstyle="qmark")))


def _inserted(table: sa.Table, *prefixes: str) -> str:
    return compiled(sa.insert(table).prefix_with(*prefixes))


CREATE = [compiled(CreateTable(table)) for table in METADATA.tables.values()]
CREATE.insert(1, compiled(FULL_TEXT))
ADD_DOCUMENT = _inserted(DOCUMENTS, "OR IGNORE")
ADD_FIRST_PASSAGE = _inserted(FIRST_PASSAGES)
ADD_META = _inserted(META)

_GIVEN = sa.func.json_each(sa.bindparam("given")).table_valued("value")  # the elements of a JSON array
TITLES = compiled(sa.select(DOCUMENTS.c.title).where(DOCUMENTS.c.title.in_(sa.select(_GIVEN.c.value))))
TEXT = compiled(sa.select(DOCUMENTS.c.text).where(DOCUMENTS.c.title == sa.bindparam("title")))
ALL_DOCUMENTS = compiled(sa.select(DOCUMENTS))
COUNTS = compiled(sa.select(TERMS).where(TERMS.c.term.in_(sa.select(_GIVEN.c.value))))
RECORD = compiled(sa.select(META.c.key, sa.func.json_extract(META.c.value, sa.literal_column("'$'"))))
ANY_DOCUMENT = compiled(sa.text("SELECT 1 FROM documents LIMIT 1"))
# rowid <= :last ends the search early where only common words are sought; rank is bm25(), the lower the better
BEST = compiled(
    sa.text("""
    SELECT doc.title, best.number - doc.first, documents.text, -best.score
    FROM (
        SELECT rowid AS number, rank AS score FROM knowledge_index
        WHERE knowledge_index MATCH :query AND rowid <= :last ORDER BY rank LIMIT :k
    ) AS best
    JOIN knowledge_documents AS doc ON doc.first = (
        SELECT max(first) FROM knowledge_documents WHERE first <= best.number
    )
    JOIN documents ON documents.title = doc.title
    ORDER BY best.score, doc.title, best.number""")
)

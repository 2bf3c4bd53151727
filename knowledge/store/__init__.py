"""Store the knowledge base: one SQLite file of documents under titles, cut into passages and searched by BM25.

It imports from the rest of this package only errors.py, text.py and words.py. Read it in this order:

    base.py             the surface: open a file, look up a title, search  (answers.py: what comes back)
    tokens.py           what a token is, in English, Chinese and other languages
    rank.py             search within titles: BM25 in Python over their passages
    fulltext.py         search over everything: the index, and BM25 of SQLite's FTS5
    passages.py         documents to passages, in KnowRL's layout
    layout.py           whether a file is complete and has our index; what tells one file from another
    seal.py             whether a file is still as its build wrote it
    tables.py           the tables, and the statements on them, by SQLAlchemy
    source.py           the rows of a source file
    atomic_database.py  a file that appears complete or not at all
    database.py         reading an SQLite file with many threads: an engine of SQLAlchemy for each process
"""

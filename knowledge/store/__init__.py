"""Store the knowledge base: one SQLite file of documents under titles, cut into passages and searched by BM25.

It imports from the rest of this package only text.py and words.py. Read it in this order:

    base.py       the surface: open a file, look up a title, search
    tokens.py     what a token is, in English, Chinese and other languages
    rank.py       search within titles: BM25 in Python over their passages
    fulltext.py   search over everything: the tables, the index, and BM25 of SQLite's FTS5
    passages.py   documents to passages, in KnowRL's layout
    database.py   the file: it appears complete or not at all, it is checked, and many threads read it
"""

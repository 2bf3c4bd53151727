"""Build and search a knowledge base, and check the facts of a text: factuality rewards are made of these.

It imports `grpo.base`, `grpo.data.files` and `grpo.data.hub` from the rest of the project, and nothing else. Read it
in this order:

    store/       documents under titles, cut into passages, searched by BM25, in one SQLite file
    source.py    the rows of a source file
    facts/       a text to atomic facts, and a fact with its passages to a verdict; it builds on store/
    build.py  search.py  verify.py      the commands: python -m knowledge.build SOURCE OUT.db, ...
    text.py  words.py      the normal forms of text, and every list of words that the rules know
"""

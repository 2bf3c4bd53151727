"""The knowledge base: documents under titles, cut into passages, searched by BM25; in one SQLite file. Read in this
order:

    base.py         the surface: open, look up a title, search        (result.py: what it answers; errors.py: what can go wrong)
    tokens.py       what a token is, in English, Chinese and the rest (stem.py: Porter's stemmer)
    rank.py         BM25 in Python: the order of every result, and the slow twin of the index
    fulltext.py     search over everything: candidates from SQLite's FTS5 by the rarest words   (spelling.py: misspelt names)
    index.py        the index's tables and their writer
    passages.py     whole sentences packed to 256 tokens; KnowRL's and FActScore's layouts
    build.py        SOURCE to database, streamed                      (source.py: rows of JSON; whole_file.py: whole or not at all)
    connect.py      a read-only file for threads and forks
    recognise.py    ours, KnowRL's, FActScore's, or what is wrong with it   (side_index.py: an index for files that are not ours)
    search.py, verify.py   the commands

    claims.py       a text to atomic facts, by a model or by rules           (clauses.py: sentences and clauses)
    verdict.py      a fact and its evidence: supported, refuted, unknown     (entailment.py: by an NLI model; lexical.py: offline)
world.py makes the fictional encyclopedia of the tiny run.
"""

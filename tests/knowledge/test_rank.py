"""BM25: the formula by hand, SQLite's bm25() as an oracle, and the index beside it."""

import math
import random
import sqlite3
from collections import Counter
from contextlib import closing

import pytest
from commands import python

from knowledge.store import fulltext, rank
from knowledge.store.base import KnowledgeBase
from knowledge.store.rank import idf
from knowledge.store.tokens import tokens

VOWELS = ("ake", "oru", "imo", "ulu", "aro", "eni", "odu", "ipa")
WORDS = [f"{letter}{vowel}{end}" for vowel in VOWELS for letter in "bcdfglmnprst" for end in "ntxk"]


def random_documents(number, seed=0):
    """Texts with a few common and many rare words, as in a language."""
    rng = random.Random(seed)
    weights = [1 / (place + 5) for place in range(len(WORDS))]
    return {f"doc{place}": " ".join(rng.choices(WORDS, weights, k=rng.randint(40, 60))) for place in range(number)}


def test_the_formula_by_hand():
    bags = [Counter("aab"), Counter("b"), Counter("cc")]
    weight, norm = math.log(1 + 2.5 / 1.5), 0.9 * (0.6 + 0.4 * 3 / 2)
    assert idf(3, 1) == pytest.approx(weight)
    assert rank.rank(["a", "a", "x"], bags) == [(pytest.approx(weight * 2 * 1.9 / (2 + norm)), 0), (0, 1), (0, 2)]
    assert [position for _, position in rank.rank(["b"], bags)] == [1, 0, 2]
    assert rank.rank(["x"], bags) == rank.rank([], bags) == [(0, 0), (0, 1), (0, 2)]
    assert rank.rank(["a"], []) == []


def test_scores_are_the_same_in_every_process():
    """To the last bit: summed in the order of a set, they would depend on the seed of the hashes."""
    code = (
        "from collections import Counter\nfrom knowledge.store.rank import rank\n"
        "texts = [[f'w{i * j % 31}' for j in range(40)] for i in range(1, 30)]\n"
        "print(rank([f'w{i}' for i in range(31)], [Counter(text) for text in texts]))"
    )
    (found,) = {python("-c", code, PYTHONHASHSEED=seed).stdout for seed in "1234"}
    assert found


def test_search_over_everything_finds_what_rank_finds(make_base, monkeypatch):
    """With SQLite's constants; its idf has no "1 +" in the logarithm, so common words count less."""
    monkeypatch.setattr(rank, "K1", 1.2)
    monkeypatch.setattr(rank, "B", 0.75)
    documents = random_documents(400, seed=1)
    rng, shared = random.Random(2), 0
    bags = [Counter(tokens(title) + tokens(text)) for title, text in documents.items()]
    titles = list(documents)
    with KnowledgeBase(make_base(documents)) as base:
        for _ in range(100):
            query = " ".join(rng.sample(documents[rng.choice(titles)].split(), 5))
            ours = [passage.title for passage in base.search(query, 5)]
            twin = [titles[place] for _, place in rank.rank(tokens(query), bags)[:5]]
            shared += len(set(ours) & set(twin))
    assert shared >= 375, "of 500"


def test_a_result_shows_the_passage_that_was_scored(make_base):
    """The index knows numbers alone."""
    rng = random.Random(3)
    documents = {
        f"doc{place}": [f"{'. '.join(rng.choices(WORDS, k=9)).title()}." for _ in range(4)] for place in range(20)
    }
    with KnowledgeBase(make_base(documents, max_tokens=16)) as base:
        for title in documents:
            passages = base.search("", 100, [title])
            assert len(passages) > 3
            for passage in passages:
                found = base.search(f"{title} {passage.text}", 1)[0]
                assert (found.id, found.text) == (passage.id, passage.text)


def test_a_words_number_of_passages_counts_each_passage_once(make_base):
    path = make_base({"one": "Oslo, Oslo, Oslo.", "two": "Oslo and Rome.", "three": "Rome."})
    with closing(sqlite3.connect(path)) as connection:
        counts = dict(connection.execute("SELECT term, passages FROM knowledge_terms"))
    assert [counts[token] for token in tokens("Oslo Rome")] == [2, 2]


def test_the_rarest_words_are_sought(make_base, monkeypatch):
    """Of 50 passages all hold "valley", 10 "tower", 2 "anchor"; at most 12 may be scored by FTS5."""
    words = [["valley"] + ["tower"] * (i < 10) + ["anchor"] * (i in (3, 20)) for i in range(50)]
    with KnowledgeBase(make_base({f"doc{i}": " ".join(found) for i, found in enumerate(words)})) as base:
        sought, rows = [], base._database.rows

        def noted(sql, *values):
            sought.extend(values[:1] if "MATCH" in sql else [])
            return rows(sql, *values)

        monkeypatch.setattr(fulltext, "MAX_ROWS", 12)
        monkeypatch.setattr(base._database, "rows", noted)
        tower, anchor = ('"' + tokens(word)[0] + '"' for word in ("tower", "anchor"))
        assert [passage.title for passage in base.search("valley tower anchor", 2)] == ["doc3", "doc20"]
        assert sought == [f"{anchor} OR {tower}"]
        for max_rows in (11, 1):
            monkeypatch.setattr(fulltext, "MAX_ROWS", max_rows)
            assert {passage.title for passage in base.search("valley tower anchor", 3)} == {"doc3", "doc20"}
            assert sought.pop() == anchor

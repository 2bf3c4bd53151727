"""python -m bench.knowledge [--peer-documents 7500 60000] [--peer rank_bm25|none]

How fast is a search in the knowledge base, and how often does it find the right passage? The peer, rank_bm25, searches
the same passages by turns: with lower-case words, as KnowRL uses it, and with our tokens.

Word frequencies of the generated text follow Zipf's law in two regimes (Ferrer i Cancho and Sole 2001): exponent 1 for
the 8,000 most frequent words, real stop words first, and 1.6 beyond. Queries are 12 successive words of a document, so
the document itself is the right answer. The last line of stdout is JSON.
"""

import sqlite3
import statistics
import tempfile
from collections.abc import Callable, Sequence
from itertools import islice, product
from pathlib import Path

import numpy as np

from bench.record import Results, parse
from grpo.base.storage import write_lines
from knowledge.build import build
from knowledge.store import tokens
from knowledge.store.base import KnowledgeBase

ONSETS = (*"bcdfghjklmnprstvwz", "br", "ch", "cl", "dr", "gr", "pl", "sh", "st", "th", "tr")
VOWELS = ("a", "e", "i", "o", "u", "ai", "ea", "ou")
STRIDE = 33  # one word of so many: 300,000
FREQUENT_WORDS = 8000
SENTENCES = 10  # of a document
WORDS = 16  # of a sentence
QUERY_WORDS = 12
NUM_QUERIES = 40
K = 5  # results of a search
SIZES = {
    "cpu": {"peer_documents": [7500]},
    "smoke": {"peer_documents": [200]},
}
TARGETS = {7500: 8.0, 60000: 15.0}  # documents: times faster than the peer
Document = tuple[str, str]  # title, text
SearchTitles = Callable[[str], set[str]]  # for titles


def vocabulary() -> np.ndarray:
    """Return the stop words, then made-up words of three syllables."""
    syllables = [onset + vowel for onset in ONSETS for vowel in VOWELS]
    made_up = map("".join, islice(product(syllables, repeat=3), 0, None, STRIDE))
    return np.array([*sorted(tokens.STOP_WORDS), *made_up], dtype=object)


def documents(number: int) -> list[Document]:
    """Make documents of random words."""
    rng = np.random.default_rng(0)
    words = vocabulary()
    ranks = np.arange(len(words)) + 2.7
    frequency = np.where(ranks < FREQUENT_WORDS, 1 / ranks, FREQUENT_WORDS**0.6 / ranks**1.6)
    cumulative = np.cumsum(frequency / frequency.sum())
    found = []
    for place in range(number):
        drawn = words[np.searchsorted(cumulative, rng.random((SENTENCES, WORDS)))]
        text = ". ".join(" ".join(sentence) for sentence in drawn)
        found.append((f"{words[rng.integers(1000, len(words))].title()} {place}", f"{text}."))
    return found


def build_here(rows: Sequence[Document], folder: Path) -> KnowledgeBase:
    """Build a knowledge base of these documents, and open it."""
    source = folder / "rows.jsonl"
    out = folder / "rows.db"
    write_lines(source, [{"title": title, "text": text} for title, text in rows])
    build(source, out, max_tokens=4096)
    return KnowledgeBase(out)


def peer_search(rows: Sequence[Document], split: Callable[[str], list[str]]) -> SearchTitles:
    """Return the peer's search for titles. split: makes words of a text."""
    from rank_bm25 import BM25Okapi

    index = BM25Okapi([split(f"{title} {text}") for title, text in rows])

    def search(words: str) -> set[str]:
        scores = index.get_scores(split(words))
        best = np.argpartition(scores, -K)[-K:]
        return {rows[place][0] for place in best}

    return search


def measure(number: int, folder: Path, results: Results) -> None:
    """Record the time of a search among so many documents, and how often each side finds the right one."""
    rows = documents(number)
    rng = np.random.default_rng(1)
    queries = {}
    for place in rng.choice(number, NUM_QUERIES, replace=False):
        title, text = rows[place]
        begin = int(rng.integers(SENTENCES * WORDS - QUERY_WORDS))
        words = text.split()[begin : begin + QUERY_WORDS]
        queries[" ".join(words)] = title
    splits = {"lower-case words, as KnowRL": lambda text: text.lower().split(), "our tokens": tokens.tokens}
    with build_here(rows, folder) as base:

        def ours(words: str) -> set[str]:
            return {passage.title for passage in base.search(words, K)}

        for kind, split in splits.items():
            searches: dict[str, SearchTitles] = {"ours": ours}
            if results.options.peer != "none":
                searches["rank_bm25"] = peer_search(rows, split)
            name = f"search, {number} documents, {kind}"
            for side, search in searches.items():
                recall = statistics.mean(title in search(text) for text, title in queries.items())
                results.check({f"{name}: {side} recall@5": recall})
            sides = {side: lambda search=search: list(map(search, queries)) for side, search in searches.items()}
            results.compare(name, sides, tokens=None, times=NUM_QUERIES, target=TARGETS.get(number))


def main(argv: list[str] | None = None) -> dict:
    options = parse("knowledge", __doc__, argv, SIZES, {"none": (), "rank_bm25": ("rank_bm25",)}, dtypes=())
    results = Results("knowledge", options, sqlite=sqlite3.sqlite_version)
    for number in options.peer_documents:
        with tempfile.TemporaryDirectory() as folder:
            measure(number, Path(folder), results)
    return results.finish()


if __name__ == "__main__":
    main()

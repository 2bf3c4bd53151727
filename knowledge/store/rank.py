"""Score the passages of some titles by BM25, in Python: those passages alone are the corpus.

    score(q, p) = sum over tokens t of q:  idf(t) * f(t, p) * (k1 + 1) / (f(t, p) + k1 * (1 - b + b * |p| / mean |p|))
    idf(t)      = ln(1 + (N - n(t) + 1/2) / (n(t) + 1/2))

f(t, p) is how often t occurs in p, |p| the passage's number of tokens, n(t) how many of the N passages hold t. A token
counts once in the query. Search over everything is SQLite's (fulltext.py).
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

# The values of Anserini and Pyserini. They suit passages of similar length better than Lucene's 1.2 and 0.75: see
# bench/LOG.md.
K1, B = 0.9, 0.4


@dataclass(frozen=True)
class Bag:
    """A passage as BM25 sees it: how often each token occurs, and how many tokens there are."""

    counts: Mapping[str, int]
    length: int

    @classmethod
    def of(cls, tokens: Sequence[str]) -> "Bag":
        return cls(Counter(tokens), len(tokens))


def idf(num_passages: int, num_with_token: int) -> float:
    """Return how much a token tells, in nats; above 0 even for a token that every passage holds."""
    return math.log1p((num_passages - num_with_token + 0.5) / (num_with_token + 0.5))


def bm25(weights: Mapping[str, float], bag: Bag, mean_length: float) -> float:
    """Return the score of one passage; `weights` holds the idf of each token of the query."""
    norm = K1 * (1 - B + B * bag.length / max(mean_length, 1.0))
    score = 0.0
    for token, weight in weights.items():
        count = bag.counts.get(token, 0)
        if count:
            score += weight * count * (K1 + 1) / (count + norm)
    return score


def rank(query: Iterable[str], bags: Sequence[Bag]) -> list[tuple[float, int]]:
    """Return (score, position) of every passage, best first, and in order of position where scores are equal.

    The passages given are the corpus, of which the statistics are taken. O(passages * query).
    """
    weights = {}
    for token in dict.fromkeys(query):  # in their order: a set's differs between processes, and rounds otherwise
        num_with_token = sum(token in bag.counts for bag in bags)
        weights[token] = idf(len(bags), num_with_token)
    mean_length = sum(bag.length for bag in bags) / max(len(bags), 1)
    scored = [(bm25(weights, bag, mean_length), position) for position, bag in enumerate(bags)]
    return sorted(scored, key=lambda pair: (-pair[0], pair[1]))

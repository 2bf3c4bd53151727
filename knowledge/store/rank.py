"""Score the passages of some titles by BM25, in Python: those passages alone are the corpus.

    score(q, p) = sum over tokens t of q:  idf(t) * f(t, p) * (k1 + 1) / (f(t, p) + k1 * (1 - b + b * |p| / mean |p|))
    idf(t)      = ln(1 + (N - n(t) + 1/2) / (n(t) + 1/2))

f(t, p) is how often t occurs in p, |p| the passage's number of tokens, n(t) how many of the N passages hold t. A token
counts once in the query. Search over everything is SQLite's (fulltext.py).
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence

# The values of Anserini and Pyserini. They suit passages of similar length better than Lucene's 1.2 and 0.75: see
# bench/LOG.md.
K1, B = 0.9, 0.4


def idf(num_passages: int, num_with_token: int) -> float:
    """Return how much a token tells, in nats; above 0 even for a token that every passage holds."""
    return math.log1p((num_passages - num_with_token + 0.5) / (num_with_token + 0.5))


def rank(query: Iterable[str], passages: Sequence[Counter[str]]) -> list[tuple[float, int]]:
    """Return (score, position) of every passage, best first, and in order of position where scores are equal.

    passages: how often each token occurs in each. They are the corpus, of which the statistics are taken. O(passages *
    query).
    """
    lengths = [counts.total() for counts in passages]
    mean_length = max(sum(lengths) / max(len(passages), 1), 1.0)
    scores = [0.0] * len(passages)
    for token in dict.fromkeys(query):  # in their order: a set's differs between processes, and rounds otherwise
        num_with_token = sum(token in counts for counts in passages)
        weight = idf(len(passages), num_with_token)
        for position, counts in enumerate(passages):
            if token in counts:
                norm = K1 * (1 - B + B * lengths[position] / mean_length)
                scores[position] += weight * counts[token] * (K1 + 1) / (counts[token] + norm)
    scored = zip(scores, range(len(passages)), strict=True)
    return sorted(scored, key=lambda pair: (-pair[0], pair[1]))

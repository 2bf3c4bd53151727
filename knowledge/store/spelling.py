"""Misspelt names: a query word that no passage holds is looked up by its set of letters.

Doubled, dropped-double and swapped letters are the usual mistakes in names, and all leave the set of letters as it is:
"Ghandi" and "Gandhi", "parliment" and "parliament". So one key, the word's letters sorted and without repetition, finds
the candidates in one look-up, and an edit distance keeps the near ones.
"""

MIN_LETTERS, MAX_EDITS = 5, 2


def spelling_key(token: str) -> str | None:
    """ "gandhi" -> "adghin"; None for tokens that are not corrected: short ones, numbers, and other scripts than
    Latin."""
    return "".join(sorted(set(token))) if len(token) >= MIN_LETTERS and token.isascii() and token.isalpha() else None


def edits(a: str, b: str) -> int:
    """Insertions, deletions, substitutions and swaps of neighbours that turn a into b (optimal string alignment)."""
    before, row = [], list(range(len(b) + 1))
    for i, letter in enumerate(a, 1):
        older, before, row = before, row, [i]
        for j, other in enumerate(b, 1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != other))
            if i > 1 and j > 1 and letter == b[j - 2] and a[i - 2] == other:
                cost = min(cost, older[j - 2] + 1)
            row.append(cost)
    return row[-1]


def is_misspelling(token: str, candidate: str) -> bool:
    """Are the two, which share a key, near enough? Cheap to reject by length first."""
    return abs(len(token) - len(candidate)) <= MAX_EDITS and edits(token, candidate) <= MAX_EDITS

"""Why completions earn so little: the reason that most of them share."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping

Grades = Mapping[str, tuple[float | None, str]]  # of one completion: reward -> its value, and the reason it gave
MOST = 0.5  # share of the completions from which a reason dominates
MAX_TEXT = 80  # characters of a reason


def dominant_reason(completions: Iterable[Grades]) -> str:
    """Return the most frequent reason for a missing, zero or negative value, if most of the completions share it.

    Otherwise return "". Of equally frequent ones it is that of the first reward. A reward that gives no reasons has its
    value instead.

    >>> dominant_reason([{"exact": (0.0, "")}, {"exact": (1.0, "")}])
    '1 of 2 completions: 0 (exact)'
    """
    counts: Counter[tuple[str, str]] = Counter()
    total = 0
    for grades in completions:
        total += 1
        for reward, (value, reason) in grades.items():
            if value is None or value <= 0:
                text = re.split("[;:] ", reason)[0] or ("unscorable" if value is None else f"{value:g}")
                counts[reward, text[:MAX_TEXT]] += 1
    for (reward, text), count in counts.most_common(1):
        if count >= MOST * total:
            return f"{count} of {total} completions: {text} ({reward})"
    return ""

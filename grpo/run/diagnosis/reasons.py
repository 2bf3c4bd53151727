"""Why completions earn so little: the reason that most of them share, and what helps against it."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rewards.registry import built_in

Grades = Mapping[str, tuple[float | None, str]]  # of one completion: reward -> its value, and the reason it gave
MOST = 0.5  # share of the completions from which a reason dominates
_BEGINS = "no <think>"  # what a completion lacks at its beginning
MAX_TEXT = 80  # characters of a reason
BY_HAND = (
    "grade some completions by hand with `python -m rewards.score`, and choose questions that it sometimes gets right"
)
REMEDIES = {  # pattern in a reason -> what helps; the first that fits
    r"box": "ask for \\boxed{} with an example in system_prompt, or teach it first: cold_start=form",
    r"<\w|</|block|tags": "show the format with an example in system_prompt, pay for each tag (add tag_count to "
    "reward_funcs), or teach it first: cold_start=form",
    r"the row has no|column": "name the columns: question_field, answer_field, title_field",
    r"None|returned|finite": "let the reward return a finite number for every completion that it is about",
    r"no answer within|judge|service|request": "ask this reward's service a question: `python -m grpo.doctor CONFIG`",
    r"declines|refus": "use questions whose answers the model knows, or pay refusals less",
}


@dataclass(frozen=True)
class Reason:
    """A reason that a reward gave for `count` of `total` completions. is_scored: whether it gave them a value."""

    reward: str
    text: str
    is_scored: bool
    count: int
    total: int

    def __str__(self) -> str:
        return f"{self.count} of {self.total} completions: {self.text} ({self.reward})"

    @property
    def remedy(self) -> str:
        return next((remedy for pattern, remedy in REMEDIES.items() if re.search(pattern, self.text)), BY_HAND)

    def explains_more_than(self, clipped_ratio: float) -> bool:
        """Return whether it stands, though this share of the completions is cut off at the length limit.

        A completion that is cut off lacks its end. So it may lack a box or a closing tag, but not an opening one, and
        a reason that more completions share has another cause.
        """
        share = self.count / self.total
        return not self.is_scored or (self.remedy != BY_HAND and (_BEGINS in self.text or share > clipped_ratio))


def dominant_reason(completions: Iterable[Grades]) -> Reason | None:
    """Return the most frequent reason for a missing, zero or negative value, if most of the completions share it.

    Of equally frequent ones it is that of the first reward. A reward that gives no reasons has its value instead.
    """
    counts: Counter[tuple[str, str, bool]] = Counter()
    total = 0
    for grades in completions:
        total += 1
        for reward, (value, reason) in grades.items():
            if value is None or value < 0 or (value == 0 and not built_in(reward).is_price):
                text = re.split("[;:] ", reason)[0] or ("unscorable" if value is None else f"{value:g}")
                counts[reward, text[:MAX_TEXT], value is not None] += 1
    if not counts:
        return None
    ((found, count),) = counts.most_common(1)
    return Reason(*found, count, total) if count >= MOST * total else None

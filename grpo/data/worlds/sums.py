"""Sums that a model guesses, or works out: the worlds `arithmetic` and `sums`.

The cold start answers most questions at once and works the others out step by step, like data written by people. A
small model cannot add six numbers at once, it guesses; but it can add them one after the other. GRPO has to discover
that working it out pays.
"""

import random
from dataclasses import dataclass
from itertools import islice

from grpo.data.worlds.kinds import World

NUM_QUESTIONS, NUM_HELD_OUT = 2000, 200
Terms = tuple[int, ...]


@dataclass(frozen=True)
class Sums:
    """A kind of sums of numbers from 1 to 9. modulus: ask for the remainder; None: for the sum itself."""

    num_terms: int
    modulus: int | None
    share_worked_out: float  # of the cold start
    num_cold_start: int

    def question(self, terms: Terms) -> str:
        text = " + ".join(map(str, terms))
        if self.modulus:
            return f"What remains when {text} is divided by {self.modulus}?"
        return f"What is {text}?"

    def answer(self, terms: Terms) -> int:
        return sum(terms) % self.modulus if self.modulus else sum(terms)

    def at_once(self, terms: Terms) -> str:
        return f"\\boxed{{{self.answer(terms)}}}"

    def worked_out(self, terms: Terms) -> str:
        """Add the terms one after the other.

        >>> PLAIN.worked_out((3, 4, 8))
        '3 + 4 = 7, 7 + 8 = 15. \\\\boxed{15}'
        """
        verb = "leaves" if self.modulus else "="
        steps = [
            f"{self.answer(terms[:end])} + {term} {verb} {self.answer(terms[: end + 1])}"
            for end, term in enumerate(terms[1:], 1)
        ]
        return f"{', '.join(steps)}. {self.at_once(terms)}"


REMAINDERS = Sums(6, modulus=2, share_worked_out=0.4, num_cold_start=6000)
PLAIN = Sums(5, modulus=None, share_worked_out=0.2, num_cold_start=320)


def make_sums(seed: int, kind: Sums) -> World:
    """Draw different sums for the cold start, for GRPO and for evaluation."""
    rng = random.Random(seed)
    number = kind.num_cold_start + NUM_QUESTIONS + NUM_HELD_OUT
    sums: dict[Terms, None] = {}
    while len(sums) < number:
        terms = tuple(rng.randint(1, 9) for _ in range(kind.num_terms))
        sums[terms] = None
    all_terms = iter(sums)
    conversations = [
        (
            kind.question(terms),
            kind.worked_out(terms) if rng.random() < kind.share_worked_out else kind.at_once(terms),
        )
        for terms in islice(all_terms, kind.num_cold_start)
    ]
    rows = [{"question": kind.question(terms), "answer": str(kind.answer(terms))} for terms in all_terms]
    return World([], conversations, questions=rows[NUM_HELD_OUT:], held_out=rows[:NUM_HELD_OUT])

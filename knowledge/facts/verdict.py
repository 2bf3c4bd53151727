"""Say whether some passages support a fact or contradict it.

A verifier does so: an NLI model (entailment.py) or rules (matcher.py). It gives one verdict per fact, in order;
"unknown" without a passage. Several threads may call it.

verifier.verify([("Mira Tolan was born in Velda", passages)])  ->  [Verdict("supported", passages[0])]
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from knowledge.store.passages import Passage

Support = Literal["supported", "refuted", "unknown"]
LABELS: tuple[Support, ...] = ("supported", "refuted", "unknown")
FactToCheck = tuple[str, Sequence[Passage]]  # a fact, and the passages that may bear on it


@dataclass(frozen=True)
class Verdict:
    """What the passages say of a fact. evidence: the passage that decided; None if no passage did."""

    label: Support
    evidence: Passage | None = None

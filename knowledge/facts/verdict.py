"""Say whether some passages support a fact or contradict it, and keep that verdict for the next time.

verifier = CachedVerifier(SentenceMatcher(), "verdicts.db")
verifier.verify([("Mira Tolan was born in Velda", passages)])  ->  [Verdict("supported", "Mira Tolan#0", 1.0, 0.0, ...)]
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from grpo.base.cache import DiskCache
from knowledge.sanitise import encodable
from knowledge.store.answers import Passage

Label = Literal["supported", "refuted", "unknown"]
LABELS: tuple[Label, ...] = ("supported", "refuted", "unknown")
FactToCheck = tuple[str, Sequence[Passage]]  # a fact, and the passages that may bear on it

COLUMNS = {
    "label": "TEXT NOT NULL",
    "evidence": "INTEGER",  # the passage's place among the passages: its id may differ in another knowledge base
    "entailment": "REAL NOT NULL",
    "contradiction": "REAL NOT NULL",
    "reason": "TEXT NOT NULL",
}


@dataclass(frozen=True)
class Verdict:
    """What the passages say of a fact.

    evidence: the id of the passage that decided; None if no passage did. entailment, contradiction: the highest of any
    passage, from 0 to 1.
    """

    label: Label
    evidence: str | None
    entailment: float
    contradiction: float
    reason: str


class Verifier(Protocol):
    """Whoever gives verdicts: an NLI model (entailment.py) or rules (matcher.py).

    name: all else that a verdict depends on, such as method, version, model and thresholds.
    """

    name: str

    def verify(self, facts: Sequence[FactToCheck]) -> list[Verdict]:
        """Give one verdict per fact, in order; "unknown" without a passage. Several threads may call this."""


class CachedVerifier:
    """Keep a verifier's verdicts in a file, so that each fact is judged once per evidence, also after a restart.

    The key is a sha256 of the verifier's name, the fact, and the passages' titles and texts.
    """

    def __init__(self, verifier: Verifier, path: str | Path):
        self.verifier, self.name = verifier, verifier.name
        self._cache = DiskCache(path, "verdict cache", "verdicts", COLUMNS)

    def verify(self, facts: Sequence[FactToCheck]) -> list[Verdict]:
        """Give one verdict per fact, in order. The verifier sees only facts that are new with their passages, once."""
        keys = [self._key(fact, passages) for fact, passages in facts]
        known = self._cache.get(keys)
        new = {key: fact for key, fact in zip(keys, facts, strict=True) if key not in known}
        if new:
            verdicts = self.verifier.verify(list(new.values()))
            made = {}
            for (key, (_, passages)), verdict in zip(new.items(), verdicts, strict=True):
                made[key] = _to_row(verdict, passages)
            self._cache.put(made)
            known |= made
        return [_from_row(known[key], passages) for key, (_, passages) in zip(keys, facts, strict=True)]

    def close(self) -> None:
        """Close the file."""
        self._cache.close()

    def _key(self, fact: str, passages: Sequence[Passage]) -> str:
        texts = [[passage.title, passage.text] for passage in passages]
        question = json.dumps([self.name, fact, texts])
        return hashlib.sha256(question.encode()).hexdigest()


def _to_row(verdict: Verdict, passages: Sequence[Passage]) -> tuple:
    ids = [passage.id for passage in passages]
    place = ids.index(verdict.evidence) if verdict.evidence in ids else None
    return verdict.label, place, verdict.entailment, verdict.contradiction, encodable(verdict.reason)


def _from_row(row: tuple, passages: Sequence[Passage]) -> Verdict:
    label, place, entailment, contradiction, reason = row
    evidence = None if place is None else passages[place].id
    return Verdict(label, evidence, entailment, contradiction, reason)

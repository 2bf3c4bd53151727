"""A verdict: whether some passages support a fact or contradict it; who gives verdicts, and where they are kept.

verifier = CachedVerifier(LexicalVerifier(), "verdicts.db")
verifier.verify([("Mira Tolan was born in Velda", passages)])     ->  [Verdict("supported", "Mira Tolan#0", 1.0, 0.0, ...)]
"""

import hashlib
import json
import logging
import sqlite3
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol

from grpo.errors import PREFLIGHT, UserError
from knowledge.store.result import Passage

Label = Literal["supported", "refuted", "unknown"]
LABELS: tuple[Label, ...] = ("supported", "refuted", "unknown")
Question = tuple[str, Sequence[Passage]]  # a fact, and the passages that may bear on it

BUSY_TIMEOUT_S = 5.0
_log = logging.getLogger("knowledge")


@dataclass(frozen=True)
class Verdict:
    """evidence: the id of the passage that decided, None if none did. entailment, contradiction: the highest of any
    passage, 0 to 1."""

    label: Label
    evidence: str | None
    entailment: float
    contradiction: float
    reason: str


class Verifier(Protocol):
    """name tells everything that a verdict depends on besides the fact and the passages: method, version, model,
    thresholds."""

    name: str

    def verify(self, questions: Sequence[Question]) -> list[Verdict]:
        """One verdict per fact, in order; "unknown" where there is no passage. May be called from several threads."""


class CachedVerifier:
    """A verifier whose verdicts are kept in an SQLite file, so that a fact is judged once per evidence: also after a
    restart, and by several processes.

    The key is a sha256 of the verifier's name, the fact, and the passages' titles and texts. A file that is no such
    cache is refused (exit 3). Later trouble with the file (locked, full disk) is logged once, and the verdicts are made
    as if there were no cache.
    """

    def __init__(self, verifier: Verifier, path: str | Path):
        self.verifier, self.name, self.path = verifier, verifier.name, Path(path)
        self.num_hits = self.num_misses = 0
        self._lock, self._is_warned = threading.Lock(), False
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(
                self.path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
            )
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.execute("PRAGMA synchronous=NORMAL")
            self._connection.execute(
                "CREATE TABLE IF NOT EXISTS verdicts (key TEXT PRIMARY KEY, label TEXT NOT NULL, evidence INTEGER, "
                "entailment REAL NOT NULL, contradiction REAL NOT NULL, reason TEXT NOT NULL) WITHOUT ROWID"
            )
            self._connection.execute("SELECT label, evidence, entailment, contradiction, reason FROM verdicts LIMIT 1")
        except (OSError, sqlite3.Error) as error:
            raise UserError(
                f"cannot use the verdict cache {path}",
                str(error),
                "name another file, or delete this one: it is made anew",
                PREFLIGHT,
            ) from error

    def verify(self, questions: Sequence[Question]) -> list[Verdict]:
        """As Verifier.verify; only facts that are new with their passages reach the verifier, each once."""
        keys = [self._key(question) for question in questions]
        known = self._read(keys)
        new = {key: question for key, question in zip(keys, questions, strict=True) if key not in known}
        self.num_hits, self.num_misses = self.num_hits + len(keys) - len(new), self.num_misses + len(new)
        if new:
            made = dict(zip(new, self.verifier.verify(list(new.values())), strict=True))
            places = {key: _place(verdict.evidence, new[key][1]) for key, verdict in made.items()}
            self._write(made, places)
            known |= {key: (verdict, places[key]) for key, verdict in made.items()}
        return [
            replace(known[key][0], evidence=None if known[key][1] is None else question[1][known[key][1]].id)
            for key, question in zip(keys, questions, strict=True)
        ]

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def _key(self, question: Question) -> str:
        fact, passages = question
        return hashlib.sha256(
            json.dumps([self.name, fact, [[passage.title, passage.text] for passage in passages]]).encode()
        ).hexdigest()

    def _read(self, keys: Sequence[str]) -> dict[str, tuple[Verdict, int | None]]:
        """Key -> the verdict and the place of its evidence among the passages: ids may differ between knowledge
        bases."""
        sql = "SELECT key, label, evidence, entailment, contradiction, reason FROM verdicts WHERE key IN (SELECT value FROM json_each(?))"
        rows = (
            self._run(lambda: self._connection.execute(sql, (json.dumps(list(dict.fromkeys(keys))),)).fetchall()) or []
        )
        return {
            key: (Verdict(label, None, entailment, contradiction, reason), place)
            for key, label, place, entailment, contradiction, reason in rows
        }

    def _write(self, verdicts: dict[str, Verdict], places: dict[str, int | None]) -> None:
        rows = [
            (
                key,
                verdict.label,
                places[key],
                verdict.entailment,
                verdict.contradiction,
                verdict.reason.encode("utf-8", "replace").decode(),
            )
            for key, verdict in verdicts.items()
        ]

        def insert() -> None:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                self._connection.executemany("INSERT OR REPLACE INTO verdicts VALUES (?, ?, ?, ?, ?, ?)", rows)
                self._connection.execute("COMMIT")
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")

        self._run(insert)

    def _run(self, action):
        """The action's result; None if the file gives trouble."""
        try:
            with self._lock:
                return action()
        except sqlite3.Error as error:
            if not self._is_warned:
                self._is_warned = True
                _log.warning(
                    "the verdict cache %s gives trouble (%s); verdicts are made without it where needed",
                    self.path,
                    error,
                )
            return None


def _place(evidence: str | None, passages: Sequence[Passage]) -> int | None:
    return next((place for place, passage in enumerate(passages) if passage.id == evidence), None)

"""Batch verdicts: while a verifier works on some facts, further facts gather, and its next call takes them all."""

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, islice

from knowledge.facts.verdict import FactToCheck, Verdict, Verifier


class VerdictQueue:
    """Batch the work of a verifier, which runs on a thread of its own. Several event loops may use it.

    Call `close` when done.
    """

    def __init__(self, verifier: Verifier):
        self.verifier = verifier
        self._waiting: list[tuple[Sequence[FactToCheck], Future]] = []
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="verdicts")

    def submit(self, facts: Sequence[FactToCheck]) -> "Future[list[Verdict]]":
        """Queue the facts. Return a future with one verdict per fact, or with the verifier's exception."""
        future: Future[list[Verdict]] = Future()
        with self._lock:
            self._waiting.append((facts, future))
        self._thread.submit(self._work)
        return future

    def close(self) -> None:
        """Verify what is waiting, and take no more."""
        self._thread.shutdown()

    def _work(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, []
        waiting = [(facts, future) for facts, future in waiting if future.set_running_or_notify_cancel()]
        if not waiting:
            return  # an earlier call took them along, or nobody waits for them any more
        gathered = list(chain.from_iterable(facts for facts, _ in waiting))
        try:
            verdicts = iter(self.verifier.verify(gathered))
            answers = [list(islice(verdicts, len(facts))) for facts, _ in waiting]
        except BaseException as error:  # whoever waits must hear of it, whatever it is
            for _, future in waiting:
                future.set_exception(error)
            return
        for (_, future), answer in zip(waiting, answers, strict=True):
            future.set_result(answer)

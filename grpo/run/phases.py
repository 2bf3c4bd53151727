"""What surrounds the phases of a step: their seconds, and what may end them."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from grpo.base.errors import is_out_of_memory
from grpo.base.storage import failpoint
from grpo.run.metrics import Clock
from grpo.run.signals import Signals

FAILPOINTS = {"time/generate": "step-sampled", "time/reward": "step-graded"}


class OutOfMemoryWhile(Exception):
    """Memory ran out in a phase whose work smaller micro-batches do not make smaller."""

    def __init__(self, phase: str, reason: str):
        super().__init__(reason)
        self.phase, self.reason = phase, reason


class Phases:
    """Called with the name of a phase, it gives the context in which the work of that phase runs.

    together: all ranks generate, so they stop together; they do not if each decides whether to sample again.
    """

    def __init__(self, clock: Clock, signals: Signals, together: bool = True):
        self.clock, self.signals, self.together = clock, signals, together

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Count the seconds inside as `name`. A signal whose grace is over ends generation, or the wait for rewards."""
        is_generating, may_stop = name == "time/generate", name in FAILPOINTS
        stopping = self.signals.interruptible(self.together and is_generating) if may_stop else nullcontext()
        try:
            with stopping, self.clock.timed(name):
                yield
        except Exception as error:
            if not (is_generating and is_out_of_memory(error)):
                raise
            reason = str(error).partition("\n")[0]
        else:
            if may_stop:
                failpoint(FAILPOINTS[name])
            return
        raise OutOfMemoryWhile("generating", reason)

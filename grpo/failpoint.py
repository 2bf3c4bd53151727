"""Where this program can be made to die, so that tests can prove what survives.

FAILPOINT=name:n in the environment kills the process, as kill -9 does, when it passes `failpoint(name)` for the n-th
time.
"""

import os
import signal

_left = {}  # name -> passes until the end


def failpoint(name: str) -> None:
    """Costs a look at the environment, and does nothing unless FAILPOINT names this place."""
    wanted, _, number = os.environ.get("FAILPOINT", "").partition(":")
    if name == wanted:
        _left[name] = _left.get(name, int(number or 1)) - 1
        if _left[name] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

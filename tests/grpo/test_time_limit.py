"""Limits on foreign code: they strike, they strike again, and they end with their block."""

import signal
import time

import pytest

from grpo.base.time_limit import time_limit


def work(seconds=3.0):
    """Use CPU time."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_code_that_swallows_the_exception_is_stopped_again():
    caught = []
    with pytest.raises(TimeoutError, match="had not ended after 0.02 s"), time_limit(0.02):
        try:
            work()
        except TimeoutError as error:
            caught.append(error)
        work()
    assert len(caught) == 1 and signal.getitimer(signal.ITIMER_VIRTUAL)[0] == 0

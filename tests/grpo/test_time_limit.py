"""Limits on foreign code: they strike, they strike again, and they end with their block."""

import resource
import signal
import time

import pytest

from grpo.base.time_limit import memory_limit, time_limit


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


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="only Linux has this limit")
def test_the_memory_limit_holds_for_its_block_alone():
    before = resource.getrlimit(resource.RLIMIT_AS)
    with pytest.raises(MemoryError, match="more than 0.1 GB"), memory_limit(10**8):
        assert resource.getrlimit(resource.RLIMIT_AS) != before
        bytearray(4 * 10**9)  # more than an earlier test can have left free in the heap
    assert resource.getrlimit(resource.RLIMIT_AS) == before and len(bytearray(2 * 10**8)) == 2 * 10**8

"""Settings and fixtures for all tests; see making.py for what they are made of."""

import os
import random
import re
import time
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the processes that tests start
os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1,localhost"  # the servers that tests start are here
os.environ.setdefault("TRITON_INTERPRET", "1")  # kernels run in Triton's interpreter where there is no GPU

import numpy
import pytest
import torch
from making import write_chat_checkpoint, write_checkpoint

try:
    import hypothesis
except ImportError:  # the machine of a GPU may have only what its tests need
    hypothesis = None

torch.set_num_threads(1)  # the models of these tests are too small for more, and two threads suffer from any neighbour
collect_ignore: list[str] = []
if hypothesis:  # drawn inputs are the same in every run, however slow the machine is
    everything = list(hypothesis.HealthCheck)
    hypothesis.settings.register_profile(
        "same", deadline=None, database=None, derandomize=True, suppress_health_check=everything
    )
    hypothesis.settings.load_profile("same")
else:
    files = Path(__file__).parent.rglob("test_*.py")
    collect_ignore += [str(path) for path in files if "from hypothesis import" in path.read_text(encoding="utf-8")]
MOST_WORKERS = 4  # each imports torch, and some files take a minute by themselves


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config) -> None:
    """Runs whole folders on several cores, where pytest-xdist is installed; `-n 0` keeps them in one process. A file
    stays in one process, so that its fixtures are made once. Tests on a GPU share it, so they run one after the
    other."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        return  # a worker has no workers of its own
    options = config.option
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    cores = min(MOST_WORKERS, usable)
    has_folder = any(Path(argument).is_dir() for argument in config.args)
    wants_one_process = options.usepdb or options.capture == "no" or "not gpu" not in options.markexpr
    if config.pluginmanager.hasplugin("xdist") and options.numprocesses is None and has_folder:
        if cores > 1 and not wants_one_process:
            options.numprocesses, options.dist = cores, "loadfile"
            options.loadscopereorder = False  # not by the number of tests


def pytest_report_header() -> list[str]:
    return [f"left out, without hypothesis: {len(collect_ignore)} files"] if collect_ignore else []


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items) -> None:
    """The files beside this one take longest, so they go first: else a process would end long before the other. A test
    with a set or an address in its name would have another name in every process."""
    unstable = [item.nodeid for item in items if re.search(r" at 0x|\{'[^':]*', '", item.nodeid)]
    if unstable:
        raise pytest.UsageError(f"these tests' names change with the process, so give them `ids`: {unstable}")
    items.sort(key=lambda item: item.path.parent != Path(__file__).parent)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item) -> None:
    """Random numbers are the same in every run, whatever ran before."""
    random.seed(0), numpy.random.seed(0), torch.manual_seed(0)


@pytest.fixture
def linear_time():
    """The test computes for less than 10 seconds: far more than it takes where time is linear in the texts."""
    start = time.process_time()
    yield
    assert time.process_time() - start < 10


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory) -> Path:
    """A Qwen2 checkpoint, without tokenizer."""
    return write_checkpoint(tmp_path_factory.mktemp("qwen2"))


@pytest.fixture(scope="session")
def chat_checkpoint(tmp_path_factory) -> Path:
    return write_chat_checkpoint(tmp_path_factory.mktemp("chat"))


@pytest.fixture(scope="session")
def encoder(chat_checkpoint):
    """The chat template and the tokenizer of that checkpoint."""
    from grpo.data.prompts import ChatEncoder, load_tokenizer

    return ChatEncoder(load_tokenizer(chat_checkpoint))

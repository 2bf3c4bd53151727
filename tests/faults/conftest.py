"""The parent of the runs that these tests kill, stop and starve."""

import pytest
from running import Processes


@pytest.fixture(scope="session")
def processes(tmp_path_factory, chat_checkpoint):
    with Processes(tmp_path_factory.mktemp("output"), chat_checkpoint) as parent:
        yield parent


@pytest.fixture
def make_run(processes, chat_checkpoint, tmp_path):
    """Make the run of these keys, in a folder of the test."""

    def make(name: str = "run", model=chat_checkpoint, **keys):
        return processes.run(tmp_path, model, name, **keys)

    return make


@pytest.fixture
def judged_run(make_run):
    """Make a run that a server judges; its process needs JUDGED."""

    def make(server, name: str = "run", **keys):
        return make_run(name, **{"reward_funcs": ["correctness"], **keys}, judge_model="m", judge_base_url=server.url)

    return make


@pytest.fixture(scope="session")
def undisturbed(processes, chat_checkpoint, tmp_path_factory):
    """A finished run of four steps, with all its checkpoints."""
    run = processes.run(tmp_path_factory.mktemp("undisturbed"), chat_checkpoint, save_total_limit=0)
    run.train()
    return run

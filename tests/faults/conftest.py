"""The parent of the runs that these tests kill, stop and starve."""

import pytest
from running import Processes


@pytest.fixture(scope="session")
def processes(tmp_path_factory, chat_checkpoint):
    with Processes(tmp_path_factory.mktemp("output"), chat_checkpoint) as parent:
        yield parent

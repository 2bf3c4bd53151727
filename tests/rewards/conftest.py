"""Every endpoint of these tests has a key."""

import pytest
from asking import FACTS_KEY_NAME, KEY, KEY_NAME


@pytest.fixture(autouse=True)
def keys(monkeypatch):
    monkeypatch.setenv(KEY_NAME, KEY)
    monkeypatch.setenv(FACTS_KEY_NAME, KEY)

"""Every endpoint of these tests has a key, and pauses between tries are short."""

import pytest
from asking import FACTS_KEY_NAME, KEY, KEY_NAME


@pytest.fixture(autouse=True)
def keys(monkeypatch):
    monkeypatch.setenv(KEY_NAME, KEY)
    monkeypatch.setenv(FACTS_KEY_NAME, KEY)
    monkeypatch.setattr("rewards.api.client.BACKOFF_S", 0.005)
    monkeypatch.setattr("rewards.api.client.MAX_BACKOFF_S", 0.02)

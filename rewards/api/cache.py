"""Keep replies on disk, so that no question is paid for twice: successes only."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from grpo.base.cache import DiskCache


def cache_key(
    model: str, parameters: Mapping[str, float], prompt_version: str, messages: Sequence[Mapping[str, str]], nonce: str
) -> str:
    """Hash all that a reply depends on. The nonce, a random word in the messages, is left out."""
    texts = [[message["role"], message["content"].replace(nonce, "")] for message in messages]
    request = json.dumps([model, sorted(parameters.items()), prompt_version, texts])
    return hashlib.sha256(request.encode()).hexdigest()


class ReplyCache:
    """Store texts under the keys of their requests; see DiskCache for what it promises."""

    def __init__(self, path: str | Path):
        self._cache = DiskCache(path, "reply cache", "replies", {"text": "TEXT NOT NULL"})

    def get(self, key: str) -> str | None:
        """Find the text of this key; None if there is none."""
        (text,) = self._cache.get([key]).get(key, (None,))
        return text

    def put(self, key: str, text: str) -> None:
        """Keep a text."""
        self._cache.put({key: (text,)})

    def close(self) -> None:
        """Close the file. A closed cache finds nothing and keeps nothing."""
        self._cache.close()

"""Follow a question to its answer: what its tries came to, and whether and when another one is of use."""

import hashlib
import json
import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from knowledge.sanitise import encodable
from rewards.api.limits import Limits
from rewards.api.reply import CUT, ChatReply, Trouble

Messages = Sequence[Mapping[str, str]]
_REASONS = re.compile(r"(^|/)(o\d|gpt-5)")  # OpenAI's reasoning models: another name for max_tokens, no temperature
CHARS_PER_TOKEN = 3  # gives an upper estimate of a prompt's tokens; what the endpoint reports corrects it
BUSY_HELP = "; lower api_max_concurrency or set api_requests_per_minute to what it allows, or raise api_deadline_s"


def parameters_of(model: str, max_tokens: int) -> dict[str, float]:
    """Return the parameters of a request: the likeliest reply, so that equal questions get equal replies."""
    if _REASONS.search(model):
        return {"max_completion_tokens": max_tokens}
    return {"max_tokens": max_tokens, "temperature": 0.0}


def cache_key(model: str, parameters: Mapping[str, float], prompt_version: str, messages: Messages, nonce: str) -> str:
    """Hash all that a reply depends on. The nonce, a random word in the messages, is left out."""
    texts = [[message["role"], message["content"].replace(nonce, "")] for message in messages]
    request = json.dumps([model, sorted(parameters.items()), prompt_version, texts])
    return hashlib.sha256(request.encode()).hexdigest()


@dataclass
class Question:
    """Messages for a model, and its tries so far.

    number: the oldest question goes first. max_tokens: of the reply. max_tries: of an endpoint that is down. failed:
    tries by the kind of their trouble.
    """

    number: int
    messages: Messages
    max_tokens: int
    max_tries: float = float("inf")
    failed: Counter[str] = field(default_factory=Counter)
    last: Trouble | None = None

    @property
    def num_tries(self) -> int:
        return self.failed.total()

    @property
    def most_tokens(self) -> int:
        """Estimate the tokens of its request and reply."""
        return sum(len(message["content"]) for message in self.messages) // CHARS_PER_TOKEN + self.max_tokens

    @property
    def trouble(self) -> str:
        """Say what the last try came to, and what helps."""
        if self.last is None:
            return ""
        return self.last.reason + BUSY_HELP * (self.last.kind == "busy")

    def request(self, model: str) -> dict[str, Any]:
        """Write the body of a chat request."""
        cleaned = [{"role": message["role"], "content": encodable(message["content"])} for message in self.messages]
        return {"model": model, "messages": cleaned, **parameters_of(model, self.max_tokens)}

    def add(self, trouble: Trouble) -> None:
        """Count a failed try. A reply that was cut gets twice the room in the next one."""
        self.last = trouble
        self.failed[trouble.kind] += 1
        if trouble.reason == CUT:
            self.max_tokens *= 2

    def give_up(self, limits: Limits, left_s: float) -> ChatReply | None:
        """Say why another try is of no use; None if it is. left_s: until the deadline."""
        if self.failed["unusable"] >= limits.max_replies:
            return ChatReply(None, self.last.reason, self.last.cut)
        if self.failed["down"] >= self.max_tries:
            return ChatReply(None, f"{self.last.reason}; given up after {self.num_tries} tries")
        if self.last.wait_s > max(left_s, 0.0):
            asked = f"it asked to wait {self.last.wait_s:.0f} s, which is after the deadline"
            return ChatReply(None, f"{asked}; {self.trouble}")
        return None

    def pause_s(self, limits: Limits, left_s: float) -> float:
        """Return how long to wait before the next try: no longer than the deadline allows."""
        if self.last.kind == "unusable":
            return 0.0
        longest_s = limits.backoff_s * 2 ** min(self.num_tries - 1, 30)
        backoff_s = random.uniform(0, min(longest_s, limits.max_backoff_s, max(left_s, 0.0)))
        return max(self.last.wait_s, backoff_s)

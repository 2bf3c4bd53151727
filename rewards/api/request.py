"""Write the body of a chat request in the parameters that a model takes, as it turns out which."""

from typing import Any

from knowledge.sanitise import encodable
from rewards.api.question import Question
from rewards.api.reply import ChatReply, Unsupported

Request = dict[str, Any]


def parameters_of(max_tokens: int) -> dict[str, float]:
    """Return the parameters of a request to a model that takes all of them."""
    return {"max_tokens": max_tokens, "temperature": 0.0}  # the likeliest reply: equal questions get equal replies


class RequestWriter:
    """Write requests to `model`, without the parameters that it has refused."""

    def __init__(self, model: str):
        self.model = model
        self._refused: set[str] = set()

    def write(self, question: Question) -> Request:
        """Write a question's request."""
        cleaned = [{"role": message["role"], "content": encodable(message["content"])} for message in question.messages]
        parameters = parameters_of(question.max_tokens)
        if "max_tokens" in self._refused:
            parameters["max_completion_tokens"] = parameters.pop("max_tokens")
        if "temperature" in self._refused:
            del parameters["temperature"]
        if "stream" in self._refused:
            parameters["stream"] = True
        return {"model": self.model, "messages": cleaned, **parameters}

    def do_without(self, refused: Unsupported, request: Request) -> Unsupported | ChatReply:
        """Leave out a parameter from now on, rename it, or stream. A request that did so already is unscorable."""
        if (refused.parameter in request) == (refused.parameter == "stream"):
            return ChatReply(None, refused.reason)
        self._refused.add(refused.parameter)
        return refused

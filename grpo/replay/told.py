"""Let the tools of a run that is made again say what they said."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cached_property

from grpo.config.options import TrainConfig
from grpo.run.diagnosis.record import Answer, Json
from grpo.tools.functions import find_tools
from grpo.tools.protocol import Request
from grpo.tools.tools import Calls, Tools, close_tools
from grpo.tools.workers import Function


class Later:
    """A tool of a run, which is looked for when it is first called: what the run has recorded needs none."""

    def __init__(self, name: str, config: TrainConfig):
        self.name, self.config = name, config

    @cached_property
    def found(self) -> dict[str, Function]:
        """The tool by its tag."""
        return find_tools([self.name], asdict(self.config))

    def __call__(self, query: str):
        (function,) = self.found.values()
        return function(query)

    def close(self) -> None:
        """Free the tool, if it was called."""
        close_tools(vars(self).get("found", {}))


class Told(Tools):
    """Tools whose results are those of completions/. A call that is not there is made now.

    answers: of the step that is made.
    """

    def __init__(self, tools: Tools, answers: Callable[[], Sequence[Answer]]):
        super().__init__(tools.functions, tools.protocol, tools.timeout_s)
        self.answers = answers

    def begin(self) -> "ToldCalls":
        return ToldCalls(self)


class ToldCalls(Calls):
    """The calls of a step that is made again."""

    def __init__(self, tools: Told):
        super().__init__(tools)
        self.answers = tools.answers()
        self.recorded_ids: dict[int, list[int]] = {}  # of a result within its tags, by the number of the completion

    def function(self, number: int, request: Request) -> Function:
        completion, _ = self.paused[number]
        # The answers stand in the order of the step, unless several ranks or rounds have made it.
        for answer in (*self.answers[number : number + 1], *self.answers):
            if answer.ids[: request.length] == completion.ids:
                for call in answer.tool_calls:
                    start, end = call["tokens"]
                    if start == request.length:
                        self.recorded_ids[number] = answer.ids[start:end]
                        return lambda query: _say(call)
        return super().function(number, request)

    def result_ids(self, number: int, request: Request, result: str) -> list[int]:
        return self.recorded_ids.pop(number, None) or super().result_ids(number, request, result)


def _say(call: Json) -> str:
    """Return the result of a recorded call; LookupError if it had none."""
    if "failure" in call:
        raise LookupError(call["failure"])
    return call["result"]

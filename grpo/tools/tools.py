"""The tools of a run, as the sampler takes them: it pauses a completion at a call, and resumes it with the result."""

from collections.abc import Mapping
from dataclasses import replace

from grpo.algorithm.schema import Completion
from grpo.base.storage import failpoint
from grpo.engine.device.peers import Peers
from grpo.tools.protocol import Request, ToolProtocol
from grpo.tools.workers import Batch, Function, Workers


def unavailable(query: str) -> str:
    """Stand for a tool that is not there: who calls it gets no further."""
    raise LookupError("there are no tools")


def close_tools(functions: Mapping[str, Function]) -> None:
    """Free what tools hold, such as a knowledge base."""
    for function in functions.values():
        if callable(close := getattr(function, "close", None)):
            close()


class Tools:
    """Tools by their names, and how completions call them.

    peers: processes that hold one model together. The first one calls the tools, and all get the results.
    """

    def __init__(
        self, functions: Mapping[str, Function], protocol: ToolProtocol, timeout_s: float, peers: Peers | None = None
    ):
        self.functions = functions
        self.protocol = protocol
        self.timeout_s = timeout_s
        self.peers = peers or Peers()
        self.workers = Workers(timeout_s, protocol.max_chars)
        self.ends = protocol.ends

    def begin(self) -> "Calls":
        """Return the calls of the completions that are generated now."""
        return Calls(self)

    def close(self) -> None:
        """End the threads, and what the tools hold."""
        self.workers.close()
        close_tools(self.functions)


class Calls:
    """The calls within the completions of one `sample`."""

    def __init__(self, tools: Tools):
        self.functions = tools.functions
        self.protocol = tools.protocol
        self.peers = tools.peers
        self.batch = Batch(tools.workers)
        self.paused: dict[int, tuple[Completion, Request]] = {}

    def pause(self, number: int, completion: Completion, limit: int) -> bool:
        """Cut a completion after its first new call, and begin this; return False if there is none."""
        request = self.protocol.find(completion, limit)
        if request is None:
            return False
        kept = slice(request.length)
        begun = replace(completion, ids=completion.ids[kept], logps=completion.logps[kept], cuts=completion.cuts[kept])
        self.paused[number] = begun, request
        failpoint("call-paused")
        if self.peers.rank == 0:
            self.batch.add(number, self.functions[request.tool], request.query)
        return True

    def take(self, wait: bool) -> list[tuple[int, Completion]]:
        """Return the paused completions whose calls are over, with what the tools gave."""
        taken = []
        replies = self.peers.of_first(lambda: self.batch.replies(wait))
        for number, (result, failure) in replies:
            completion, request = self.paused.pop(number)
            given = [] if failure else self.protocol.block(result, request.room)
            self.protocol.answer(completion, request, given, failure)
            taken.append((number, completion))
        return taken

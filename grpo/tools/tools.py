"""The tools of a run, as the sampler takes them: it pauses a completion at a call, and resumes it with the result."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from grpo.algorithm.schema import Call, Completion, Prompt
from grpo.base.errors import INTERNAL, UserError
from grpo.base.storage import failpoint
from grpo.data.messages import read_tools
from grpo.engine.device.peers import Peers
from grpo.tools.environment import RESET, Environment
from grpo.tools.protocol import Request, ToolProtocol
from grpo.tools.template import TemplateProtocol
from grpo.tools.workers import Batch, Function, Workers
from rewards.own_words import STEP


class NoTools(BaseException):
    """There are no tools: no error of a tool's own, which a model may be told."""


def unavailable(*texts: str, **arguments: Any) -> str:
    """Stand for a tool that is not there: who calls it gets no further."""
    raise NoTools("there are no tools")


def close_tools(functions: Mapping[str, Function]) -> None:
    """Free what tools hold, such as a knowledge base."""
    for function in functions.values():
        if callable(close := getattr(function, "close", None)):
            close()


class Tools:
    """Tools by their names, and how completions call them.

    peers: processes that hold one model together. The first one calls the tools, and all get the results. factory: of
    environments, one for each completion. max_prompt: tokens of a prompt with what an environment says first.
    """

    def __init__(
        self,
        functions: Mapping[str, Function],
        protocol: ToolProtocol | TemplateProtocol,
        timeout_s: float,
        peers: Peers | None = None,
        factory: Callable[[], Any] | None = None,
        max_prompt: int = 0,
    ):
        self.functions = functions
        self.protocol = protocol
        self.peers = peers or Peers()
        self.factory = factory
        self.max_prompt = max_prompt
        self.workers = Workers(timeout_s, protocol.max_chars)
        self.ends = protocol.ends
        self.environments: list[Environment] = []  # of the completions that are generated next

    def begin(self) -> "Calls":
        """Return the calls of the completions that are generated now."""
        return Calls(self)

    def shown(self) -> str:
        """Return how tools are called, with a call and its result as the model sees them."""
        return f"by {'the chat template' if self.protocol.is_typed else 'tags'}: {self.protocol.shown}"

    def reset(
        self,
        prompts: list[Prompt],
        num_generations: int,
        seeds: Sequence[int],
    ) -> list[Prompt]:
        """Make an environment for each of the next completions; return the prompts with what these say first.

        The completions of a prompt get the same seed, so that they begin in the same state.
        """
        if not self.factory:
            return prompts
        self._close_environments()
        self.environments = [Environment(self.factory) for _ in seeds]
        begin = partial(self._reset, prompts, num_generations, seeds)
        replies = self.peers.of_first(begin)
        for environment, (_, failure) in zip(self.environments, replies, strict=True):
            environment.failure = failure
        opened = []
        for number, prompt in enumerate(prompts):
            first = number * num_generations
            group = replies[first : first + num_generations]
            texts = {text for text, failure in group if not failure}
            opened.append(self._opened(prompt, texts - {None}))
        return opened

    def _reset(
        self,
        prompts: list[Prompt],
        num_generations: int,
        seeds: Sequence[int],
    ) -> list[Any]:
        batch = Batch(self.workers)
        for number, environment in enumerate(self.environments):
            group = number // num_generations
            seed = seeds[group * num_generations]
            begin = partial(environment.reset, prompts[group].columns, seed)
            batch.add(number, begin, line=environment.line, may_end=True)
        replies = batch.all()
        return [replies[number] for number in range(len(seeds))]

    def _opened(self, prompt: Prompt, texts: set[str]) -> Prompt:
        """Return a prompt whose last message of the user goes on with what environments say, all of them the same."""
        if len(texts) > 1:
            why = f"the completions of a prompt are compared, and cannot begin in different states: {sorted(texts)}"
            fix = "let reset take `seed`, which is the same for all of them, and draw from that alone"
            raise UserError("the environments of one prompt say different things", why, fix, INTERNAL)
        if not texts:
            return prompt
        turns = [dict(message) for message in prompt.turns]
        asked = [message for message in turns if message["role"] == "user"]
        asked[-1]["content"] += texts.pop()
        tools = read_tools(prompt.columns.get("tools"))
        text, ids = self.protocol.encoder.prompt(turns, tools)
        if len(ids) > self.max_prompt:
            why = f"it has {len(ids)} tokens, allowed are {self.max_prompt}"
            what = "what an environment says makes a prompt too long"
            raise UserError(what, why, "raise max_prompt_length, or let reset say less", INTERNAL)
        messages = tuple(turns) if prompt.messages else ()
        return replace(prompt, text=text, ids=tuple(ids), messages=messages)

    def _close_environments(self) -> None:
        for environment in self.environments:
            environment.close()

    def close(self) -> None:
        """End the threads, and what the tools hold."""
        self._close_environments()
        self.workers.close()
        close_tools(self.functions)


@dataclass
class Paused:
    """A completion up to its calls, these, and what they have given so far."""

    completion: Completion
    requests: list[Request]
    results: list[str | None] = field(default_factory=list)


class Calls:
    """The calls within the completions of one `sample`."""

    def __init__(self, tools: Tools):
        self.functions = tools.functions
        self.protocol = tools.protocol
        self.peers = tools.peers
        self.environments = dict(enumerate(tools.environments))
        self.batch = Batch(tools.workers)
        self.paused: dict[int, Paused] = {}

    def pause(self, number: int, completion: Completion, limit: int) -> bool:
        """Cut a completion after its first new call, and begin this; return False if there is none."""
        completion.environment = self.environments.get(number)
        if completion.environment and completion.environment.failure:
            begun = Request(RESET, "", 0, 0, 0)
            self._add(completion, [begun], [], [""], completion.environment.failure)
            return False
        requests = self.protocol.find(completion, limit)
        if not requests:
            return False
        kept = slice(requests[0].length)
        begun = replace(
            completion,
            ids=completion.ids[kept],
            logps=completion.logps[kept],
            cuts=completion.cuts[kept],
        )
        self.paused[number] = Paused(begun, requests)
        failpoint("call-paused")
        self._begin_next(number)
        return True

    def _begin_next(self, number: int) -> None:
        """Begin the first call of a paused completion that has not been made."""
        if self.peers.rank:
            return
        paused = self.paused[number]
        request = paused.requests[len(paused.results)]
        environment = paused.completion.environment
        if request.error:
            self.batch.add(number, partial(str, request.error))
        elif request.tool in self.functions:
            function = self.functions[request.tool]
            if request.arguments is None:
                self.batch.add(number, partial(function, request.query))
            else:
                call = partial(function, **request.arguments)
                self.batch.add(number, call, is_told=True)
        elif request.tool == STEP:
            call = partial(environment.call, STEP, request.query)
            self.batch.add(number, call, line=environment.line, may_end=True)
        else:
            call = partial(environment.call, request.tool, **request.arguments)
            self.batch.add(number, call, line=environment.line, is_told=True)

    def take(self, wait: bool) -> list[tuple[int, Completion, bool]]:
        """Return the paused completions whose calls are over, with what these gave, and whether they go on."""
        taken = []
        replies = self.peers.of_first(lambda: self.batch.replies(wait))
        for number, (result, failure) in replies:
            paused = self.paused[number]
            completion = paused.completion
            requests = paused.requests
            paused.results.append(result)
            if not failure and len(paused.results) < len(requests):
                self._begin_next(number)
                continue
            del self.paused[number]
            goes_on = not failure and result is not None
            if goes_on:
                ids, said = self.protocol.given(requests, paused.results)
                self._add(completion, requests, ids, said)
            elif failure:
                self._add(completion, requests, [], paused.results, failure)
            taken.append((number, completion, goes_on))
        return taken

    def _add(
        self,
        completion: Completion,
        requests: Sequence[Request],
        given: Sequence[int],
        said: Sequence[str],
        failure: str = "",
    ) -> None:
        """Add the results of calls to their completion, or end this because the last of them has none."""
        start = len(completion.ids)
        completion.ids += given
        completion.logps += [0.0] * len(given)
        completion.cuts += [float("-inf")] * len(given)
        ends = [request.place for request in requests[1 : len(said)]]
        ends.append(len(self.protocol.encoder.decode(completion.ids)))
        for request, result, end in zip(requests, said, ends, strict=False):
            call = Call(
                request.tool,
                request.query,
                result,
                start,
                start,
                span=(request.place, end),
                is_turn=self.protocol.is_typed,
            )
            completion.calls.append(call)
        last = completion.calls[-1]
        completion.calls[-1] = replace(last, end=start + len(given), failure=failure)
        if failure:
            completion.finish_reason = "tool"

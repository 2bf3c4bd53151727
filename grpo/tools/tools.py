"""The tools of a run, as the sampler takes them: it pauses a completion at a call, and resumes it with the result."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from operator import methodcaller
from typing import Any

from grpo.algorithm.schema import NO_CUT, Call, Completion, Prompt
from grpo.base.errors import INTERNAL, UserError
from grpo.base.storage import failpoint
from grpo.data.messages import read_tools
from grpo.engine.device.peers import Peers
from grpo.tools.environment import RESET, Environment
from grpo.tools.protocol import Paused, Protocol, Request
from grpo.tools.workers import Function, Job, Reply, Workers
from rewards.own_words import STEP


def close_tools(functions: Mapping[str, Function]) -> None:
    """Free what tools hold, such as a knowledge base."""
    for function in functions.values():
        if callable(close := getattr(function, "close", None)):
            close()


class Tools:
    """Tools by their names, and the calls of the completions that are generated now.

    peers: processes that hold one model together. The first one calls the tools, and all get the results. factory: of
    environments, one for each completion. max_prompt: tokens of a prompt with what an environment says first.
    """

    def __init__(
        self,
        functions: Mapping[str, Function],
        protocol: Protocol,
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
        self.workers = Workers(timeout_s, protocol.is_typed)
        self.ends = protocol.ends
        self.environments: list[Environment] = []  # of each completion
        self.paused: dict[int, Paused] = {}

    def reset(
        self,
        prompts: list[Prompt],
        num_generations: int,
        seeds: Sequence[int],
        tick: Callable[[], None] = lambda: None,
    ) -> list[Prompt]:
        """Make an environment for each of the next completions; return the prompts with what these say first.

        The completions of a prompt get the same seed, so that they begin in the same state. tick: called again and
        again until all have begun.
        """
        if self.factory is None:
            return prompts
        self.forget_calls()
        self._close_environments()
        self.environments = []
        groups = []
        for prompt, seed in zip(prompts, seeds[::num_generations], strict=True):
            group = [Environment(self.factory, prompt.columns, seed) for _ in range(num_generations)]
            groups.append(group)
            self.environments += group
        for number, environment in enumerate(() if self.peers.rank else self.environments):
            self.workers.add(Job(number, partial(environment.reset), environment.line, may_end=True))
        replies: dict[int, Reply] = {}
        while len(replies) < len(self.environments):
            tick()
            replies |= self.peers.of_first(lambda: self.workers.replies(wait=True))
        for number, environment in enumerate(self.environments):
            environment.said, environment.failure = replies[number]
        return list(map(self._opened, prompts, groups))

    def _opened(self, prompt: Prompt, group: Sequence[Environment]) -> Prompt:
        """Return a prompt whose last message of the user goes on with what environments say, all of them the same."""
        texts = {one.said for one in group if one.said is not None and not one.failure}
        if len(texts) > 1:
            why = f"the completions of a prompt are compared, and cannot begin in different states: {sorted(texts)}"
            fix = "let reset take `seed`, which is the same for all of them, and draw from that alone"
            raise UserError("the environments of one prompt say different things", why, fix, INTERNAL)
        if not any(texts):
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

    def forget_calls(self) -> None:
        """Wait no longer for calls of earlier completions."""
        self.workers.forget()
        self.paused = {}

    def has_failed(self, number: int) -> bool:
        """Return whether the environment of a completion could not begin."""
        return bool(self.environments and self.environments[number].failure)

    def pause(self, number: int, completion: Completion, limit: int) -> bool:
        """Cut a completion after its first new call, and begin this; return False if there is none."""
        if self.environments:
            completion.environment = self.environments[number]
            if self.has_failed(number):
                self._add(Paused(completion, [Request(RESET, "", 0)], 0, [""]), completion.environment.failure)
                return False
        paused = self.protocol.find(completion, limit)
        if not paused:
            return False
        self.paused[number] = paused
        failpoint("call-paused")
        self._call_next(number)
        return True

    def take(self, wait: bool) -> list[tuple[int, Completion, bool]]:
        """Return the paused completions whose calls are over, with what these gave, and whether they go on."""
        taken = []
        replies = self.peers.of_first(lambda: self.workers.replies(wait))
        for number, (result, failure) in replies:
            paused = self.paused[number]
            paused.results.append(result or "")
            if not failure and len(paused.results) < len(paused.requests):
                self._call_next(number)
                continue
            del self.paused[number]
            goes_on = not failure and result is not None
            if goes_on or failure:
                self._add(paused, failure)
            taken.append((number, paused.completion, goes_on))
        return taken

    def close(self) -> None:
        """End the threads, and what the tools hold."""
        self._close_environments()
        self.workers.close()
        close_tools(self.functions)

    def _close_environments(self) -> None:
        for environment in self.environments:
            environment.close()

    def _call_next(self, number: int) -> None:
        """Begin the first call of a paused completion that has not been made."""
        if self.peers.rank:
            return
        paused = self.paused[number]
        request = paused.requests[len(paused.results)]
        texts = [request.error or request.query] if request.arguments is None else []
        arguments = request.arguments or {}
        function = str if request.error else self.functions.get(request.tool)
        if function is None:
            environment = paused.completion.environment
            call = partial(methodcaller(request.tool, *texts, **arguments), environment.object)
            job = Job(number, call, environment.line, may_end=request.tool == STEP)
        else:
            job = Job(number, partial(function, *texts, **arguments))
        self.workers.add(job)

    def _add(self, paused: Paused, failure: str) -> None:
        """Add the results of calls to their completion, or end this because the last of them has none."""
        completion, requests = paused.completion, paused.requests
        given: list[int] = []
        if failure:
            said = [self.protocol.cut(result, self.protocol.max_tokens) for result in paused.results]
        else:
            given, said = self.protocol.given(paused)
        start = len(completion.ids)
        completion.ids += given
        completion.logps += [0.0] * len(given)
        completion.cuts += [NO_CUT] * len(given)
        places = [request.place for request in requests[: len(said)]]
        places.append(len(self.protocol.encoder.decode(completion.ids)))
        for request, result, span in zip(requests, said, pairwise(places), strict=False):
            is_turn = self.protocol.is_typed
            completion.calls.append(Call(request.tool, request.query, result, start, start, span, is_turn=is_turn))
        last = completion.calls[-1]
        completion.calls[-1] = replace(last, end=start + len(given), failure=failure)
        if failure:
            completion.finish_reason = "tool"

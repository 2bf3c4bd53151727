"""The protocol of chat templates: calls with typed arguments, as a model was trained to make them.

A call ends the model's turn. The tokens that it has drawn stay as they are. Those of the result, and of the header of
the next turn, are the difference of two renderings: of a conversation that ends with a call, and of the same one with
the result. The conversation is made up, so nothing that a template does to earlier turns reaches what was drawn.
"""

import json
import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any

from grpo.algorithm.schema import Completion
from grpo.base.errors import PREFLIGHT, UserError, reason
from grpo.base.text import encodable
from grpo.data.messages import Message
from grpo.data.prompts import ChatEncoder, render
from grpo.tools.arguments import problem_with
from grpo.tools.protocol import Protocol, Request, printable
from rewards.own_words import STEP

UNKNOWN = "unknown"  # the tool of a call that names none
CALL, RESULT = "\ue010", "\ue011"  # marks in the made-up conversation
ID = "call00001"  # nine letters and digits, as Mistral's template demands
# What a template writes around a call -> where a turn holds one; its JSON is the group.
FAMILIES = {
    "<tool_call>": r"<tool_call>(.*?)(?:</tool_call>|\Z)",  # Qwen, Hermes, SmolLM
    "[TOOL_CALLS]": r"\[TOOL_CALLS\](.*)",  # Mistral
    '"parameters"': r'\A\s*(?:<\|python_tag\|>)?\s*(\{[^{}]*"name".*)',  # Llama 3
}


class TemplateProtocol(Protocol):
    """Finds the calls of the tools that an encoder describes, and renders their results.

    has_steps: turns without a call are answered, too. UserError (exit 3) if the chat template writes no calls that can
    be read.
    """

    is_typed = True  # a tool that raises answers with the error
    ends: tuple[int, ...] = ()  # a call ends the turn

    def __init__(self, encoder: ChatEncoder, max_calls: int, max_tokens: int, has_steps: bool = False):
        super().__init__(encoder, max_calls, max_tokens)
        self.has_steps = has_steps
        self.tokenizer = encoder.tokenizer
        self.schemas = {}
        for tool in encoder.tools:
            function = tool["function"]
            self.schemas[function["name"]] = function["parameters"]
        user = {"role": "user", "content": "x"}
        name = next(iter(self.schemas), STEP)
        function = {"name": name, "arguments": {"argument": CALL}}
        call = {"type": "function", "id": ID, "function": function}
        calling = {"role": "assistant", "content": "", "tool_calls": [call]}
        speaking = {"role": "assistant", "content": CALL}
        self.called = [user, calling]
        self.spoken = [user, speaking]
        self.prefix = self._render([user])
        self.pattern = re.compile("(?!)")
        self.reads_itself = getattr(self.tokenizer, "response_template", None) is not None
        if has_steps:
            self._learn(self.spoken, "user")
        if self.schemas:
            self._learn(self.called, "tool")

    def _render(self, messages: Sequence[Message], header: bool = True) -> str:
        return render(self.tokenizer, messages, header, self.encoder.tools)

    def _learn(self, before: Sequence[Message], role: str) -> None:
        """Find out how the template writes an assistant's turn and its answer. UserError if that is of no use."""
        last = _message(role, RESULT, STEP)
        text = self._render([*before, last])
        self.encoder.find_markup(text)
        _, has_call, after = text.rpartition(CALL)
        earlier = self._render(before, header=False)
        turn = earlier.removeprefix(self.prefix)
        if role == "tool" and not self.reads_itself:
            self.pattern = _pattern_of(turn)
        if not has_call or after.count(RESULT) != 1 or self.encoder.end is None:
            raise _unusable("it does not write a call, and its result once after that")
        answer = self._suffix(before, [last])
        if RESULT not in self.tokenizer.decode(answer):
            raise _unusable("no token ends the call before its result")
        said = text.removeprefix(self.prefix)
        said = said.replace(CALL, "…")
        said = said.replace(RESULT, "what it gives")
        self.shown = repr(said)  # a call and its result as the model sees them
        if not text.startswith(earlier.rstrip()):
            self.shown += "; the template rewrites earlier turns, which stay as drawn here"

    def find(self, completion: Completion, limit: int) -> list[Request]:
        """Return the calls of the turn that a completion has just ended; [] if it made none. limit: of its tokens."""
        calls = completion.calls
        num_answered = sum(call.start < call.end for call in calls)
        if completion.finish_reason != "stop" or num_answered >= self.max_calls:
            return []
        start = calls[-1].end if calls else 0
        own = completion.ids[start:-1]
        length = len(completion.ids)
        room = limit - length - 1
        requests = []
        for begin, call in self._read(self.tokenizer.decode(own)):
            tool, arguments, error = self._checked(call)
            query = str(call) if arguments is None else json.dumps(arguments, ensure_ascii=False)
            place = self._place(completion.ids, own, begin)
            requests.append(Request(tool, encodable(query), length, place, room, arguments, error))
        if not requests and self.has_steps:
            said = self.encoder.decode(own)
            place = len(self.encoder.decode(completion.ids))
            requests = [Request(STEP, said, length, place, room)]
        if not requests or self._overhead(requests) > room:
            return []
        return requests

    def _read(self, text: str) -> Iterator[tuple[int, Any]]:
        """Yield the calls in a turn, and where each begins; a text says what is wrong with one that is no JSON."""
        thoughts, tag, said = text.rpartition("</think>")
        begin = len(thoughts + tag)
        if self.reads_itself:
            try:
                message = self.tokenizer.parse_response(text, prefix=self.prefix)
                content = message.get("content") or ""
                begin = max(begin, text.find(content) + len(content))
                calls = message.get("tool_calls") or []
            except Exception as error:  # whatever a broken call makes it raise
                calls = [reason(error)]
            for call in calls:
                yield begin, call
            return
        for found in re.finditer(self.pattern, said):
            read = _parsed(found[1])
            calls = read if isinstance(read, list) else [read]
            for call in calls:
                yield begin + found.start(), call

    def _checked(self, call: Any) -> tuple[str, dict[str, Any] | None, str]:
        """Return the tool of a call, its arguments, and what is wrong with it."""
        function = call
        if isinstance(call, dict):
            function = call.get("function", call)
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(name, str):
            return UNKNOWN, None, f"Error: this is no call: {function}"
        if name not in self.schemas:
            names = ", ".join(self.schemas)
            return UNKNOWN, None, f"Error: there is no tool {name}; there are {names}"
        arguments = function.get("arguments", function.get("parameters", {}))
        if isinstance(arguments, str):
            arguments = _parsed(arguments)
        problem = problem_with(name, arguments, self.schemas[name])
        if problem:
            return name, None, f"Error: {problem}"
        return name, arguments, ""

    def _place(self, ids: Sequence[int], own: Sequence[int], start: int) -> int:
        """Return the character of a completion's text at which a turn's character `start` is. own: the turn."""
        decode = self.tokenizer.decode
        is_after = lambda count: len(decode(own[: count + 1])) > start  # noqa: E731
        before = bisect_left(range(len(own)), True, key=is_after)
        # Counted from the end, as for tags.
        whole = self.encoder.decode(ids)
        rest = self.encoder.decode(own[before:])
        within = start - len(decode(own[:before]))
        return len(whole) - len(rest) + within

    def _overhead(self, requests: Sequence[Request]) -> int:
        nothing = [""] * len(requests)
        return len(self._rendered(requests, nothing))

    def given(
        self,
        requests: Sequence[Request],
        results: Sequence[str],
    ) -> tuple[list[int], list[str]]:
        """Return the tokens that answer a turn, and what they say of each call."""
        room = requests[0].room
        share = (room - self._overhead(requests)) // len(requests)
        each = min(self.max_tokens, share)
        while True:
            said = [self._cut(result, each) for result in results]
            ids = self._rendered(requests, said)
            if len(ids) <= room or each <= 0:
                return ids, said
            each -= 1  # a tokenizer may make more of the whole than of its parts

    def _rendered(self, requests: Sequence[Request], said: Sequence[str]) -> list[int]:
        role, before = "tool", self.called
        if requests[0].tool == STEP:
            role, before = "user", self.spoken
        last = []
        for request, text in zip(requests, said, strict=True):
            last.append(_message(role, text, request.tool))
        return self._suffix(before, last)

    def _suffix(self, before: Sequence[Message], last: Sequence[Message]) -> list[int]:
        """Return the tokens with which messages and the next header follow the end of the assistant's turn."""
        end = self.encoder.end
        text = self._render(before, header=False)
        num_ends = self.tokenizer.encode(text, add_special_tokens=False).count(end)
        if not num_ends:
            return []
        _, ids = self.encoder.prompt([*before, *last])
        places = [place for place, token in enumerate(ids, 1) if token == end]
        last_end = places[num_ends - 1]
        return ids[last_end:]

    def _cut(self, result: str, num_tokens: int) -> str:
        """Return a result as data: without control characters and special tokens, and of so many tokens at most."""
        text = encodable(result[: self.max_chars])
        text = printable(text, "\n\t")
        while True:
            ids = self.encoder.spelled(text)
            kept = self.kept(ids, num_tokens, self.encoder.forbidden)
            if kept == ids:
                return text
            text = self.encoder.decode(kept)


def _message(role: str, text: str, name: str) -> Message:
    return {"role": role, "content": text, "name": name, "tool_call_id": ID}


def _pattern_of(turn: str) -> re.Pattern:
    """Return the pattern of the calls of a family, by a turn with one."""
    for mark, pattern in FAMILIES.items():
        if mark in turn:
            return re.compile(pattern, re.DOTALL)
    raise _unusable(f"how it writes a call is not known: {turn[:200]!r}")


def _parsed(text: str) -> Any:
    """Return what a text says in JSON, or why it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        return reason(error)


def _unusable(why: str) -> UserError:
    fix = "set tool_format: tags; or chat_template to a Jinja file that writes calls as one of the known families does"
    return UserError("the chat template cannot be used for tools", why, fix, PREFLIGHT)

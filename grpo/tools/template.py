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
from grpo.tools.protocol import Protocol, Request
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
        self.schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in encoder.tools}
        tokenizer, name = encoder.tokenizer, next(iter(self.schemas), STEP)
        user: Message = {"role": "user", "content": "x"}
        function = {"name": name, "arguments": {"argument": CALL}}
        calls = [{"type": "function", "id": ID, "function": function}]
        self.called: list[Message] = [user, {"role": "assistant", "content": "", "tool_calls": calls}]
        self.spoken: list[Message] = [user, {"role": "assistant", "content": CALL}]
        self.prefix = render(tokenizer, [user], tools=encoder.tools)
        self.pattern = re.compile("(?!)")
        self.reads_itself = getattr(tokenizer, "response_template", None) is not None
        if has_steps:
            self._learn(self.spoken, "user")
        if self.schemas:
            self._learn(self.called, "tool")

    def _learn(self, before: Sequence[Message], role: str) -> None:
        """Find out how the template writes an assistant's turn and its answer. UserError if that is of no use."""
        tokenizer, tools = self.encoder.tokenizer, self.encoder.tools
        last = {"role": role, "content": RESULT, "name": STEP, "tool_call_id": ID}
        text = render(tokenizer, [*before, last], True, tools)
        self.encoder.find_markup(text)
        _, has_call, after = text.rpartition(CALL)
        earlier = render(tokenizer, before, False, tools)
        turn = earlier.removeprefix(self.prefix)
        if role == "tool" and not self.reads_itself:
            known = [pattern for mark, pattern in FAMILIES.items() if mark in turn]
            if not known:
                raise _unusable(f"how it writes a call is not known: {turn[:200]!r}")
            self.pattern = re.compile(known[0], re.DOTALL)
        if not has_call or after.count(RESULT) != 1 or self.encoder.end is None:
            raise _unusable("it does not write a call, and its result once after that")
        if RESULT not in self.encoder.tokenizer.decode(self._suffix(before, [last])):
            raise _unusable("no token ends the call before its result")
        said = text.removeprefix(self.prefix).replace(CALL, "…").replace(RESULT, "what it gives")
        self.shown = repr(said)  # a call and its result as the model sees them
        if not text.startswith(earlier.rstrip()):
            self.shown += "; the template rewrites earlier turns, which stay as drawn here"

    def find(self, completion: Completion, limit: int) -> list[Request]:
        """Return the calls of the turn that a completion has just ended; [] if it made none. limit: of its tokens."""
        calls, length = completion.calls, len(completion.ids)
        if completion.finish_reason != "stop" or sum(call.start < call.end for call in calls) >= self.max_calls:
            return []
        own = completion.ids[calls[-1].end if calls else 0 : -1]
        text = self.encoder.tokenizer.decode(own)
        requests = []
        for start, call in self._read(text):
            name, arguments, error = self._checked(call)
            place = self._place(completion.ids, own, start)
            query = json.dumps(arguments, ensure_ascii=False) if arguments is not None else str(call)
            requests.append(Request(name, encodable(query), length, place, limit - length - 1, arguments, error))
        if not requests and self.has_steps:
            said = self.encoder.decode(own)
            requests = [Request(STEP, said, length, len(self.encoder.decode(completion.ids)), limit - length - 1)]
        if not requests or self._overhead(requests) > requests[0].room:
            return []
        return requests

    def _read(self, text: str) -> Iterator[tuple[int, Any]]:
        """Yield the calls in a turn, and where each begins; a text says what is wrong with one that is no JSON."""
        thoughts, tag, said = text.rpartition("</think>")
        begin = len(thoughts + tag)
        if self.reads_itself:
            try:
                message = self.encoder.tokenizer.parse_response(text, prefix=self.prefix)
                calls = message.get("tool_calls") or []
                begin = max(begin, text.find(message.get("content") or "") + len(message.get("content") or ""))
            except Exception as error:  # whatever a broken call makes it raise
                calls = [reason(error)]
            yield from ((begin, call) for call in calls)
            return
        for found in re.finditer(self.pattern, said):
            try:
                read = json.loads(found[1])
            except (ValueError, RecursionError) as error:
                read = reason(error)
            for call in read if isinstance(read, list) else [read]:
                yield begin + found.start(), call

    def _checked(self, call: Any) -> tuple[str, dict[str, Any] | None, str]:
        """Return the tool of a call, its arguments, and what is wrong with it."""
        if isinstance(call, dict):
            call = call.get("function", call)
        name = call.get("name") if isinstance(call, dict) else None
        if not isinstance(name, str):
            return UNKNOWN, None, f"Error: this is no call: {call}"
        arguments = call.get("arguments", call.get("parameters", {}))
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments)
            except (ValueError, RecursionError) as error:
                arguments = reason(error)
        if name not in self.schemas:
            return UNKNOWN, None, f"Error: there is no tool {name}; there are {', '.join(self.schemas)}"
        problem = problem_with(name, arguments, self.schemas[name])
        if problem:
            return name, None, f"Error: {problem}"
        return name, arguments, ""

    def _place(self, ids: Sequence[int], own: Sequence[int], start: int) -> int:
        """Return the character of a completion's text at which a turn's character `start` is. own: the turn."""
        decode = self.encoder.tokenizer.decode
        before = bisect_left(range(len(own)), True, key=lambda count: len(decode(own[: count + 1])) > start)
        # Counted from the end, as for tags.
        rest = self.encoder.decode(own[before:])
        return len(self.encoder.decode(ids)) - len(rest) + start - len(decode(own[:before]))

    def _overhead(self, requests: Sequence[Request]) -> int:
        return len(self._rendered(requests, [""] * len(requests)))

    def given(self, requests: Sequence[Request], results: Sequence[str]) -> tuple[list[int], list[str]]:
        """Return the tokens that answer a turn, and what they say of each call."""
        room = requests[0].room
        each = min(self.max_tokens, (room - self._overhead(requests)) // len(requests))
        while True:
            said = [self._cut(result, each) for result in results]
            ids = self._rendered(requests, said)
            if len(ids) <= room or each <= 0:
                return ids, said
            each -= 1  # a tokenizer may make more of the whole than of its parts

    def _rendered(self, requests: Sequence[Request], said: Sequence[str]) -> list[int]:
        is_step = requests[0].tool == STEP
        role, before = ("user", self.spoken) if is_step else ("tool", self.called)
        last = [
            {"role": role, "content": text, "name": request.tool, "tool_call_id": ID}
            for request, text in zip(requests, said, strict=True)
        ]
        return self._suffix(before, last)

    def _suffix(self, before: Sequence[Message], last: Sequence[Message]) -> list[int]:
        """Return the tokens with which messages and the next header follow the end of the assistant's turn."""
        num_ends = self._encoded(before).count(self.encoder.end)
        _, ids = self.encoder.prompt([*before, *last])
        places = [place for place, token in enumerate(ids, 1) if token == self.encoder.end]
        return ids[places[num_ends - 1] :] if num_ends else []

    def _encoded(self, messages: Sequence[Message]) -> list[int]:
        text = render(self.encoder.tokenizer, messages, False, self.encoder.tools)
        return self.encoder.tokenizer.encode(text, add_special_tokens=False)

    def _cut(self, result: str, num_tokens: int) -> str:
        """Return a result as data: without control characters and special tokens, and of so many tokens at most."""
        text = encodable(result[: self.max_chars])
        text = "".join(char if char.isprintable() or char in "\n\t" else " " for char in text)
        while True:
            ids = self.encoder.spelled(text)
            kept = self.kept(ids, num_tokens, self.encoder.forbidden)
            if kept == ids:
                return text
            text = self.encoder.decode(kept)


def _unusable(why: str) -> UserError:
    fix = "set tool_format: tags; or chat_template to a Jinja file that writes calls as one of the known families does"
    return UserError("the chat template cannot be used for tools", why, fix, PREFLIGHT)

"""The protocol of chat templates: calls with typed arguments, as a model was trained to make them.

A call ends the model's turn. The tokens that it has drawn stay as they are. Those of the result, and of the header of
the next turn, are what follows the end of the call in a conversation that is made up, so nothing that a template does
to earlier turns reaches what was drawn.
"""

import json
import re
from collections.abc import Iterator, Sequence
from functools import partial
from inspect import signature
from typing import Any

from grpo.base.errors import PREFLIGHT, UserError, reason
from grpo.base.text import encodable
from grpo.data.messages import Message
from grpo.data.prompts import ChatEncoder, render
from grpo.tools.arguments import misfit
from grpo.tools.protocol import Protocol, Request
from knowledge.text import printable
from rewards.own_words import STEP

UNKNOWN = "unknown"  # the tool of a call that names none
CALL, RESULT = "\ue010", "\ue011"  # marks in the made-up conversation
ID = "call00001"  # nine letters and digits, as Mistral's template demands
ASKED = {"role": "user", "content": "x"}
# What a template writes around a call -> where a turn holds one; its JSON is the group.
FAMILIES = {
    "<tool_call>": r"<tool_call>(.*?)(?:</tool_call>|\Z)",  # Qwen, Hermes, SmolLM; GLM and Qwen3-Coder write IN_TAGS
    "[TOOL_CALLS]": r"\[TOOL_CALLS\](.*)",  # Mistral
    '"parameters"': r'\A\s*(?:<\|python_tag\|>)?\s*(\{[^{}]*"name".*)',  # Llama 3
}
# Qwen3-Coder and GLM name a tool, and each argument, in tags. transformers reads them, with the types of the tool.
IN_TAGS = json.loads(r"""{"start_anchor": "<tool_call>", "fields": {"tool_calls": {
    "open_pattern": "<tool_call>\\s*(?:<function=)?(?P<name>[\\w.-]+)>?\\s*(?=<|\\Z)",
    "close": "</tool_call>",
    "content": "xml-inline",
    "content_args": {"tag_pattern":
"<(?:parameter=|arg_key>)(?P<key>[^<>]+)(?:</arg_key>\\s*<arg_value)?>\\n?(?P<value>.*?)\\n?</(?:parameter|arg_value)>"
    },
    "transform": {"function": {"name": "{name}", "arguments": "{content}"}}
}}}""")


class TemplateProtocol(Protocol):
    """Finds the calls of the tools that an encoder describes, and renders their results.

    has_steps: turns without a call are answered, too. UserError (exit 3) if the chat template writes no calls that can
    be read.
    """

    is_typed = True
    ends = ()  # a call ends the turn

    def __init__(
        self,
        encoder: ChatEncoder,
        max_calls: int,
        max_tokens: int,
        has_steps: bool = False,
    ):
        super().__init__(encoder, max_calls, max_tokens)
        self.tokenizer = encoder.tokenizer
        self.decode = self.tokenizer.decode  # special tokens, too
        self.as_data = partial(printable, keep="\n\t")
        self.has_steps = has_steps
        functions = [tool["function"] for tool in encoder.tools]
        self.schemas = {function["name"]: function["parameters"] for function in functions}
        self.prefix = self._render([ASKED])
        self.pattern = "(?!)"
        self.thoughts = ("" if encoder.opens_think else r"\s*<think>") + ".*?</think>"
        self.end = encoder.answer_end()
        self.reads_itself = getattr(self.tokenizer, "response_template", None) is not None
        for tool in [STEP] * has_steps + list(self.schemas)[:1]:
            self._learn(tool)
        self.dropped = encoder.forbidden

    def _render(self, messages: Sequence[Message], header: bool = True) -> str:
        return render(self.tokenizer, messages, header, self.encoder.tools)

    def _learn(self, tool: str) -> None:
        """Find out how the template writes a turn and its answer. UserError if that is of no use."""
        request = Request(tool, "", 0)
        conversation = self._conversation([request], [RESULT])
        text = self._render(conversation)
        self.encoder.find_markup(text)
        said = text.removeprefix(self.prefix)
        earlier = self._render(conversation[:-1], header=False)
        if tool != STEP and not self.reads_itself:
            asked = self._render([ASKED], header=False)  # a header may open a thought that no record has
            turn = earlier.removeprefix(self.prefix if earlier.startswith(self.prefix) else asked)
            self.pattern = next((pattern for mark, pattern in FAMILIES.items() if mark in turn), self.pattern)
            calls = [call for _, call in self._calls(*turn.partition(self.decode([self.end]))[:2])]
            if not (calls and isinstance(calls[-1], dict)):
                raise _unusable(f"how it writes a call is not known: {turn[:200]!r}")
            first, *_ = *self.tokenizer.encode(text.removeprefix(earlier), add_special_tokens=False), self.end
            if first in self.encoder.forbidden and not self.answer([request], [""]):
                self.end = first  # GLM ends a call with the header of its result
        if self.decode(self.answer([request], [RESULT])).count(RESULT) != 1:
            raise _unusable("it does not write a call, a token that ends it, and then its result, each of them once")
        said = said.replace(CALL, "…").replace(RESULT, "what it gives")
        self.shown = f"by the chat template: {said!r}"
        if not text.startswith(earlier.rstrip()):
            self.shown += "; the template rewrites earlier turns, which stay as drawn here"

    def _conversation(
        self,
        requests: Sequence[Request],
        said: Sequence[str],
    ) -> list[Message]:
        """Return the made-up conversation that ends with the answers to calls."""
        tool, role = requests[0].tool, "user"
        turn: Message = {"role": "assistant", "content": CALL}
        if tool != STEP:
            call = {"type": "function", "id": ID, "function": {"name": tool, "arguments": {"argument": CALL}}}
            turn, role = {"role": "assistant", "content": "", "tool_calls": [call]}, "tool"
        answers = []
        for request, text in zip(requests, said, strict=True):
            answers.append({"role": role, "content": text, "name": request.tool, "tool_call_id": ID})
        return [ASKED, turn, *answers]

    def answer(
        self,
        requests: Sequence[Request],
        said: Sequence[str],
    ) -> list[int]:
        conversation = self._conversation(requests, said)
        text, ids = self.encoder.prompt(conversation)
        up_to_call, _, _ = text.partition(CALL)
        num_before = up_to_call.count(self.decode([self.end]))
        ends = [place for place, token in enumerate(ids, 1) if token == self.end]
        return ids[ends[num_before] :] if num_before < len(ends) else []

    def read(
        self,
        own: Sequence[int],
        has_ended: bool,
    ) -> tuple[int, list[Request]]:
        if not has_ended:
            return 0, []
        text, end = self.decode(own[:-1]), self.decode(own[-1:])
        requests = [self._request(call, place) for place, call in self._calls(text, end)]
        if not requests and self.has_steps:
            requests = [Request(STEP, self.encoder.decode(own), len(text))]
        return len(own), requests

    def _calls(self, text: str, end: str) -> Iterator[tuple[int, Any]]:
        """Yield the calls in a turn, and where each begins; a text says what is wrong with one that is no JSON.

        end: the token that ends the turn.
        """
        thoughts = re.match(self.thoughts, text, re.DOTALL)
        begin = thoughts.end() if thoughts else 0
        if not self.reads_itself:
            for found in re.finditer(self.pattern, text[begin:], re.DOTALL):
                said = self._read_tags(found[0]) or _parsed(found[1])
                for call in said if isinstance(said, list) else [said]:
                    yield begin + found.start(), call
            return
        parse = partial(self.tokenizer.parse_response, prefix=self.prefix)
        types = {"tools": self.encoder.tools} if "tools" in signature(parse).parameters else {}
        calls = []
        for turn in (text, text + end):  # which may close a call
            try:
                message = parse(turn, **types)
                content = message.get("content") or ""
                begin = max(begin, text.find(content) + len(content))
                calls = message.get("tool_calls") or []
                break
            except Exception as error:  # whatever a broken call makes it raise
                calls = [reason(error)]
        for call in calls:
            yield begin, call

    def _read_tags(self, text: str) -> Any:
        """Return the calls that a text makes in tags; None if it makes none."""
        try:
            said = self.tokenizer.parse_response(text, IN_TAGS, prefix="", tools=self.encoder.tools)
        except (ValueError, RecursionError, TypeError):  # the last from a transformers that knows no types
            return None
        return said.get("tool_calls")

    def _request(self, call: Any, place: int) -> Request:
        """Return the call of a tool. error: what is wrong with it."""
        function = call.get("function", call) if isinstance(call, dict) else call
        name = function.get("name") if isinstance(function, dict) else None
        tool, arguments = UNKNOWN, None
        if not isinstance(name, str):
            problem = f"this is no call: {function}"
        elif name not in self.schemas:
            problem = f"there is no tool {name}; there are {', '.join(self.schemas)}"
        else:
            tool = name
            arguments = function.get("arguments", function.get("parameters", {}))
            if isinstance(arguments, str):
                arguments = _parsed(arguments)
            problem = misfit(name, arguments, self.schemas[name])
        if problem:
            return Request(tool, encodable(str(call)), place, error=f"Error: {problem}")
        query = json.dumps(arguments, ensure_ascii=False)
        return Request(tool, encodable(query), place, arguments)


def _parsed(text: str) -> Any:
    """Return what a text says in JSON, or why it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        return reason(error)


def _unusable(why: str) -> UserError:
    fix = (
        "set chat_template to a Jinja file that writes calls as one of the known families does; or give the tokenizer "
    )
    fix += "a response_template; or, for functions of one text, set tool_format: tags"
    return UserError("the chat template cannot be used for tools", why, fix, PREFLIGHT)

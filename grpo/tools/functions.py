"""Names to tools. `search` looks into the knowledge base; others are functions, or the methods of an environment.

A function is named as a reward is: `./mine.py:calculator` or `package.module:calculator`. Its own name is its tag.
Called by tags it takes one text. Called by the chat template it takes what its type hints and docstring describe.
"""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from grpo.base.errors import CONFIG, UserError
from grpo.config.options import SEARCH, TrainConfig
from grpo.data.prompts import ChatEncoder, Tool
from grpo.data.worlds.kinds import NOTHING_FOUND
from grpo.engine.device.peers import Peers
from grpo.tools.arguments import checker
from grpo.tools.environment import NO_TOOLS, methods_of
from grpo.tools.protocol import Protocol
from grpo.tools.tags import TagProtocol
from grpo.tools.template import TemplateProtocol
from grpo.tools.tools import Tools, close_tools
from grpo.tools.workers import Function
from rewards.own_names import describe_failure, find_object, made
from rewards.own_words import RESULT, STEP
from rewards.prompts import tag_of, with_tools

RESERVED = ("think", "answer", "confidence", RESULT)  # tags with a meaning of their own
NUM_PASSAGES = 3
TEXTS = (inspect.Parameter.empty, str, "str", "typing.Any")
FORM = "define it as f(query: str) -> str; for other arguments set tool_format: template"
Functions = Mapping[str, Function]
NONE: Functions = MappingProxyType({})


class NoAnswer(BaseException):
    """Nobody has answered a call: no error of a tool's own, which a model may be told."""


def protocol_of(
    config: TrainConfig,
    tokenizer: Any,
    objects: Functions = NONE,
) -> Protocol:
    """Return how the tools of a configuration are called. Its encoder describes them in prompts, if they are typed.

    By the chat template, unless tool_format says otherwise, a tool has no description, or the template writes no calls.
    objects: what a program passes, by its names. UserError (exit 2 or 3) if the configuration asks for the template,
    and it is not possible.
    """
    limits = config.max_tool_calls, config.max_tool_result_tokens

    def by_template() -> Protocol:
        schemas, has_steps = _describe(config, objects)
        encoder = ChatEncoder(tokenizer, schemas)
        return TemplateProtocol(encoder, *limits, has_steps)

    tags = [tag_of(name) for name in config.tools]
    return _if_typed(config, by_template) or TagProtocol(tags, ChatEncoder(tokenizer), *limits)


def build_tools(
    config: TrainConfig,
    tokenizer: Any,
    objects: Functions = NONE,
    peers: Peers | None = None,
    are_absent: bool = False,
) -> Tools | None:
    """Return the tools of a configuration; None if it has none. are_absent: who calls one gets no further.

    UserError (exit 2 or 3) as in `protocol_of`, or if one is not there, or cannot be called in that way.
    """
    if not (config.tools or config.environment):
        return None
    protocol = protocol_of(config, tokenizer, objects)
    if are_absent:
        functions: Functions = dict.fromkeys(map(tag_of, config.tools), unavailable)
    else:
        functions = find_tools(config.tools, vars(config), objects, protocol.is_typed)
    factory = _find(config.environment, objects, "environment") if config.environment else None
    return Tools(functions, protocol, config.tool_timeout_s, peers, factory, config.max_prompt_length)


def unavailable(*texts: str, **arguments: Any) -> str:
    """Stand for a tool that is not there."""
    raise NoAnswer("there are no tools")


def check_tools(
    config: TrainConfig,
    objects: Functions = NONE,
) -> None:
    """Find the tools of a configuration. UserError (exit 2 or 3) if one is not usable with any tokenizer."""
    described = _if_typed(config, lambda: _describe(config, objects))
    found = find_tools(config.tools, vars(config), objects, is_typed=described is not None)
    close_tools(found)


def system_prompt_of(config: TrainConfig, encoder: ChatEncoder) -> str | None:
    """Return the system prompt: without what tells how to call tools by tags, if they are called otherwise."""
    prompt = config.system_prompt
    if not (prompt and encoder.tools):
        return prompt
    about_tags = with_tools("", config.tools)
    return prompt.removesuffix(about_tags).rstrip()


def _if_typed(config: TrainConfig, make: Callable[[], Any]) -> Any:
    """Make what calls by the chat template need; None if it is not asked for, and not possible or not meant."""
    is_asked = config.tool_format == "template" or config.environment
    if not is_asked and (config.tool_format == "tags" or SEARCH in config.tools):
        return None
    try:
        return make()
    except UserError:
        if is_asked:
            raise
        return None


def _find(name: str, objects: Functions, what: str) -> Any:
    return objects[name] if name in objects else find_object(name, what)


def _describe(config: TrainConfig, objects: Functions) -> tuple[list[Tool], bool]:
    """Return the descriptions of all tools, and whether an environment answers each turn.

    UserError (exit 2) names a tool that has none.
    """
    found = {}
    for name in config.tools:
        found[tag_of(name)] = Search if name == SEARCH else _find(name, objects, "tool")
    environment = config.environment
    methods = {}
    if environment:
        factory = _find(environment, objects, "environment")
        methods = methods_of(environment, factory)
    own = {name: method for name, method in methods.items() if name not in NO_TOOLS}
    if twice := found.keys() & own.keys():
        what = f"the tool {min(twice)} is there twice"
        why = f"a method of the environment {environment} has that name, too"
        raise UserError(what, why, "give one of them another name", CONFIG)
    has_steps = STEP in methods
    if not (found or own or has_steps):
        fix = f"give it public methods, or `{STEP}(self, text: str)`, which answers each turn"
        raise UserError(f"the environment {environment} can do nothing", "it has no tools", fix, CONFIG)
    schemas = [_description(name, function) for name, function in (found | own).items()]
    return schemas, has_steps


def _description(name: str, function: Any) -> Tool:
    from transformers.utils import get_json_schema  # takes seconds

    try:
        called = function if inspect.isroutine(function) else function.__call__
        schema = get_json_schema(called)
        parameters = schema["function"]["parameters"]
        checker().check_schema(parameters)
        inspect.signature(called).bind_partial(**parameters["properties"])  # they are passed by name
    except Exception as error:  # of the docstring, or of a type hint
        fix = 'give each argument a type hint, and a line under "Args:" in the docstring; or set tool_format: tags; '
        fix += "of an environment, begin the name of a method that is no tool with _"
        raise UserError(f"the tool {name} has no description", describe_failure(error), fix, CONFIG) from None
    schema["function"]["name"] = name
    return schema


def find_tools(
    names: Sequence[str],
    options: Mapping,
    objects: Functions = NONE,
    is_typed: bool = False,
) -> dict[str, Function]:
    """Return the tools of these names by their tags. options: the keys of the configuration."""
    found: dict[str, Function] = {}
    taken = NO_TOOLS if is_typed else (*RESERVED, *NO_TOOLS)
    for name in names:
        tag = tag_of(name)
        if tag in found or tag in taken or not re.fullmatch(r"[A-Za-z_]\w*", tag):
            why = "two tools have that name" if tag in found else "it is taken, or no name"
            raise UserError(f"the tool {name} cannot have the tag <{tag}>", why, "give it another name", CONFIG)
        if name == SEARCH:
            from rewards.knowrl.fact_checker import knowledge_base_path  # it imports SQLAlchemy

            found[tag] = Search(knowledge_base_path(options))
        else:
            function = _find(name, objects, "tool")
            found[tag] = made("tool", name, function) if is_typed else as_tool(name, function)
    return found


def as_tool(name: str, found: Any) -> Function:
    """Return a user's object if it can be called with one text; UserError (exit 2) says why it cannot.

    As with rewards, a class stands for the object that it makes without arguments.
    """
    function = made("tool", name, found)
    try:
        signature = inspect.signature(function)
        signature.bind("")
        first = next(iter(signature.parameters.values()))
        if first.annotation not in TEXTS:
            raise TypeError(f"{first} is no text")
    except (TypeError, ValueError) as error:  # the latter, if it does not tell
        raise UserError(f"the tool {name} is no function of one text", str(error), FORM, CONFIG) from None
    return function


class Search:
    """Searches a knowledge base: in the document whose title is asked for, or else in all of them."""

    def __init__(self, path):
        from knowledge.store.base import KnowledgeBase  # so does this

        self.base = KnowledgeBase(path)

    def __call__(self, query: str) -> str:
        """Search an encyclopedia.

        Args:
            query: A title, or words to look for.
        """
        titles = self.base.lookup(query, guess=False).titles
        if not titles and not self.base.has_index:
            return NOTHING_FOUND
        passages = self.base.search(query, NUM_PASSAGES, titles or None)
        texts = [p.text if p.title in p.text else f"{p.title}: {p.text}" for p in passages]
        return " ".join(texts) or NOTHING_FOUND

    def close(self) -> None:
        """Free the knowledge base."""
        self.base.close()

"""Names to tools. `search` looks into the knowledge base; others are functions with one text argument.

A function is named as a reward is: `./mine.py:calculator` or `package.module:calculator`. Its own name is its tag.
"""

import inspect
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from grpo.base.errors import CONFIG, UserError
from grpo.config.options import SEARCH, TrainConfig
from grpo.data.prompts import ChatEncoder
from grpo.data.worlds.kinds import NOTHING_FOUND
from grpo.engine.device.peers import Peers
from grpo.tools.protocol import ToolProtocol
from grpo.tools.tools import Tools
from grpo.tools.workers import Function
from rewards.own import describe_failure, find_object, made, tag_of
from rewards.own_words import RESULT

RESERVED = ("think", "answer", "confidence", RESULT)  # tags with a meaning of their own
NUM_PASSAGES = 3
TEXTS = (inspect.Parameter.empty, str, "str", "typing.Any")
FORM = "define it as f(query: str) -> str"
NONE: Mapping[str, Function] = MappingProxyType({})


def build_tools(
    config: TrainConfig, encoder: ChatEncoder, objects: Mapping[str, Function] = NONE, peers: Peers | None = None
) -> Tools | None:
    """Return the tools of a configuration; None if it has none. objects: what a program passes, by its names.

    UserError (exit 2 or 3) if one is not there, or cannot be called with one text.
    """
    if not config.tools:
        return None
    functions = find_tools(config.tools, vars(config), objects)
    protocol = ToolProtocol(list(functions), encoder, config.max_tool_calls, config.max_tool_result_tokens)
    return Tools(functions, protocol, config.tool_timeout_s, peers)


def find_tools(names: Sequence[str], options: Mapping, objects: Mapping[str, Function] = NONE) -> dict[str, Function]:
    """Return the tools of these names by their tags. options: the keys of the configuration."""
    found: dict[str, Function] = {}
    for name in names:
        tag = tag_of(name)
        if tag in found or tag in RESERVED or not re.fullmatch(r"[A-Za-z_]\w*", tag):
            why = "two tools have that name" if tag in found else "it is taken, or no name"
            raise UserError(f"the tool {name} cannot have the tag <{tag}>", why, "give it another name", CONFIG)
        if name in objects:
            found[tag] = objects[name]
        elif name == SEARCH:
            from rewards.services import knowledge_base_path  # it imports SQLAlchemy

            found[tag] = Search(knowledge_base_path(options))
        else:
            found[tag] = as_tool(name, find_object(name, "tool"))
    return found


def as_tool(name: str, found: Any) -> Function:
    """Return a user's object if it can be called with one text; UserError (exit 2) says why it cannot.

    As with rewards, a class stands for the object that it makes without arguments.
    """
    function = made("tool", name, found)
    try:
        parameters = inspect.signature(function).parameters.values()
        needed = [p for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        shown = f"its parameters are ({', '.join(map(str, parameters))})"
    except (TypeError, ValueError) as error:  # it cannot be called, or does not tell
        raise UserError(f"the tool {name} is no function of a text", describe_failure(error), FORM, CONFIG) from None
    why = ""
    if len(needed) != 1 or needed[0].kind is needed[0].KEYWORD_ONLY:
        why = "a call is one text between two tags, and there is no schema for several arguments"
    elif needed[0].annotation not in TEXTS:
        why = "a call is a text"
    if why:
        raise UserError(f"the tool {name} does not take one text", f"{shown}; {why}", FORM, CONFIG)
    return function


class Search:
    """Searches a knowledge base: in the document whose title is asked for, or else in all of them."""

    def __init__(self, path):
        from knowledge.store.base import KnowledgeBase

        self.base = KnowledgeBase(path)

    def __call__(self, query: str) -> str:
        titles = self.base.lookup(query, guess=False).titles
        if not titles and not self.base.has_index:
            return NOTHING_FOUND
        passages = self.base.search(query, NUM_PASSAGES, titles or None)
        texts = [p.text if p.title in p.text else f"{p.title}: {p.text}" for p in passages]
        return " ".join(texts) or NOTHING_FOUND

    def close(self) -> None:
        """Free the knowledge base."""
        self.base.close()

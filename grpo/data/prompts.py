"""From messages to tokens, by the chat template and the tokenizer.

A prompt ends with the assistant's header. Text from a data set cannot pretend to be a special token: a question that
contains `<|im_end|>` stays a question.
"""

import json
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from grpo.algorithm.schema import Prompt
from grpo.base.errors import PREFLIGHT, UserError, explained, reason
from grpo.base.storage import Json, read_json
from grpo.base.text import encodable
from grpo.base.time_limit import time_limit
from grpo.data.count import RowCount
from grpo.data.messages import Message, parts, read_tools
from grpo.data.rows import Row

TEMPLATE_SECONDS = 5.0  # of CPU time, for one prompt
BYTE_ORDER_MARK = "\ufeff"  # which editors on Windows write before a text
MAX_TEMPLATE_CHARS = 1_000_000  # that a chat template may write around the messages
Tool = Json  # the description of one, as a chat template takes it
VOCABULARY_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")


def has_tokenizer(folder: Path) -> bool:
    """Return whether a folder holds a tokenizer. If it does not, transformers may silently make an empty one."""
    return any((folder / name).exists() for name in VOCABULARY_FILES)


def load_tokenizer(folder: Path, chat_template: str | None = None, template_options: Json | None = None):
    """Load the Hugging Face tokenizer of a folder; UserError (exit 3) if it is unreadable or has no chat template.

    chat_template: a Jinja file that replaces its own. template_options: values for the template's variables. They are
    written into the template, so that the saved tokenizer has them, too.
    """
    from transformers import AutoTokenizer  # takes seconds, and a program without a tokenizer needs none

    with explained(
        Exception,
        f"cannot read the tokenizer in {folder}",
        "set tokenizer_name_or_path to a folder with tokenizer.json, or copy the tokenizer's files there",
    ):  # many kinds, by which file is broken
        if not has_tokenizer(folder):
            raise FileNotFoundError(f"none of {', '.join(VOCABULARY_FILES)} is there")
        # With trust_remote_code unset, it would ask on the terminal.
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    if chat_template:
        with explained(
            (OSError, UnicodeDecodeError),
            f"cannot read the chat template {chat_template}",
            "give the path of a Jinja file, in UTF-8",
        ):
            tokenizer.chat_template = Path(chat_template).read_text(encoding="utf-8")
    templates = tokenizer.chat_template
    named = templates if isinstance(templates, dict) else {"default": templates}
    if not named.get("default"):
        what = f"the tokenizer in {folder} has no chat template" + " named default" * isinstance(templates, dict)
        raise UserError(what, "prompts cannot be rendered without one", "set chat_template to a Jinja file", PREFLIGHT)
    values = "".join(
        f"{{% if {name} is not defined %}}{{% set {name} = {value!r} %}}{{% endif %}}"
        for name, value in (template_options or {}).items()
    )
    named = {name: values + text.removeprefix(BYTE_ORDER_MARK) for name, text in named.items()}
    tokenizer.chat_template = named if len(named) > 1 else named["default"]
    return tokenizer


def render(tokenizer, messages: Sequence[Message], header: bool = True, tools: Sequence[Tool] = ()) -> str:
    """Render messages with the chat template.

    header: end with the assistant's header, as a prompt does. tools: descriptions of those that can be called.
    """
    try:
        num_chars = sum(len(message["content"]) for message in messages)
        with time_limit(TEMPLATE_SECONDS):
            text = tokenizer.apply_chat_template(
                list(messages), list(tools) or None, tokenize=False, add_generation_prompt=header
            )
        if len(text) > MAX_TEMPLATE_CHARS + num_chars:
            raise ValueError(f"it writes more than {MAX_TEMPLATE_CHARS} characters around the messages")
    except Exception as error:  # Jinja's own errors and a template's raise_exception()
        line = getattr(error, "lineno", None)  # of a template that is not valid
        raise UserError(
            "the chat template cannot render a prompt",
            reason(error) + (f" (line {line})" if line else ""),
            "correct the template; if it allows no system role, put the instructions into prompt_template",
            PREFLIGHT,
        ) from None
    return text


def turn_end(tokenizer) -> int | None:
    """Return the token that ends an assistant's turn: the special token that follows its text in the chat template.

    Base models often name another end token: Qwen2.5 names <|endoftext|>, but its template ends a turn with <|im_end|>.
    If no special token follows, return the tokenizer's end token, or None if it has none.
    """
    mark = "\ue000"
    turns = [{"role": "user", "content": "x"}, {"role": "assistant", "content": mark}]
    _, _, rest = render(tokenizer, turns, header=False).partition(mark)
    ids = tokenizer.encode(rest.lstrip(), add_special_tokens=False)
    # The tokenizer's `all_special_ids` lacks tokens without a role in its settings, such as Llama 3's headers.
    following = tokenizer.added_tokens_decoder.get(ids[0]) if ids else None
    return ids[0] if following and following.special else tokenizer.eos_token_id


def eos_ids(folder: Path, tokenizer) -> tuple[int, ...]:
    """Return every token that ends a completion.

    They come from the chat template, the tokenizer, generation_config.json and config.json.
    """
    found = {turn_end(tokenizer), tokenizer.eos_token_id}
    for path in (folder / "generation_config.json", folder / "config.json"):
        kinds = (OSError, ValueError, TypeError, AttributeError, RecursionError)
        with explained(kinds, f"{path} cannot be read", "download the checkpoint again"):
            value = read_json(path).get("eos_token_id") if path.exists() else None
            found |= set(value) if isinstance(value, list) else {value}
            if any(type(token) not in (int, type(None)) for token in found):
                raise ValueError(f"its eos_token_id is {value!r:.80}")
    found.discard(None)
    if not found:
        raise UserError(
            f"no end token is known for {folder}",
            "neither the tokenizer nor generation_config.json names one",
            "add eos_token_id to generation_config.json",
            PREFLIGHT,
        )
    return tuple(sorted(found))


def _find_header(tokenizer) -> tuple[str, str]:
    """Return a prompt, and the space between it and an answer. UserError (exit 3) if it does not end with a header."""
    turns = [{"role": "user", "content": "\ue000"}, {"role": "assistant", "content": "\ue001"}]
    prompt = render(tokenizer, turns[:1])
    bare = render(tokenizer, turns[:1], header=False)
    both = render(tokenizer, turns, header=False)
    space, _, _ = both.removeprefix(prompt).partition("\ue001")
    follows = both.startswith(prompt) and not space.strip()
    has_header = prompt.startswith(bare.rstrip()) and prompt != bare
    always_has = follows and prompt.partition("\ue000")[2].strip()  # as Mistral's [/INST]
    if not has_header and not always_has:
        raise UserError(
            "the chat template ignores add_generation_prompt",
            "a prompt must end with the assistant's header, or the model would continue the question",
            "use a template that handles add_generation_prompt",
            PREFLIGHT,
        )
    return prompt, space if follows else ""


class ChatEncoder:
    """Renders messages with the tokenizer's chat template and encodes them.

    A message's text never becomes a special token, nor one of those that the template itself writes around messages.
    tools: descriptions of those that every prompt offers.
    """

    def __init__(self, tokenizer, tools: Sequence[Tool] = ()):
        self.tokenizer = tokenizer
        self.tools = list(tools)
        self.end = turn_end(tokenizer)
        prompt, self.space = _find_header(tokenizer)
        self.depends = bool(self.space) or self._encode("\nx") != [*self._encode("\n"), *self._encode("x")]
        self.opens_think = prompt.rstrip().endswith("<think>")
        self.longest_token = max(map(len, tokenizer.get_vocab()))  # characters
        self.find_markup(prompt)

    def find_markup(self, rendered: str) -> None:
        """Find the tokens that a message must not spell. It may spell <think>, since a model answers with it."""
        added = {index: token for index, token in self.tokenizer.added_tokens_decoder.items() if token.content}
        texts = {token.content for token in added.values()}
        markup = {text for text in texts if text in rendered and re.search(r"[^\w\s]", text)} - {"<think>"}
        self.forbidden = {index for index, token in added.items() if token.special or token.content in markup}
        self.forbidden.discard(self.tokenizer.unk_token_id)  # any text may hold characters unknown to the tokenizer
        # DeepSeek-R1's <｜User｜> is not flagged as special. If cut after its first character, it is not recognised.
        splits = [f"(?<={re.escape(text[0])})(?={re.escape(text[1:])})" for text in markup if text[1:]]
        self.splits = re.compile("|".join(splits) or "(?!)")
        # Some text spells such a token only after it is normalised. Where that is possible, examine every text.
        can_hide = any(token.normalized for token in added.values())
        self.suspicious = re.compile("" if can_hide else "|".join(map(re.escape, texts)))

    def cannot_write(self, messages: Sequence[Message], tools: Sequence[Tool]) -> str:
        """Return why the chat template does not write messages and tools whole; "" if it does."""
        if not tools and not any(map(parts, messages)):
            return ""
        written = partial(render, self.tokenizer, header=False, tools=tools)
        lost = set()
        try:
            for number, message in enumerate(messages):
                before = messages[:number]
                for part in parts(message):  # `tool` is all of it
                    less = {name: value for name, value in message.items() if name != part}
                    if written([*before, message]) == written([*before, less] if part != "tool" else before):
                        lost.add(part)
            if tools and written(messages) == written(messages, tools=()):
                lost.add("tools")
        except UserError as error:
            return f"that the chat template cannot write: {error.why}"
        if lost:
            return f"with {' and '.join(sorted(lost))}, which the chat template does not write"
        texts = json.dumps([*filter(parts, messages), *tools], ensure_ascii=False)
        if self._hides(texts):
            return "with special tokens in calls, thoughts or tools"
        return ""

    def turn(self, before: Sequence[Message], message: Message, tools: Sequence[Tool] = ()) -> list[int]:
        """Return the tokens of an answer as the template writes it, calls and thoughts included, and of its end.

        before: the messages that it answers. It is [] if the template does not write it after the prompt of these.
        """
        prompt = render(self.tokenizer, before, tools=tools)
        text = render(self.tokenizer, [*before, message], False, tools)
        if not text.startswith(prompt):
            return []
        ids = self._follow(prompt, text.removeprefix(prompt))
        special = [place for place, token in enumerate(ids, 1) if token in self.forbidden]
        if special and not self.decode(ids[special[-1] :]).strip():
            return ids[: special[-1]]  # without a line break after it
        return [*ids, self.answer_end()]

    def prompt(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> tuple[str, list[int]]:
        """Render messages up to the assistant's header; return the text and its tokens.

        The text is encoded in one piece, as in the model's training. Only messages that spell a special token are
        encoded separately from the template around them.
        """
        messages = [{**message, "content": encodable(message["content"])} for message in messages]
        tools = [*self.tools, *tools]
        text = render(self.tokenizer, messages, tools=tools)
        hiding = [index for index, message in enumerate(messages) if self._hides(message["content"])]
        markers = {index: f"\ue000{index}\ue001" for index in hiding}  # such a message's placeholder in the template
        if not markers:
            return text, self._encode(text)
        marked = [{**message, "content": markers.get(i, message["content"])} for i, message in enumerate(messages)]
        rest = render(self.tokenizer, marked, tools=tools)
        ids: list[int] = []
        for index, marker in markers.items():
            before, found, rest = rest.partition(marker)
            if not found or marker in rest:
                raise _unsafe("the chat template does not contain each message exactly once")
            ids += self._encode(before) + self.plain(messages[index]["content"])
        return text, ids + self._encode(rest)

    def answer(self, text: str, prompt: str = "") -> list[int]:
        """Return the tokens of an answer as the policy would generate it after a prompt, and the end token."""
        return [*self.after(prompt, self.space + self.unopened(text)), self.answer_end()]

    def after(self, before: str, text: str) -> list[int]:
        """Return the tokens of a text that follows another."""
        return self.plain(text) if self._hides(text) else self._follow(before, text)

    def _follow(self, before: str, text: str) -> list[int]:
        """Return the tokens of a text as they follow another, if the tokenizer splits the whole at the border.

        Else those of the text alone. Llama 2's tokenizer begins that with a space, which it does not have there.
        """
        for start in (before, "\n") if self.depends else ():
            head = self._encode(start)
            whole = self._encode(start + text)
            if whole[: len(head)] == head:
                return whole[len(head) :]
        return self._encode(text)

    def unopened(self, text: str) -> str:
        """Return an answer without an opening <think>, if the template's header already ends with it."""
        return text.lstrip().removeprefix("<think>").lstrip("\n") if self.opens_think else text

    def answer_end(self) -> int:
        """Return the token that ends an answer; UserError (exit 3) if none is known."""
        if self.end is None:
            raise UserError(
                "no token is known that ends an answer",
                "the chat template ends no turn with a special token, and the tokenizer has no eos_token",
                "add eos_token to tokenizer_config.json",
                PREFLIGHT,
            )
        return self.end

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of some tokens, without special tokens."""
        return self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def max_chars(self, num_tokens: int) -> int:
        """Return the most characters that `num_tokens` tokens can spell.

        A longer text has more tokens, and need not be encoded to find that out.
        """
        return num_tokens * self.longest_token

    def may_fit(self, messages: Sequence[Message], num_tokens: int) -> bool:
        """Return whether messages are short enough to be worth encoding."""
        return sum(len(message["content"]) for message in messages) <= self.max_chars(num_tokens)

    def plain(self, text: str) -> list[int]:
        """Return the tokens of a text without any special token; UserError (exit 3) if the tokenizer makes one."""
        ids = self.spelled(text)
        if not self.forbidden.isdisjoint(ids):
            raise _unsafe("the tokenizer finds a special token in any text that spells it")
        return ids

    def spelled(self, text: str) -> list[int]:
        """Return the tokens of a text that may spell special tokens. Some tokenizers make these all the same."""
        pieces = self.splits.split(text)
        encode = partial(self.tokenizer.encode, add_special_tokens=False, split_special_tokens=True)
        return [token for piece in pieces for token in encode(piece)]

    def _hides(self, text: str) -> bool:
        """Return whether a text spells a special token."""
        return bool(self.suspicious.search(text)) and self._encode(text) != self.plain(text)

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)


def _unsafe(what: str) -> UserError:
    return UserError(
        what,
        "a message holds a special token and cannot be encoded safely",
        "remove special tokens from the data",
        PREFLIGHT,
    )


def make_prompts(
    rows: Sequence[Row],
    encoder: ChatEncoder,
    system_prompt: str | None,
    template: str,
    max_prompt_length: int,
    count: RowCount,
    limit: str = "max_prompt_length",
) -> list[Prompt]:
    """Return the prompts of at most `max_prompt_length` tokens. count: gets the other rows, which are left out.

    limit: where that number comes from.
    """
    prompts = []
    lengths = []
    for row in rows:
        messages = row.messages(template, system_prompt)
        tools = read_tools(row.columns.get("tools"))
        why_not = encoder.cannot_write(messages, tools)
        if not why_not and encoder.may_fit(messages, max_prompt_length):
            text, ids = encoder.prompt(messages, tools)
            lengths.append(len(ids))
            if len(ids) <= max_prompt_length:
                passed = () if row.before is None else tuple(messages)
                prompts.append(Prompt(row.index, text, tuple(ids), row.columns, passed, tuple(messages)))
                continue
        count.left_out[why_not or f"longer than {max_prompt_length} tokens"] += 1
    if not prompts:
        shortest = min(lengths, default=f"more than {max_prompt_length}")
        raise UserError(
            "every prompt is longer than is allowed, or left out",
            f"the shortest has {shortest} tokens, allowed are {max_prompt_length}: {limit}; {count}",
            "raise max_prompt_length, as far as the model has positions; or set chat_template to a Jinja file that "
            "writes all of the messages",
            PREFLIGHT,
        )
    return prompts

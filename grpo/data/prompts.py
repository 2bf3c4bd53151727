"""Messages to tokens: the chat template, the tokenizer, and what text from a data set may not do.

A prompt ends with the assistant's header. Text from a data set is encoded with special tokens disabled, so that a
question that contains `<|im_end|>` stays a question.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from grpo.data.rows import Row
from grpo.errors import PREFLIGHT, UserError
from grpo.schema import Prompt

Message = dict[str, str]  # {"role": "system" | "user" | "assistant", "content": text}


def load_tokenizer(folder: Path, chat_template: str | None = None):
    """The Hugging Face tokenizer of a folder; exit 3 if it cannot be read or has no chat template."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)  # else it would ask on the terminal
    except Exception as error:  # many kinds, depending on which file is missing or broken
        raise UserError(
            f"cannot read the tokenizer in {folder}",
            f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}",
            "set tokenizer_name_or_path to a folder with tokenizer.json",
            PREFLIGHT,
        ) from None
    if chat_template:
        try:
            tokenizer.chat_template = Path(chat_template).read_text(encoding="utf-8")
        except OSError as error:
            raise UserError(
                f"cannot read the chat template {chat_template}", str(error), "check the path", PREFLIGHT
            ) from None
    if not tokenizer.chat_template:
        raise UserError(
            f"the tokenizer in {folder} has no chat template",
            "prompts cannot be rendered without one",
            "set chat_template to a Jinja file",
            PREFLIGHT,
        )
    return tokenizer


def eos_ids(folder: Path, tokenizer) -> tuple[int, ...]:
    """Every token that ends a completion: the tokenizer's and all of generation_config.json and config.json."""
    found = {tokenizer.eos_token_id}
    for name in ("generation_config.json", "config.json"):
        if (folder / name).exists():
            value = json.loads((folder / name).read_text(encoding="utf-8")).get("eos_token_id")
            found |= set(value) if isinstance(value, list) else {value}
    ids = tuple(sorted(i for i in found if i is not None))
    if not ids:
        raise UserError(
            f"no end token is known for {folder}",
            "neither the tokenizer nor generation_config.json names one",
            "add eos_token_id to generation_config.json",
            PREFLIGHT,
        )
    return ids


class ChatEncoder:
    """Renders messages with the tokenizer's chat template and encodes them."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.special = [token for token in tokenizer.all_special_tokens if token]
        plain, with_header = (self._render([{"role": "user", "content": "x"}], header) for header in (False, True))
        if not with_header.startswith(plain) or with_header == plain:
            raise UserError(
                "the chat template ignores add_generation_prompt",
                "a prompt must end with the assistant's header, or the model would go on with the question",
                "use a template that handles add_generation_prompt",
                PREFLIGHT,
            )
        self.opens_think = with_header.rstrip().endswith("<think>")

    def prompt(self, messages: Sequence[Message]) -> tuple[str, list[int]]:
        """The rendered text, up to the assistant's header, and its tokens.

        The whole text is encoded at once, as the model has seen it in training. Only messages that spell a special
        token are encoded apart from the template around them.
        """
        text = self._render(messages)
        hostile = {
            i: f"\ue000{i}\ue001"
            for i, m in enumerate(messages)
            if any(token in m["content"] for token in self.special)
        }
        if not hostile:
            return text, self.tokenizer.encode(text, add_special_tokens=False)
        rest = self._render([{**m, "content": hostile.get(i, m["content"])} for i, m in enumerate(messages)])
        ids: list[int] = []
        for i, mark in hostile.items():
            before, found, rest = rest.partition(mark)
            if not found or mark in rest:
                raise UserError(
                    "the chat template does not contain each message exactly once",
                    "a message holds a special token and cannot be encoded safely",
                    "remove special tokens from the data",
                    PREFLIGHT,
                )
            ids += self.tokenizer.encode(before, add_special_tokens=False) + self.plain(messages[i]["content"])
        return text, ids + self.tokenizer.encode(rest, add_special_tokens=False)

    def answer(self, text: str) -> list[int]:
        """An assistant's answer as the policy would have to generate it: its tokens, then the end token. An opening
        <think> is left out where the template's header has it already."""
        if self.opens_think:
            text = text.lstrip().removeprefix("<think>").lstrip("\n")
        return [*self.plain(text), self.tokenizer.eos_token_id]

    def plain(self, text: str) -> list[int]:
        """Tokens of a text in which nothing is special."""
        return self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)

    def _render(self, messages: Sequence[Message], header: bool = True) -> str:
        try:
            return self.tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=header)
        except Exception as error:  # Jinja's own errors and a template's raise_exception()
            raise UserError(
                "the chat template cannot render a prompt",
                f"{type(error).__name__}: {error}",
                "if it allows no system role, put the instructions into prompt_template",
                PREFLIGHT,
            ) from None


def make_prompts(
    rows: Sequence[Row], encoder: ChatEncoder, system_prompt: str | None, template: str, max_prompt_length: int
) -> tuple[list[Prompt], int]:
    """The prompts of at most `max_prompt_length` tokens, and how many were longer: those are left out, never cut."""
    system = [{"role": "system", "content": system_prompt}] if system_prompt else []
    prompts = []
    for row in rows:
        text, ids = encoder.prompt([*system, {"role": "user", "content": template.replace("{question}", row.question)}])
        prompts.append(Prompt(row.index, text, tuple(ids), row.columns))
    kept = [prompt for prompt in prompts if len(prompt.ids) <= max_prompt_length]
    if not kept:
        raise UserError(
            "every prompt is longer than max_prompt_length",
            f"the shortest has {min(len(p.ids) for p in prompts)} tokens, allowed are {max_prompt_length}",
            "raise max_prompt_length",
            PREFLIGHT,
        )
    return kept, len(prompts) - len(kept)

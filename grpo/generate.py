"""Talk to a model: one prompt, several prompts, or a conversation.

  python -m grpo.generate MODEL [--prompt TEXT ...] [--system TEXT] [--n 1] [--temperature 0.7] [--max-new-tokens 512]

Without --prompt it holds a conversation on the terminal. Ctrl-C stops an answer; an empty line ends the conversation.
The model of a run gets the run's system prompt, prompt template and tools, whose calls and results are shown.
"""

import argparse
import sys
from dataclasses import replace

from grpo.algorithm.schema import Completion, Prompt, hash_seed
from grpo.base.errors import PREFLIGHT, UserError, escape, run_main
from grpo.base.progress import command_parser, say_next
from grpo.config.options import TrainConfig
from grpo.data.messages import Message
from grpo.data.prompts import ChatEncoder
from grpo.data.questions import Questions
from grpo.engine.device.distributed import choose_device
from grpo.engine.device.draw import SamplingParams
from grpo.engine.sampling.sampler import Sampler
from grpo.evaluation.answers import generate_groups
from grpo.policy import Policy
from grpo.run.saved import find_saved, load_saved
from grpo.tools.functions import build_tools, system_prompt_of
from grpo.tools.tools import Tools
from rewards.own_names import OBJECT

INCOMPLETE = "\ufffd"  # the bytes of a character may be spread over several tokens


class Chat:
    """A policy and its sampler, which answer messages. `template` turns a question into a user's message."""

    def __init__(
        self,
        policy: Policy,
        sampling: SamplingParams,
        seed: int,
        template: str = "{question}",
        tools: Tools | None = None,
    ):
        self.policy = policy
        self.sampling = sampling
        self.seed = seed
        self.template = template
        self.encoder = tools.protocol.encoder if tools else ChatEncoder(policy.tokenizer)
        self.sampler = Sampler(policy.model, policy.eos_ids, tools=tools)

    def message(self, question: str) -> Message:
        """Return the user's message that asks a question."""
        return {"role": "user", "content": self.template.replace("{question}", question)}

    def fit(self, messages: list[Message], row: int = 0) -> Prompt:
        """Return the prompt of a conversation. UserError (exit 3) if it leaves no room for an answer."""
        positions = self.policy.model.config.max_positions
        text, ids = self.encoder.prompt(messages)
        if len(ids) >= positions:
            raise UserError(
                "the prompt is too long",
                f"it has {len(ids)} tokens, and the model has {positions} positions for prompt and answer",
                "shorten the question, or begin a new conversation",
                PREFLIGHT,
            )
        return Prompt(row, text, tuple(ids), {"question": messages[-1]["content"]}, turns=tuple(messages))

    def sampling_after(self, num_tokens: int) -> SamplingParams:
        """Return the sampling parameters after a prompt: no more tokens than the model has positions for."""
        room = self.policy.model.config.max_positions - num_tokens
        return replace(self.sampling, max_new_tokens=min(self.sampling.max_new_tokens, room))

    def answer(self, messages: list[Message]) -> str:
        """Print the answer to a conversation while it is generated, and return it."""
        seed = hash_seed(self.seed, len(messages))
        (prompt,) = self.sampler.reset([self.fit(messages)], 1, [seed])
        sampling = self.sampling_after(len(prompt.ids))
        ids: list[int] = []
        shown = ""
        for token in self.sampler.stream(prompt.ids, sampling, seed, _note_failure):
            ids.append(token)
            text = self.policy.decode(ids)
            if not text.endswith(INCOMPLETE):
                print(escape(text[len(shown) :]), end="", flush=True)
                shown = text
        print()
        return shown

    def answer_all(self, conversations: list[list[Message]], n: int) -> None:
        """Generate n answers to each conversation, all together, and print them. A single answer is streamed."""
        if len(conversations) == n == 1:
            self.answer(conversations[0])
            return
        prompts = [self.fit(messages, row) for row, messages in enumerate(conversations)]
        sampling = self.sampling_after(max(len(prompt.ids) for prompt in prompts))
        groups = generate_groups(self.policy, self.sampler, prompts, n, sampling, self.seed)
        for messages, group in zip(conversations, groups, strict=True):
            print(f"> {escape(messages[-1]['content'])}")
            for completion in group.completions:
                print(escape(completion.text) + "\n")

    def converse(self, messages: list[Message]) -> None:
        """Answer questions from the terminal until an empty line. messages: those before the first question."""
        for message in messages:
            print(f"{message['role']}: {escape(message['content'])}", file=sys.stderr)
        if self.template != "{question}":
            print(f"every question becomes: {escape(self.template)}", file=sys.stderr)
        print("an empty line ends the conversation, Ctrl-C stops an answer\n", file=sys.stderr)
        while True:
            question = _read_question()
            if not question:
                return
            messages = [*messages, self.message(question)]
            try:
                answer = self.answer(messages)
                messages = [*messages, {"role": "assistant", "content": answer}]
            except KeyboardInterrupt:
                print("\n(stopped; this question and its answer are left out of the conversation)", file=sys.stderr)
                messages = messages[:-1]


def _tools_of(made_with: object, policy: Policy) -> Tools | None:
    """Return the tools of a run, without those that only the program has that passed them."""
    if not isinstance(made_with, TrainConfig):
        return None
    names = tuple(name for name in made_with.tools if not name.startswith(OBJECT))
    environment = made_with.environment
    if environment and environment.startswith(OBJECT):
        environment = None
    config = replace(made_with, tools=names, environment=environment)
    if config != made_with:
        print("note: tools that a program passed to the run are not here, so calls of them are text", file=sys.stderr)
    return build_tools(config, policy.tokenizer)


def _note_failure(number: int, completion: Completion) -> None:
    """Say why an answer ends at the call of a tool."""
    if completion.failure:
        print(f"\n(the tool {completion.calls[-1].tool} gave no result: {escape(completion.failure)})", file=sys.stderr)


def _read_question() -> str:
    if sys.stdin.isatty():
        print("> ", end="", flush=True)
    return sys.stdin.readline().strip()


def make_parser() -> argparse.ArgumentParser:
    parser = command_parser("grpo.generate", __doc__)
    parser.add_argument("model", metavar="MODEL", help="a run, a checkpoint, an adapter, or a hub id")
    parser.add_argument("--prompt", action="append", metavar="TEXT", help="a question; may be given several times")
    parser.add_argument("--system", metavar="TEXT", help="system message")
    parser.add_argument("--n", type=int, default=1, help="answers per prompt (default: %(default)s)")
    parser.add_argument("--temperature", type=float, default=0.7, help="0: greedy (default: %(default)s)")
    parser.add_argument("--top-p", type=float, default=1.0, help="nucleus sampling (default: %(default)s)")
    parser.add_argument("--max-new-tokens", type=int, default=512, help="tokens per answer (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=42, help="seed of the sampling (default: %(default)s)")
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda", "mps"])
    parser.add_argument("--dtype", default="auto", choices=["auto", "bfloat16", "float16", "float32"])
    return parser


def main(argv: list[str]) -> None:
    arguments = make_parser().parse_args(argv)
    if arguments.n < 1:
        raise UserError(f"--n is {arguments.n}", "it is the number of answers per prompt", "give 1 or more")
    sampling = SamplingParams(arguments.max_new_tokens, arguments.temperature, arguments.top_p)
    device = choose_device(arguments.device)
    saved = find_saved(arguments.model)
    policy = load_saved(saved, TrainConfig(torch_dtype=arguments.dtype), device)
    made_with = saved.config()
    tools = _tools_of(made_with, policy)
    template = getattr(made_with, "prompt_template", "{question}")
    chat = Chat(policy, sampling, arguments.seed, template, tools)
    system = arguments.system or getattr(made_with, "system_prompt", None)
    if tools and not arguments.system:
        system = system_prompt_of(made_with, chat.encoder)
    start = [{"role": "system", "content": system}] if system else []
    if arguments.prompt:
        chat.answer_all([[*start, chat.message(prompt)] for prompt in arguments.prompt], arguments.n)
    else:
        print(f"model: {escape(saved.name)}, temperature {arguments.temperature:g}", file=sys.stderr)
        chat.converse(start)
    has_questions = isinstance(made_with, TrainConfig) and Questions.held_out(made_with)
    data = [] if has_questions else ["--data", "FILE"]
    model = arguments.model
    say_next("the answers above", ["grpo.evaluate", model, *data], ["grpo.export", model, "OUT", "--merge"])


if __name__ == "__main__":
    run_main(main)

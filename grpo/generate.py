"""Talk to a model: one prompt, several prompts, or a conversation.

  python -m grpo.generate MODEL [--prompt TEXT ...] [--system TEXT] [--n 1] [--temperature 0.7] [--max-new-tokens 512]

Without --prompt it holds a conversation on the terminal, which ends with an empty line.
"""

import argparse
import sys

from grpo.config.options import TrainConfig
from grpo.data.prompts import ChatEncoder, Message
from grpo.device.distributed import choose_device
from grpo.device.draw import SamplingParams, hash_seed
from grpo.errors import escape, run_main
from grpo.model.policy import Policy, load_for_inference
from grpo.sampling.sampler import Sampler

INCOMPLETE = "\ufffd"  # the bytes of a character may be spread over several tokens


class Chat:
    """A policy and its sampler, which answer messages."""

    def __init__(self, policy: Policy, sampling: SamplingParams, seed: int):
        self.policy, self.sampling, self.seed = policy, sampling, seed
        self.encoder = ChatEncoder(policy.tokenizer)
        self.sampler = Sampler(policy.model, policy.eos_ids)

    def answer(self, messages: list[Message]) -> str:
        """Print the answer to a conversation while it is generated, and return it."""
        _, prompt_ids = self.encoder.prompt(messages)
        ids, shown = [], ""
        for token in self.sampler.stream(prompt_ids, self.sampling, hash_seed(self.seed, len(messages))):
            ids.append(token)
            text = self.policy.tokenizer.decode(ids, skip_special_tokens=True)
            if not text.endswith(INCOMPLETE):
                print(escape(text[len(shown) :]), end="", flush=True)
                shown = text
        print()
        return shown

    def answer_all(self, conversations: list[list[Message]], n: int) -> None:
        """Generate n answers to each conversation together, and print them. A single answer is streamed."""
        if len(conversations) == n == 1:
            self.answer(conversations[0])
            return
        prompts = [self.encoder.prompt(messages)[1] for messages in conversations]
        seeds = [hash_seed(self.seed, number) for number in range(len(conversations) * n)]
        answers = self.sampler.sample(prompts, n, self.sampling, seeds)
        for messages, completions in zip(conversations, answers, strict=True):
            print(f"> {escape(messages[-1]['content'])}")
            for completion in completions:
                print(escape(self.policy.decode(completion)) + "\n")

    def converse(self, messages: list[Message]) -> None:
        """Answer questions from the terminal until an empty line. `messages` are what comes before them."""
        while True:
            question = _read_question()
            if not question:
                return
            messages = [*messages, {"role": "user", "content": question}]
            messages = [*messages, {"role": "assistant", "content": self.answer(messages)}]


def _read_question() -> str:
    if sys.stdin.isatty():
        print("> ", end="", flush=True)
    return sys.stdin.readline().strip()


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m grpo.generate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", metavar="MODEL", help="a checkpoint, an adapter such as a run's final/, or a hub id")
    parser.add_argument("--prompt", action="append", metavar="TEXT", help="a question; may be given several times")
    parser.add_argument("--system", metavar="TEXT", help="system message")
    parser.add_argument("--n", type=int, default=1, help="answers per prompt (default: %(default)s)")
    parser.add_argument("--temperature", type=float, default=0.7, help="0: greedy (default: %(default)s)")
    parser.add_argument("--top-p", type=float, default=1.0, help="nucleus sampling (default: %(default)s)")
    parser.add_argument("--max-new-tokens", type=int, default=512, help="most tokens per answer (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=42, help="seed of the sampling (default: %(default)s)")
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--dtype", default="auto", choices=["auto", "bfloat16", "float16", "float32"])
    return parser


def main(argv: list[str]) -> None:
    arguments = make_parser().parse_args(argv)
    config = TrainConfig(model_name_or_path=arguments.model, torch_dtype=arguments.dtype, device=arguments.device)
    policy = load_for_inference(config, choose_device(arguments.device))
    sampling = SamplingParams(arguments.max_new_tokens, arguments.temperature, arguments.top_p)
    chat = Chat(policy, sampling, arguments.seed)
    start = [{"role": "system", "content": arguments.system}] if arguments.system else []
    if arguments.prompt:
        chat.answer_all([[*start, {"role": "user", "content": prompt}] for prompt in arguments.prompt], arguments.n)
    else:
        chat.converse(start)


if __name__ == "__main__":
    run_main(main)

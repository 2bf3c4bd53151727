"""Talk to a model: one prompt, several, or a conversation.

python -m grpo.generate MODEL [--prompt TEXT ...] [--system TEXT] [--n 1] [--temperature 0.7] [--max-new-tokens 512]

MODEL is a checkpoint, an adapter such as a run's final/, or a hub id. Without --prompt it reads questions from the
terminal until an empty line.
"""

import argparse
import sys

from grpo.config.options import TrainConfig
from grpo.data.prompts import ChatEncoder, Message
from grpo.device.distributed import choose_device
from grpo.device.draw import SamplingParams, row_seed
from grpo.errors import run_main
from grpo.model.policy import Policy, load_for_inference
from grpo.run.log import escape
from grpo.sampling.sampler import Sampler


class Chat:
    """A policy with its sampler; `answer` streams one reply."""

    def __init__(self, policy: Policy, sampling: SamplingParams, seed: int):
        self.policy, self.sampling, self.seed = policy, sampling, seed
        self.encoder, self.sampler = ChatEncoder(policy.tokenizer), Sampler(policy.model, policy.eos_ids)

    def answer(self, messages: list[Message]) -> str:
        """Prints the reply as it is generated and returns it."""
        ids, shown = [], ""
        for token in self.sampler.stream(
            self.encoder.prompt(messages)[1], self.sampling, row_seed(self.seed, len(messages))
        ):
            ids.append(token)
            text = self.policy.tokenizer.decode(ids, skip_special_tokens=True)
            if not text.endswith("\ufffd"):  # the bytes of a character may be spread over several tokens
                print(escape(text[len(shown) :]), end="", flush=True)
                shown = text
        print()
        return shown


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m grpo.generate", description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--prompt", action="append", help="a question; may be given several times")
    parser.add_argument("--system", help="system message")
    parser.add_argument("--n", type=int, default=1, help="answers per prompt")
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--max-new-tokens", type=int, default=512)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--dtype", default="auto", choices=["auto", "bfloat16", "float16", "float32"])
    a = parser.parse_args(argv)
    policy = load_for_inference(
        TrainConfig(model_name_or_path=a.model, torch_dtype=a.dtype, device=a.device), choose_device(a.device)
    )
    chat = Chat(policy, SamplingParams(a.max_new_tokens, a.temperature, a.top_p), a.seed)
    start = [{"role": "system", "content": a.system}] if a.system else []
    if a.prompt:
        batch(chat, [[*start, {"role": "user", "content": prompt}] for prompt in a.prompt], a.n)
        return
    messages = start
    while question := input("> ").strip() if sys.stdin.isatty() else sys.stdin.readline().strip():
        messages = [*messages, {"role": "user", "content": question}]
        messages = [*messages, {"role": "assistant", "content": chat.answer(messages)}]


def batch(chat: Chat, conversations: list[list[Message]], n: int) -> None:
    """n answers to each of some prompts, all generated together; a single one is streamed."""
    if len(conversations) == n == 1:
        chat.answer(conversations[0])
        return
    seeds = [row_seed(chat.seed, number) for number in range(len(conversations) * n)]
    groups = chat.sampler.sample(
        [chat.encoder.prompt(messages)[1] for messages in conversations], n, chat.sampling, seeds
    )
    for messages, completions in zip(conversations, groups, strict=True):
        print(f"> {escape(messages[-1]['content'])}")
        for completion in completions:
            print(escape(chat.policy.decode(completion)) + "\n")


if __name__ == "__main__":
    run_main(main)

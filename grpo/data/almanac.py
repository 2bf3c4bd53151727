"""The worlds `almanac` and `atlas`: real facts, asked of a real model, which writes its own cold start.

The cold start teaches the form of an answer and nothing else: each answer is the model's own greedy one, right or
wrong, and which questions it declines is drawn at random (knowledge/almanac.py).
"""

from collections.abc import Sequence

from grpo.base.progress import counting
from grpo.config.options import AnyConfig
from grpo.data.messages import with_system
from grpo.data.prompts import render
from grpo.engine.device.distributed import choose_device
from grpo.engine.device.draw import SamplingParams
from grpo.engine.sampling.sampler import Sampler
from grpo.policy import Policy, load_for_inference
from knowledge.almanac import Fact

MAX_TOKENS = 10
MAX_SEQUENCES = 64
ENDS = (".", ",", "\n", " (", ":")  # of an answer


def own_answers(config: AnyConfig, facts: Sequence[Fact]) -> list[str]:
    """Return what the model of a configuration says about each fact, greedily; "unknown" where it says nothing."""
    policy = load_for_inference(config, choose_device(config.device))
    prompts = []
    for fact in facts:
        text = prompt_text(policy, config.system_prompt, fact) + fact.stem
        ids = policy.tokenizer.encode(text, add_special_tokens=False)
        prompts.append(ids)
    ends = (*policy.eos_ids, *end_ids(policy))
    sampler = Sampler(policy.model, ends, MAX_SEQUENCES)
    sampling = SamplingParams(MAX_TOKENS, temperature=0.0)
    seeds = range(len(facts))
    with counting(len(facts), "asking the model itself", "answers") as add:
        groups = sampler.sample(prompts, 1, sampling, seeds, lambda *finished: add(1))
    answers = []
    for fact, (completion,) in zip(facts, groups, strict=True):
        said = first_words(policy.decode(completion.ids))
        answers.append(fact.value(said or "unknown"))
    return answers


def prompt_text(policy: Policy, system_prompt: str | None, fact: Fact) -> str:
    """Return the prompt of a question, up to where the answer begins."""
    question = {"role": "user", "content": fact.question}
    messages = with_system([question], system_prompt)
    return render(policy.tokenizer, messages)


def end_ids(policy: Policy) -> list[int]:
    """Return the tokens that begin with the end of an answer."""
    encoded = [policy.tokenizer.encode(end, add_special_tokens=False) for end in ENDS]
    return [tokens[0] for tokens in encoded]


def first_words(text: str) -> str:
    """Return what stands before the first end of an answer."""
    for end in (*ENDS, '"'):
        text = text.partition(end)[0]
    return text.strip(" \"'*")

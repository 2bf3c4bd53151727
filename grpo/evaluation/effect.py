"""What a merged checkpoint answers differently than the model of the run, measured on the run's held-out questions.

It differs if it is rounded to 16 bits; and if the run trained on frozen weights in 8 bits, since what is merged are the
weights of the file.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from grpo.algorithm.logprobs import batch_logprobs
from grpo.algorithm.packing import pack_tokens
from grpo.algorithm.schema import Completion, Group, Part, Prompt
from grpo.base.errors import UserError
from grpo.config.options import TrainConfig
from grpo.data.questions import QuestionData, Questions, load_prompts
from grpo.engine.device.draw import SamplingParams
from grpo.engine.model import memory
from grpo.engine.model.adapter import is_adapter, load_adapter
from grpo.engine.model.build import Build
from grpo.engine.model.decoder import Decoder
from grpo.engine.model.weight import dense
from grpo.engine.model.weights import load_decoder, named_tensors, projections
from grpo.engine.sampling.sampler import Sampler
from grpo.evaluation.answers import generate_groups
from grpo.policy import Policy, find_parts
from grpo.run.saved import SavedModel, load_saved

CPU = torch.device("cpu")
ROUNDED = ("bfloat16", "float16")
NUM_QUESTIONS, NUM_TOKENS = 8, 32  # held-out questions, and tokens of each answer


def effects_of_merging(saved: SavedModel, merged: Policy, dtype: str) -> Iterator[str]:
    """Yield a sentence for each way in which a merged checkpoint differs from the model of the run."""
    config = saved.config()
    if is_adapter(Path(saved.name)) and config is not None and config.base_weights == "int8":
        what = "merged into the file's own weights, while the run trained with them in 8 bits"
        of_run = lambda: replace(merged, model=as_trained(saved))  # noqa: E731
        yield _effect(what, "the run's model", saved, merged, of_run)
    if dtype in ROUNDED:
        config = TrainConfig(torch_dtype="float32")
        exact = lambda: load_saved(saved, config, CPU)  # noqa: E731
        yield _effect(f"rounded to {dtype}", "float32", saved, merged, exact)


def as_trained(saved: SavedModel) -> Decoder:
    """Return the model of a run with base_weights: int8, in float32: frozen weights rounded as in the run."""
    parts = find_parts(TrainConfig(model_name_or_path=saved.name))
    first = find_parts(saved.config()).adapter  # it was merged before the weights were rounded
    start = load_adapter(first) if first else None
    build = Build(None, False, torch.float32, CPU)
    rounded = load_decoder(parts.model, replace(build, int8=True), start)
    model = load_decoder(parts.model, build)
    weights = projections(rounded)
    ours = {}
    for module, (linear, part) in projections(model).items():
        their_linear, their_part = weights[module]
        theirs, _ = their_linear.base(their_part)
        ours[module], _ = linear.base(part)
        ours[module].copy_(dense(theirs))
    adapter = load_adapter(Path(saved.name))
    for module, (A, B) in adapter.pairs.items():
        rank = 0
        if start and module in start.pairs:
            rank = len(start.pairs[module][0])
        if rank < len(A):  # the first ones are those of the adapter that the run started from
            ours[module].add_(B[:, rank:] @ A[rank:])
    return model


def _effect(what: str, name: str, saved: SavedModel, merged: Policy, load: Callable[[], Policy]) -> str:
    """Return how many greedy tokens are those of the model that `load` loads, and how far log-probs are from its own.

    name: what to call that model.
    """
    numbers = sum(tensor.numel() for tensor in named_tensors(merged.model).values())
    num_bytes = numbers * torch.float32.itemsize
    try:
        config = saved.config()
        questions = Questions.held_out(config) if isinstance(config, TrainConfig) else None
        if not questions:
            raise UserError("no held-out questions are known")
        if 2 * num_bytes > memory.free_bytes(CPU):
            raise UserError("memory does not hold the model again in float32")
        few = replace(questions, max_samples=NUM_QUESTIONS)
        prompts = load_prompts(QuestionData(config), merged, few).prompts
        other = load()
    except UserError as error:
        return f"{what}; what that changes was not measured: {error.what}"
    theirs = _greedy(other, prompts)
    ours = _greedy(merged, prompts)
    pairs = list(zip(theirs, ours, strict=True))
    same = sum(_num_shared(a.ids, b.ids) for a, b in pairs)
    total = sum(len(a.ids) for a, _ in pairs)
    groups = [Group(prompt, [answer]) for prompt, answer in zip(prompts, theirs, strict=True)]
    our_logp_C = _logprobs(merged.model, groups)
    their_logp_C = _logprobs(other.model, groups)
    apart = (our_logp_C - their_logp_C).abs()
    return (
        f"{what}: {same} of {total} greedy tokens ({same / total:.0%}) are those of {name}, "
        f"up to the first difference in each of {len(pairs)} answers to held-out questions; "
        f"log-probs of its tokens differ by {apart.mean():.2g} on average, and {apart.max():.2g} at most"
    )


def _num_shared(a: Sequence[int], b: Sequence[int]) -> int:
    """Return how many tokens two answers share before they differ."""
    number = 0
    for mine, other in zip(a, b, strict=False):
        if mine != other:
            break
        number += 1
    return number


def _greedy(policy: Policy, prompts: Sequence[Prompt]) -> list[Completion]:
    """Return the beginnings of the greedy answers."""
    sampling = SamplingParams(NUM_TOKENS, temperature=0.0)
    sampler = Sampler(policy.model, policy.eos_ids, len(prompts))
    groups = generate_groups(policy, sampler, prompts, 1, sampling, seed=0)
    return [group.completions[0] for group in groups]


@torch.no_grad()
def _logprobs(model: Decoder, groups: Sequence[Group]) -> torch.Tensor:
    """Return the log-probs of the answers' tokens, [C]."""
    tokens = pack_tokens([Part(group, group.completions) for group in groups])
    logp_C, _ = batch_logprobs(model, tokens)
    return logp_C.float()

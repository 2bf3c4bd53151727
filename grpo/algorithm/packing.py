"""Pack groups into micro-batches, without padding and with shared prompts; set the loss weights, once per step.

`set_scored` says which tokens are computed at all: those that have a gradient.

Replaces `pad` and the denominators of `grpo_step` in minimal.py: a prompt is computed once for its group, and no
padding is. Micro-batches only limit memory. Any split gives the same gradient, because the denominators of Eq. 8 are
those of the complete step, over all ranks. (Dropout is the exception: its masks differ from one micro-batch to
another.)
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from grpo.algorithm.schema import Completion, Group, Layout, PackedBatch, PackedTokens, Part, completions_of
from grpo.config.options import TrainConfig
from grpo.engine.device.draw import NO_CUT
from grpo.engine.device.peers import Peers


@dataclass(frozen=True)
class Totals:
    """What a complete step trains, over all ranks."""

    completions: int  # those that are trained
    tokens: int  # of these completions
    device_batches: int  # of bnpo (`trained_by_device_batch`), also those of which nothing is trained


def count_trained(groups: Sequence[Group], config: TrainConfig, replicas: Peers) -> Totals:
    """Count what the step trains. Every replica must call it. groups: those of this one."""
    device_batches = trained_by_device_batch(groups, config)
    lengths = [completion.num_drawn for batch in device_batches for completion in batch]
    sums = replicas.sum([len(lengths), sum(lengths), len(device_batches)])
    return Totals(*map(int, sums))


def set_loss_weights(groups: Sequence[Group], totals: Totals, config: TrainConfig) -> None:
    """Set every completion's `loss_weight`, the weight of each of its tokens in the loss (Eq. 8).

        grpo      1 / (N n_i)            mean over tokens, then over completions (DeepSeekMath, 2402.03300)
        dapo      1 / Σ n_i              mean over tokens (2503.14476)
        dr_grpo   1 / (N L_max)          a constant length instead (2503.20783)
        bnpo      1 / (M Σ_m n_i)        mean over the tokens of a device batch, then over the M of them, as in TRL

    n_i counts the drawn tokens of completion i. N and Σ run over the trained completions of the complete step, on all
    ranks; M counts the device batches of all ranks, and Σ_m runs over the one that completion i is in. Completions that
    are not trained get 0. groups: those of this rank.
    """
    for completion in completions_of(groups):
        completion.loss_weight = 0.0
    for device_batch in trained_by_device_batch(groups, config):
        tokens_of_batch = sum(completion.num_drawn for completion in device_batch)
        for completion in device_batch:
            match config.loss_type:
                case "grpo":
                    denominator = totals.completions * completion.num_drawn
                case "dapo":
                    denominator = totals.tokens
                case "dr_grpo":
                    denominator = totals.completions * config.max_completion_length
                case "bnpo":
                    denominator = totals.device_batches * tokens_of_batch
            completion.loss_weight = 1 / denominator  # Eq. 8


def trained_by_device_batch(groups: Sequence[Group], config: TrainConfig) -> list[list[Completion]]:
    """Return the trained completions of each device batch.

    A device batch is `per_device_train_batch_size` consecutive completions of one rank, trained or not. Only bnpo
    cares. Micro-batches, into which the step is split for want of memory, do not follow it.
    """
    completions = completions_of(groups)
    size = config.per_device_train_batch_size
    device_batches = []
    for start in range(0, len(completions), size):
        batch = completions[start : start + size]
        device_batches.append([one for one in batch if is_trained(one, config.mask_truncated_completions)])
    return device_batches


def set_scored(groups: Sequence[Group], config: TrainConfig) -> None:
    """Set where the scored tokens of every completion begin: the first one whose log-prob has a gradient (Eq. 7).

    With a KL term (`beta`) every token has one. Without it, a token of advantage 0 has none, whatever its ratio; but if
    tokens share a ratio (Eq. 9), all of a completion have one as soon as any has an advantage. A completion without
    scored tokens is not packed, so a group that teaches nothing costs nothing. All tokens keep their part in the
    denominators of Eq. 8. groups: those of this rank, with advantages.
    """
    for completion in completions_of(groups):
        advantages = completion.token_advantages
        paid = [place for place, advantage in enumerate(advantages) if advantage]
        shares_ratio = config.importance_sampling_level == "sequence" and bool(paid)
        if config.beta or shares_ratio:
            completion.scored_from = 0
        else:
            completion.scored_from = paid[0] if paid else len(advantages)


def is_trained(completion: Completion, mask_truncated: bool) -> bool:
    """Return whether a completion counts in the loss and in its denominators."""
    is_masked = mask_truncated and completion.finish_reason == "length"
    return completion.num_drawn > 0 and not is_masked


def split_into_micro_batches(groups: Sequence[Group], token_budget: int) -> list[list[Part]]:
    """Split the completions with a loss weight and scored tokens, in order, into micro-batches of up to `token_budget`.

    A group that fits into one micro-batch is not split. A larger group is split, and its prompt is repeated. A single
    completion larger than the budget gets a micro-batch of its own.
    """
    batches: list[list[Part]] = []
    is_open, size = False, 0  # whether the last micro-batch takes more, and its tokens
    for group in groups:
        members = [completion for completion in group.completions if completion.loss_weight and completion.scored]
        prompt = len(group.prompt.ids)
        whole = prompt + sum(map(_packed_length, members))
        part = None  # of this group, in the last micro-batch
        if size + whole > token_budget >= whole:
            is_open = False  # the group fits into a micro-batch of its own, but not into the rest of this one
        for completion in members:
            needed = _packed_length(completion) + (prompt if part is None else 0)
            if not is_open or size + needed > token_budget:
                batches.append([])
                is_open, size, part = True, 0, None
            if part is None:
                part = Part(group, [])
                batches[-1].append(part)
                size += prompt
            part.completions.append(completion)
            size += _packed_length(completion)
    return batches


def _packed_length(completion: Completion) -> int:
    """Count the packed tokens of a completion: all but its last one, which is only a target."""
    return len(completion.ids) - 1


def num_scored(parts: Iterable[Part]) -> int:
    """Count the scored tokens of a micro-batch."""
    return sum(len(completion.scored) for part in parts for completion in part.completions)


def pack_tokens(
    parts: Sequence[Part], number: int = 0, *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> PackedTokens:
    """Pack the tokens of a micro-batch; see PackedTokens for a worked example.

    number: among the micro-batches of the step. dtype: of what is not an integer.
    """
    ids: list[int] = []
    positions: list[int] = []
    layout, source = [], []
    for part in parts:
        prompt = part.group.prompt.ids
        ids += prompt
        positions += range(len(prompt))
        last_of_prompt = len(ids) - 1
        for completion in part.completions:
            start, length = len(ids), _packed_length(completion)
            ids += completion.ids[:length]
            positions += range(len(prompt), len(prompt) + length)
            sources = [last_of_prompt, *range(start, start + length)]  # the shift by one: here and nowhere else
            source += [sources[place] for place in completion.scored]
        layout.append((len(prompt), tuple(map(_packed_length, part.completions))))
    completions = [completion for part in parts for completion in part.completions]
    targets = _of_scored(completions, "ids")
    cuts = _of_scored(completions, "cuts")
    has_cuts = max(cuts, default=NO_CUT) > NO_CUT
    return PackedTokens(
        number=number,
        layout=Layout.of(*layout),
        ids_T=torch.tensor(ids, dtype=torch.int64, device=device),
        positions_T=torch.tensor(positions, dtype=torch.int64, device=device),
        source_C=torch.tensor(source, dtype=torch.int64, device=device),
        targets_C=torch.tensor(targets, dtype=torch.int64, device=device),
        cut_C=torch.tensor(cuts, dtype=dtype, device=device) if has_cuts else None,
    )


def pack_batch(
    parts: Sequence[Part],
    number: int = 0,
    *,
    ref_logp_C: torch.Tensor | None = None,
    old_logp_C: torch.Tensor | None = None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> PackedBatch:
    """Pack a micro-batch whose advantages and loss weights are known. The log-probs are those of its own tokens."""
    tokens = pack_tokens(parts, number, device=device, dtype=dtype)
    completions = [completion for part in parts for completion in part.completions]
    numbers = [number for number, completion in enumerate(completions) for _ in completion.scored]
    weights = [completion.loss_weight for completion in completions for _ in completion.scored]
    advantages = _of_scored(completions, "token_advantages")
    sampler_logps = _of_scored(completions, "logps")
    return PackedBatch(
        **vars(tokens),
        completion_C=torch.tensor(numbers, dtype=torch.int64, device=device),
        weight_C=torch.tensor(weights, dtype=dtype, device=device),
        advantage_C=torch.tensor(advantages, dtype=dtype, device=device),
        sampler_logp_C=torch.tensor(sampler_logps, dtype=dtype, device=device),
        ref_logp_C=ref_logp_C,
        old_logp_C=old_logp_C,
    )


def _of_scored(completions: Iterable[Completion], name: str) -> list:
    """Return a field of the completions with a value for each token, for the scored tokens alone."""
    values = [(getattr(completion, name), completion.scored) for completion in completions]
    return [of_tokens[place] for of_tokens, scored in values for place in scored]

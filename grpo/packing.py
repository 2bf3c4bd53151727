"""Groups to micro-batches: one row of tokens each, no padding, prompts shared, the loss weights filled once.

Micro-batches are a matter of memory: any split gives the same gradient (dropout aside, whose masks go by them), because
the denominators of Eq. 8 are those of the whole optimizer step over all ranks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import ceil

import torch

from grpo.run.distributed import Ranks
from grpo.run.options import TrainConfig
from grpo.schema import Completion, Group, Layout, PackedBatch


@dataclass(frozen=True)
class Denominators:
    """What Eq. 8 divides by: completions and completion tokens that count, over the optimizer step and all ranks."""

    num_rows: int
    num_tokens: int


def step_weights(groups: Sequence[Group], c: TrainConfig, ranks: Ranks) -> list[list[float]]:
    """Each completion's weight per token (Eq. 8); micro-batches and ranks share the denominators of the whole step."""
    used = [len(m.ids) for group in groups for m in group.completions if counts(m, c.mask_truncated_completions)]
    micro_batches = ceil(sum(len(group.completions) for group in groups) / c.per_device_train_batch_size)
    rows, tokens, micro_batches = map(int, ranks.sum([len(used), sum(used), micro_batches]))
    return row_weights(
        groups,
        c.loss_type,
        Denominators(rows, tokens),
        c.max_completion_length,
        c.per_device_train_batch_size,
        micro_batches,
        c.mask_truncated_completions,
    )


def row_weights(
    groups: Sequence[Group],
    loss_type: str,
    total: Denominators,
    max_completion_length: int,
    rows_per_micro_batch: int,
    num_micro_batches: int,
    mask_truncated: bool,
) -> list[list[float]]:
    """The weight of each token of each completion (Eq. 8), the same for all tokens of a completion.

        grpo      1 / (N n_i)            mean over tokens, then over completions (DeepSeekMath, 2402.03300)
        dapo      1 / Σ n_i              mean over tokens (2503.14476)
        dr_grpo   1 / (N L_max)          a constant length instead (2503.20783)
        bnpo      1 / (M Σ_m n_i)        mean over the tokens of each of the M micro-batches, as in TRL

    A micro-batch of bnpo is `rows_per_micro_batch` consecutive completions, whatever the packing does. Truncated
    completions get 0 if `mask_truncated`; `total` must have been counted without them.
    """
    rows = [(completion, counts(completion, mask_truncated)) for group in groups for completion in group.completions]
    if loss_type == "bnpo":
        tokens = [
            sum(len(c.ids) for c, used in rows[start : start + rows_per_micro_batch] if used)
            for start in range(0, len(rows), rows_per_micro_batch)
        ]
        weights = [1 / (num_micro_batches * max(tokens[i // rows_per_micro_batch], 1)) for i in range(len(rows))]
    else:
        denominator = {
            "grpo": lambda n: total.num_rows * n,
            "dapo": lambda n: total.num_tokens,
            "dr_grpo": lambda n: total.num_rows * max_completion_length,
        }[loss_type]
        weights = [1 / max(denominator(len(completion.ids)), 1) for completion, _ in rows]
    flat = iter([weight if used else 0.0 for weight, (_, used) in zip(weights, rows, strict=True)])
    return [[next(flat) for _ in group.completions] for group in groups]


def counts(completion: Completion, mask_truncated: bool) -> bool:
    """Whether a completion is in the loss and in its denominators."""
    return len(completion.ids) > 0 and not (mask_truncated and completion.finish_reason == "length")


def plan(groups: Sequence[Group], weights: Sequence[Sequence[float]], token_budget: int) -> list[list[tuple[int, int]]]:
    """Splits the completions that have a weight, in order, into micro-batches of at most `token_budget` packed tokens;
    each micro-batch is a list of (group, completion). A group larger than the budget is split and its prompt repeated;
    a single completion larger than the budget gets a micro-batch of its own."""
    batches: list[list[tuple[int, int]]] = []
    room, last_group = 0, -1
    for number, group in enumerate(groups):
        prompt = len(group.prompt.ids)
        members = [(index, len(c.ids) - 1) for index, c in enumerate(group.completions) if weights[number][index]]
        if room < prompt + sum(size for _, size in members) <= token_budget:
            room = 0  # a group that fits into one micro-batch is not split
        for index, size in members:
            needed = size + (prompt if number != last_group else 0)
            if needed > room or not batches:
                batches.append([])
                room, needed = token_budget, size + prompt
            batches[-1].append((number, index))
            room, last_group = room - needed, number
    return batches


def pack(
    groups: Sequence[Group],
    rows: Sequence[tuple[int, int]],
    weights: list[list[float]],
    device: torch.device | str = "cpu",
) -> PackedBatch:
    """One micro-batch (see PackedBatch for a worked example). Advantages are zero until `with_advantages`.

    rows: (group, completion) in the order of `plan`.
    """
    layout, ids, positions, source, targets, row_of, weight, logps, cuts = [], [], [], [], [], [], [], [], []
    row = 0
    for number, members in groupby(rows, key=lambda pair: pair[0]):
        prompt, lengths = groups[number].prompt.ids, []
        ids += prompt
        positions += range(len(prompt))
        last_of_prompt = len(ids) - 1
        for _, index in members:
            completion = groups[number].completions[index]
            inputs, start = completion.ids[:-1], len(ids)
            ids += inputs
            positions += range(len(prompt), len(prompt) + len(inputs))
            source += [last_of_prompt, *range(start, start + len(inputs))]  # the shift by one: here and nowhere else
            targets += completion.ids
            row_of += [row] * len(completion.ids)
            weight += [weights[number][index]] * len(completion.ids)
            logps += completion.logps
            cuts += completion.cuts
            lengths.append(len(inputs))
            row += 1
        layout.append((len(prompt), tuple(lengths)))

    def integers(values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64, device=device)

    def floats(values: list[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float32, device=device)

    return PackedBatch(
        Layout(tuple(layout)),
        integers(ids),
        integers(positions),
        integers(source),
        integers(targets),
        integers(row_of),
        floats(weight),
        floats([0.0] * len(targets)),
        floats(logps),
        floats(cuts),
        tuple(rows),
    )


def with_advantages(batch: PackedBatch, groups: Sequence[Group]) -> PackedBatch:
    """The batch with each token's advantage: that of its completion."""
    per_row = torch.tensor(
        [groups[g].advantages[i] for g, i in batch.rows], dtype=torch.float32, device=batch.ids_T.device
    )
    return replace(batch, advantage_C=per_row[batch.row_C])

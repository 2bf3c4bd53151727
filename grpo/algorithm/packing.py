"""Pack groups into micro-batches, without padding and with shared prompts.

Counterpart of `pad` in minimal.py: a prompt is computed once for its group, and no padding is. Micro-batches only limit
memory. Any split gives the same gradient, because the weights of tokens are those of the complete step
(loss_weights.py). (Dropout is the exception: its masks differ from one micro-batch to another.)
"""

from collections.abc import Callable, Iterable, Sequence

import torch

from grpo.algorithm.schema import NO_CUT, Completion, Group, Layout, PackedBatch, PackedTokens, Subgroup


def split_into_micro_batches(groups: Sequence[Group], token_budget: int) -> list[list[Subgroup]]:
    """Split the completions with a weight and trained tokens, in order, into micro-batches of up to `token_budget`.

    A group that fits into one micro-batch is not split. A larger group is split, and its prompt is repeated. A single
    completion larger than the budget gets a micro-batch of its own.
    """
    batches: list[list[Subgroup]] = []
    room = 0  # packed tokens that still fit into the last micro-batch

    def start_batch() -> None:
        nonlocal room
        batches.append([])
        room = token_budget

    for group in groups:
        members = [completion for completion in group.completions if completion.loss_weight and completion.trained()]
        if not members:
            continue
        prompt = len(group.prompt.ids)
        whole = prompt + sum(map(_packed_length, members))
        subgroup = None  # of this group, in the last micro-batch
        if room < whole <= token_budget:  # the group fits into a micro-batch of its own, but not into the rest of this
            start_batch()
        for completion in members:
            needed = _packed_length(completion) + (prompt if subgroup is None else 0)
            if needed > room:
                start_batch()
                subgroup = None
                needed = prompt + _packed_length(completion)
            if subgroup is None:
                subgroup = Subgroup(group, [])
                batches[-1].append(subgroup)
            subgroup.completions.append(completion)
            room -= needed
    return batches


def _packed_length(completion: Completion) -> int:
    """Count the packed tokens of a completion: all but its last one, which is only a target."""
    return len(completion.ids) - 1


def pack_tokens(
    subgroups: Sequence[Subgroup],
    number: int = 0,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> PackedTokens:
    """Pack the tokens of a micro-batch; see PackedTokens for a worked example.

    number: among the micro-batches of the step. dtype: of what is not an integer.
    """
    ids: list[int] = []
    positions: list[int] = []
    layout, source = [], []
    for subgroup in subgroups:
        prompt = subgroup.group.prompt.ids
        ids += prompt
        positions += range(len(prompt))
        last_of_prompt = len(ids) - 1
        for completion in subgroup.completions:
            start, length = len(ids), _packed_length(completion)
            ids += completion.ids[:length]
            positions += range(len(prompt), len(prompt) + length)
            sources = [last_of_prompt, *range(start, start + length)]  # the shift by one: here and nowhere else
            source += [sources[place] for place in completion.trained()]
        layout.append((len(prompt), tuple(map(_packed_length, subgroup.completions))))
    completions = [completion for subgroup in subgroups for completion in subgroup.completions]
    targets = _of_trained(completions, lambda completion: completion.ids)
    cuts = _of_trained(completions, lambda completion: completion.cuts)
    has_cuts = max(cuts, default=NO_CUT) > NO_CUT
    return PackedTokens(
        number=number,
        completions=completions,
        layout=Layout.of(*layout),
        ids_T=torch.tensor(ids, dtype=torch.int64, device=device),
        positions_T=torch.tensor(positions, dtype=torch.int64, device=device),
        source_C=torch.tensor(source, dtype=torch.int64, device=device),
        targets_C=torch.tensor(targets, dtype=torch.int64, device=device),
        cut_C=torch.tensor(cuts, dtype=dtype, device=device) if has_cuts else None,
    )


def pack_batch(
    subgroups: Sequence[Subgroup],
    number: int = 0,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> PackedBatch:
    """Pack a micro-batch whose advantages and loss weights are known."""
    tokens = pack_tokens(subgroups, number, device=device, dtype=dtype)
    completions = tokens.completions

    def of_tokens(values: Callable[[Completion], Sequence]) -> torch.Tensor:
        return torch.tensor(_of_trained(completions, values), dtype=dtype, device=device)

    places = [place for place, completion in enumerate(completions) for _ in completion.trained()]
    weights = [completion.loss_weight for completion in completions for _ in completion.trained()]
    has_ref, has_old = bool(completions[0].ref_logps), bool(completions[0].old_logps)  # all have them, or none
    return PackedBatch(
        **vars(tokens),
        completion_C=torch.tensor(places, dtype=torch.int64, device=device),
        weight_C=torch.tensor(weights, dtype=dtype, device=device),
        advantage_C=of_tokens(lambda completion: completion.token_advantages()),
        sampler_logp_C=of_tokens(lambda completion: completion.logps),
        ref_logp_C=of_tokens(lambda completion: completion.ref_logps) if has_ref else None,
        old_logp_C=of_tokens(lambda completion: completion.old_logps) if has_old else None,
    )


def _of_trained(completions: Iterable[Completion], values: Callable[[Completion], Sequence]) -> list:
    """Return what `values` gives for each token of the completions, for the trained tokens alone."""
    found = []
    for completion in completions:
        of_tokens = values(completion)
        found += [of_tokens[place] for place in completion.trained()]
    return found

"""The variants of GRPO, one block each. The plain algorithm does not need them; a key of the configuration adds each.

| variant | key | where |
|---|---|---|
| GSPO: the ratio of a sequence | importance_sampling_level | loss.py, Eq. 9 |
| two-sided clipping | delta | loss.py, Eq. 10 |
| CISPO: the clipped ratio weighs the log-prob | loss_type | loss.py, Eq. 21 |
| an entropy bonus | entropy_coef | step.py, logprobs.py, Eq. 22 |
| KL with the gradient of the KL divergence | use_bias_correction_kl | loss.py, Eq. 6 |
| completions that were cut off train nothing | mask_truncated_completions | loss_weights.py |
| truncated importance sampling | sampler_importance_sampling_correction | loss.py, Eq. 11 |
| GDPO: normalize each reward, then sum | multi_objective_aggregation | step.py, Eq. 12 |
| a target for the share of refusals | refusal_target | step.py, Eq. 14 |
| dynamic sampling | dynamic_sampling | rollout.py |
| credit to sentences, or to the answer | credit | credit.py, Eq. 13 |
"""

import math
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from grpo.algorithm.advantages import group_advantages
from grpo.algorithm.interfaces import Peers
from grpo.algorithm.schema import Completion, Group

# --- GSPO: the ratio of a sequence (2507.18071) ----------------------------------------------------------------------


def sequence_log_ratio(log_ratio_C: Tensor, completion_C: Tensor) -> Tensor:
    """Give each token the mean log-ratio over the tokens of its completion (Eq. 9)."""
    counts_N = completion_C.bincount()
    zeros_N = log_ratio_C.new_zeros(len(counts_N))
    sums_N = zeros_N.index_add(0, completion_C, log_ratio_C)
    means_N = sums_N / counts_N  # Eq. 9
    return means_N[completion_C]


# --- Two-sided clipping (2505.07291) ---------------------------------------------------------------------------------


def two_sided(ratio_C: Tensor, delta: float) -> Tensor:
    """Bound the ratio also where the advantage is negative, where Eq. 5 does not (Eq. 10)."""
    return ratio_C.clamp(max=delta)  # Eq. 10


# --- CISPO: the clipped ratio weighs the log-prob (2506.13585) -------------------------------------------------------


def cispo(ratio_C: Tensor, cap: float, advantage_C: Tensor, logp_C: Tensor) -> Tensor:
    """Return min(ρ, cap) Â ℓ, which takes the place of Eq. 5 (Eq. 21). The weight is a constant.

    So every token keeps a gradient. Eq. 5 has none where the ratio is clipped: at rare tokens that an answer turns on.
    """
    return ratio_C.detach().clamp(max=cap) * advantage_C * logp_C  # Eq. 21


# --- An entropy bonus ------------------------------------------------------------------------------------------------


def entropy_bonus(entropy_C: Tensor, coefficient: float, num_tokens: int) -> Tensor:
    """Return a micro-batch's part of what the loss is lowered by, so that the policy stays open (Eq. 22).

    num_tokens: of the complete step, over all replicas. It is a mean over them whatever the loss type is, as in TRL.
    """
    return coefficient / num_tokens * entropy_C.sum()  # Eq. 22


def entropy_slope(slope_XV: Tensor, entropy_X: Tensor) -> Tensor:
    """Return dH/dz = -p (log p + H) [X, V], given onehot - p, and the entropy H of each row. Shards give their part."""
    minus_p_XV = torch.where(slope_XV > 0, slope_XV - 1, slope_XV).to(entropy_X.dtype)  # only the target's is positive
    p_log_p_XV = torch.xlogy(-minus_p_XV, -minus_p_XV)
    return (minus_p_XV * entropy_X[:, None] - p_log_p_XV).to(slope_XV.dtype)


# --- Truncated importance sampling, for a sampler whose log-probs differ ---------------------------------------------


def sampler_weight(log_ratio_C: Tensor, cap: float) -> Tensor:
    """Return min(π_train / π_sampler, cap), a constant: it weighs tokens without adding a gradient (Eq. 11)."""
    weight_C = log_ratio_C.exp().clamp(max=cap)  # Eq. 11
    return weight_C.detach()


# --- GDPO: normalize each reward, then sum (2601.05242) --------------------------------------------------------------


def normalized_rewards(group: Group) -> list[float | None]:
    """Return one reward per completion, of which the advantages are made, instead of the weighted sum (Eq. 12)."""
    values = [[completion.scores[name].value for completion in group.completions] for name in group.weights]
    return normalize_then_sum(values, list(group.weights.values()))  # Eq. 12


def normalize_then_sum(values: Sequence[Sequence[float | None]], weights: Sequence[float]) -> list[float | None]:
    """Normalise each reward within the group, then add them up (GDPO, 2601.05242; Eq. 12).

    values: one list per reward, each with one value per completion. If rewards were summed first, the one with the
    widest spread would drown the others. A completion that some reward could not score gets None, and is left out of
    the mean of every reward. Rewards of weight 0 do not count.

    >>> normalize_then_sum([[1.0, 0.0, None], [0.0, 0.0, 5.0]], [1.0, 1.0])[2] is None
    True
    """
    paid = [(weight, column) for weight, column in zip(weights, values, strict=True) if weight]
    columns = [column for _, column in paid]
    of_completions = zip(*columns, strict=True)
    is_scored = [None not in of_rewards for of_rewards in of_completions]
    sums = [0.0] * len(is_scored)
    for weight, column in paid:
        known = _only(column, is_scored)
        normalized = group_advantages(known, "group")  # Eq. 12
        for place, value in enumerate(normalized):
            sums[place] += weight * value  # Eq. 12
    return _only(sums, is_scored)


def _only(values: Sequence[float | None], is_scored: Sequence[bool]) -> list[float | None]:
    """Replace the values of completions that are not scored by None."""
    return [value if scored else None for value, scored in zip(values, is_scored, strict=True)]


# --- A target for the share of completions that decline --------------------------------------------------------------


def refusal_shift(groups: Iterable[Group], target: float, replicas: Peers) -> float:
    """Return what is added to the reward of declining in this step (Eq. 14). Every replica must call it.

    With the first term alone, the advantages of all completions that decline add up to 0 (with `scale_rewards: none`):
    the step teaches which questions to decline, and not how many. The second term is how far the log-odds of declining
    are below those of the target. It counts half an answer more on both sides, so that it is finite.

    groups: those of this replica, graded. Completions without a reward or an outcome are left out. (The outcome of a
    completion without an answer block is "wrong", so it counts as an answer.)
    """
    gain = num_pairs = num_declined = num_answered = 0.0
    for group in groups:
        declined: list[float] = []
        answered: list[float] = []
        for completion in group.completions:
            if completion.reward is not None and (abstains(completion) or completion.outcome is not None):
                alike = declined if abstains(completion) else answered
                alike.append(completion.reward)
        gain += len(declined) * math.fsum(answered) - len(answered) * math.fsum(declined)
        num_pairs += len(declined) * len(answered)
        num_declined += len(declined)
        num_answered += len(answered)
    gain, num_pairs, num_declined, num_answered = replicas.sum([gain, num_pairs, num_declined, num_answered])
    mean_gain = gain / num_pairs if num_pairs else 0.0  # of answering instead, over all pairs of a group
    wanted = math.log(target / (1 - target))
    found = math.log((num_declined + 0.5) / (num_answered + 0.5))
    return mean_gain + (wanted - found)  # Eq. 14


def shifted_rewards(group: Group, shift: float) -> list[float | None]:
    """Return the rewards of a group, moved by Eq. 14 where a completion declines."""
    moved: list[float | None] = []
    for completion in group.completions:
        reward = completion.reward
        moved.append(reward if reward is None or not abstains(completion) else reward + shift)
    return moved


def abstains(completion: Completion) -> bool:
    """Return whether a completion gives no answer from memory: it declines, or asks a tool (2510.01152)."""
    return completion.outcome == "refused" or bool(completion.calls)


# --- Dynamic sampling (DAPO, 2503.14476) -----------------------------------------------------------------------------


def sample_mixed(
    generate: Callable[[int], list[Group]],
    wait: Callable[[list[Group]], None],
    wanted: int,
    attempts: int,
    ranks: Peers,
) -> tuple[list[Group], list[Group]]:
    """Replace groups that are all right or all wrong by new ones.

    generate: makes this replica's groups, given the number of the attempt. wait: for their rewards. wanted: groups of
    this replica. After `attempts` the step trains on the groups it has. Returns the groups to train on, and all
    generated groups.
    """
    generated, kept = [], []
    for attempt in range(attempts):
        groups = generate(attempt)
        wait(groups)
        generated += groups
        kept += [group for group in groups if is_mixed(group)]
        most_missing = ranks.max(wanted - len(kept))
        if most_missing <= 0:
            break
    return kept[:wanted], generated


def is_mixed(group: Group) -> bool:
    """Return whether dynamic sampling keeps a group: some of its answers are right, and some are not.

    The outcome decides, not the reward's value. Only if no reward knows an outcome, the rewards must differ instead.
    """
    outcomes = [completion.outcome for completion in group.completions]
    if not any(outcomes):
        return group.has_signal
    return 0 < outcomes.count("correct") < len(outcomes)

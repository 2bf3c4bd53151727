"""How much each token counts in the loss of a step (Eq. 8), and which tokens have a gradient at all.

Counterpart of the denominators of `grpo_step` in minimal.py. They are those of the complete step, over all replicas,
and are set once, before it is split into micro-batches.
"""

from collections.abc import Sequence

from grpo.algorithm.interfaces import Peers, Settings
from grpo.algorithm.schema import Completion, Group, completions_of


def set_loss_weights(groups: Sequence[Group], settings: Settings, replicas: Peers) -> tuple[int, int]:
    """Set every completion's `loss_weight`, the weight of each of its tokens in the loss (Eq. 8).

        grpo      1 / (N n_i)            mean over tokens, then over completions (DeepSeekMath, 2402.03300)
        dapo      1 / Σ n_i              mean over tokens (2503.14476)
        dr_grpo   1 / (N L_max)          a constant length instead (2503.20783)
        bnpo      1 / (M Σ_m n_i)        mean over the tokens of a device batch, then over the M of them, as in TRL

    n_i counts the drawn tokens of completion i. N and Σ run over the trained completions of the complete step, on all
    replicas; M counts the device batches of all replicas, and Σ_m runs over the one that completion i is in.
    Completions that are not trained get 0. groups: those of this replica. Every replica must call it.

    Returns how many completions are trained on all replicas, and how many tokens they have.
    """
    device_batches = trained_by_device_batch(groups, settings)
    lengths = [completion.num_drawn for batch in device_batches for completion in batch]
    sums = replicas.sum([len(lengths), sum(lengths), len(device_batches)])
    num_completions, num_tokens, num_batches = map(int, sums)
    for completion in completions_of(groups):
        completion.loss_weight = 0.0
    for device_batch in device_batches:
        tokens_of_batch = sum(completion.num_drawn for completion in device_batch)
        for completion in device_batch:
            match settings.loss_type:
                case "grpo":
                    denominator = num_completions * completion.num_drawn
                case "dr_grpo":
                    denominator = num_completions * settings.max_completion_length
                case "bnpo":
                    denominator = num_batches * tokens_of_batch
                case _:  # dapo, and variants of the surrogate
                    denominator = num_tokens
            completion.loss_weight = 1 / denominator  # Eq. 8
    return num_completions, num_tokens


def trained_by_device_batch(groups: Sequence[Group], settings: Settings) -> list[list[Completion]]:
    """Return the trained completions of each device batch.

    A device batch is `per_device_train_batch_size` consecutive completions of one replica, trained or not. Only bnpo
    cares. Micro-batches, into which the step is split for want of memory, do not follow it.
    """
    completions = completions_of(groups)
    size = settings.per_device_train_batch_size
    device_batches = []
    for start in range(0, len(completions), size):
        batch = completions[start : start + size]
        device_batches.append([one for one in batch if is_trained(one, settings.mask_truncated_completions)])
    return device_batches


def set_trained(groups: Sequence[Group], settings: Settings) -> None:
    """Set where the trained tokens of every completion begin: the first one whose log-prob has a gradient (Eq. 7).

    With a KL term (`beta`) or an entropy bonus every token has one. Else a token of advantage 0 has none, whatever its
    ratio; but if tokens share a ratio (Eq. 9), all of a completion have one as soon as any has. A completion without
    trained tokens is not packed, so a group that teaches nothing costs nothing. All tokens keep their part in the
    denominators of Eq. 8. groups: those of this replica, with advantages.
    """
    for completion in completions_of(groups):
        advantages = completion.token_advantages()
        paid = [place for place, advantage in enumerate(advantages) if advantage]
        shares_ratio = settings.importance_sampling_level == "sequence" and bool(paid)
        if settings.beta or settings.entropy_coef or shares_ratio:
            completion.trained_from = 0
        else:
            completion.trained_from = paid[0] if paid else len(advantages)


def is_trained(completion: Completion, mask_truncated: bool) -> bool:
    """Return whether a completion counts in the loss and in its denominators."""
    is_masked = mask_truncated and completion.finish_reason == "length"
    return completion.num_drawn > 0 and not is_masked

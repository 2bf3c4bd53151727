"""The step of GRPO, from top to bottom: `Grpo.train_step`. Counterpart of `grpo_step` in minimal.py.

What it adds: micro-batches that fit into memory, rewards that arrive while the reference is computed, several
processes, and the variants of variants.py.

The numbers of the equations are those of MATH.md; each stands on the line of code that computes it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import ceil

import torch
from torch import Tensor

from grpo.algorithm import variants
from grpo.algorithm.advantages import set_advantages
from grpo.algorithm.credit import set_credit
from grpo.algorithm.interfaces import Memory, Model, Peers, Settings
from grpo.algorithm.loss import LossAndStats, policy_loss
from grpo.algorithm.loss_weights import set_loss_weights, set_trained
from grpo.algorithm.meter import TokenMeter
from grpo.algorithm.optimizer import Optimizer, scheduled_rate
from grpo.algorithm.packing import pack_batch, pack_tokens, split_into_micro_batches
from grpo.algorithm.rollout import Phase, Rollout, untimed
from grpo.algorithm.schema import POLICY, REFERENCE, Group, PackedBatch, PackedTokens, hash_seed


@dataclass
class Learned:
    """What a step has done; its metrics are made of it.

    groups: trained. generated: those, and the ones that dynamic sampling has dropped. grad_norms: of each update.
    """

    groups: list[Group]
    generated: list[Group]
    num_tokens: int = 1  # that count in the complete step, over all replicas
    refusal_shift: float = 0.0
    meter: TokenMeter = field(default_factory=TokenMeter)
    micro_batches: int = 0
    learning_rate: float = 0.0  # of the last update
    grad_norms: list[float] = field(default_factory=list)


@dataclass(kw_only=True, eq=False)
class Learner:
    """A model under training: its passes over micro-batches, and its updates. Subclasses: `Grpo`; `Sft` of sft.py.

    logprobs: `batch_logprobs` of logprobs.py, which is passed in, since its import brings the engine. memory: how large
    micro-batches may be. device, loss_dtype: of a micro-batch, and of what the loss computes with. total_steps: of the
    run, for the schedule of the learning rate. step: how many of them are done. phase: makes a context manager from a
    name; the pass of the reference runs in that of "time/reference".
    """

    settings: Settings
    model: Model
    logprobs: Callable[..., tuple[Tensor, Tensor]]
    optimizer: Optimizer
    memory: Memory
    replicas: Peers
    device: torch.device
    loss_dtype: torch.dtype
    total_steps: int
    step: int = 0
    phase: Phase = untimed

    def train_step(self) -> Learned:
        """Make a step."""
        raise NotImplementedError

    def loss(self, batch: PackedBatch, logp_C: Tensor, entropy_C: Tensor, num_tokens: int) -> LossAndStats:
        """Compute the loss of a micro-batch, a scalar to minimise. num_tokens: that count in the complete step."""
        raise NotImplementedError

    def make_batches(self, groups: Sequence[Group], max_tokens: int = 0) -> list[PackedBatch]:
        """Split the trained completions into micro-batches. Their loss weights are set already.

        max_tokens: packed tokens of a micro-batch; 0: as many as fit into memory.
        """
        split = split_into_micro_batches(groups, max_tokens or self.memory.budget.tokens)
        return [pack_batch(one, number, device=self.device, dtype=self.loss_dtype) for number, one in enumerate(split)]

    def policy_logprobs(self, batch: PackedTokens) -> tuple[Tensor, Tensor]:
        """Compute log-prob and entropy of every trained token under the policy, [C] each (Eq. 3).

        With dropout, every pass over a batch has the same masks, so that the ratio measures the policy's change alone.
        """
        settings, mode = self.settings, POLICY
        if settings.lora_dropout:
            mode = replace(POLICY, dropout_seed=hash_seed(settings.seed, self.step, self.replicas.rank, batch.number))
        temperature, chunk, trains_entropy = settings.temperature, self.memory.budget.chunk, settings.entropy_coef > 0
        return self.logprobs(self.model, batch, mode, temperature, chunk, trains_entropy)  # Eq. 3

    @torch.enable_grad()  # whatever a user's reward has left behind
    def add_gradient(self, learned: Learned) -> list[tuple[PackedBatch, Tensor]]:
        """Add the gradient of the step, one micro-batch after the other. Return them with their log-probs, [C].

        After a try that ran out of memory it begins anew, with smaller micro-batches.
        """
        self.optimizer.discard_gradient()
        meter = TokenMeter()
        batches = self.make_batches(learned.groups)
        passes = [(batch, self.train_batch(batch, meter, learned.num_tokens)) for batch in batches]
        learned.meter.include(meter)
        learned.micro_batches = len(batches)
        return passes

    def train_batch(self, batch: PackedBatch, meter: TokenMeter, num_tokens: int = 1) -> Tensor:
        """Add the gradient of a micro-batch; return its log-probs, [C]. num_tokens: that count in the complete step."""
        logp_C, entropy_C = self.policy_logprobs(batch)  # Eq. 3
        loss, stats = self.loss(batch, logp_C, entropy_C, num_tokens)
        self.optimizer.backward(loss)
        meter.add(batch, loss, logp_C, entropy_C, stats)
        return logp_C.detach()

    def update(self, learned: Learned, iteration: int = 0, is_empty: bool = False) -> None:
        """Sum the gradient over replicas, clip it, and apply it. A gradient that is not finite changes no weight.

        is_empty: no replica has a completion to train. Then momentum alone must not move the weights. (If there are
        some, and their gradient is 0, AdamW makes its step, as in TRL.)
        """
        settings = self.settings
        total_updates = self.total_steps * settings.num_iterations
        warmup = settings.warmup_steps * settings.num_iterations or ceil(settings.warmup_ratio * total_updates)
        number = self.step * settings.num_iterations + iteration  # of this update
        learned.learning_rate = scheduled_rate(
            number, settings.learning_rate, settings.lr_scheduler_type, warmup, total_updates
        )
        if is_empty:
            return
        learned.grad_norms.append(self.optimizer.step(learned.learning_rate, settings.max_grad_norm))
        self.optimizer.check_finite()
        self.model.refresh()


@dataclass(kw_only=True, eq=False)
class Grpo(Learner):
    """Learns from groups of answers. reference: the frozen policy of step 0; None without a KL penalty."""

    rollout: Rollout
    reference: Model | None = None

    def train_step(self) -> Learned:
        """Generate the answers of one step, and train on them."""
        settings = self.settings
        groups, generated = self.rollout.sample(self.step)  # G completions per prompt; grading starts as each ends
        # Weights come first: a completion of weight 0 is not trained, so it is in no micro-batch.
        num_completions, num_tokens = set_loss_weights(groups, settings, self.replicas)  # Eq. 8, over all replicas
        self.memory.run(self.add_reference, groups)  # Eq. 3, while rewards are pending

        self.rollout.wait(groups)  # until every answer is graded; a reward of None: it could not be
        if settings.credit != "completion":
            set_credit(groups, settings.credit, self.rollout.decode, bool(settings.tools))  # Eq. 13
        rewards, shift = rewards_of(groups, settings, self.replicas)
        set_advantages(groups, rewards, settings.scale_rewards, self.replicas)  # Eq. 1, 2
        set_trained(groups, settings)  # what has no gradient is not computed; with a KL term every token has one

        learned = Learned(groups, generated, num_tokens, shift)
        for iteration in range(settings.num_iterations):
            passes = self.memory.run(self.add_gradient, learned)
            if iteration == 0 and settings.num_iterations > 1:  # until now the policy is the one that sampled
                for batch, logp_C in passes:
                    for completion, logps in batch.of_each(logp_C):
                        completion.old_logps = logps
            self.update(learned, iteration, is_empty=num_completions == 0)
        self.step += 1
        return learned

    def loss(self, batch: PackedBatch, logp_C: Tensor, entropy_C: Tensor, num_tokens: int) -> LossAndStats:
        loss, stats = policy_loss(batch, logp_C, self.settings)  # Eq. 4 to 7, 9 to 11, 21
        if self.settings.entropy_coef:
            loss = loss - variants.entropy_bonus(entropy_C, self.settings.entropy_coef, num_tokens)  # Eq. 22
        return loss, stats

    @torch.no_grad()
    def add_reference(self, groups: Sequence[Group]) -> None:
        """Give the trained tokens their log-probs under the policy of step 0, unless there is no KL penalty (Eq. 3)."""
        if self.reference is None:
            return
        budget, temperature = self.memory.budget, self.settings.temperature
        with self.phase("time/reference"):
            for number, subgroups in enumerate(split_into_micro_batches(groups, budget.tokens)):
                batch = pack_tokens(subgroups, number, device=self.device, dtype=self.loss_dtype)
                logp_C, _ = self.logprobs(self.reference, batch, REFERENCE, temperature, budget.chunk)  # Eq. 3
                for completion, logps in batch.of_each(logp_C):
                    completion.ref_logps = logps


def rewards_of(groups: Sequence[Group], settings: Settings, replicas: Peers) -> tuple[list[list[float | None]], float]:
    """Return the rewards of which the advantages are made, R in Eq. 1; and what declining earns more."""
    rewards, shift = [[completion.reward for completion in group.completions] for group in groups], 0.0
    if settings.multi_objective_aggregation == "normalize_then_sum":
        rewards = list(map(variants.normalized_rewards, groups))  # Eq. 12
    if settings.refusal_target is not None:
        shift = variants.refusal_shift(groups, settings.refusal_target, replicas)  # Eq. 14
        rewards = [variants.shifted_rewards(group, shift) for group in groups]
    return rewards, shift

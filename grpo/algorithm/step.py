"""The step of GRPO, from top to bottom: `Grpo.train_step`. Counterpart of `grpo_step` in minimal.py.

What it adds: micro-batches that fit into memory, rewards that arrive while the reference is computed, several
processes, and the variants of variants.py.

The numbers of the equations are those of MATH.md; each stands on the line of code that computes it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import ceil

import torch

from grpo.algorithm import variants
from grpo.algorithm.advantages import set_advantages
from grpo.algorithm.credit import set_credit
from grpo.algorithm.logprobs import batch_logprobs
from grpo.algorithm.loss import policy_loss
from grpo.algorithm.loss_weights import set_loss_weights, set_scored
from grpo.algorithm.meter import TokenMeter
from grpo.algorithm.optimizer import Optimizer, scheduled_rate
from grpo.algorithm.packing import num_scored, pack_batch, pack_tokens, split_into_micro_batches
from grpo.algorithm.rollout import Phase, Rollout, untimed
from grpo.algorithm.schema import Group, PackedBatch, PackedTokens
from grpo.config.options import SftConfig, TrainConfig
from grpo.engine.device.draw import hash_seed
from grpo.engine.device.peers import Peers
from grpo.engine.model.decoder import Decoder
from grpo.engine.model.lora import POLICY, REFERENCE
from grpo.engine.model.memory import MemoryLimit


@dataclass
class Learned:
    """What a step has done; its metrics are made of it.

    groups: trained. generated: those, and the ones that dynamic sampling has dropped. grad_norms: of each update.
    """

    groups: list[Group]
    generated: list[Group]
    refusal_shift: float = 0.0
    meter: TokenMeter = field(default_factory=TokenMeter)
    micro_batches: int = 0
    loss: float = 0.0  # of stage 1; `meter` has that of stage 2
    learning_rate: float = 0.0  # of the last update
    grad_norms: list[float] = field(default_factory=list)


@dataclass(kw_only=True, eq=False)
class Learner:
    """A model under training: its passes over micro-batches, and its updates. Subclasses: `Grpo`; `Sft` of sft.py.

    memory: how large micro-batches may be. total_steps: of the run, for the schedule of the learning rate. step: how
    many of them are done. phase: makes a context manager from a name; the pass of the reference runs in that of
    "time/reference".
    """

    config: TrainConfig | SftConfig
    model: Decoder
    optimizer: Optimizer
    memory: MemoryLimit
    replicas: Peers
    total_steps: int
    step: int = 0
    phase: Phase = untimed

    def __post_init__(self) -> None:
        self.device = torch.device(self.model.build.device)
        self.exact = torch.promote_types(self.model.build.dtype, torch.float32)  # the dtype of all but the model

    def make_batches(
        self,
        groups: Sequence[Group],
        ref_logp_C: torch.Tensor | None = None,
        old_logp_C: torch.Tensor | None = None,
        max_tokens: int = 0,
    ) -> list[PackedBatch]:
        """Split the trained completions into micro-batches. Their loss weights are set already.

        max_tokens: packed tokens of a micro-batch; 0: as many as fit into memory.
        """
        batches, start = [], 0
        for number, parts in enumerate(split_into_micro_batches(groups, max_tokens or self.memory.budget.tokens)):
            end = start + num_scored(parts)
            batch = pack_batch(
                parts,
                number,
                ref_logp_C=None if ref_logp_C is None else ref_logp_C[start:end],
                old_logp_C=None if old_logp_C is None else old_logp_C[start:end],
                device=self.device,
                dtype=self.exact,
            )
            batches.append(batch)
            start = end
        assert ref_logp_C is None or len(ref_logp_C) == start  # those of just these tokens
        return batches

    def policy_logprobs(self, batch: PackedTokens) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute log-prob and entropy of every scored token under the policy, [C] each (Eq. 3).

        With dropout, every pass over a batch has the same masks, so that the ratio measures the policy's change alone.
        """
        mode = POLICY
        if self.config.lora_dropout:
            seed = hash_seed(self.config.seed, self.step, self.replicas.rank, batch.number)
            mode = replace(POLICY, dropout_seed=seed)
        return batch_logprobs(self.model, batch, mode, self.config.temperature, self.memory.budget.chunk)  # Eq. 3

    def update(self, learned: Learned, iteration: int = 0, is_empty: bool = False) -> None:
        """Sum the gradient over replicas, clip it, and apply it. A gradient that is not finite changes no weight.

        is_empty: no replica has a completion to train. Then momentum alone must not move the weights. (If there are
        some, and their gradient is 0, AdamW makes its step, as in TRL.)
        """
        config = self.config
        total_updates = self.total_steps * config.num_iterations
        warmup = config.warmup_steps * config.num_iterations or ceil(config.warmup_ratio * total_updates)
        number = self.step * config.num_iterations + iteration  # of this update
        learned.learning_rate = scheduled_rate(
            number, config.learning_rate, config.lr_scheduler_type, warmup, total_updates
        )
        if is_empty:
            return
        learned.grad_norms.append(self.optimizer.step(learned.learning_rate, config.max_grad_norm))
        self.optimizer.check_finite()
        self.model.refresh()


@dataclass(kw_only=True, eq=False)
class Grpo(Learner):
    """Learns from groups of answers. reference: the frozen policy of step 0; None without a KL penalty."""

    config: TrainConfig
    rollout: Rollout
    reference: Decoder | None = None

    def train_step(self) -> Learned:
        """Generate the answers of one step, and train on them."""
        config = self.config
        sampled = self.rollout.sample(self.step)  # G completions per prompt; grading starts as each ends
        groups = sampled.groups
        totals = set_loss_weights(groups, config, self.replicas)  # Eq. 8, over the complete step and all replicas
        ref_logp_C = self.memory.run(self.reference_logprobs, groups)  # Eq. 3, while rewards are pending

        self.rollout.wait(groups)  # until every answer is graded; a reward of None: it could not be
        if config.credit != "completion":
            set_credit(groups, config.credit, self.rollout.decode, bool(config.tools))  # Eq. 13
        shift = 0.0  # what declining earns more
        if config.refusal_target is not None:
            shift = variants.refusal_shift(groups, config.refusal_target, self.replicas)  # Eq. 14
        rewards = [variants.rewards_of(group, config, shift) for group in groups]
        set_advantages(groups, rewards, config.scale_rewards, self.replicas)  # Eq. 1, 2
        set_scored(groups, config)  # what has no gradient is not computed; with a KL term every token has one

        learned = Learned(groups, sampled.generated, shift)
        old_logp_C = None  # in the first iteration the policy is the one that sampled
        for iteration in range(config.num_iterations):
            logp_C = self.memory.run(self.add_gradient, learned, ref_logp_C, old_logp_C)
            old_logp_C = logp_C if iteration == 0 else old_logp_C
            self.update(learned, iteration, is_empty=totals.completions == 0)
        self.step += 1
        return learned

    @torch.enable_grad()  # whatever a user's reward has left behind
    def add_gradient(
        self, learned: Learned, ref_logp_C: torch.Tensor | None, old_logp_C: torch.Tensor | None
    ) -> torch.Tensor:
        """Add the gradient of the step, one micro-batch after the other, and return the policy's log-probs.

        All log-probs are those of the scored tokens of the step, in order. After a try that ran out of memory it begins
        anew, with smaller micro-batches.
        """
        self.optimizer.discard_gradient()
        meter = TokenMeter()
        batches = self.make_batches(learned.groups, ref_logp_C, old_logp_C)
        logps = [self.train_batch(batch, meter) for batch in batches]
        learned.meter.include(meter)
        learned.micro_batches = len(batches)
        return _joined(logps)

    def train_batch(self, batch: PackedBatch, meter: TokenMeter) -> torch.Tensor:
        """Add the gradient of a micro-batch; return its log-probs, [C]."""
        logp_C, entropy_C = self.policy_logprobs(batch)  # Eq. 3
        loss, stats = policy_loss(batch, logp_C, self.config)  # Eq. 4 to 7, 9 to 11
        self.optimizer.backward(loss)
        meter.add(batch, loss, logp_C, entropy_C, stats)
        return logp_C.detach()

    @torch.no_grad()
    def reference_logprobs(self, groups: Sequence[Group]) -> torch.Tensor | None:
        """Compute the log-probs of all trained tokens under the policy of step 0; None without a KL penalty (Eq. 3)."""
        if self.reference is None:
            return None
        logps, budget = [], self.memory.budget
        with self.phase("time/reference"):
            for number, parts in enumerate(split_into_micro_batches(groups, budget.tokens)):
                batch = pack_tokens(parts, number, device=self.device, dtype=self.exact)
                logp_C, _ = batch_logprobs(
                    self.reference, batch, REFERENCE, self.config.temperature, budget.chunk
                )  # Eq. 3
                logps.append(logp_C)
        return _joined(logps)


def _joined(logps: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat(tuple(logps)) if logps else torch.empty(0)

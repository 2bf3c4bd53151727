"""What stage 1 and stage 2 share: a policy, its passes over micro-batches, the optimizer step, and the checkpoint."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from math import ceil, isfinite
from typing import Protocol

import torch

from grpo.algorithm.logprobs import batch_logprobs
from grpo.algorithm.optimizer import Optimizer, scheduled_rate
from grpo.algorithm.packing import pack_batch, split_into_micro_batches
from grpo.algorithm.schema import Group, PackedBatch, completions_of
from grpo.base.errors import UserError
from grpo.base.storage import failpoint
from grpo.config.options import SftConfig, TrainConfig
from grpo.data.rows import Order
from grpo.engine.device.distributed import Ranks
from grpo.engine.device.draw import hash_seed
from grpo.engine.device.products import slow_dtype
from grpo.engine.model import memory
from grpo.engine.model.decoder import Decoder
from grpo.engine.model.lora import POLICY
from grpo.engine.model.policy import Policy, find_parts, load_policy
from grpo.engine.model.slices import shares_of
from grpo.run.checkpoint import check_disk
from grpo.run.diagnosis.health import Diagnosis, Health
from grpo.run.metrics import Clock, TokenMeter
from grpo.run.provenance import hidden_values, inputs_of
from grpo.run.resume import check_inputs
from grpo.run.run import Run


@memory.loading()
def load_trained(config: TrainConfig | SftConfig, device: torch.device, ranks: Ranks) -> tuple[Policy, Optimizer]:
    """Load the policy of a run and its optimizer, which allocates now all the memory that it will need."""
    policy = load_policy(config, device, shard=ranks.shard)
    optimizer = Optimizer(
        policy.model.parameters(),
        betas=(config.adam_beta1, config.adam_beta2),
        eps=config.adam_epsilon,
        weight_decay=config.weight_decay,
        scales_loss=policy.model.build.dtype == torch.float16,
        replicas=ranks.replicas,
        shard=ranks.shard,
        shares=shares_of(policy.model),
    )
    return policy, optimizer


class Source(Protocol):
    """Where the groups of each step come from: the rollouts of stage 2, the examples of stage 1."""

    order: Order  # of the rows that are taken
    data_hash: str
    total_steps: int  # of the run
    longest: int  # tokens of the longest sequence, prompt and completion


class Trainer:
    """Policy and optimizer of one run. A subclass adds `train_step`, and `summarise_step`, which returns its metrics.

    The constructor chooses micro-batches that fit into the memory that is still free.

    reference: the frozen policy of step 0, for the KL penalty.
    """

    def __init__(
        self,
        config: TrainConfig | SftConfig,
        run: Run,
        policy: Policy,
        optimizer: Optimizer,
        source: Source,
        clock: Clock,
        reference: Decoder | None = None,
    ):
        self.config, self.run, self.ranks, self.clock = config, run, run.ranks, clock
        self.replicas = self.ranks.replicas
        self.policy, self.model, self.optimizer, self.reference = policy, policy.model, optimizer, reference
        self.temperature = getattr(config, "temperature", 1.0)  # stage 1 has no such keys: it samples no completions
        self.num_iterations = getattr(config, "num_iterations", 1)
        self.order, self.total_steps, self.longest = source.order, source.total_steps, source.longest
        self.step, self.num_tokens, self.num_skipped = 0, 0, 0
        self.meter = TokenMeter()
        knowledge_base = getattr(config, "knowledge_base", None)
        self.inputs = inputs_of(policy, source.data_hash, knowledge_base) | hidden_values(config)
        self.ranks.agree(self.inputs)
        if warning := slow_dtype(self.model.build.dtype, run.device):
            run.say(warning)
        num_replicas, num_shards = self.replicas.world, self.ranks.shard.world
        if self.ranks.world > 1:
            parts = f", each in {num_shards} parts" if num_shards > 1 else ""
            run.say(f"{self.ranks.world} processes; copies of the model: {num_replicas}{parts}")
        size = memory.loaded_bytes(self.model, reference, num_replicas) + memory.free_bytes(run.device)
        size = -int(self.ranks.shard.max(-size))  # shards make the same micro-batches
        self.plan = memory.make_plan(self.model, config, self.longest, size, reference, run.device.type, num_replicas)
        self.budget = self.plan.budget  # smaller once memory has run out
        self.model.recompute = self.budget.recompute
        max_unscored = getattr(config, "max_unscored", 1.0)
        self.health = Health(run.say, max_unscored, diagnosis=Diagnosis(config=asdict(config)))

    def start_step(self) -> None:
        """Reset clock, statistics and gradient before a step."""
        self.clock.restart()
        self.discard_step()

    def discard_step(self) -> None:
        """Discard the gradient and the statistics of a step, so that it can be repeated."""
        self.meter = TokenMeter()
        self.optimizer.discard_gradient()

    # --- the parts of a step ----------------------------------------------------------------------------------------

    def make_batches(self, groups: list[Group]) -> list[PackedBatch]:
        """Split the groups into micro-batches that fit into memory. Their loss weights are set already."""
        batches = split_into_micro_batches(groups, self.budget.tokens)
        self.num_micro_batches = len(batches)
        return [pack_batch(parts, number, device=self.run.device) for number, parts in enumerate(batches)]

    def policy_logprobs(self, batch: PackedBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute log-prob and entropy of every completion token under the policy, [C] each (Eq. 3).

        With dropout, every pass over a batch has the same masks, so that the ratio measures the policy's change alone.
        """
        mode = POLICY
        if self.config.lora_dropout:
            seed = hash_seed(self.config.seed, self.step, self.replicas.rank, batch.number)
            mode = replace(POLICY, dropout_seed=seed)
        return batch_logprobs(self.model, batch, mode, self.temperature, self.budget.chunk)  # Eq. 3

    def update(self, iteration: int = 0, is_empty: bool = False) -> None:
        """Sum the gradient over ranks, clip it, apply it. A gradient that is not finite changes no weight.

        is_empty: no rank trains anything in this step. Then momentum alone must not move the weights.
        """
        c = self.config
        total_updates = self.total_steps * self.num_iterations
        warmup = c.warmup_steps * self.num_iterations or ceil(c.warmup_ratio * total_updates)
        number = self.step * self.num_iterations + iteration  # of this update
        self.learning_rate = scheduled_rate(number, c.learning_rate, c.lr_scheduler_type, warmup, total_updates)
        self.grad_norm = 0.0
        if not is_empty:
            self.grad_norm = self.optimizer.step(self.learning_rate, c.max_grad_norm)
            self.optimizer.check_finite()
            self.health.updated(self.optimizer, self.grad_norm)
            self.num_skipped += not isfinite(self.grad_norm)
            self.model.refresh()
        failpoint("step-updated")

    def end(self) -> None:
        """Say what only a finished run can tell."""
        if self.total_steps and not self.optimizer.num_applied:
            self.run.remark = "the run is done, and no step has changed a weight: final/ is the model it started from"
            self.run.say(f"warning: {self.run.remark}")
        self.health.end()

    def step_metrics(self, groups: Sequence[Group]) -> dict[str, float]:
        """Return the metrics that both stages log, and count the step's tokens. groups: those of all ranks."""
        num_tokens = sum(len(completion.ids) for completion in completions_of(groups))
        self.num_tokens += num_tokens + sum(len(group.prompt.ids) * len(group.completions) for group in groups)
        times = self.clock.result()
        return {
            "epoch": self.order.position / self.order.num_rows,
            "num_tokens": self.num_tokens,
            "skipped_steps": self.num_skipped,
            "grad_norm": self.grad_norm,
            "learning_rate": self.learning_rate,
            "micro_batches": self.num_micro_batches,
            **times,
            "tokens_per_second": num_tokens / times["step_time"],
            "peak_memory_gb": self.ranks.max(memory.peak_bytes(self.run.device)) / 1e9,
        }

    # --- checkpoints ------------------------------------------------------------------------------------------------

    def restore(self) -> None:
        """Restore the checkpoint to resume from, if there is one."""
        counters = self.run.restore(self.policy, self.optimizer)
        if not counters:
            check_disk(self.model, self.config, find_parts(self.config).adapter)
            return
        check_inputs(counters["inputs"], self.inputs, self.config)
        self.step, self.num_tokens = counters["step"], counters["num_tokens"]
        if self.step > self.total_steps:
            raise UserError(
                f"the run is at step {self.step}, and would end at step {self.total_steps}",
                "max_steps or num_train_epochs is lower than when it was saved",
                f"raise it to {self.step} at least; `python -m grpo.export` takes the checkpoint as it is",
            )
        self.num_skipped = counters["skipped"]
        self.order.position = counters["position"]
        if not self.config.max_tokens_per_micro_batch:  # sums and dropout masks depend on the micro-batches
            self.budget = replace(self.budget, tokens=counters["micro_batch_tokens"])
        if self.run.saved_step is None:  # resumed from another directory; from now on this one has a checkpoint, too
            self.save()

    def save(self) -> None:
        """Write checkpoint-N of the step that was done last."""
        counters = {
            "position": self.order.position,
            "inputs": self.inputs,
            "num_tokens": self.num_tokens,
            "skipped": self.num_skipped,
            "micro_batch_tokens": self.budget.tokens,
        }
        self.run.save_checkpoint(self.step, self.policy, self.optimizer, counters)

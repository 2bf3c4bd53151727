"""A run's trainer: it adds metrics, checkpoints and checks of health to the learner of a stage."""

from collections.abc import Sequence
from dataclasses import asdict
from math import isfinite
from typing import Protocol

import torch

from grpo.algorithm.optimizer import Optimizer
from grpo.algorithm.schema import Group, completions_of
from grpo.algorithm.step import Equipment, Learned, Learner
from grpo.base.errors import UserError
from grpo.base.storage import failpoint
from grpo.config.options import SftConfig, TrainConfig
from grpo.data.rows import Order
from grpo.engine.device.distributed import Ranks
from grpo.engine.device.products import slow_dtype
from grpo.engine.model import memory
from grpo.engine.model.decoder import Decoder
from grpo.engine.model.flat import FlatParameters
from grpo.engine.model.memory import MemoryLimit
from grpo.engine.parallel.splits import trained_splits
from grpo.policy import Policy, find_parts, load_policy
from grpo.run.checkpoint import check_disk
from grpo.run.diagnosis.health import Diagnosis, Health
from grpo.run.metrics import Clock
from grpo.run.phases import Phases
from grpo.run.provenance import inputs_of
from grpo.run.run import Run


@memory.loading()
def load_trained(config: TrainConfig | SftConfig, device: torch.device, ranks: Ranks) -> tuple[Policy, Optimizer]:
    """Load the policy of a run and its optimizer, which allocates now all the memory that it will need."""
    policy = load_policy(config, device, shard=ranks.shard)
    model = policy.model
    optimizer = Optimizer(
        FlatParameters(model.parameters(), ranks.replicas, ranks.shard, trained_splits(model)),
        betas=(config.adam_beta1, config.adam_beta2),
        eps=config.adam_epsilon,
        weight_decay=config.weight_decay,
        scales_loss=model.build.dtype == torch.float16,
    )
    return policy, optimizer


class Source(Protocol):
    """Where the groups of each step come from: the questions of stage 2, or the examples of stage 1."""

    data_hash: str
    total_steps: int  # of the run
    longest: int  # tokens of the longest sequence, prompt and completion; of stage 2, held-out prompts included


class Trainer:
    """A run under way. A subclass has `begin`, and `summarise_step`, which returns metrics.

    The constructor chooses micro-batches that fit into the memory that is still free. reference: the frozen policy of
    step 0, for the KL penalty.
    """

    learner: Learner
    order: Order  # of the rows that are taken; within a step it is ahead of `position`

    def __init__(
        self,
        config: TrainConfig | SftConfig,
        run: Run,
        policy: Policy,
        optimizer: Optimizer,
        source: Source,
        reference: Decoder | None = None,
    ):
        self.config, self.run, self.ranks, self.replicas = config, run, run.ranks, run.ranks.replicas
        self.policy, self.model, self.optimizer, self.reference = policy, policy.model, optimizer, reference
        self.source, self.total_steps, self.longest = source, source.total_steps, source.longest
        self.num_tokens, self.num_skipped = 0, 0
        self.position = 0  # rows taken by the steps that are done
        self.learned: Learned | None = None  # by the last step
        self.clock = Clock(run.device)
        self.phase = Phases(self.clock, run.signals, together=not config.dynamic_sampling)
        self.inputs = inputs_of(policy, source.data_hash, config)
        self.ranks.agree(self.inputs)
        self._say_how()
        self.plan = self._plan_memory()
        self.model.recompute = self.plan.budget.recompute
        self.memory = MemoryLimit(self.plan.budget, self.longest, self.ranks.shard.world == 1, run.say)
        self.health = Health(run.say, config.max_unscored, diagnosis=Diagnosis(config=asdict(config)))

    def _say_how(self) -> None:
        """Say in how many processes the run is, and whether its dtype is a slow one."""
        if warning := slow_dtype(self.model.build.dtype, self.run.device):
            self.run.say(warning)
        num_shards = self.ranks.shard.world
        if self.ranks.world > 1:
            parts = f", each in {num_shards} parts" if num_shards > 1 else ""
            self.run.say(f"{self.ranks.world} processes; copies of the model: {self.replicas.world}{parts}")

    def _plan_memory(self) -> memory.Plan:
        """Plan for the memory that is still free. Shards make the same plan."""
        device = self.run.device
        loaded = memory.Loaded(self.model, self.reference, self.replicas.world)
        available_bytes = loaded.account().total + memory.free_bytes(device)
        available_bytes = int(self.ranks.shard.min(available_bytes))
        return memory.make_plan(loaded, self.config, self.longest, available_bytes, device.type)

    def begin(self, source: Source, step: int = 0, position: int = 0) -> None:
        """Make `learner` and `order`, with so many steps done, and so many rows of the source taken."""
        raise NotImplementedError

    def equipment(self, step: int) -> Equipment:
        """Return what the learner of either stage works with. step: how many are done."""
        return Equipment(
            config=self.config,
            model=self.model,
            optimizer=self.optimizer,
            memory=self.memory,
            replicas=self.replicas,
            total_steps=self.total_steps,
            step=step,
            phase=self.phase,
        )

    @property
    def step(self) -> int:
        """Return how many steps are done."""
        return self.learner.step

    def train_step(self) -> None:
        """Make one step of the learner."""
        self.clock.restart()
        with torch.enable_grad():  # whatever a user's file has left behind at its import
            self.learned = self.learner.train_step()
        self.position = self.order.position
        failpoint("step-updated")
        self.num_tokens += int(self.replicas.sum([sum(map(num_read, self.learned.generated))])[0])
        for norm in self.learned.grad_norms:
            self.health.updated(self.optimizer, norm)
            self.num_skipped += not isfinite(norm)

    def end(self) -> None:
        """Say what only a finished run can tell."""
        if self.total_steps and not self.optimizer.num_applied:
            self.run.remark = "the run is done, and no step has changed a weight: final/ is the model it started from"
            self.run.say(f"warning: {self.run.remark}")
        self.health.end()

    def step_metrics(self, groups: Sequence[Group]) -> dict[str, float]:
        """Return the metrics of the last step that both stages log. Every process must call it.

        groups: those of all ranks.
        """
        num_completion_tokens = sum(completion.num_drawn for completion in completions_of(groups))
        times = self.clock.result()
        return {
            "epoch": self.position / self.order.num_rows,
            "num_tokens": self.num_tokens,
            "skipped_steps": self.num_skipped,
            "grad_norm": self.learned.grad_norms[-1] if self.learned.grad_norms else 0.0,
            "learning_rate": self.learned.learning_rate,
            "micro_batches": int(self.ranks.max(self.learned.micro_batches)),
            **times,
            "tokens_per_second": num_completion_tokens / times["step_time"],
            "peak_memory_gb": self.ranks.max(memory.peak_bytes(self.run.device)) / 1e9,
        }

    # --- checkpoints ------------------------------------------------------------------------------------------------

    def restore(self) -> None:
        """Restore the checkpoint to resume from, if there is one."""
        counters = self.run.restore(self.policy, self.optimizer, self.inputs)
        if not counters:
            check_disk(self.model, self.config, find_parts(self.config).adapter)
            return
        self.position, self.num_tokens = counters["position"], counters["num_tokens"]
        self.begin(self.source, counters["step"], self.position)
        if self.step > self.total_steps:
            raise UserError(
                f"the run is at step {self.step}, and would end at step {self.total_steps}",
                "max_steps or num_train_epochs is lower than when it was saved",
                f"raise it to {self.step} at least; `python -m grpo.export` takes the checkpoint as it is",
            )
        self.num_skipped = counters["skipped"]
        if not self.config.max_tokens_per_micro_batch:  # sums and dropout masks depend on the micro-batches
            self.memory.use(counters["micro_batch_tokens"])
        if self.run.saved_step is None:  # resumed from another directory; from now on this one has a checkpoint, too
            self.save()

    def save(self) -> None:
        """Write checkpoint-N of the step that was done last."""
        counters = {
            "position": self.position,
            "inputs": self.inputs,
            "num_tokens": self.num_tokens,
            "skipped": self.num_skipped,
            "micro_batch_tokens": self.memory.budget.tokens,
        }
        self.run.save_checkpoint(self.step, self.policy, self.optimizer, counters)


def num_read(group: Group) -> int:
    """Count the tokens of a group; its prompt counts once per completion."""
    return sum(len(group.prompt.ids) + len(completion.ids) for completion in group.completions)

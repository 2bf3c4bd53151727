"""A run's trainer: it makes the steps of a stage's learner, and adds metrics, checkpoints and checks of health."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any, Generic

import torch

from grpo.algorithm.interfaces import Settings
from grpo.algorithm.logprobs import batch_logprobs
from grpo.algorithm.optimizer import Optimizer
from grpo.algorithm.schema import Group, Order, completions_of
from grpo.algorithm.step import Learned, Learner
from grpo.base.errors import INTERNAL, MEMORY, SERVICE, STORAGE, Interrupted, UserError, explained, is_out_of_memory
from grpo.base.folders import write_folder
from grpo.base.storage import Json, failpoint, write_atomically, write_json
from grpo.config.load import to_yaml
from grpo.config.options import AnyConfig, Stage, TrainConfig
from grpo.engine.device.distributed import Ranks
from grpo.engine.device.products import slow_dtype
from grpo.engine.model import memory
from grpo.engine.model.decoder import Decoder
from grpo.engine.model.flat import FlatParameters
from grpo.engine.parallel.splits import trained_splits
from grpo.policy import Policy, find_folders, is_gguf, load_policy
from grpo.run import checkpoint
from grpo.run.checkpoint import agree_on_checkpoint, check_disk, is_own
from grpo.run.diagnosis.glossary import Metrics
from grpo.run.diagnosis.health import Health
from grpo.run.diagnosis.record import CONFIG_FILE
from grpo.run.metrics import Clock
from grpo.run.provenance import check_changes, check_inputs, inputs_of, machine, program
from grpo.run.run import Run

FAILPOINTS = {"time/generate": "step-sampled", "time/reward": "step-graded"}  # after the phases that a signal may end


@memory.loading()
def load_trained(config: AnyConfig, device: torch.device, ranks: Ranks) -> tuple[Policy, Optimizer]:
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


@dataclass(frozen=True)
class TrainingData:
    """What the steps of a run take: the prompts of stage 2; or the examples of stage 1, groups of a given completion.

    longest: tokens of the longest sequence, prompt and completion; of stage 2, held-out prompts included.
    """

    rows: list[Any]
    data_hash: str
    total_steps: int  # of the run
    longest: int


class Trainer(Generic[Stage]):
    """A run's policy, steps and checkpoints. A subclass has `start_at`, and `summarise_step`, which returns metrics.

    The constructor chooses micro-batches that fit into the memory that is still free. reference: the frozen policy of
    step 0, for the KL penalty.
    """

    learner: Learner
    learned: Learned  # by the last step
    order: Order  # of the rows that are taken; within a step it is ahead of `position`

    def __init__(
        self,
        config: Stage,
        run: Run[Stage],
        policy: Policy,
        optimizer: Optimizer,
        training_data: TrainingData,
        reference: Decoder | None = None,
    ):
        self.config = config
        self.run = run
        self.ranks = run.ranks
        self.replicas = run.ranks.replicas
        self.policy = policy
        self.model = policy.model
        self.optimizer = optimizer
        self.reference = reference
        self.training_data = training_data
        self.total_steps = training_data.total_steps
        self.longest = training_data.longest
        self.num_tokens = 0
        self.num_skipped = 0
        self.position = 0  # rows taken by the steps that are done
        self.saved_step: int | None = None
        self.clock = Clock(run.device)
        self.doing = "training"  # which the message names if memory runs out
        self.inputs = inputs_of(policy, training_data.data_hash, config)
        self.ranks.agree(self.inputs)
        self._say_how()
        self.loaded = memory.Loaded(self.model, reference, self.replicas.world)
        available_bytes = self.loaded.account().total + memory.free_bytes(run.device)
        available_bytes = int(self.ranks.shard.min(available_bytes))  # shards make the same plan
        self.plan = memory.make_plan(self.loaded, config, self.longest, available_bytes, run.device.type)
        self.model.recompute = self.plan.budget.recompute
        self.memory = memory.MemoryLimit(self.plan.budget, self.longest, self.ranks.shard.world == 1, run.say)
        self.health = Health(run.say, asdict(config), config.max_unscored)

    def _say_how(self) -> None:
        """Say in how many processes the run is, and whether its dtype is a slow one."""
        if warning := slow_dtype(self.model.build.dtype, self.run.device):
            self.run.say(warning)
        if self.policy.start and self.model.build.lora:
            fixed = "the one to start from stays as it is, and final/ holds both as one"
            self.run.say(f"note: a new adapter of rank {self.config.lora_r} is trained; {fixed}")
        num_shards = self.ranks.shard.world
        if self.ranks.world > 1:
            parts = f", each in {num_shards} parts" if num_shards > 1 else ""
            self.run.say(f"{self.ranks.world} processes; copies of the model: {self.replicas.world}{parts}")

    def start_at(self, step: int = 0, position: int = 0) -> None:
        """Make `learner` and `order`, with so many steps done, and so many rows taken."""
        raise NotImplementedError

    @property
    def settings(self) -> Settings:
        """Return the settings of a step. Those that stage 1 has no keys for mean nothing there."""
        return Settings.of(self.config, TrainConfig())

    def make_learner(self, kind: Callable[..., Any], step: int, **own: Any) -> Any:
        """Make the learner of a stage, `Grpo` or `Sft`. step: how many are done. own: what that kind alone takes."""
        return kind(
            settings=self.settings,
            model=self.model,
            logprobs=batch_logprobs,
            optimizer=self.optimizer,
            memory=self.memory,
            replicas=self.replicas,
            device=self.run.device,
            loss_dtype=torch.promote_types(self.model.build.dtype, torch.float32),
            total_steps=self.total_steps,
            step=step,
            phase=self.phase,
            **own,
        )

    @property
    def step(self) -> int:
        """Return how many steps are done."""
        return self.learner.step

    # --- a step -----------------------------------------------------------------------------------------------------

    def run_step(self) -> None:
        """Make a step of the learner, and count what it has done.

        If a signal ends it, a service that has failed for good, or a user's own reward, save the run as it was before
        the step. (A signal interrupts only sampling and the wait for rewards, so the policy has not been updated. With
        several ranks, a failure saves nothing: it is of one rank only, and saving needs all of them.)
        """
        num_updates = self.optimizer.num_updates
        self.doing = "training"
        self.clock.restart()
        try:
            with self.explained_memory(), torch.enable_grad():  # whatever a user's file has left behind at its import
                self.learned = self.learner.train_step()  # of Grpo: algorithm/step.py; of Sft: sft.py
        except Interrupted:
            self.save()
            raise
        except UserError as error:
            is_unchanged = self.optimizer.num_updates == num_updates and self.run.writes
            if error.exit_code in (INTERNAL, SERVICE) and self.step and self.ranks.world == 1 and is_unchanged:
                self.save()
                error.fix += f"; the run has saved step {self.step}: resume_from_checkpoint=true continues it"
            raise
        self.position = self.order.position
        failpoint("step-updated")
        read = [len(g.prompt.ids) + len(answer.ids) for g in self.learned.generated for answer in g.completions]
        self.num_tokens += int(self.replicas.sum([sum(read)])[0])
        for norm in self.learned.grad_norms:
            self.health.updated(norm, self.optimizer.has_overflowed)
            self.num_skipped += not isfinite(norm)

    def after_step(self, metrics: Metrics, groups: Sequence[Group] = ()) -> None:
        """Check the run's health, save when it is due, and end the run if a signal asked for that."""
        try:
            self.health.after_step(self.step, metrics, groups)
        except UserError as error:
            if error.exit_code == SERVICE:
                self.save()
            raise
        if self.config.save_steps and self.step % self.config.save_steps == 0:
            self.save()
        self.run.signals.stop_if_asked(self.save)

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

    # --- the time and the memory of a step ---------------------------------------------------------------------------

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the seconds inside as `name`. A signal whose grace is over ends generation, or the wait for rewards.

        All ranks generate, so they stop together; they do not if each decides whether to sample again.
        """
        is_generating = name == "time/generate"
        together = is_generating and not self.config.dynamic_sampling
        stopping = self.run.signals.interruptible(together) if name in FAILPOINTS else nullcontext()
        before = self.doing
        self.doing = "generating" if is_generating else before
        with stopping, self.clock.timed(name):
            yield
        self.doing = before
        if name in FAILPOINTS:
            failpoint(FAILPOINTS[name])

    @contextmanager
    def explained_memory(self) -> Iterator[None]:
        """If the work inside runs out of memory, say while doing what, what is counted, and what to lower."""
        try:
            yield
            return
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            reason = str(error).partition("\n")[0]
        key = "max_num_seqs" if self.doing == "generating" else "max_tokens_per_micro_batch"
        raise UserError(
            f"out of memory while {self.doing}, at step {self.step}",
            f"{reason}. Counted: {self.counted()}; {self.plan.num_sequences} sequences of up to {self.longest} "
            f"tokens, micro-batches of {self.memory.budget.tokens} packed tokens",
            f"lower {key}, max_completion_length or max_prompt_length, or set gradient_checkpointing=true",
            MEMORY,
        )

    def counted(self) -> memory.Account:
        """Count the memory that the longest step takes."""
        return self.loaded.account(self.plan.num_sequences, self.longest, self.memory.budget)

    # --- checkpoints ------------------------------------------------------------------------------------------------

    def restore(self) -> None:
        """Load the checkpoint to resume from, if there is one. Everything has been checked by then, so the run begins.

        UserError (exit 2) if the checkpoint is of another run, or of later steps than this one has.
        """
        config = self.run.config  # a silent run has no directory, so it finds no checkpoint there
        folder = agree_on_checkpoint(config, self.ranks, self.run.say)
        if folder is None:
            check_disk(self.model, self.config, find_folders(self.config).adapter)
            self.run.note(step=0, last_checkpoint=None)
            return
        for notice in check_changes(folder, config, self.replicas.world, self.run.device):
            self.run.say(f"note: {notice}")
        tensors, counters = checkpoint.read_state(folder, self.replicas.rank)
        check_inputs(folder, counters["inputs"], self.inputs, config)
        misfit = f"the checkpoint {folder} does not fit the model"
        with explained((KeyError, RuntimeError), misfit, "name a checkpoint of this run", STORAGE):
            self.optimizer.load_state(tensors)
        self.model.refresh()
        self._go_on(counters)
        if is_own(folder, self.run.path):
            self.saved_step = self.step
            self.run.note(step=self.step, last_checkpoint=folder.name)
        else:
            self.run.note()
        self.run.say(f"resuming from {folder} at step {self.step}")
        self.save()  # resumed from another directory; from now on this one has a checkpoint, too

    def _go_on(self, counters: Json) -> None:
        """Set what a checkpoint has counted."""
        self.position = counters["position"]
        self.num_tokens = counters["num_tokens"]
        self.start_at(counters["step"], self.position)
        if self.step > self.total_steps:
            raise UserError(
                f"the run is at step {self.step}, and would end at step {self.total_steps}",
                "max_steps or num_train_epochs is lower than when it was saved",
                f"raise it to {self.step} at least; `python -m grpo.export` takes the checkpoint as it is",
            )
        self.num_skipped = counters["skipped"]
        if not self.config.max_tokens_per_micro_batch:  # sums and dropout masks depend on the micro-batches
            self.memory.use(counters["micro_batch_tokens"])

    def save(self) -> None:
        """Write checkpoint-N of the step that was done last, and remove old ones. All ranks call this; rank 0 writes.

        An existing checkpoint of this step is kept only if this run wrote it or resumed from it. Otherwise it is
        damaged, or the run was resumed from an earlier one.
        UserError (exit 5) if some weight is not finite; then nothing is written.
        """
        if not self.run.writes:
            return
        self.optimizer.check_finite()
        if self.saved_step == self.step:
            return
        random_states = self.replicas.gather(checkpoint.random_state())
        state = self.optimizer.state()
        if self.ranks.is_main:
            counters = {
                "step": self.step,
                "position": self.position,
                "inputs": self.inputs,
                "num_tokens": self.num_tokens,
                "skipped": self.num_skipped,
                "micro_batch_tokens": self.memory.budget.tokens,
            }
            about = {"world_size": self.replicas.world, "program": program(), "machine": machine(self.run.device)}
            needed_bytes = sum(tensor.nbytes for tensor in state.values())
            with checkpoint.new_checkpoint(self.run.path, self.step, about, needed_bytes) as folder:
                checkpoint.write_state(folder, state, counters, random_states)
                write_atomically(folder / CONFIG_FILE, to_yaml(self.run.config))
                if self.model.build.lora is not None:
                    self.policy.save(folder)
                else:  # its weights are in the state
                    self.policy.tokenizer.save_pretrained(folder)
            checkpoint.remove_old(self.run.path, self.config.save_total_limit, self.step)
            self.run.note(step=self.step, last_checkpoint=f"checkpoint-{self.step}")
        elif self.model.build.lora is not None:
            self._contribute()
        self.saved_step = self.step
        self.ranks.barrier()

    def save_policy(self, name: str, notes: Mapping[str, Json]) -> None:
        """Write the folder `name` with the policy, and with notes as JSON files, completely or not at all.

        All ranks call this; rank 0 writes.
        """
        if not self.ranks.is_main:
            self._contribute()
            return
        with write_folder(self.run.path / name) as folder:
            self.policy.save(folder)
            for file, note in notes.items():
                write_json(folder / file, note)

    def _contribute(self) -> None:
        """Send rank 0 this rank's part of the policy. Rank 0 writes it."""
        if self.replicas.rank == 0:
            self.policy.save(None)

    def finish(self, notes: Mapping[str, Json]) -> None:
        """Write the last checkpoint, and final/: the adapter (or checkpoint), the tokenizer and the notes."""
        self.save()
        self.run.signals.is_training = False  # everything is saved, so a signal may end the run
        self.save_policy("final", notes)
        if is_gguf(self.policy.base[0]) and self.model.build.lora is not None:
            command = f"python -m grpo.export {self.run.path} OUT"
            self.run.say(f"note: final/ names a GGUF file as its base; for PEFT, `{command}` writes adapter and base")
        self.run.signals.stop_if_asked()  # by one during the last checkpoint

    def end(self) -> None:
        """Say what only a finished run can tell."""
        if self.total_steps and not self.optimizer.num_applied:
            self.run.remark = "the run is done, and no step has changed a weight: final/ is the model it started from"
            self.run.say(f"warning: {self.run.remark}")
        self.health.end(self.run.path)

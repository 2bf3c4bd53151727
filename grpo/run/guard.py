"""Run a step safely: retry it if memory runs out, and save the run before a signal or a failed service ends it."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from grpo.algorithm.schema import Group
from grpo.base.errors import MEMORY, SERVICE, Interrupted, UserError, is_out_of_memory
from grpo.engine.model import memory
from grpo.run.diagnosis.glossary import Metrics

if TYPE_CHECKING:
    from grpo.trainer import Trainer


class Guard:
    """Runs the steps of a trainer; the trainer does not know of it."""

    def __init__(self, trainer: "Trainer"):
        self.trainer, self.run = trainer, trainer.run

    def run_step(self) -> None:
        """Run one `train_step`.

        If a signal ends it, or a service that has failed for good, save the run as it was before the step. (A signal
        interrupts only sampling and the wait for rewards, so the policy has not been updated. With several ranks, a
        failed service saves nothing: it fails on one rank only, and saving needs all of them.)
        """
        trainer = self.trainer
        position, num_updates = trainer.order.position, trainer.optimizer.num_updates
        try:
            self._retry_on_oom(trainer.train_step)
        except (UserError, Interrupted) as error:
            is_unchanged = trainer.optimizer.num_updates == num_updates
            can_save = error.exit_code == SERVICE and trainer.ranks.world == 1 and is_unchanged
            if isinstance(error, Interrupted) or can_save:
                trainer.order.position = position
                trainer.save()
            raise

    def after_step(self, metrics: Metrics, groups: Sequence[Group] = ()) -> None:
        """Check the run's health, save when it is due, and end the run if a signal asked for that."""
        trainer, config = self.trainer, self.trainer.config
        try:
            trainer.health.check(trainer.step, metrics, groups)
        except UserError as error:
            if error.exit_code == SERVICE:
                trainer.save()
            raise
        if config.save_steps and trainer.step % config.save_steps == 0:
            trainer.save()
        self.run.signals.stop_if_asked(trainer.save)

    def rehearse(self) -> None:
        """Run the largest possible micro-batch, so that a lack of memory shows before step 1, and not at step 120."""
        trainer = self.trainer
        self._retry_on_oom(trainer.rehearse, "rehearsing the longest step")
        trainer.discard_step()
        memory.release()
        peak = memory.peak_bytes(self.run.device) / 1e9
        self.run.say(f"the longest step fits: peak {peak:.2f} GB, counted {self._account()}")

    def _retry_on_oom(self, work: Callable[[], None], phase: str = "") -> None:
        """Run `work`; on out-of-memory, retry with smaller micro-batches, if the policy has not been updated yet.

        A repeated `train_step` gets the same groups: it does not sample, grade or communicate with ranks again.
        """
        trainer = self.trainer
        num_updates = trainer.optimizer.num_updates
        trainer.start_step()
        while True:
            try:
                return work()
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                reason = str(error).partition("\n")[0]  # the error itself holds on to the tensors of its traceback
            is_generating = trainer.clock.phase == "time/generate"
            now = phase or ("generating" if is_generating else "training")
            smaller = memory.halve(trainer.budget, trainer.longest)
            if trainer.ranks.shard.world > 1:
                smaller = None  # the other shards are in the middle of this micro-batch
            if is_generating or trainer.optimizer.num_updates != num_updates or smaller is None:
                raise self._out_of_memory(now, reason)
            trainer.budget = smaller
            trainer.discard_step()
            memory.release()
            self.run.say(
                f"note: out of memory while {now} ({reason}); "
                f"from now on micro-batches have at most {smaller.tokens} packed tokens"
            )

    def _out_of_memory(self, phase: str, reason: str) -> UserError:
        trainer = self.trainer
        key = "max_num_seqs" if phase == "generating" else "max_tokens_per_micro_batch"
        return UserError(
            f"out of memory while {phase}, at step {trainer.step}",
            f"{reason}. Counted: {self._account()}; {trainer.plan.num_sequences} sequences of up to {trainer.longest} "
            f"tokens, micro-batches of {trainer.budget.tokens} packed tokens",
            f"lower {key}, max_completion_length or max_prompt_length, or set gradient_checkpointing=true",
            MEMORY,
        )

    def _account(self) -> memory.Account:
        trainer = self.trainer
        return memory.account(
            trainer.model,
            trainer.plan.num_sequences,
            trainer.longest,
            trainer.budget,
            trainer.reference,
            trainer.replicas.world,
        )

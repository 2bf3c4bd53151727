"""Run a step safely: explain a lack of memory, and save before a signal or a failed service ends the run."""

from collections.abc import Callable, Sequence
from math import ceil
from typing import TYPE_CHECKING

from grpo.algorithm.meter import TokenMeter
from grpo.algorithm.schema import Completion, Group, Prompt
from grpo.base.errors import INTERNAL, MEMORY, SERVICE, Interrupted, UserError, is_out_of_memory
from grpo.config.options import TrainConfig
from grpo.engine.model import memory
from grpo.run.diagnosis.glossary import Metrics
from grpo.run.phases import OutOfMemoryWhile

if TYPE_CHECKING:
    from grpo.trainer import Trainer


class Guard:
    """Runs the steps of a trainer; the trainer does not know of it."""

    def __init__(self, trainer: "Trainer"):
        self.trainer, self.run = trainer, trainer.run

    def run_step(self) -> None:
        """Run one `train_step`.

        If a signal ends it, a service that has failed for good, or a user's own reward, save the run as it was before
        the step. (A signal interrupts only sampling and the wait for rewards, so the policy has not been updated. With
        several ranks, a failure saves nothing: it is of one rank only, and saving needs all of them.)
        """
        trainer = self.trainer
        num_updates = trainer.optimizer.num_updates
        try:
            self._explain_oom(trainer.train_step)
        except Interrupted:
            trainer.save()
            raise
        except UserError as error:
            is_unchanged = trainer.optimizer.num_updates == num_updates
            if error.exit_code in (INTERNAL, SERVICE) and trainer.step and trainer.ranks.world == 1 and is_unchanged:
                trainer.save()
                error.fix += f"; the run has saved step {trainer.step}: resume_from_checkpoint=true continues it"
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

    def try_largest(self) -> None:
        """Run the largest possible micro-batch, so that a lack of memory shows before step 1, and not at step 120."""
        trainer = self.trainer
        self._explain_oom(lambda: trainer.memory.run(self._train_longest), "trying the longest step")
        memory.release()
        peak = memory.peak_bytes(self.run.device) / 1e9
        self.run.say(f"the longest step fits: peak {peak:.2f} GB, counted {self._account()}")

    def _train_longest(self) -> None:
        """Train on the largest micro-batch that can come, and discard its gradient."""
        trainer = self.trainer
        prompts, budget = trainer.rollout.prompts, trainer.memory.budget
        groups = longest_groups(prompts, trainer.config, budget.tokens)
        learner = trainer.learner
        batches = learner.make_batches(groups, ref_logp_C=learner.reference_logprobs(groups))
        learner.train_batch(batches[0], TokenMeter())
        trainer.optimizer.discard_gradient()

    def _explain_oom(self, work: Callable[[], None], phase: str = "training") -> None:
        """Run `work`; if it runs out of memory, say in which phase, what is counted, and what to lower."""
        try:
            work()
            return
        except OutOfMemoryWhile as error:
            phase, reason = error.phase, error.reason
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            reason = str(error).partition("\n")[0]
        raise self._out_of_memory(phase, reason)

    def _out_of_memory(self, phase: str, reason: str) -> UserError:
        trainer = self.trainer
        key = "max_num_seqs" if phase == "generating" else "max_tokens_per_micro_batch"
        return UserError(
            f"out of memory while {phase}, at step {trainer.step}",
            f"{reason}. Counted: {self._account()}; {trainer.plan.num_sequences} sequences of up to {trainer.longest} "
            f"tokens, micro-batches of {trainer.memory.budget.tokens} packed tokens",
            f"lower {key}, max_completion_length or max_prompt_length, or set gradient_checkpointing=true",
            MEMORY,
        )

    def _account(self) -> memory.Account:
        trainer = self.trainer
        loaded = memory.Loaded(trainer.model, trainer.reference, trainer.replicas.world)
        return loaded.account(trainer.plan.num_sequences, trainer.longest, trainer.memory.budget)


def longest_groups(prompts: Sequence[Prompt], config: TrainConfig, num_tokens: int) -> list[Group]:
    """Make groups of the longest prompt and the longest completions, enough to fill a micro-batch of so many tokens."""
    prompt = max(prompts, key=lambda prompt: len(prompt.ids))
    length, size = config.max_completion_length, config.num_generations
    completion = Completion.given(list(prompt.ids[:1]) * length, "length", loss_weight=1.0, advantage=1.0)
    number = ceil(num_tokens / (len(prompt.ids) + size * (length - 1)))
    return [Group(prompt, [completion] * size) for _ in range(number)]

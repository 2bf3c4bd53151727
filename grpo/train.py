"""Stage 2: GRPO.  python -m grpo.train CONFIG [key=value ...]

`Trainer.train_step` and `learn` are the whole algorithm on one screen; everything they call is one hop away.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from math import ceil, isfinite
from typing import Any

import torch

from grpo.attention import select
from grpo.data.toy import make_world
from grpo.errors import MEMORY, SERVICE, Interrupted, UserError, run_main
from grpo.evaluate import Evaluation
from grpo.logprobs import NO_CUT, token_logprobs
from grpo.loss import LossConfig, policy_loss
from grpo.model.decoder import Decoder
from grpo.model.lora import POLICY, REFERENCE, Mode
from grpo.model.policy import load_policy, load_reference
from grpo.optim import Optimizer, learning_rate
from grpo.packing import pack, plan, step_weights, with_advantages
from grpo.rollout import Rollout, prepare_rewards
from grpo.run import memory, metrics
from grpo.run.config import parse_arguments
from grpo.run.health import Watch
from grpo.run.options import TrainConfig
from grpo.run.run import Run
from grpo.sampling.draw import row_seed
from grpo.schema import Completion, Group, PackedBatch
from grpo.sft import cold_start
from grpo.storage import failpoint
from rewards.scorer import Scorer

TOGETHER = (
    -1
)  # beside the numbers of graded groups: whether the ranks have shared their rewards, which scale_rewards: batch needs


class Trainer:
    """Policy, rollouts and optimizer of one run; `train_step` makes one step. scorer: the rewards, if they are prepared
    already."""

    def __init__(self, config: TrainConfig, run: Run, scorer: Scorer | None = None):
        self.config, self.run, self.ranks = config, run, run.ranks
        self.policy = load_policy(config, run.device)
        self.model = self.policy.model
        self.reference = load_reference(config, self.policy) if config.beta else None
        self.optimizer = Optimizer(
            self.model.parameters(),
            (config.adam_beta1, config.adam_beta2),
            config.adam_epsilon,
            config.weight_decay,
            guarded=self.model.build.dtype == torch.float16,
        )
        self.rollout = Rollout(config, run, self.policy, scorer or prepare_rewards(config, run.say))
        if run.device.type == "cuda":
            run.say(
                f"on this GPU: {select.describe(run.device)}; decode attention {self.rollout.sampler.decoder}; packed attention "
                f"{select.packed_choice(self.model)}"
            )
        self.loss = LossConfig(
            config.epsilon,
            config.epsilon_high or config.epsilon,
            config.delta,
            config.beta,
            config.importance_sampling_level,
            config.sampler_importance_sampling_cap if config.sampler_importance_sampling_correction else None,
            config.use_bias_correction_kl,
        )
        self.budget = memory.choose_budget(
            self.model,
            self.rollout.longest,
            memory.free_bytes(run.device),
            config.max_tokens_per_micro_batch,
            config.gradient_checkpointing,
        )
        self.model.recompute = self.budget.recompute
        groups_per_step = self.rollout.groups_per_rank * self.ranks.world
        per_epoch = len(self.rollout.prompts) / groups_per_step
        self.total_steps = config.max_steps if config.max_steps > 0 else ceil(config.num_train_epochs * per_epoch)
        self.step, self.num_tokens, self.skipped = 0, 0, 0
        self.updated = False  # whether the policy has changed since a piece of work began
        self.watch = Watch(config.max_unscored, run.say)

    def train_step(self) -> tuple[dict[str, float], list[Group]]:
        """One generated batch and its updates; returns the step's metrics and its groups."""
        clock, graded = metrics.Clock(), set()
        with self.run.may_drop(together=not self.config.dynamic_sampling):
            groups, generated = self.within_memory(
                "generating", lambda: self.rollout.sample(self.step)
            )  # rewards start as each ends
        failpoint("step-sampled")
        clock.lap("time/generate")
        weights = step_weights(groups, self.config, self.ranks)  # Eq. 8
        meter, update = self.within_memory("training", lambda: self.learn(groups, weights, graded, clock))
        clock.lap("time/train")
        self.step += 1
        if self.config.dynamic_sampling:
            kept, all_groups = self.ranks.sum([len(groups), len(generated)])
            update["sampling/kept_groups"] = kept / all_groups
        return self.measure(generated, meter, clock, update)

    def learn(
        self, groups: list[Group], weights: list[list[float]], graded: set[int], clock: metrics.Clock
    ) -> tuple[metrics.TokenMeter, dict[str, float]]:
        """The updates of a step on its groups; `graded`: the groups that have their advantages."""
        meter, old_logps = metrics.TokenMeter(), {}
        batches = [pack(groups, rows, weights, self.run.device) for rows in plan(groups, weights, self.budget.tokens)]
        reference_logps = [self.reference_logprobs(batch) for batch in batches]  # Eq. 3, while rewards are pending
        clock.lap("time/reference")
        for iteration in range(self.config.num_iterations):
            for index, batch in self.as_rewards_arrive(batches, groups, graded, clock):  # advantages: Eq. 1, 2
                logp_C, entropy_C = self.logprobs(batch, self.model, self.policy_mode(index))  # Eq. 3
                old_logp_C = old_logps.setdefault(index, logp_C.detach())  # first pass: the policy that sampled
                loss, stats = policy_loss(
                    logp_C,
                    old_logp_C,
                    reference_logps[index],
                    batch.advantage_C,
                    batch.weight_C,
                    batch.row_C,
                    self.loss,
                    batch.sampler_logp_C,
                )  # Eq. 4 to 8
                self.optimizer.backward(loss)
                meter.add(batch, loss.detach(), logp_C.detach(), entropy_C, stats, is_first=iteration == 0)
            failpoint("step-graded")
            update = self.update(iteration, bool(batches))
            failpoint("step-updated")
        return meter, update | {"micro_batches": len(batches)}

    def within_memory(self, phase: str, work: Callable[[], Any]) -> Any:
        """`work()`; where it runs out of memory before it has changed the policy, again with smaller micro-batches."""
        while True:
            self.updated = False
            try:
                return work()
            except Exception as error:
                if not memory.is_out_of_memory(error):
                    raise
                reason = str(error).partition("\n")[0]  # the error itself holds on to the tensors of its traceback
            smaller = (
                memory.halve(self.budget, self.rollout.longest) if phase != "generating" and not self.updated else None
            )
            if smaller is None:
                key = (
                    "max_num_seqs"
                    if phase == "generating"
                    else "max_tokens_per_micro_batch, or set gradient_checkpointing=true"
                )
                raise UserError(
                    f"out of memory while {phase}, at step {self.step}",
                    f"{reason}. Counted: {self.account()}; {self.rollout.sampler.max_slots} sequences of up to "
                    f"{self.rollout.longest} tokens, micro-batches of {self.budget.tokens} packed tokens",
                    f"lower {key}, max_completion_length or max_prompt_length",
                    MEMORY,
                )
            self.budget = smaller
            self.optimizer.grad.zero_()
            memory.release()
            self.run.say(
                f"note: out of memory while {phase} ({reason}); from now on micro-batches have {smaller.tokens} packed tokens"
            )

    def account(self) -> memory.Account:
        return memory.account(
            self.model, self.rollout.sampler.max_slots, self.rollout.longest, self.budget, self.reference
        )

    def rehearse(self) -> None:
        """The largest micro-batch that can come, before the first step: what does not fit shows now, and not at step
        120."""
        prompt = max(self.rollout.prompts, key=lambda prompt: len(prompt.ids))
        length = self.config.max_completion_length
        completion = Completion(list(prompt.ids[:1]) * length, [0.0] * length, [NO_CUT] * length, "length")
        size = self.config.num_generations
        number = ceil(self.budget.tokens / (len(prompt.ids) + size * (length - 1)))
        groups = [Group(prompt, [completion] * size, advantages=[1.0] * size) for _ in range(number)]
        weights = [[1.0] * size] * number

        def work() -> None:
            batch = with_advantages(
                pack(groups, plan(groups, weights, self.budget.tokens)[0], weights, self.run.device), groups
            )
            reference_logp_C = self.reference_logprobs(batch)
            logp_C, _ = self.logprobs(batch, self.model, self.policy_mode(0))
            loss, _ = policy_loss(
                logp_C,
                logp_C.detach(),
                reference_logp_C,
                batch.advantage_C,
                batch.weight_C,
                batch.row_C,
                self.loss,
                logp_C.detach(),
            )
            self.optimizer.backward(loss)

        self.within_memory("rehearsing the longest step", work)
        self.optimizer.grad.zero_()
        memory.release()
        self.run.say(
            f"the longest step fits: peak {memory.peak_bytes(self.run.device) / 1e9:.2f} GB, counted {self.account()}"
        )

    def step_or_save(self) -> tuple[dict[str, float], list[Group]]:
        """`train_step`; if it is dropped after a signal, or a service that a reward needs fails for good (where there
        are no other ranks to wait for), the run is saved as it was before the step."""
        position = self.rollout.order.position
        try:
            return self.train_step()
        except (UserError, Interrupted) as error:
            fails_alone = error.exit_code == SERVICE and self.config.num_iterations == 1 and self.ranks.world == 1
            if fails_alone or isinstance(error, Interrupted):
                self.rollout.order.position = position
                self.save()
            raise

    def check(self, step_metrics: dict[str, float]) -> None:
        """Ends a run that has gone wrong, after saving it."""
        try:
            self.watch.check(self.step, step_metrics)
        except UserError as error:
            if error.exit_code == SERVICE:
                self.save()
            raise

    def logprobs(self, batch: PackedBatch, model: Decoder, mode: Mode) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-prob and entropy of every completion token, [C] each."""
        hidden_TD = model(batch.ids_T, batch.positions_T, select.packed_attention(model, batch.layout), mode)
        return token_logprobs(
            hidden_TD.index_select(0, batch.source_C),
            model.head(),
            batch.targets_C,
            self.config.temperature,
            batch.cut_C if self.rollout.sampling.cuts else None,
            self.budget.logits_rows,
        )

    @torch.no_grad()
    def reference_logprobs(self, batch: PackedBatch) -> torch.Tensor | None:
        return self.logprobs(batch, self.reference, REFERENCE)[0] if self.reference else None

    def policy_mode(self, index: int) -> Mode:
        """With dropout, the same masks in every iteration over a batch: the ratio measures the policy's change
        alone."""
        seed = row_seed(self.config.seed, self.step, self.ranks.rank, index)
        return replace(POLICY, dropout_seed=seed) if self.config.lora_dropout else POLICY

    def as_rewards_arrive(
        self, batches: list[PackedBatch], groups: list[Group], graded: set[int], clock: metrics.Clock
    ) -> Iterator[tuple[int, PackedBatch]]:
        """The micro-batches with their advantages; with slow rewards, those first whose rewards have arrived."""
        waiting = [(index, sorted({group for group, _ in batch.rows})) for index, batch in enumerate(batches)]
        while waiting:
            started = time.perf_counter()
            with nullcontext() if self.updated else self.run.may_drop():  # half an update is no state to go back to
                index, numbers = waiting.pop(self.rollout.first_ready([numbers for _, numbers in waiting], groups))
                self.grade(groups, numbers, graded)
            clock.exclude("time/reward", time.perf_counter() - started)
            yield index, with_advantages(batches[index], groups)
        self.grade(groups, range(len(groups)), graded)  # those in no micro-batch, too

    def grade(self, groups: list[Group], numbers: Iterable[int], graded: set[int]) -> None:
        missing = [number for number in numbers if number not in graded]
        together = (
            self.config.scale_rewards == "batch" and TOGETHER not in graded
        )  # every rank takes part once, also one without groups
        if missing or together:
            graded.update(self.rollout.finish(groups, missing), [TOGETHER])

    def update(self, iteration: int, has_batches: bool) -> dict[str, float]:
        """Sums the gradient over ranks, clips it, applies it. A gradient that is not finite changes nothing, nor do
        steps without tokens."""
        c = self.config
        self.ranks.sum_(self.optimizer.grad)
        updates = self.total_steps * c.num_iterations
        warmup = c.warmup_steps * c.num_iterations or ceil(c.warmup_ratio * updates)
        rate = learning_rate(
            self.step * c.num_iterations + iteration, c.learning_rate, c.lr_scheduler_type, warmup, updates
        )
        if not self.ranks.max(has_batches):
            return {"grad_norm": 0.0, "learning_rate": rate}
        norm = self.optimizer.step(rate, c.max_grad_norm)
        self.watch.updated(self.optimizer, norm)
        self.skipped += not isfinite(norm)
        self.model.refresh()
        self.updated = True
        return {"grad_norm": norm, "learning_rate": rate}

    def measure(
        self, generated: list[Group], meter: metrics.TokenMeter, clock: metrics.Clock, update: dict[str, float]
    ) -> tuple[dict[str, float], list[Group]]:
        """The step's metrics over all ranks, and all ranks' groups."""
        groups = [group for rank in self.ranks.gather(generated) for group in rank]
        tokens = sum(len(m.ids) for group in groups for m in group.completions)
        self.num_tokens += tokens + sum(len(group.prompt.ids) * len(group.completions) for group in groups)
        seconds = clock.total()
        order = self.rollout.order
        return {
            "epoch": order.position / order.num_rows,
            "num_tokens": self.num_tokens,
            "skipped_steps": self.skipped,
            **update,
            **metrics.completion_metrics(groups, [reward.name for reward in self.rollout.scorer.rewards]),
            **meter.result(self.ranks),
            **self.rollout.scorer.metrics(),
            **clock.laps,
            "step_time": seconds,
            "tokens_per_second": tokens / seconds,
            "peak_memory_gb": self.ranks.max(memory.peak_bytes(self.run.device)) / 1e9,
        }, groups

    # --- what a checkpoint holds besides weights and optimizer
    # ----------------------------------------------------------

    def counters(self) -> dict:
        return {
            "position": self.rollout.order.position,
            "data_hash": self.rollout.data_hash,
            "num_tokens": self.num_tokens,
            "skipped": self.skipped,
            "micro_batch_tokens": self.budget.tokens,
        }

    def restore(self) -> None:
        """Goes on where the checkpoint to resume from stopped, if there is one."""
        counters = self.run.restore(self.policy, self.optimizer)
        if not counters:
            return
        if counters["data_hash"] != self.rollout.data_hash:
            raise UserError(
                "the data set is not the one that this run was made with",
                f"the content of {self.config.dataset_id_or_path} has changed",
                "put the old file back, or start anew in another output_dir",
            )
        self.step, self.num_tokens, self.skipped = counters["step"], counters["num_tokens"], counters["skipped"]
        self.rollout.order.position = counters["position"]
        if not self.config.max_tokens_per_micro_batch:  # sums and dropout masks go by micro-batches
            self.budget = replace(self.budget, tokens=counters["micro_batch_tokens"])

    def save(self) -> None:
        self.run.save_checkpoint(self.step, self.policy, self.optimizer, self.counters())


def train(config: TrainConfig, notices: Sequence[str] = ()) -> dict[str, dict[str, float]]:
    """A whole run: cold start if one is due, GRPO, evaluation before and after; returns the last evaluation."""
    with Run(config, list(notices)) as run:
        config = make_world(config, run)
        scorer = prepare_rewards(config, run.say)  # what is missing there shows now, and not after stage 1
        run.config = config = cold_start(config, run)
        trainer = Trainer(config, run, scorer)
        evaluation = Evaluation(config, run, trainer.policy, trainer.rollout)
        trainer.restore()
        if run.device.type == "cuda":
            trainer.rehearse()
        before = evaluation.before(trainer.step)
        run.start_log(trainer.total_steps, trainer.step)
        while trainer.step < trainer.total_steps:
            step_metrics, groups = trainer.step_or_save()
            run.report(trainer.step, step_metrics, groups)
            if config.eval_steps and trainer.step % config.eval_steps == 0 and trainer.step < trainer.total_steps:
                run.report(trainer.step, evaluation.metrics(evaluation.measure()))
            trainer.check(step_metrics)
            if config.save_steps and trainer.step % config.save_steps == 0:
                trainer.save()
            run.stop_if_asked(trainer.save)
        trainer.save()
        run.save_final(trainer.policy)
        after = evaluation.measure()
        if run.ranks.is_main:
            run.log.close()
            evaluation.write(before, after)
            print(evaluation.comparison(before, after))
        evaluation.close()
        trainer.rollout.scorer.close()
        return after


def main(argv: list[str]) -> None:
    train(*parse_arguments(argv, TrainConfig, __doc__))


if __name__ == "__main__":
    run_main(main)

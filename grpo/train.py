"""Stage 2: GRPO.  python -m grpo.train CONFIG [key=value ...]

`GrpoTrainer.train_step` is the algorithm. The numbers of the equations are those of grpo/algorithm/MATH.md; each stands
on the line of code that computes it.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from math import ceil

import torch

from grpo.algorithm.logprobs import batch_logprobs
from grpo.algorithm.loss import policy_loss
from grpo.algorithm.packing import set_loss_weights
from grpo.algorithm.rollout import Rollout
from grpo.algorithm.schema import Completion, Group, PackedBatch
from grpo.base.errors import run_main
from grpo.base.progress import say_next
from grpo.config.load import parse_arguments
from grpo.config.options import TrainConfig
from grpo.data.objects import NOTHING, Objects
from grpo.data.questions import QuestionData, held_out_scorer, prepare_rewards
from grpo.data.toy import make_world
from grpo.engine.attention import select
from grpo.engine.device import ops
from grpo.engine.model.lora import REFERENCE
from grpo.engine.model.policy import load_reference
from grpo.evaluation.best import Best
from grpo.evaluation.held_out import Evaluation, Measurement
from grpo.run.guard import Guard
from grpo.run.metrics import Clock, completion_metrics, credit_metrics
from grpo.run.run import Run
from grpo.run.saved import start_of
from grpo.sft import check_prompts, cold_start
from grpo.trainer import Trainer, load_trained
from rewards.scorer import Scorer


class GrpoTrainer(Trainer):
    """Policy, frozen reference, rollouts and optimizer of one run."""

    def __init__(self, config: TrainConfig, run: Run, scorer: Scorer | None = None, data: QuestionData | None = None):
        """Load the policy and the data. scorer, data: the rewards and the questions, if they are there already."""
        policy, optimizer = load_trained(config, run.device, run.ranks)
        reference = load_reference(config, policy) if config.beta else None
        data, clock = data or QuestionData(config), Clock(run.device)
        self.rollout = Rollout(data, run, policy, scorer or prepare_rewards(data, run.say), clock)
        super().__init__(config, run, policy, optimizer, self.rollout, clock, reference)
        self.rollout.reserve(self.plan.num_sequences)
        if run.device.type == "cuda":
            run.say(
                f"on this GPU: {ops.describe(run.device)}; decode attention {self.rollout.sampler.decode_kernel}; "
                f"packed attention {select.packed_choice(self.model)}"
            )

    def train_step(self) -> None:
        """Generate the answers of one step, and train on them."""
        sampled = self.rollout.sample(self.step)  # G completions per prompt; grading starts as each ends
        set_loss_weights(sampled.groups, sampled.totals, self.config)  # Eq. 8, over the complete step and all ranks
        batches = self.make_batches(sampled.groups)  # micro-batches that fit into memory
        for batch in batches:
            batch.ref_logp_C = self.reference_logprobs(batch)  # Eq. 3, while rewards are pending
        for iteration in range(self.num_iterations):
            for batch in batches:
                if iteration == 0:
                    self.rollout.grade(batch)  # Eq. 20, 17, 1, 2, 19, once its rewards are there
                self.train_batch(batch, iteration)
            if iteration == 0:
                self.rollout.finish_grading()  # of the groups that are in no micro-batch
            self.update(iteration, is_empty=sampled.totals.completions == 0)
        self.step += 1

    def train_batch(self, batch: PackedBatch, iteration: int = 0) -> None:
        """Add the gradient of a micro-batch."""
        logp_C, entropy_C = self.policy_logprobs(batch)  # Eq. 3
        if iteration == 0:
            batch.old_logp_C = logp_C.detach()  # this policy sampled; its own pass, so the ratio is exactly 1
        loss, stats = policy_loss(batch, logp_C, self.config)  # Eq. 4 to 7, 9 to 11
        self.optimizer.backward(loss)
        self.meter.add(iteration, batch, loss, logp_C, entropy_C, stats)

    def rehearse(self) -> None:
        """Train on the largest micro-batch that can come."""
        batch = self.make_batches(self.longest_groups())[0]
        batch.set_advantages()
        batch.ref_logp_C = self.reference_logprobs(batch)
        self.train_batch(batch)

    def longest_groups(self) -> list[Group]:
        """Make groups of the longest prompt and the longest completions, enough to fill a micro-batch."""
        prompt = max(self.rollout.prompts, key=lambda prompt: len(prompt.ids))
        length, size = self.config.max_completion_length, self.config.num_generations
        completion = Completion.given(list(prompt.ids[:1]) * length, "length", loss_weight=1.0, advantage=1.0)
        number = ceil(self.budget.tokens / (len(prompt.ids) + size * (length - 1)))
        return [Group(prompt, [completion] * size) for _ in range(number)]

    @torch.no_grad()
    def reference_logprobs(self, batch: PackedBatch) -> torch.Tensor | None:
        """Compute the log-probs under the policy of step 0, [C]; None without a KL penalty."""
        if self.reference is None:
            return None
        with self.clock.timed("time/reference"):
            chunk = self.budget.chunk
            logp_C, _ = batch_logprobs(self.reference, batch, REFERENCE, self.temperature, chunk)  # Eq. 3
        return logp_C

    def summarise_step(self) -> tuple[dict[str, float], list[Group]]:
        """Return the metrics of the last step over all ranks, and all ranks' groups."""
        sampled = self.rollout.sampled
        groups = self.replicas.gather_lists(sampled.generated)
        metrics = {
            **self.step_metrics(groups),
            **completion_metrics(groups, [reward.name for reward in self.rollout.scorer.rewards]),
            **self.meter.result(self.replicas),
            **self.rollout.scorer.metrics(),
        }
        if self.config.credit == "sentence":
            metrics |= credit_metrics(groups)
        if self.config.refusal_target is not None:
            metrics["refusal_shift"] = sampled.shared.refusal_shift
        if self.config.dynamic_sampling:
            metrics["sampling/kept_frac"] = self.replicas.sum([len(sampled.groups)])[0] / len(groups)
        return metrics, groups


def train(
    config: TrainConfig, notices: Sequence[str] = (), objects: Objects = NOTHING
) -> tuple[Measurement, Measurement, str]:
    """Run cold start (if needed), GRPO, and the evaluations before and after; return both, and their table.

    objects: the rows and the rewards that a program passes.
    """
    with Run(config, notices) as run, ExitStack() as ending:
        config = start_of(make_world(config, run.ranks, run.say))
        check_prompts(config)  # fail now rather than after stage 1
        data = QuestionData(config, objects=objects)
        scorer = prepare_rewards(data, run.say, peers=run.ranks.shard)
        ending.callback(scorer.close)
        eval_scorer = held_out_scorer(data, scorer, run.ranks.shard)
        if eval_scorer is not scorer:
            ending.callback(eval_scorer.close)
        run.config = config = cold_start(config, run)
        trainer = GrpoTrainer(config, run, scorer, data)
        ending.callback(trainer.rollout.sampler.release)
        evaluation = Evaluation(data, run, trainer.policy, trainer.rollout.sampler, eval_scorer)
        trainer.restore()
        guard = Guard(trainer)
        if run.device.type == "cuda":
            guard.rehearse()
        before = evaluation.before(trainer.step)
        if run.ranks.is_main:
            objects.write()
        run.start_log(trainer.total_steps, trainer.step)
        if not trainer.step:
            run.report_evaluation(0, evaluation.metrics(before))
        trainer.health.resume(run.path)
        best = Best(config.keep_best, run, evaluation.metrics(before), trainer.step)

        def evaluate() -> Measurement:
            measured = evaluation.measure(trainer.step)
            metrics = evaluation.metrics(measured)
            run.report_evaluation(trainer.step, metrics)
            best.offer(trainer.step, metrics, trainer.policy)
            return measured

        while trainer.step < trainer.total_steps:
            guard.run_step()
            metrics, groups = trainer.summarise_step()
            run.report_step(trainer.step, metrics, groups)
            if config.eval_steps and trainer.step % config.eval_steps == 0 and trainer.step < trainer.total_steps:
                evaluate()
            guard.after_step(metrics, groups)
        trainer.save()
        run.save_final(trainer.policy)
        after = evaluate()
        if run.ranks.is_main:
            run.log.close()
            evaluation.write(before, after)
            trainer.end()
        return before, after, evaluation.before_after(before, after) if run.ranks.is_main else ""


def main(argv: list[str]) -> None:
    config, notices = parse_arguments(argv, TrainConfig, __doc__)
    *_, table = train(config, notices)
    if table:
        print(table)
    folder = config.output_dir
    say_next(
        f"{folder}/final, and {folder}/report.html to open in a browser",
        ["grpo.generate", folder],
        ["grpo.export", f"{folder}/final", "OUT"],
    )


if __name__ == "__main__":
    run_main(main)

"""Stage 2: GRPO.  python -m grpo.train CONFIG [key=value ...]

The algorithm is `Grpo.train_step` in grpo/algorithm/step.py. This file sets up a run around it, and lets it go.
What only some runs use (stage 1, tools, models of other families) is imported where it enters.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from math import ceil

from grpo.algorithm.meter import TokenMeter
from grpo.algorithm.rollout import Rollout
from grpo.algorithm.schema import Completion, Group, Order, Prompt
from grpo.algorithm.step import Grpo
from grpo.base.errors import run_main
from grpo.base.progress import say_next
from grpo.config.load import parse_arguments
from grpo.config.options import TrainConfig
from grpo.data.objects import NO_OBJECTS, Objects
from grpo.data.questions import (
    QuestionData,
    Questions,
    held_out_scorer,
    load_prompts,
    longest_sequence,
    num_steps,
    prepare_rewards,
)
from grpo.engine.attention import choice
from grpo.engine.device import kernel_choice
from grpo.engine.device.draw import SamplingParams
from grpo.engine.model import memory
from grpo.engine.sampling.sampler import Sampler, Tools
from grpo.evaluation.held_out import Best, Evaluation, Measurement
from grpo.policy import Policy, load_reference
from grpo.run.metrics import completion_metrics, credit_metrics, tool_metrics
from grpo.run.run import Run
from grpo.trainer import Trainer, TrainingData, load_trained
from rewards.scorer import Scorer


def load_questions(data: QuestionData, policy: Policy, scorer: Scorer, run: Run) -> TrainingData:
    """Load the questions to train on."""
    config = data.config
    loaded = load_prompts(data, policy, Questions.to_train(config), scorer.rewards)
    run.report_data("training data", loaded.count)
    groups_per_replica = config.completions_per_replica // config.num_generations
    return TrainingData(
        rows=loaded.prompts,
        data_hash=loaded.data_hash,
        total_steps=num_steps(config, len(loaded.prompts), groups_per_replica * run.ranks.replicas.world),
        longest=longest_sequence(data, policy, loaded.prompts),
    )


class GrpoTrainer(Trainer[TrainConfig]):
    """The trainer of stage 2. The step itself is `algorithm/step.py`."""

    learner: Grpo

    def __init__(
        self,
        config: TrainConfig,
        run: Run[TrainConfig],
        scorer: Scorer | None = None,
        data: QuestionData | None = None,
        kind: Callable[..., Grpo] = Grpo,
    ):
        """Load the policy and the data.

        scorer, data: the rewards and the questions, if they are there already. kind: of the learner.
        """
        policy, optimizer = load_trained(config, run.device, run.ranks)
        reference = load_reference(config, policy) if config.beta else None
        data = data or QuestionData(config)
        self.scorer = scorer or prepare_rewards(data, run.say)
        super().__init__(config, run, policy, optimizer, load_questions(data, policy, self.scorer, run), reference)
        self.tools = self._load_tools(data)
        stop = run.signals.stop_with_shards
        self.sampler = Sampler(policy.model, policy.eos_ids, self.plan.num_sequences, stop, self.tools)
        self.sampler.reserve(self.plan.num_sequences, self.longest, config.max_completion_length)
        self.kind = kind
        self.start_at()
        if run.device.type == "cuda":
            run.say(f"on this GPU: {kernel_choice.describe(run.device)}; {choice.describe(self.model)}")
        else:
            run.debug.write("INFO", f"on this {run.device.type}: {kernel_choice.describe(run.device)}")

    def _load_tools(self, data: QuestionData) -> Tools | None:
        """Return the tools that completions may call; None if the configuration names none."""
        config = self.config
        if not (config.tools or config.environment):
            return None
        from grpo.tools.functions import build_tools  # most runs have no tools

        tools = build_tools(config, self.policy.tokenizer, data.objects.tools, self.ranks.shard)
        if tools:
            self.run.say(f"tools are called {tools.protocol.shown}")
        return tools

    def start_at(self, step: int = 0, position: int = 0) -> None:
        config = self.config
        prompts = self.training_data.rows
        self.order = Order(len(prompts), config.seed, config.shuffle_dataset, position)
        self.rollout = Rollout(
            settings=self.settings,
            prompts=prompts,
            order=self.order,
            sampler=self.sampler,
            sampling=SamplingParams(config.max_completion_length, config.temperature, config.top_p, config.top_k),
            decode=self.policy.decode,
            scorer=self.scorer,
            ranks=self.ranks,
            replicas=self.replicas,
            total_steps=self.total_steps,
            phase=self.phase,
            reset=self.sampler.reset,
        )
        self.learner = self.make_learner(self.kind, step, rollout=self.rollout, reference=self.reference)

    def summarise_step(self) -> tuple[dict[str, float], list[Group]]:
        """Return the metrics of the last step over all ranks, and all ranks' groups."""
        learned = self.learned
        scorer = self.scorer
        groups = self.replicas.gather_lists(learned.generated)
        metrics = {
            **self.step_metrics(groups),
            **completion_metrics(groups, [reward.name for reward in scorer.rewards]),
            **learned.meter.result(self.replicas),
            **scorer.take_metrics(),
        }
        if self.model.config.by_transformers:
            from grpo.engine.sampling.check import router_changes  # with the modules of transformers

            metrics |= router_changes(self.model, groups[0])
        if self.tools:
            metrics |= tool_metrics(groups)
        if self.config.credit == "sentence":
            metrics |= credit_metrics(groups)
        if self.config.refusal_target is not None:
            metrics["refusal_shift"] = learned.refusal_shift
        if self.config.dynamic_sampling:
            metrics["sampling/kept_frac"] = self.replicas.sum([len(learned.groups)])[0] / len(groups)
        return metrics, groups

    def try_largest(self) -> None:
        """Run the largest possible micro-batch, so that a lack of memory shows before step 1, and not at step 120."""
        self.doing = "trying the longest step"
        with self.explained_memory():
            self.memory.run(self._train_longest)
        memory.release()
        peak = memory.peak_bytes(self.run.device) / 1e9
        self.run.say(f"the longest step fits: peak {peak:.2f} GB, counted {self.counted()}")

    def _train_longest(self) -> None:
        """Train on the largest micro-batch that can come, and discard its gradient."""
        learner = self.learner
        groups = longest_groups(self.rollout.prompts, self.config, self.memory.budget.tokens)
        learner.add_reference(groups)
        learner.train_batch(learner.make_batches(groups)[0], TokenMeter())
        self.optimizer.discard_gradient()


def longest_groups(prompts: Sequence[Prompt], config: TrainConfig, num_tokens: int) -> list[Group]:
    """Make groups of the longest prompt and the longest completions, enough to fill a micro-batch of so many tokens."""
    prompt = max(prompts, key=lambda prompt: len(prompt.ids))
    length = config.max_completion_length
    size = config.num_generations
    completion = Completion.given(list(prompt.ids[:1]) * length, "length", loss_weight=1.0, advantage=1.0)
    number = ceil(num_tokens / (len(prompt.ids) + size * (length - 1)))
    return [Group(prompt, [completion] * size) for _ in range(number)]


def train(
    config: TrainConfig, notices: Sequence[str] = (), objects: Objects = NO_OBJECTS
) -> tuple[Measurement, Measurement, str]:
    """Run cold start (if needed), GRPO, and the evaluations before and after; return both, and their table.

    objects: the rows and the rewards that a program passes.
    """
    with Run(config, notices, objects=objects) as run, ExitStack() as ending:
        trainer, evaluation = set_up(run, ending, objects)
        before = evaluation.before(trainer.step)
        if run.ranks.is_main:
            objects.write()
        run.start_log(trainer.total_steps, trainer.step)
        if not trainer.step:
            run.report_evaluation(0, evaluation.metrics(before))
        trainer.health.resume(run.path)
        best = Best(trainer.config.keep_best, run, evaluation.metrics(before), trainer.step)
        loop(trainer, evaluation, best)
        trainer.finish({})
        after = evaluate(trainer, evaluation, best)
        if run.log is None:  # of another rank than 0
            return before, after, ""
        run.log.close()
        evaluation.write(before, after)
        trainer.end()
        return before, after, evaluation.before_after(before, after)


def set_up(run: Run[TrainConfig], ending: ExitStack, objects: Objects = NO_OBJECTS) -> tuple[GrpoTrainer, Evaluation]:
    """Run the cold start, and load everything. ending: closes what is opened."""
    data = QuestionData(run.prepare(), objects=objects)
    scorer = prepare_rewards(data, run.say, peers=run.ranks.shard)
    ending.callback(scorer.close)
    eval_scorer = held_out_scorer(data, scorer, run.ranks.shard)
    if eval_scorer is not scorer:
        ending.callback(eval_scorer.close)
    if run.config.cold_start:
        from grpo.sft import cold_start  # stage 1

        run.config = cold_start(run)
    trainer = GrpoTrainer(run.config, run, scorer, data)
    ending.callback(trainer.sampler.release)
    if trainer.tools:
        ending.callback(trainer.tools.close)
    evaluation = Evaluation(data, run, trainer.policy, trainer.sampler, eval_scorer)
    trainer.restore()
    if run.device.type == "cuda":
        trainer.try_largest()
    return trainer, evaluation


def loop(trainer: GrpoTrainer, evaluation: Evaluation, best: Best) -> None:
    """Make all steps that are left."""
    run = trainer.run
    every = trainer.config.eval_steps
    while trainer.step < trainer.total_steps:
        trainer.run_step()
        metrics, groups = trainer.summarise_step()
        run.report_step(trainer.step, metrics, groups)
        if every and trainer.step % every == 0 and trainer.step < trainer.total_steps:
            evaluate(trainer, evaluation, best)
        trainer.after_step(metrics, groups)


def evaluate(trainer: GrpoTrainer, evaluation: Evaluation, best: Best) -> Measurement:
    """Answer the held-out questions, report the measures, and keep the policy if it is the best so far."""
    measured = evaluation.measure(trainer.step)
    metrics = evaluation.metrics(measured)
    trainer.run.report_evaluation(trainer.step, metrics)
    best.offer(trainer.step, metrics, trainer.save_policy)
    return measured


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

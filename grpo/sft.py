"""Stage 1: supervised fine-tuning, the cold start.  python -m grpo.sft CONFIG [key=value ...]

It is stage 2 with given completions: an example is a group of one, packed by the same code; the loss is the mean
negative log-prob of the answer tokens of the whole step: each has the advantage 1.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from grpo.algorithm.credit import answer_start
from grpo.algorithm.loss import LossAndStats
from grpo.algorithm.schema import Group, Order, PackedBatch, completions_of
from grpo.algorithm.step import Learned, Learner
from grpo.base.errors import PREFLIGHT, UserError, run_main
from grpo.base.progress import say_next
from grpo.base.text import show_duration
from grpo.config.load import parse_arguments
from grpo.config.options import FORM, SftConfig, TrainConfig
from grpo.data.conversations import make_examples
from grpo.data.count import RowCount
from grpo.data.prompts import ChatEncoder
from grpo.data.questions import num_steps
from grpo.data.registry import find_sources
from grpo.data.rows import digest
from grpo.engine.device.distributed import Ranks
from grpo.engine.model import memory
from grpo.engine.model.weights import read_model_config
from grpo.policy import find_folders, load_encoder
from grpo.report.plot import draw_loss
from grpo.run.diagnosis.record import METRICS_FILE, read_metrics
from grpo.run.run import Run
from grpo.run.run_dir import holds_a_run
from grpo.run.stage1 import ORIGIN_FILE, final_of, is_done, load_stage1, origin_of, start_from, write_examples
from grpo.tools.tags import TagProtocol
from grpo.trainer import Trainer, TrainingData, load_trained
from rewards.prompts import tag_of


def load_conversations(config: SftConfig, run: Run) -> TrainingData:
    """Load the conversations to train on. An example is a group of one given completion."""
    model_config = read_model_config(find_folders(config, weights=False).model, config.model_backend)
    max_length = min(config.max_length, model_config.max_positions)
    examples, count = load_examples(config, load_encoder(config), max_length)
    run.report_data("training data", count)
    ids = [(example.prompt.ids, example.completions[0].ids) for example in examples]
    rows_per_step = config.completions_per_replica * run.ranks.replicas.world
    return TrainingData(
        rows=examples,
        data_hash=digest(ids),
        total_steps=num_steps(config, len(examples), rows_per_step),
        longest=max(len(prompt) + len(answer) for prompt, answer in ids),
    )


@dataclass(kw_only=True, eq=False)
class Sft(Learner):
    """Learns from given answers: the loss is the mean negative log-prob of all their tokens.

    order: of the examples that are taken.
    """

    examples: list[Group]
    order: Order

    def take(self) -> list[Group]:
        """Return this replica's examples of the next step."""
        replicas = self.replicas
        rows = self.order.take(self.settings.completions_per_replica * replicas.world)
        return [self.examples[row] for row in rows[replicas.rank :: replicas.world]]

    def train_step(self) -> Learned:
        """Train on the next examples."""
        groups = self.take()
        answers = completions_of(groups)
        for answer in answers:
            answer.trained_from = answer.credited_from
        num_own_tokens = sum(len(answer.trained()) for answer in answers)
        (num_tokens,) = self.replicas.sum([num_own_tokens])
        for answer in answers:
            answer.advantage = 1.0
            answer.loss_weight = 1 / num_tokens
        learned = Learned(groups, groups)
        self.memory.run(self.add_gradient, learned)
        self.update(learned)
        self.step += 1
        return learned

    def loss(self, batch: PackedBatch, logp_C: Tensor, entropy_C: Tensor, num_tokens: int) -> LossAndStats:
        loss = -(batch.advantage_C * logp_C * batch.weight_C).sum()
        return loss, dict.fromkeys(("kl", "clipped_low", "clipped_high"), torch.zeros_like(logp_C))  # it has none


class SftTrainer(Trainer[SftConfig]):
    """The trainer of stage 1."""

    def __init__(self, config: SftConfig, run: Run[SftConfig]):
        examples = load_conversations(config, run)
        policy, optimizer = load_trained(config, run.device, run.ranks)  # now that nothing is wrong with the data
        super().__init__(config, run, policy, optimizer, examples)
        self.start_at()

    def start_at(self, step: int = 0, position: int = 0) -> None:
        self.order = Order(len(self.training_data.rows), self.config.seed, shuffle=True, position=position)
        self.learner = self.make_learner(Sft, step, examples=self.training_data.rows, order=self.order)

    def summarise_step(self) -> dict[str, float]:
        """Return the metrics of the last step over all ranks."""
        groups = self.replicas.gather_lists(self.learned.groups)
        num_tokens = sum(len(answer.trained()) for answer in completions_of(groups))
        loss = self.replicas.sum([self.learned.meter.loss])[0]
        return {"loss": loss, "tokens": num_tokens, **self.step_metrics(groups)}


def sft(config: SftConfig, notices: Sequence[str] = (), ranks: Ranks | None = None) -> None:
    """Make a complete run of stage 1: metrics, checkpoints, final/ and loss.png."""
    with Run(config, notices, ranks) as run:
        config = run.prepare()
        origin = {ORIGIN_FILE: origin_of(config)} if run.ranks.is_main else {}  # of the data as it is read now
        trainer = SftTrainer(config, run)
        trainer.restore()
        run.start_log(trainer.total_steps, trainer.step)
        trainer.health.resume(run.path)
        while trainer.step < trainer.total_steps:
            trainer.run_step()
            metrics = trainer.summarise_step()
            run.report_step(trainer.step, metrics)
            trainer.after_step(metrics)
        trainer.finish(origin)
        trainer.end()
        if run.ranks.is_main:
            steps = read_metrics(run.path / METRICS_FILE)[0]
            losses = [(metrics["step"], metrics["loss"]) for metrics in steps if "loss" in metrics]
            draw_loss(run.path / "loss.png", losses)


def load_examples(config: SftConfig, encoder: ChatEncoder, max_length: int) -> tuple[list[Group], RowCount]:
    """Return the examples of all data sets, and how many of their rows are used (see make_examples)."""
    examples = []
    count = RowCount(config.dataset_id_or_path, skips_bad=config.skip_bad_rows)
    tags = [] if config.tool_format == "template" else list(map(tag_of, config.tools))
    protocol = TagProtocol(tags, encoder, max_calls=1, max_tokens=max_length) if tags else None
    for source in find_sources(config):
        records = source.read(count.bad)[: config.max_samples or None]
        examples += make_examples(records, source.path, encoder, config.system_prompt, max_length, count, protocol)
    if config.credit == "answer":
        for answer in completions_of(examples):
            answer.credited_from = answer_start(answer, encoder.decode, bool(tags))
        kept = [group for group in examples for answer in group.completions if answer.credited_from < len(answer.ids)]
        count.notes["answers left out, cut before their answer block"] += len(examples) - len(kept)
        if not kept:
            raise UserError(
                "credit: answer leaves nothing to train",
                str(count),
                "raise max_length, or set credit: completion",
                PREFLIGHT,
            )
        return kept, count
    return examples, count


# --- as the first part of a run of stage 2 -------------------------------------------------------------------------


def cold_start(run: Run[TrainConfig]) -> TrainConfig:
    """Run the stage 1 that a run of stage 2 names, unless it is done; its result is the policy at step 0."""
    config = run.config
    stage1, notices, _ = load_stage1(config)  # the start has found no mistake in it
    final = final_of(stage1)
    if run.ranks.of_first(lambda: is_done(stage1, config)):
        run.say(f"cold start: {final} was made by {config.cold_start}, and is reused")
        return start_from(stage1, config)
    start = stage1.model_name_or_path or "scratch"
    run.say(f"stage 1 of 2, the cold start: {config.cold_start} from {start} into {final.parent}")
    started = time.monotonic()
    has_begun = run.ranks.of_first(lambda: holds_a_run(final.parent))
    if config.cold_start == FORM and run.ranks.is_main and not has_begun:
        write_examples(config)
    run.ranks.barrier()
    sft(replace(stage1, resume_from_checkpoint=has_begun), notices, run.ranks)
    memory.release()  # its model and optimizer, before stage 2 plans with what is free
    run.say(f"stage 1 took {show_duration(time.monotonic() - started)}; now stage 2, GRPO")
    return start_from(stage1, config)


def main(argv: list[str]) -> None:
    config, notices = parse_arguments(argv, SftConfig, __doc__)
    sft(config, notices)
    folder = config.output_dir
    say_next(
        f"{folder}/final, and {folder}/report.html to open in a browser",
        ["grpo.generate", folder],
        ["grpo.train", "CONFIG", f"model_name_or_path={folder}/final"],
    )


if __name__ == "__main__":
    run_main(main)

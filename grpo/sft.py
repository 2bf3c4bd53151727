"""Stage 1: supervised fine-tuning, the cold start.  python -m grpo.sft CONFIG [key=value ...]

It is stage 2 with given completions: an example is a group of one, packed and scored by the same code; the loss is the
mean negative log-prob of the answer tokens of the whole step.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from pathlib import Path

import torch

from grpo.attention.select import packed_attention
from grpo.data.conversations import make_examples
from grpo.data.hub import fetch_data
from grpo.data.prompts import ChatEncoder
from grpo.data.rows import Order, digest, read_records
from grpo.data.toy import make_world
from grpo.errors import UserError, run_main
from grpo.logprobs import token_logprobs
from grpo.model.lora import POLICY
from grpo.model.policy import load_policy
from grpo.optim import Optimizer, learning_rate
from grpo.packing import pack, plan
from grpo.run import memory
from grpo.run.config import load_config, parse_arguments
from grpo.run.distributed import Ranks
from grpo.run.health import Watch
from grpo.run.options import SftConfig, TrainConfig
from grpo.run.plot import line_plot
from grpo.run.run import Run
from grpo.sampling.draw import row_seed


class SftTrainer:
    """Policy, examples and optimizer of one run; `train_step` makes one step."""

    def __init__(self, config: SftConfig, run: Run):
        self.config, self.run, self.ranks = config, run, run.ranks
        self.policy = load_policy(config, run.device)
        self.model = self.policy.model
        self.optimizer = Optimizer(
            self.model.parameters(),
            (config.adam_beta1, config.adam_beta2),
            config.adam_epsilon,
            config.weight_decay,
            guarded=self.model.build.dtype == torch.float16,
        )
        path = fetch_data(config.dataset_id_or_path, config.dataset_split)
        records = read_records(path)[: config.max_samples or None]
        max_length = min(config.max_length, self.model.config.max_positions)
        self.examples, cut, left_out = make_examples(
            records, path, ChatEncoder(self.policy.tokenizer), config.system_prompt, max_length
        )
        if cut or left_out:
            run.say(
                f"note: of {len(self.examples)} answers {cut} are cut at {max_length} tokens; {left_out} more, whose prompts are longer, are left out"
            )
        self.data_hash = digest([group.prompt.ids, group.completions[0].ids] for group in self.examples)
        self.order = Order(len(self.examples), config.seed, shuffle=True)
        self.examples_per_step = (
            config.per_device_train_batch_size * config.gradient_accumulation_steps * self.ranks.world
        )
        self.total_steps = (
            config.max_steps
            if config.max_steps > 0
            else ceil(config.num_train_epochs * len(self.examples) / self.examples_per_step)
        )
        longest = max(len(e.prompt.ids) + len(e.completions[0].ids) for e in self.examples)
        self.budget = memory.choose_budget(
            self.model,
            longest,
            memory.free_bytes(run.device),
            config.max_tokens_per_micro_batch,
            config.gradient_checkpointing,
        )
        self.model.recompute = self.budget.recompute
        self.step, self.num_tokens, self.losses = 0, 0, []
        self.watch = Watch(1.0, run.say)

    def train_step(self) -> dict[str, float]:
        c, started = self.config, time.perf_counter()
        groups = [
            self.examples[row] for row in self.order.take(self.examples_per_step)[self.ranks.rank :: self.ranks.world]
        ]
        tokens = int(self.ranks.sum([sum(len(group.completions[0].ids) for group in groups)])[0])
        weights, total = [[1 / tokens] for _ in groups], 0.0
        batches = plan(groups, weights, self.budget.tokens)
        for index, rows in enumerate(batches):
            batch = pack(groups, rows, weights, self.run.device)
            mode = (
                replace(POLICY, dropout_seed=row_seed(c.seed, self.step, self.ranks.rank, index))
                if c.lora_dropout
                else POLICY
            )
            hidden_TD = self.model(batch.ids_T, batch.positions_T, packed_attention(self.model, batch.layout), mode)
            logp_C, _ = token_logprobs(
                hidden_TD.index_select(0, batch.source_C),
                self.model.head(),
                batch.targets_C,
                1.0,
                chunk=self.budget.logits_rows,
            )
            loss = -(logp_C * batch.weight_C).sum()
            self.optimizer.backward(loss)
            total += loss.item()
        self.ranks.sum_(self.optimizer.grad)
        rate = learning_rate(
            self.step,
            c.learning_rate,
            c.lr_scheduler_type,
            c.warmup_steps or ceil(c.warmup_ratio * self.total_steps),
            self.total_steps,
        )
        norm = self.optimizer.step(rate, c.max_grad_norm)
        self.watch.updated(self.optimizer, norm)
        self.model.refresh()
        self.step, self.num_tokens = self.step + 1, self.num_tokens + tokens
        loss, seconds = self.ranks.sum([total])[0], time.perf_counter() - started
        self.losses.append(loss)
        return {
            "loss": loss,
            "grad_norm": norm,
            "learning_rate": rate,
            "epoch": self.order.position / self.order.num_rows,
            "tokens": tokens,
            "num_tokens": self.num_tokens,
            "step_time": seconds,
            "tokens_per_second": tokens / seconds,
            "micro_batches": len(batches),
            "peak_memory_gb": memory.peak_bytes(self.run.device) / 1e9,
        }

    def restore(self) -> None:
        counters = self.run.restore(self.policy, self.optimizer)
        if not counters:
            return
        if counters["data_hash"] != self.data_hash:
            raise UserError(
                "the data set is not the one that this run was made with",
                f"the content of {self.config.dataset_id_or_path} has changed",
                "put the old file back, or start anew in another output_dir",
            )
        self.step, self.num_tokens, self.losses = counters["step"], counters["num_tokens"], counters["losses"]
        self.order.position = counters["position"]
        if not self.config.max_tokens_per_micro_batch:
            self.budget = replace(self.budget, tokens=counters["micro_batch_tokens"])

    def save(self) -> None:
        counters = {
            "position": self.order.position,
            "data_hash": self.data_hash,
            "num_tokens": self.num_tokens,
            "losses": self.losses,
            "micro_batch_tokens": self.budget.tokens,
        }
        self.run.save_checkpoint(self.step, self.policy, self.optimizer, counters)


def sft(config: SftConfig, notices: Sequence[str] = (), ranks: Ranks | None = None) -> None:
    """A whole run of stage 1: metrics, checkpoints, final/ and loss.png."""
    with Run(config, notices, ranks) as run:
        run.config = config = make_world(config, run)
        trainer = SftTrainer(config, run)
        trainer.restore()
        run.start_log(trainer.total_steps, trainer.step)
        while trainer.step < trainer.total_steps:
            run.report(trainer.step, trainer.train_step())
            trainer.watch.check(trainer.step, {})
            if config.save_steps and trainer.step % config.save_steps == 0:
                trainer.save()
            run.stop_if_asked(trainer.save)
        trainer.save()
        run.save_final(trainer.policy)
        if run.ranks.is_main:
            line_plot(run.path / "loss.png", {"loss": trainer.losses}, "step", "loss of the answer tokens, nats")


def cold_start(config: TrainConfig, run: Run) -> TrainConfig:
    """Runs the stage 1 that a stage 2 config names, if its output is missing; its result is the policy at step 0.

    In a toy world it belongs to the run: it lies in the run's directory and shares its seed.
    """
    if not config.cold_start:
        return config
    own = Path(config.output_dir)
    overrides = (
        [f"output_dir={own / 'cold_start'}", f"toy_dir={config.toy_dir}", f"seed={config.seed}"]
        if config.toy_world
        else []
    )
    overrides += ["resume_from_checkpoint=true", f"disable_tqdm={config.disable_tqdm}"]
    stage1, notices = load_config(config.cold_start, overrides, SftConfig)
    final = Path(stage1.output_dir) / "final"
    if not final.exists():
        run.say(f"cold start: {config.cold_start} into {stage1.output_dir}")
        sft(stage1, notices, run.ranks)
    return replace(config, model_name_or_path=str(final), cold_start=None)


def main(argv: list[str]) -> None:
    sft(*parse_arguments(argv, SftConfig, __doc__))


if __name__ == "__main__":
    run_main(main)

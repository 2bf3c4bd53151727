"""python -m bench.curves RUN [key=value ...] [--steps 40] [--seeds 1 2] [--peer trl] [--save]

Does a model learn with us as it learns with TRL? RUN is a finished run of configs/smollm2_math.yaml. Both sides start
from its cold start, merged into one checkpoint, with its prompts, reward, LoRA, batch and optimizer; with one seed they
draw other answers. A curve is the mean reward of each step's completions. TRL computes as it does by default, with
weights in float32 and autocast to bfloat16, unless this CPU has no bfloat16 instructions; our weights have the type
that RUN has. key=value changes a key of both sides, such as a smaller batch.

Prints the mean reward of each ten steps, and the median seconds of a step. The rows and the plot go to RUN/curves, or
with --save to bench/results/curves.
"""

import argparse
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch

from bench.record import RESULTS, markdown_table, plain_parser
from grpo.base.storage import write_lines
from grpo.config.load import load_config
from grpo.config.options import TrainConfig
from grpo.data.files import read_records
from grpo.data.prompts import load_tokenizer, render
from grpo.export import export
from grpo.report.plot import line_plot
from grpo.train import train
from rewards.registry import build_rewards

TOGETHER = 10  # steps in each mean of the table
SHARED = (
    "num_generations max_completion_length temperature beta loss_type scale_rewards learning_rate lr_scheduler_type "
    "warmup_steps adam_beta1 adam_beta2 weight_decay max_grad_norm max_steps per_device_train_batch_size seed"
)
Curve = dict[str, list[float]]  # reward and seconds, of each step


def our_curve(config: TrainConfig, folder: Path) -> Curve:
    train(replace(config, output_dir=str(folder), overwrite_output_dir=True))
    steps = read_records(folder / "metrics.jsonl")
    return {"reward": [step["reward"] for step in steps], "seconds": [step["step_time"] for step in steps]}


def their_curve(config: TrainConfig, folder: Path) -> Curve:
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    arguments = GRPOConfig(
        **{name: getattr(config, name) for name in SHARED.split()},
        output_dir=str(folder),
        use_cpu=config.device != "cuda",
        bf16=config.device == "cuda" or torch.ops.mkldnn._is_mkldnn_bf16_supported(),
        top_k=0,
        gradient_checkpointing=False,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    lora = LoraConfig(r=config.lora_r, lora_alpha=config.lora_alpha, target_modules="all-linear", task_type="CAUSAL_LM")
    seconds = []

    class Timer(TrainerCallback):
        def on_step_begin(self, *_, **__) -> None:
            self.start = time.perf_counter()

        def on_step_end(self, *_, **__) -> None:
            seconds.append(time.perf_counter() - self.start)

    tokenizer = load_tokenizer(Path(config.model_name_or_path))
    trainer = GRPOTrainer(
        model=config.model_name_or_path,
        reward_funcs=paid,
        args=arguments,
        train_dataset=Dataset.from_list(rows_of(config, tokenizer)),
        processing_class=tokenizer,
        peft_config=lora,
        callbacks=[Timer()],
    )
    trainer.train()
    rewards = [line["reward"] for line in trainer.state.log_history if "reward" in line]
    return {"reward": rewards, "seconds": seconds}


def rows_of(config: TrainConfig, tokenizer) -> list[dict[str, str]]:
    """Return the questions as TRL takes them, with the text of our prompts."""
    rows = []
    for row in read_records(Path(config.dataset_id_or_path)):
        messages = [{"role": "user", "content": row["question"]}]
        if config.system_prompt:
            messages.insert(0, {"role": "system", "content": config.system_prompt})
        rows.append({"prompt": render(tokenizer, messages), "answer": row["answer"]})
    return rows


def paid(completions: Sequence[str], answer: Sequence[str], **columns: object) -> list[float]:
    """Return what our reward `math` pays, in TRL's form."""
    (reward,) = build_rewards(["math"], asdict(TrainConfig()))
    return [reward.grade(text, {"answer": truth}).value for text, truth in zip(completions, answer, strict=True)]


CURVES = {"ours": our_curve, "trl": their_curve}


def config_of(run: Path, steps: int, folder: Path, keys: Sequence[str] = ()) -> TrainConfig:
    """Return the configuration of a run that begins where its cold start ended, without evaluations."""
    start = folder / "start"
    if not start.exists():
        export(run / "cold_start" / "final", start, merge=True, dtype="bfloat16")
    questions = run / "world" / "questions.jsonl"
    config, _ = load_config(run / "config.resolved.yaml", ["cold_start=null", "toy_world=null", *keys])
    return replace(
        config,
        model_name_or_path=str(start),
        dataset_id_or_path=str(questions),
        eval_dataset_id_or_path=None,
        max_steps=steps,
        save_steps=0,
        report_to=["none"],
        disable_tqdm=True,
    )


def table(rows: Sequence[Mapping]) -> str:
    """Make the Markdown table: a line for each side and seed."""
    lines = []
    for row in rows:
        rewards = row["reward"]
        means = [statistics.fmean(rewards[start : start + TOGETHER]) for start in range(0, len(rewards), TOGETHER)]
        seconds = f"{statistics.median(row['seconds']):.1f}"
        lines.append([row["side"], str(row["seed"]), seconds, *(f"{mean:+.2f}" for mean in means)])
    steps = [f"from step {start + 1}" for start in range(0, len(rows[0]["reward"]), TOGETHER)]
    return markdown_table(["side", "seed", "seconds a step", *steps], lines)


def main(argv: list[str] | None = None) -> list[dict]:
    options = make_parser().parse_args(argv)
    folder = options.run / "curves"
    config = config_of(options.run, options.steps, folder, options.keys)
    rows = []
    for seed in options.seeds:
        for side in dict.fromkeys(("ours", *options.peer)):
            curve = CURVES[side](replace(config, seed=seed), folder / f"{side}-{seed}")
            rows.append({"side": side, "seed": seed} | curve)
            print(table(rows[-1:]), flush=True)
    kept = RESULTS / "curves" if options.save else folder
    kept.mkdir(parents=True, exist_ok=True)
    write_lines(kept / "rows.jsonl", rows)
    named = {f"{row['side']}, seed {row['seed']}": row["reward"] for row in rows}
    line_plot(kept / "curves.png", named, "step", "mean reward")
    print(table(rows))
    print(json.dumps(rows))
    return rows


def make_parser() -> argparse.ArgumentParser:
    parser = plain_parser("bench.curves", __doc__)
    parser.add_argument("run", type=Path, help="a finished run of configs/smollm2_math.yaml")
    parser.add_argument("keys", nargs="*", metavar="key=value", help="keys of both sides")
    parser.add_argument("--steps", type=int, default=40, help="of each run (default: %(default)s)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], help="each trains once on each side")
    parser.add_argument("--peer", nargs="*", choices=["trl"], default=[], help="train with it as well")
    parser.add_argument("--save", action="store_true", help="write rows and plot to bench/results/curves instead")
    return parser


if __name__ == "__main__":
    main()

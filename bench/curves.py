"""python -m bench.curves RUN [key=value ...] [--steps 40] [--seeds 1 2] [--peer trl] [--save]

Does a model learn with us as it learns with TRL? RUN is a finished run of configs/smollm2_math.yaml. Both sides start
from its cold start, merged into one checkpoint, with its prompts, reward, LoRA, batch and optimizer; with one seed they
draw other answers. A curve is the mean reward of each step's completions. TRL computes as it does by default, with
weights in float32 and autocast to bfloat16, unless this CPU has no bfloat16 instructions; our weights have the type
that RUN has. key=value changes a key of both sides, such as a smaller batch.

Prints the mean reward of each ten steps, and the medians of seconds and completion tokens per second of a step. The
rows and the plot go to RUN/curves, or with --save to bench/results/curves.
"""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from bench import peers
from bench.record import experiment_parser, markdown_table, rate
from grpo.base.storage import write_lines
from grpo.config.load import load_config
from grpo.config.options import TrainConfig
from grpo.data.files import read_records
from grpo.data.questions import QuestionData, Questions, load_prompts
from grpo.engine.device.distributed import choose_device
from grpo.export import export
from grpo.policy import load_for_inference
from grpo.report.plot import line_plot
from grpo.train import train
from rewards.registry import build_rewards

TOGETHER = 10  # steps in each mean of the table
Curve = dict[str, list[float]]  # reward, seconds and completion tokens, of each step


def our_curve(config: TrainConfig, folder: Path) -> Curve:
    train(replace(config, output_dir=str(folder), overwrite_output_dir=True))
    steps = read_records(folder / "metrics.jsonl")
    return curve(steps, [step["step_time"] for step in steps], config)


def their_curve(config: TrainConfig, folder: Path) -> Curve:
    tokenizer, rows = given(config)
    autocast = config.device == "cuda" or torch.ops.mkldnn._is_mkldnn_bf16_supported()
    arguments = {"output_dir": str(folder), "bf16": autocast, "logging_steps": 1}
    trainer = peers.trl_trainer(config.model_name_or_path, tokenizer, rows, paid, config, **arguments)
    seconds = peers.trl_seconds(trainer, config.device)
    steps = [line for line in trainer.state.log_history if "reward" in line]
    return curve(steps, seconds, config)


def curve(steps: Sequence[Mapping], seconds: list[float], config: TrainConfig) -> Curve:
    """Make a curve of what either side logs of its steps, under the same names."""
    batch = config.per_device_train_batch_size
    rewards = [step["reward"] for step in steps]
    tokens = [batch * step["completions/mean_length"] for step in steps]
    return {"reward": rewards, "seconds": seconds, "tokens": tokens}


def given(config: TrainConfig) -> tuple[Any, list[dict[str, str]]]:
    """Return our tokenizer, and the prompts that we train on as TRL takes them."""
    policy = load_for_inference(config, choose_device(config.device))
    prompts = load_prompts(QuestionData(config), policy, Questions.to_train(config)).prompts
    rows = []
    for prompt in prompts:
        rows.append({"prompt": prompt.text, "answer": prompt.columns["answer"]})
    return policy.tokenizer, rows


def paid(completions: Sequence[str], answer: Sequence[str], **columns: object) -> list[float]:
    """Return what our reward `math` pays, in TRL's form."""
    (reward,) = build_rewards(["math"], asdict(TrainConfig()))
    scores = []
    for text, truth in zip(completions, answer, strict=True):
        scores.append(reward.grade(text, {"answer": truth}))
    return [score.value for score in scores]


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
    """Make the Markdown table: a line for each side and seed. Rows from before tokens were kept have none."""
    starts = range(0, len(rows[0]["reward"]), TOGETHER)
    lines = []
    for row in rows:
        seconds = statistics.median(row["seconds"])
        speed = rate(tokens_per_second(row)) if "tokens" in row else "–"
        line = [row["side"], str(row["seed"]), f"{seconds:.1f}", speed]
        for start in starts:
            mean = statistics.fmean(row["reward"][start : start + TOGETHER])
            line.append(f"{mean:+.2f}")
        lines.append(line)
    steps = [f"from step {start + 1}" for start in starts]
    return markdown_table(["side", "seed", "seconds a step", "tokens/s", *steps], lines)


def tokens_per_second(row: Mapping) -> float:
    """Return the median of the rates of all steps."""
    rates = []
    for tokens, seconds in zip(row["tokens"], row["seconds"], strict=True):
        rates.append(tokens / seconds)
    return statistics.median(rates)


def main(argv: list[str] | None = None) -> list[dict]:
    parser = experiment_parser("bench.curves", __doc__, "curves")
    parser.add_argument("run", type=Path, help="a finished run of configs/smollm2_math.yaml")
    parser.add_argument("keys", nargs="*", metavar="key=value", help="keys of both sides")
    parser.add_argument("--steps", type=int, default=40, help="of each run (default: %(default)s)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], help="each trains once on each side")
    parser.add_argument("--peer", nargs="*", choices=["trl"], default=[], help="train with it as well")
    options = parser.parse_args(argv)
    folder = options.run / "curves"
    config = config_of(options.run, options.steps, folder, options.keys)
    rows = []
    for seed in options.seeds:
        for side in dict.fromkeys(("ours", *options.peer)):
            curve = CURVES[side](replace(config, seed=seed), folder / f"{side}-{seed}")
            rows.append({"side": side, "seed": seed} | curve)
            print(table(rows[-1:]), flush=True)
    kept = options.save or folder
    write_lines(kept / "rows.jsonl", rows)
    named = {f"{row['side']}, seed {row['seed']}": row["reward"] for row in rows}
    line_plot(kept / "curves.png", named, "step", "mean reward")
    print(table(rows))
    print(json.dumps(rows))
    return rows


if __name__ == "__main__":
    main()

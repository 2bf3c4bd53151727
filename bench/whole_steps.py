"""python -m bench.whole_steps [--shapes knowrl math small] [--delays 0 5 15] [--mean-length N] [--profile]

How long does a complete GRPO step take, and how much of a judge's latency remains?
  knowrl   7B, LoRA r=256, 8 prompts x 12 completions x 1024 tokens, beta 0.001, prompts of about 220 tokens
  math     1.5B, LoRA r=16, 16 prompts x 2 completions x 512 tokens, beta 0.05
  small    4M, LoRA r=16, 8 prompts x 12 completions x 128 tokens, beta 0.04, which end after about 64: for a CPU
Weights are random and made on the device, so completions run to their limit, unless --mean-length makes an end token
come after about so many tokens. The judge is a coroutine, like a client of an API. It answers each completion after a
random time of up to --delays seconds; calls start as completions end. The first step is warm-up (compilation, graphs).

Checked in the same run: log-probs of sampler and trainer; peak memory, compared with what memory.py predicts; and that
every completion got its score. The share is that of the floor: the least time that memory bandwidth and arithmetic
allow, with the reads of keys and values, which each row also holds phase by phase. `projected_hours` is for 150 steps.
--profile prints the operations of a training pass that take longest. The last line of stdout is JSON.
"""

import random
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from unittest import mock

import torch

from bench import ceilings, models, steps, timing
from bench.record import Record, parse, phases_line
from bench.workload import packed_tokens, work_of
from grpo.base.schema import Group
from grpo.base.storage import write_json
from grpo.model import memory, policy
from grpo.model.decoder import Decoder
from grpo.model.lora import Build
from grpo.model.weights import read_model_config
from grpo.packing import set_loss_weights
from grpo.train import GrpoTrainer

KNOWRL_STEPS = 150
SHAPES = {
    "knowrl": {"model": "7b", "prompts": 8, "group": 12, "tokens": 1024, "rank": 256, "beta": 0.001, "target": 0.6},
    "math": {"model": "1.5b", "prompts": 16, "group": 2, "tokens": 512, "rank": 16, "beta": 0.05, "target": 0.6},
    "small": {"model": "4m", "prompts": 8, "group": 12, "tokens": 128, "rank": 16, "beta": 0.04, "target": 0.3},
}
MEAN_LENGTHS = {"small": 64}  # tokens after which a completion ends, about
SMOKE_SHAPE = {"model": "tiny", "prompts": 2, "group": 2, "tokens": 8, "rank": 4}
SIZES = {
    "cpu": {
        "shapes": ["small"],
        "delays": [0.0, 5.0, 15.0],
        "mean_length": 0.0,  # 0: the shape's own
        "profile": False,
    },
    "cuda": {"shapes": ["knowrl", "math"]},
    "smoke": {"delays": [0.0, 0.05]},
}
SYSTEM_PROMPT = "Think step by step. " * 8


def write_config(name: str, folder: Path) -> Path:
    """Write the tokenizer and config.json of a checkpoint whose weights are made on the device."""
    shape = models.SHAPES[name]
    models.write_tokenizer(shape.vocab, folder)
    write_json(folder / "config.json", shape.hf_config())
    return folder


def made_on_device(path: Path, build: Build, mean_length: float | None) -> Decoder:
    """Take the place of weights.load_decoder."""
    return models.fill(Decoder(read_model_config(path), build), mean_length)


def predicted_peak(trainer: GrpoTrainer, resident: int, tokens: int) -> float:
    """Return the bytes that memory.py predicts for the largest micro-batch."""
    build, config, budget = trainer.model.build, trainer.model.config, trainer.budget
    per_token = memory.activation_bytes_per_token(
        config,
        build.lora,
        build.dtype,
        budget.recompute,
        budget.fused,
    )
    logits_bytes = budget.chunk * memory.logits_bytes_per_row(config, build.dtype)
    return resident + per_token * min(tokens, budget.tokens) + logits_bytes


@contextmanager
def shape_trainer(
    shape: dict, device: str, dtype: str, mean_length: float | None = None, system_prompt: str = ""
) -> Iterator[GrpoTrainer]:
    """Make a trainer of that shape, whose weights are made on the device."""
    keys = steps.common_keys(shape, device, dtype)
    keys |= {"learning_rate": 1e-6, "system_prompt": system_prompt}
    load = partial(made_on_device, mean_length=mean_length)
    with tempfile.TemporaryDirectory() as temporary, mock.patch.object(policy, "load_decoder", load):
        checkpoint = write_config(shape["model"], Path(temporary) / "model")
        with steps.trainer(checkpoint, Path(temporary), **keys) as trainer:
            yield trainer


def measure(name: str, record: Record, peak: ceilings.Peaks) -> None:
    """Record the cases of one shape, one for each delay, and its checks."""
    options = record.options
    shape = SHAPES[name] | (SMOKE_SHAPE if options.smoke else {})
    num_completions = shape["prompts"] * shape["group"]
    title = f"{name}: {shape['model']}, {shape['prompts']} x {shape['group']} x {shape['tokens']} tokens"
    mean_length = options.mean_length or MEAN_LENGTHS.get(name)
    system_prompt = "" if options.smoke else SYSTEM_PROMPT
    rng = random.Random(0)
    with shape_trainer(shape, options.device, options.dtype, mean_length, system_prompt) as trainer:
        steps.run_judged_step(trainer, [0.0] * num_completions)
        for delay in options.delays:
            seen = []
            for _ in range(options.repeats):
                delays = [rng.uniform(delay / 5, delay) for _ in range(num_completions)]
                seen.append(steps.run_judged_step(trainer, delays))
            judged = [metrics["judged"] for metrics, _ in seen]
            record.checks[f"{name}, judge {delay:g} s: judged all"] = judged == [num_completions] * len(seen)
            record.add(make_case(f"{title}, judge {delay:g} s", shape["target"], trainer, seen, peak))
        watch_one_step(name, trainer, num_completions, record)


def make_case(
    name: str,
    target: float,
    trainer: GrpoTrainer,
    seen: list[tuple[dict[str, float], list[Group]]],
    peak: ceilings.Peaks,
) -> dict:
    """Make the case of one delay from its steps, with the time and the floor of each phase."""
    metrics, groups = seen[-1]
    work, phases = work_of(groups), [steps.phases_of(metrics) for metrics, _ in seen]
    floors = ceilings.step_floors(trainer.model, work, packed_tokens(groups), peak)
    sides = {"ours": timing.spread([metrics["step_time"] for metrics, _ in seen])}
    case = {"name": name, "seconds": sides, "target": target, "floors": floors}
    case |= timing.rates(case, sum(work.lengths), sum(floors.values()))
    case["phases"] = {phase: statistics.median(step[phase] for step in phases) for phase in phases[0]}
    case |= {"micro_batches": metrics["micro_batches"], "recompute": trainer.budget.recompute}
    print(f"  {phases_line(case['phases'])}")
    if name.startswith("knowrl"):
        case["projected_hours"] = KNOWRL_STEPS * timing.our_seconds(case) / 3600
        print(f"  {KNOWRL_STEPS} steps: {case['projected_hours']:.2f} h")
    return case


def watch_one_step(name: str, trainer: GrpoTrainer, num_completions: int, record: Record) -> None:
    """Run one more step for the checks, and profile its first micro-batch if wanted."""
    options = record.options
    on_gpu = options.device == "cuda"
    if on_gpu:
        resident = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
    metrics, groups = steps.run_judged_step(trainer, [0.0] * num_completions)
    record.checks[f"{name}: sampler/logp_diff_mean"] = metrics["sampler/logp_diff_mean"]
    if on_gpu:
        most = torch.cuda.max_memory_allocated()
        predicted = predicted_peak(trainer, resident, packed_tokens(groups))
        record.checks |= {f"{name}: peak memory / predicted": most / predicted, f"{name}: peak GB": most / 1e9}
        print(f"  attention: decode {trainer.rollout.sampler.decode_kernel}")
    if options.profile:
        record.profiled(f"{name}, training", profile_training(trainer, groups, options.device))


def profile_training(trainer: GrpoTrainer, groups: list[Group], device: str) -> list[dict]:
    """Profile forward and backward of the first micro-batch."""
    set_loss_weights(groups, trainer.rollout.totals, trainer.config)
    batch = trainer.make_batches(groups)[0]

    def run() -> None:
        logp_C, _ = trainer.policy_logprobs(batch)
        logp_C.sum().backward()

    operations = timing.profile(run, device)
    trainer.optimizer.discard_gradient()
    return operations


def main(argv: list[str] | None = None) -> dict:
    options = parse("bench.whole_steps", __doc__, argv, SIZES, choices={"shapes": SHAPES})
    part = " ".join(options.shapes) + (f", mean {options.mean_length:g}" if options.mean_length else "")
    peak = ceilings.peaks(options)
    record = Record("whole_steps", options, part=part, ceilings=peak)
    for name in options.shapes:
        measure(name, record, peak)
    return record.finish()


if __name__ == "__main__":
    main()

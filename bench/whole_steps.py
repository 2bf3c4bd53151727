"""python -m bench.whole_steps [--shapes knowrl math small] [--delays 0 5 15] [--mean-length N] [--profile]

How long does a complete GRPO step take, and how much of a judge's latency remains?
  knowrl   7B, LoRA r=256, 8 prompts x 12 completions x 1024 tokens, beta 0.001, prompts of about 220 tokens
  math     1.5B, LoRA r=16, 16 prompts x 2 completions x 512 tokens, beta 0.05
  small    4M, LoRA r=16, 8 prompts x 12 completions x 128 tokens, beta 0.04, which end after about 64: for a CPU
Weights are random and made on the device, so completions run to their limit, unless --mean-length makes an end token
come after about so many tokens. The judge is a coroutine, like a client of an API. It answers each completion after a
random time of up to --delays seconds; calls start as completions end. The first step is warm-up (compilation, graphs).

Checked in the same run: log-probs of sampler and trainer; peak memory, compared with what memory.py predicts; and that
every completion got its score. The ceiling is the matrix products of the prefill, of all decode steps, of reference and
policy forward, and of the backward pass. The roofline is the least time that memory bandwidth and arithmetic allow,
with the reads of keys and values. `projected_hours` is for 150 steps. --profile prints the operations of a training
pass that take longest. The last line of stdout is JSON.
"""

import random
import statistics
import tempfile
from functools import partial
from pathlib import Path
from unittest import mock

import torch

from bench import ceilings, models, steps, timing
from bench.record import Record, parse, phases_line
from bench.workload import packed_tokens, work_of
from grpo.base.schema import Group
from grpo.base.storage import write_json
from grpo.model import policy
from grpo.model.decoder import Decoder
from grpo.model.lora import Build
from grpo.model.weights import read_model_config
from grpo.packing import set_loss_weights
from grpo.run import memory
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


def products_seconds(trainer: GrpoTrainer, groups: list[Group]) -> float:
    """Return the time of the matrix products alone, at their shapes in the step and in its micro-batches."""
    model, work, packed = trainer.model, work_of(groups), packed_tokens(groups)
    micro_batches = -(-packed // trainer.budget.tokens)
    scored = sum(work.lengths)
    forward = ceilings.forward_products(model.config, packed // micro_batches, scored // micro_batches)
    # Forward and backward apart: each product has its own weight, and those of both would not fit at 7B.
    forward_seconds = ceilings.products_seconds(forward, model.build, 1)
    backward_seconds = ceilings.products_seconds(ceilings.backward_products(forward), model.build, 1)
    return ceilings.generation_seconds(model, work) + micro_batches * (2 * forward_seconds + backward_seconds)


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


def measure(name: str, record: Record, peak: ceilings.Peaks) -> None:
    """Record the cases of one shape, one for each delay, and its checks."""
    options = record.options
    shape = SHAPES[name] | (SMOKE_SHAPE if options.smoke else {})
    num_completions = shape["prompts"] * shape["group"]
    sizes = shape["prompts"], shape["group"], shape["tokens"]
    keys = steps.common_keys(options, *sizes, shape["beta"], shape["rank"])
    keys |= {"learning_rate": 1e-6, "system_prompt": "" if options.smoke else SYSTEM_PROMPT}
    load = partial(made_on_device, mean_length=options.mean_length or MEAN_LENGTHS.get(name))
    rng = random.Random(0)
    with tempfile.TemporaryDirectory() as temporary, mock.patch.object(policy, "load_decoder", load):
        folder = Path(temporary)
        checkpoint = write_config(shape["model"], folder / "model")
        with steps.trainer(checkpoint, folder, **keys) as trainer:
            steps.run_judged_step(trainer, [0.0] * num_completions)
            cases = []
            num_wrong = 0
            for delay in options.delays:
                seen = []
                for _ in range(options.repeats):
                    delays = [rng.uniform(delay / 5, delay) for _ in range(num_completions)]
                    seen.append(steps.run_judged_step(trainer, delays))
                num_wrong += sum(step["wrong"] for step in seen)
                cases.append(make_case(name, shape, trainer, delay, seen))
                record.add(cases[-1])
            record.checks[f"{name}: judged all"] = num_wrong == 0
            watch_one_step(name, trainer, num_completions, cases, record, peak)


def make_case(
    name: str,
    shape: dict,
    trainer: GrpoTrainer,
    delay: float,
    seen: list[dict],
) -> dict:
    """Make the case of one delay from its steps."""
    size = f"{shape['model']}, {shape['prompts']} x {shape['group']} x {shape['tokens']} tokens"
    case = {
        "name": f"{name}: {size}, judge {delay:g} s",
        "seconds": {"ours": timing.spread([step["step"] for step in seen])},
        "tokens": seen[-1]["tokens"],
        "target": shape["target"],
        "phases": {},
        "micro_batches": seen[-1]["micro_batches"],
        "recompute": trainer.budget.recompute,
        "judged": [step["judged"] for step in seen],
    }
    for phase in steps.PHASES:
        case["phases"][phase] = statistics.median(step[phase] for step in seen)
    seconds = timing.our_seconds(case)
    case["tokens_per_s"] = case["tokens"] / seconds
    print(f"  {phases_line(case['phases'])}")
    if name == "knowrl":
        case["projected_hours"] = KNOWRL_STEPS * seconds / 3600
        print(f"  {KNOWRL_STEPS} steps: {case['projected_hours']:.2f} h")
    return case


def watch_one_step(
    name: str,
    trainer: GrpoTrainer,
    num_completions: int,
    cases: list[dict],
    record: Record,
    peak: ceilings.Peaks,
) -> None:
    """Run one more step for the checks; add the shares of the ceiling, and the profile if wanted, to the cases."""
    options = record.options
    on_gpu = options.device == "cuda"
    if on_gpu:
        resident = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
    steps.Judge(trainer, [0.0] * num_completions)
    metrics, groups = steps.run_step(trainer)
    record.checks[f"{name}: sampler/logp_diff_mean"] = metrics["sampler/logp_diff_mean"]
    packed = packed_tokens(groups)
    if on_gpu:
        most = torch.cuda.max_memory_allocated()
        record.checks[f"{name}: peak memory / predicted"] = most / predicted_peak(trainer, resident, packed)
        record.checks[f"{name}: peak GB"] = most / 1e9
        print(f"  attention: decode {trainer.rollout.sampler.decode_kernel}")
    products = products_seconds(trainer, groups)
    roofline = ceilings.step_roofline_seconds(trainer.model, work_of(groups), packed, peak)
    for case in cases:
        case["ceiling_share"] = products / timing.our_seconds(case)
        case["roofline_share"] = roofline / timing.our_seconds(case)
        shares = f"{case['ceiling_share']:.0%} of the products, {case['roofline_share']:.0%} of the roofline"
        print(f"  {case['name']}: {shares}", flush=True)
    if options.profile:
        cases[-1]["kernels"] = profile_training(trainer, groups, options.device)


def profile_training(trainer: GrpoTrainer, groups: list[Group], device: str) -> list[dict]:
    """Profile forward and backward of the first micro-batch."""
    set_loss_weights(groups, trainer.config, trainer.ranks)
    batch = trainer.make_batches(groups)[0]

    def run() -> None:
        logp_C, _ = trainer.policy_logprobs(batch)
        logp_C.sum().backward()

    operations = timing.profile(run, device)
    trainer.optimizer.discard_gradient()
    return operations


def main(argv: list[str] | None = None) -> dict:
    options = parse("bench.whole_steps", __doc__, argv, SIZES, choices={"shapes": SHAPES})
    record = Record("whole_steps", options)
    peak = ceilings.peaks(options)
    for name in options.shapes:
        measure(name, record, peak)
    part = " ".join(options.shapes) + (f", mean {options.mean_length:g}" if options.mean_length else "")
    return record.finish(ceilings=peak, part=part)


if __name__ == "__main__":
    main()

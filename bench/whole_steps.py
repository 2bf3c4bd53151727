"""python -m bench.whole_steps [--shapes knowrl math small] [--delays 0 5 15] [--mean-length N] [--profile]

How long does a complete GRPO step take, and how much of a judge's latency remains?
  knowrl   7B, LoRA r=256, 8 prompts x 12 completions x 1024 tokens, beta 0.001, prompts of about 220 tokens
  math     1.5B, LoRA r=16, 16 prompts x 2 completions x 512 tokens, beta 0.05
  small    4M, LoRA r=16, 8 prompts x 12 completions x 128 tokens, beta 0.04, which end after about 64: for a CPU
Weights are random and made on the device, so completions run to their limit, unless --mean-length makes an end token
come after about so many tokens. The judge, a coroutine like a client of an API, answers each completion after a time
drawn up to --delays seconds; calls start as completions end. The first step is warm-up (compilation, graphs).

Checked in the same run: log-probs of sampler and trainer; peak memory, compared with what memory.py predicts; and that
every completion got its score. The ceiling is the matrix products of all decode steps, of reference and policy forward,
and of the backward pass. The roofline's share is of the least time that memory bandwidth and arithmetic allow, with the
reads of keys and values. `projected_hours` is for 150 steps. --profile prints the operations of a training pass that
take longest. The last line of stdout is JSON.
"""

import random
import tempfile
from functools import partial
from pathlib import Path

import torch

from bench import ceilings, models, steps, timing
from bench.workload import packed_tokens, work_of
from grpo.model import policy
from grpo.model.decoder import Decoder
from grpo.model.lora import Build
from grpo.model.weights import read_model_config
from grpo.packing import set_loss_weights
from grpo.run import memory
from grpo.schema import Group
from grpo.storage import write_json
from grpo.train import GrpoTrainer

KNOWRL_STEPS = 150
SHAPES = {
    "knowrl": {"model": "7b", "prompts": 8, "group": 12, "tokens": 1024, "lora_r": 256, "beta": 0.001, "target": 0.6},
    "math": {"model": "1.5b", "prompts": 16, "group": 2, "tokens": 512, "lora_r": 16, "beta": 0.05, "target": 0.6},
    "small": {"model": "4m", "prompts": 8, "group": 12, "tokens": 128, "lora_r": 16, "beta": 0.04, "target": 0.3},
}
MEAN_LENGTHS = {"small": 64}  # tokens after which a completion ends, about
SMOKE_SHAPE = {"model": "tiny", "prompts": 2, "group": 2, "tokens": 8, "lora_r": 4}
SIZES = {
    "cpu": {"shapes": ["small"], "delays": [0.0, 5.0, 15.0]},
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


def floor_seconds(trainer: GrpoTrainer, groups: list[Group], dtype: torch.dtype, device: str) -> float:
    """Return the time of the matrix products alone, at their shapes in the step and in its micro-batches."""
    config, work, packed = trainer.model.config, work_of(groups), packed_tokens(groups)
    micro_batches = -(-packed // trainer.budget.tokens)
    forward = ceilings.products(config, packed // micro_batches, sum(work.lengths) // micro_batches)
    # Forward and backward apart: each product has its own weight, and those of both would not fit at 7B.
    forward_seconds = ceilings.products_seconds(forward, dtype, device, 1)
    backward_seconds = ceilings.products_seconds(ceilings.backward(forward), dtype, device, 1)
    generation_seconds = ceilings.generation_seconds(config, work, dtype, device)
    return generation_seconds + micro_batches * (2 * forward_seconds + backward_seconds)


def predicted_peak(trainer: GrpoTrainer, resident: int, tokens: int) -> float:
    """Return the bytes that memory.py predicts for the largest micro-batch."""
    build, config, budget = trainer.model.build, trainer.model.config, trainer.budget
    per_token = memory.activation_bytes_per_token(config, build.lora, build.dtype, budget.recompute, budget.fused)
    logits_bytes = budget.logits_rows * memory.logits_bytes_per_row(config, build.dtype)
    return resident + per_token * min(tokens, budget.tokens) + logits_bytes


def measure(name: str, options, peak: dict[str, float]) -> tuple[list[dict], dict]:
    """Return the cases of one shape, one for each delay, and its checks."""
    shape = dict(SHAPES[name])
    if options.smoke:
        shape |= SMOKE_SHAPE
    num_completions = shape["prompts"] * shape["group"]
    keys = steps.common_keys(options, shape["group"], num_completions, shape["tokens"], shape["beta"])
    keys |= {
        "lora_r": shape["lora_r"],
        "lora_alpha": 2 * shape["lora_r"],
        "learning_rate": 1e-6,
        "system_prompt": "" if options.smoke else SYSTEM_PROMPT,
    }
    rng = random.Random(0)
    cases = []
    original = policy.load_decoder
    policy.load_decoder = partial(made_on_device, mean_length=options.mean_length or MEAN_LENGTHS.get(name))
    try:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            (folder / "model").mkdir()
            with steps.trainer(write_config(shape["model"], folder / "model"), folder, **keys) as trainer:
                steps.run_judged_step(trainer, [0.0] * num_completions)
                for delay in options.delays:
                    seen = []
                    for _ in range(options.repeats):
                        delays = [rng.uniform(delay / 5, delay) for _ in range(num_completions)]
                        seen.append(steps.run_judged_step(trainer, delays))
                    cases.append(make_case(name, shape, trainer, delay, seen))
                return cases, watch_one_step(name, trainer, options, seen, cases, peak)
    finally:
        policy.load_decoder = original


def make_case(name: str, shape: dict, trainer: GrpoTrainer, delay: float, seen: list[dict]) -> dict:
    """Make the case of one delay from its steps, and print it."""
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
        case["phases"][phase] = timing.spread([step[phase] for step in seen])["median"]
    seconds = timing.our_seconds(case)
    case["tokens_per_s"] = case["tokens"] / seconds
    timing.show(case)
    print("  " + ", ".join(f"{phase} {spent:.2f} s" for phase, spent in case["phases"].items()), flush=True)
    if name == "knowrl":
        case["projected_hours"] = KNOWRL_STEPS * seconds / 3600
        print(f"  {KNOWRL_STEPS} steps: {case['projected_hours']:.2f} h", flush=True)
    return case


def watch_one_step(
    name: str, trainer: GrpoTrainer, options, seen: list[dict], cases: list[dict], peak: dict[str, float]
) -> dict:
    """Run one more step for the checks; add the share of the ceiling, and the profile if wanted, to the cases."""
    on_gpu = options.device == "cuda"
    resident = 0
    if on_gpu:
        resident = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
    steps.Judge(trainer, [0.0] * seen[-1]["judged"])
    metrics, groups = steps.run_step(trainer)
    checks = {
        f"{name}: sampler/logp_diff_mean": metrics["sampler/logp_diff_mean"],
        f"{name}: judged all": all(step["wrong"] == 0 for step in seen),
    }
    dtype = getattr(torch, options.dtype)
    floor = floor_seconds(trainer, groups, dtype, options.device)
    work, packed = work_of(groups), packed_tokens(groups)
    roofline = ceilings.step_roofline_seconds(trainer.model.config, work, packed, dtype, peak)
    for case in cases:
        case["ceiling_share"] = floor / timing.our_seconds(case)
        case["roofline_share"] = roofline / timing.our_seconds(case)
        shares = f"{case['ceiling_share']:.0%} of the products, {case['roofline_share']:.0%} of the roofline"
        print(f"  {case['name']}: {shares}", flush=True)
    if on_gpu:
        most = torch.cuda.max_memory_allocated()
        checks[f"{name}: peak memory / predicted"] = most / predicted_peak(trainer, resident, packed_tokens(groups))
        checks[f"{name}: peak GB"] = most / 1e9
        print(f"  attention: decode {trainer.rollout.sampler.decode_kernel}", flush=True)
    if options.profile:
        cases[-1]["kernels"] = profile_training(trainer, groups, options.device)
    return checks


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
    arguments = timing.parser("bench.whole_steps", __doc__, choices={"shapes": SHAPES}, **SIZES)
    arguments.add_argument("--mean-length", type=float, help="tokens after which a completion ends, about")
    arguments.add_argument("--profile", action="store_true", help="print the operations that take longest")
    options = timing.parse(arguments, argv, **SIZES)
    peak, cases, checks = ceilings.peaks(options), [], {}
    for name in options.shapes:
        found, found_checks = measure(name, options, peak)
        cases += found
        checks |= found_checks
    part = " ".join(options.shapes) + (f", mean {options.mean_length:g}" if options.mean_length else "")
    return timing.finish("whole_steps", options, cases, checks, ceilings=peak, part=part)


if __name__ == "__main__":
    main()

"""python -m bench.whole_steps [--shapes knowrl math] [--delays 0 5 15] [--profile]

How long does a whole GRPO step take at the shapes of KnowRL and of mathematics, and what of a judge's latency remains?
  knowrl   7B, LoRA r=256, 8 prompts x 12 completions x 1024 tokens, beta 0.001, prompts of about 220 tokens
  math     1.5B, LoRA r=16, 16 prompts x 2 completions x 512 tokens, beta 0.05
Weights are random and made on the device, so completions run to their limit. The judge answers every completion after a
time drawn up to --delays seconds; calls start as completions end. The first step is warm-up (compilation, graphs).

Checked in the same run: log-probs of sampler and trainer; peak memory against what memory.py predicts; that the scores
arrived. Ceiling: the matrix products of all decode steps, of reference and policy forward, and of the backward pass,
alone. `projected_hours`: 150 steps. --profile prints the kernels that take longest in a training pass. The last line of
stdout is JSON.
"""

import json
import random
import tempfile
from pathlib import Path

import torch

from bench import ceilings, models, sampler, steps, timing
from bench import rewards as judged
from bench.decode import fill, profile
from grpo.model import policy
from grpo.model.decoder import Decoder, ModelConfig
from grpo.packing import pack, plan, step_weights
from grpo.run import memory
from grpo.train import Trainer
from rewards.registry import Reward
from rewards.scorer import Scorer

KNOWRL_STEPS = 150
SHAPES = {
    "knowrl": {"model": "7b", "prompts": 8, "group": 12, "tokens": 1024, "lora_r": 256, "beta": 0.001, "target": 0.6},
    "math": {"model": "1.5b", "prompts": 16, "group": 2, "tokens": 512, "lora_r": 16, "beta": 0.05, "target": 0.6},
}


def write_config(name: str, folder: Path) -> Path:
    """Tokenizer and config.json of a checkpoint whose weights are made on the device."""
    shape = models.SHAPES[name]
    models.write_tokenizer(shape.vocab, folder)
    (folder / "config.json").write_text(
        json.dumps(
            {
                "model_type": "qwen2",
                "vocab_size": shape.vocab,
                "hidden_size": shape.hidden,
                "intermediate_size": shape.mlp,
                "num_hidden_layers": shape.layers,
                "num_attention_heads": shape.heads,
                "num_key_value_heads": shape.kv_heads,
                "tie_word_embeddings": shape.tied,
                "max_position_embeddings": 4096,
                "rope_theta": 1e6,
                "eos_token_id": 0,
            }
        ),
        encoding="utf-8",
    )
    return folder


def made_on_device(path: Path, build) -> Decoder:
    """In the place of weights.load_decoder."""
    return fill(Decoder(ModelConfig.from_hf(json.loads((path / "config.json").read_text(encoding="utf-8"))), build))


def floor_seconds(trainer: Trainer, groups, dtype: torch.dtype, device: str) -> float:
    """Matrix products alone, at the shapes that the step has them in; the trainer's in its micro-batches."""
    config = trainer.model.config
    lengths = [len(m.ids) for group in groups for m in group.completions]
    work = sampler.Work([group.prompt.ids for group in groups], len(groups[0].completions), lengths)
    packed = sum(len(group.prompt.ids) + sum(len(m.ids) - 1 for m in group.completions) for group in groups)
    parts = -(-packed // trainer.budget.tokens)
    forward = ceilings.products(config, packed // parts, sum(lengths) // parts)
    passes = 2 * ceilings.products_seconds(forward, dtype, device, 1) + ceilings.products_seconds(
        ceilings.backward(forward), dtype, device, 1
    )
    return sampler.ceiling_seconds(config, work, dtype, device) + parts * passes


def predicted_peak(trainer: Trainer, resident: int, tokens: int) -> float:
    """Bytes at the height of the largest micro-batch, as memory.py counts them."""
    build, config = trainer.model.build, trainer.model.config
    per_token = memory.activation_bytes_per_token(
        config, build.lora, build.dtype, trainer.budget.recompute, trainer.budget.fused
    )
    return (
        resident
        + per_token * min(tokens, trainer.budget.tokens)
        + trainer.budget.logits_rows * memory.logits_bytes_per_row(config, build.dtype)
    )


def measure(name: str, options, peak) -> tuple[list[dict], dict]:
    shape = (
        SHAPES[name]
        if not options.smoke
        else {**SHAPES[name], "model": "tiny", "prompts": 2, "group": 2, "tokens": 8, "lora_r": 4}
    )
    dtype, total, rng = getattr(torch, options.dtype), shape["prompts"] * shape["group"], random.Random(0)
    keys = {
        "num_generations": shape["group"],
        "per_device_train_batch_size": total,
        "max_completion_length": shape["tokens"],
        "beta": shape["beta"],
        "lora_r": shape["lora_r"],
        "lora_alpha": 2 * shape["lora_r"],
        "torch_dtype": options.dtype,
        "device": options.device,
        "learning_rate": 1e-6,
        "system_prompt": "" if options.smoke else "Think step by step. " * 8,
    }
    cases, checks, original = [], {}, policy.load_decoder
    policy.load_decoder = made_on_device
    try:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            (folder / "model").mkdir()
            with steps.trainer(write_config(shape["model"], folder / "model"), folder, **keys) as trainer:
                judged.step(trainer, [0.0] * total, False, [])
                for delay in options.delays:
                    seen: list[dict] = []
                    for _ in range(options.repeats):
                        judged.step(trainer, [rng.uniform(delay / 5, delay) for _ in range(total)], False, seen)
                    cases.append(row(name, shape, trainer, delay, seen))
                checks = checks_of(name, trainer, options, seen, cases, dtype)
    finally:
        policy.load_decoder = original
    return cases, checks


def row(name: str, shape: dict, trainer: Trainer, delay: float, seen: list[dict]) -> dict:
    seconds = [step["step"] for step in seen]
    case = {
        "name": f"{name}: {shape['model']}, {shape['prompts']} x {shape['group']} x {shape['tokens']} tokens, judge {delay:g} s",
        "seconds": {"ours": timing.spread(seconds)},
        "tokens": seen[-1]["tokens"],
        "target": shape["target"],
        "phases": {
            phase: timing.spread([step[phase] for step in seen])["median"]
            for phase in ("generate", "reference", "reward", "train")
        },
        "micro_batches": seen[-1]["micro_batches"],
        "recompute": trainer.budget.recompute,
        "judged": [step["judged"] for step in seen],
    }
    case["tokens_per_s"] = case["tokens"] / case["seconds"]["ours"]["median"]
    if name == "knowrl":
        case["projected_hours"] = KNOWRL_STEPS * case["seconds"]["ours"]["median"] / 3600
    timing.show(case)
    print(
        "  "
        + ", ".join(f"{phase} {value:.2f} s" for phase, value in case["phases"].items())
        + (f"; {KNOWRL_STEPS} steps: {case['projected_hours']:.2f} h" if "projected_hours" in case else ""),
        flush=True,
    )
    return case


def checks_of(name: str, trainer: Trainer, options, seen: list[dict], cases: list[dict], dtype: torch.dtype) -> dict:
    """One more step, watched: noise between sampler and trainer, memory, and (with --profile) the training pass's
    kernels."""
    on_gpu = options.device == "cuda"
    resident = torch.cuda.memory_allocated() if on_gpu else 0
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    trainer.rollout.scorer.close()
    trainer.rollout.scorer = Scorer([Reward("judge", grade=judged.Judge([0.0] * seen[-1]["judged"]).grade)])
    metrics, groups = trainer.train_step()
    packed = sum(len(group.prompt.ids) + sum(len(m.ids) - 1 for m in group.completions) for group in groups)
    floor = floor_seconds(trainer, groups, dtype, options.device)
    for case in cases:
        case["ceiling_share"] = floor / case["seconds"]["ours"]["median"]
    found = {
        f"{name}: sampler/logp_diff_mean": metrics["sampler/logp_diff_mean"],
        f"{name}: judged all": all(step["wrong"] == 0 for step in seen),
    }
    if on_gpu:
        found[f"{name}: peak memory / predicted"] = torch.cuda.max_memory_allocated() / predicted_peak(
            trainer, resident, packed
        )
        found[f"{name}: peak GB"] = torch.cuda.max_memory_allocated() / 1e9
        print(f"  attention: decode {trainer.rollout.sampler.decoder}", flush=True)
    if options.profile:
        weights = step_weights(groups, trainer.config, trainer.ranks)
        batch = pack(groups, plan(groups, weights, trainer.budget.tokens)[0], weights, trainer.run.device)
        mode = trainer.policy_mode(0)
        cases[-1]["kernels"] = profile(
            lambda: trainer.logprobs(batch, trainer.model, mode)[0].sum().backward(), options.device
        )
        trainer.optimizer.grad.zero_()
    return found


def main(argv: list[str] | None = None) -> dict:
    arguments = timing.parser("bench.whole_steps", __doc__)
    arguments.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    arguments.add_argument(
        "--delays", type=float, nargs="+", default=[0, 5, 15], help="longest answer of the judge, seconds"
    )
    arguments.add_argument("--profile", action="store_true")
    options = timing.parse(arguments, argv)
    options.delays = [0, 0.05] if options.smoke else options.delays
    peak, cases, checks = ceilings.peaks(options.device, options.smoke), [], {}
    for name in options.shapes:
        more, found = measure(name, options, peak)
        cases, checks = cases + more, checks | found
    return timing.finish("whole_steps", options, cases, checks, ceilings=peak, part=" ".join(options.shapes))


if __name__ == "__main__":
    main()

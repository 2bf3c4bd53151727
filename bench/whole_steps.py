"""python -m bench.whole_steps [--shapes knowrl math small] [--delays 0 5 15] [--mean-length N] [--profile]
python -m bench.whole_steps --shapes smollm2 31m 31m_modules gemma3 phi3 qwen3_moe --peer trl

How long does a complete GRPO step take (generation, rewards, reference and policy pass, update), how much of a judge's
latency remains, and how does it compare with TRL's GRPOTrainer?
  knowrl   7B, LoRA r=256, 8 prompts x 12 completions x 1024 tokens, beta 0.001, prompts of about 220 tokens
  math     1.5B, LoRA r=16, 16 prompts x 2 completions x 512 tokens, beta 0.05
  small    4M, LoRA r=16, 8 prompts x 12 completions x 128 tokens, beta 0.04, which end after about 64: for a CPU
  smollm2  SmolLM2-135M's sizes, LoRA r=16, 4 prompts x 8 completions x 64 tokens, beta 0.04
  31m      31M, the same with 128 tokens; trl_gpu: 1.5B, 256 tokens
  31m_modules, gemma3, phi3, qwen3_moe   as 31m, by transformers' modules (of Qwen2, Gemma 3, Phi-3 and Qwen3-MoE)
Weights are random, and completions run to their limit, unless --mean-length makes an end token come after about so many
tokens. The judge is a coroutine, like a client of an API. It answers each completion after a random time of up to
--delays seconds; calls start as completions end. The first step is warm-up (compilation, graphs).

TRL has the same checkpoint, prompts, LoRA, beta, temperature and AdamW, dapo, one update per batch, a reward that costs
nothing, no gradient checkpointing, and neither logs nor saves. In bfloat16 it runs twice: with weights in bfloat16, and
with autocast as well (its default): two cases. The sides take turns: each of TRL's steps is followed
by one of ours. TRL's clock goes from its on_step_begin to its on_step_end.

Checked in the same run: log-probs of sampler and trainer, and of our completions under TRL's model; peak memory,
compared with what memory.py predicts; and that every completion got its score. `floors` has the least time of each
phase. --profile prints the operations that take longest in a training pass of the last shape. The last line of stdout
is JSON.
"""

import random
import statistics
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from bench import ceilings, models, peers, steps, timing
from bench.record import Results, parse
from bench.workload import completion_lengths, packed_tokens, work_of
from grpo.algorithm.schema import Group
from grpo.engine.attention import choice
from grpo.engine.model import memory
from grpo.train import GrpoTrainer

LEARNING_RATE = 1e-6


@dataclass(frozen=True)
class StepShape:
    """The sizes of a step. group: completions per prompt. tokens: of each, at most. rank: of the adapter.

    target: times faster than TRL, or the share of the ceiling.
    """

    model: str
    prompts: int
    group: int
    tokens: int
    target: float
    rank: int = 16
    beta: float = 0.04
    backend: str = "auto"

    @property
    def num_completions(self) -> int:
        return self.prompts * self.group

    def keys(self, options: Namespace) -> dict[str, object]:
        """Return the configuration keys of such a step."""
        return {
            "num_generations": self.group,
            "per_device_train_batch_size": self.num_completions,
            "max_completion_length": self.tokens,
            "beta": self.beta,
            "model_backend": self.backend,
            "lora_r": self.rank,
            "lora_alpha": 2 * self.rank,
            "learning_rate": LEARNING_RATE,
            "torch_dtype": options.dtype,
            "device": options.device,
        }


SHAPES = {
    "knowrl": StepShape("7b", prompts=8, group=12, tokens=1024, target=0.6, rank=256, beta=0.001),
    "math": StepShape("1.5b", prompts=16, group=2, tokens=512, target=0.6, beta=0.05),
    "small": StepShape("4m", prompts=8, group=12, tokens=128, target=0.3),
    "smollm2": StepShape("smollm2", prompts=4, group=8, tokens=64, target=6.5),
    "31m": StepShape("31m", prompts=4, group=8, tokens=128, target=5.0),
    "trl_gpu": StepShape("1.5b", prompts=4, group=8, tokens=256, target=5.0),
}
SHAPES["31m_modules"] = replace(SHAPES["31m"], backend="transformers")
SHAPES |= {family: replace(SHAPES["31m"], model=family) for family in ("gemma3", "phi3", "qwen3_moe")}
MEAN_LENGTHS = {"small": 64}  # tokens after which a completion ends, about
SMOKE_SIZES = {"model": "tiny", "prompts": 2, "group": 2, "tokens": 8, "rank": 4}
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
PHASES = ("generate", "reference", "reward", "train")
SYSTEM_PROMPT = "Think step by step. " * 8


class Ours:
    """Our steps, with their seconds, metrics and groups."""

    def __init__(self, trainer: GrpoTrainer, device: str):
        self.trainer = trainer
        self.device = device
        self.seconds: list[float] = []
        self.metrics: list[Mapping[str, float]] = []
        self.groups: list[list[Group]] = []

    def step(self) -> None:
        start = timing.now(self.device)
        self.trainer.run_step()
        metrics, groups = self.trainer.summarise_step()
        self.seconds.append(timing.now(self.device) - start)
        self.metrics.append(metrics)
        self.groups.append(groups)

    def add_case(self, name: str, first: int, seconds: Mapping, target: float, results: Results) -> None:
        """Record a case, with the floor of each phase, and the time of each phase in our steps from `first` on."""
        groups = self.groups[-1]
        packed = packed_tokens(groups)
        floors = ceilings.step_floors(self.trainer.model, work_of(groups), packed, results.peak)
        tokens = [sum(completion_lengths(groups)) for groups in self.groups[first:]]
        measured = self.metrics[first:]
        phases = {phase: statistics.median(step[f"time/{phase}"] for step in measured) for phase in PHASES}
        case = timing.make_case(
            name,
            seconds,
            statistics.mean(tokens),
            floor=sum(floors.values()),
            target=target,
            floors=floors,
            phases=phases,
            recompute=self.trainer.learner.memory.budget.recompute,
        )
        results.add(case)


# --- A slow judge --------------------------------------------------------------------------------------------------


def measure_delays(
    name: str, title: str, shape: StepShape, ours: Ours, judge: steps.SlowJudge, results: Results
) -> None:
    """Record the cases of one shape, one for each delay of a judge, and its checks."""
    options = results.options
    rng = random.Random(0)
    ours.step()
    resident = 0
    if options.device == "cuda":
        resident = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
    for delay in options.delays:
        first = len(ours.seconds)
        judged_before = judge.num_ended
        for _ in range(options.repeats):
            judge.delays = iter([rng.uniform(delay / 5, delay) for _ in range(shape.num_completions)])
            ours.step()
        complete = judge.num_ended - judged_before == shape.num_completions * options.repeats
        results.check({f"{name}, judge {delay:g} s: judged all": complete})
        seconds = {"ours": ours.seconds[first:]}
        ours.add_case(f"{title}, judge {delay:g} s", first, seconds, shape.target, results)
    check_steps(name, ours, resident, results)


def check_steps(name: str, ours: Ours, resident: int, results: Results) -> None:
    """Record the checks of the steps. resident: bytes of the GPU that were in use before them."""
    trainer = ours.trainer
    results.check({f"{name}: sampler/logp_diff_mean": ours.metrics[-1]["sampler/logp_diff_mean"]})
    if results.options.device == "cuda":
        most = torch.cuda.max_memory_allocated()
        batches = trainer.learner.make_batches(ours.groups[-1])
        tokens = max(len(batch.ids_T) for batch in batches)
        largest = replace(trainer.learner.memory.budget, tokens=tokens)
        needed = memory.Loaded(trainer.model).account(budget=largest)
        predicted = resident + needed.activations + needed.logits
        results.check({f"{name}: peak memory / predicted": most / predicted, f"{name}: peak GB": most / 1e9})
        print(f"  {choice.describe(trainer.model)}")


def profile_training(name: str, ours: Ours, results: Results) -> None:
    """Profile forward and backward of the first micro-batch of our last step."""
    trainer = ours.trainer
    batch, *_ = trainer.learner.make_batches(ours.groups[-1])

    def run() -> None:
        logp_C, _ = trainer.learner.policy_logprobs(batch)
        logp_C.sum().backward()

    results.profile(f"{name}, training", run)
    trainer.optimizer.discard_gradient()


# --- TRL -----------------------------------------------------------------------------------------------------------


def run_turns(trainer, ours: Ours) -> dict[str, list[float]]:
    """Make TRL's steps, each followed by one of ours; return the seconds of both, without the warm-up."""
    from transformers import TrainerCallback

    first = len(ours.seconds)
    seconds: list[float] = []

    class Clock(TrainerCallback):
        def on_step_begin(self, *_, **__) -> None:
            self.start = timing.now(ours.device)

        def on_step_end(self, *_, **__) -> None:
            seconds.append(timing.now(ours.device) - self.start)
            ours.step()

    trainer.add_callback(Clock())
    trainer.train()
    return {"peer": seconds[1:], "ours": ours.seconds[first + 1 :]}


def measure_trl(title: str, path: Path, shape: StepShape, ours: Ours, results: Results) -> None:
    """Record the case of one shape beside TRL. Ratios pair each of TRL's steps with ours right after it."""
    options = results.options
    variants = {"trl, bfloat16 weights": False, "trl, autocast": True}
    if options.dtype == "float32":
        variants = {"trl": False}
    ours.step()
    config = replace(ours.trainer.config, max_steps=options.repeats + 1)
    rows = [{"prompt": prompt.text} for prompt in ours.trainer.rollout.prompts]
    for name, autocast in variants.items():
        peer = peers.trl_trainer(
            path,
            models.build_of(options),
            rows,
            steps.letters,
            config,
            autocast,
        )
        # The adapter of TRL's model is still zero, as ours was.
        pairs = [(group.prompt.ids, completion) for group in ours.groups[0] for completion in group.completions]
        errors_C = peers.logprob_errors(peer.model, pairs)
        results.check({f"{name}: mean log-prob difference": float(errors_C.mean())})
        turns = run_turns(peer, ours)
        case = title if len(variants) == 1 else f"{title}, {name}"
        seconds = {"ours": turns["ours"], name: turns["peer"]}
        ours.add_case(case, -options.repeats, seconds, shape.target, results)


# --- The command ---------------------------------------------------------------------------------------------------


def measure(name: str, results: Results) -> None:
    """Record the cases of one shape."""
    options = results.options
    shape = SHAPES[name]
    if options.smoke:
        shape = replace(shape, **SMOKE_SIZES)
    title = f"{name}, {shape.prompts} x {shape.group} x {shape.tokens} tokens"
    if options.mean_length:
        title += f", mean {options.mean_length:g}"
    keys = shape.keys(options)
    if options.peer == "trl":
        with models.temporary_model(shape.model, options) as path, steps.trainer(path, **keys) as trainer:
            ours = Ours(trainer, options.device)
            measure_trl(title, path, shape, ours, results)
        return
    keys["system_prompt"] = "" if options.smoke else SYSTEM_PROMPT
    length = options.mean_length or MEAN_LENGTHS.get(name)
    judge = steps.SlowJudge()
    with models.made_on_device(shape.model, length) as path, steps.trainer(path, judge, **keys) as trainer:
        ours = Ours(trainer, options.device)
        measure_delays(name, title, shape, ours, judge, results)
        if options.profile and name == options.shapes[-1]:
            profile_training(name, ours, results)


def main(argv: list[str] | None = None) -> dict:
    options = parse(
        "whole_steps",
        __doc__,
        argv,
        SIZES,
        {"none": (), "trl": ("trl", "datasets", "peft", "transformers")},
        choices={"shapes": SHAPES},
    )
    results = Results("whole_steps", options, ceilings.peaks)
    for name in options.shapes:
        measure(name, results)
    return results.finish()


if __name__ == "__main__":
    main()

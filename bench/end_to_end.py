"""python -m bench.end_to_end [--peer trl|none] [--model 31m] [--prompts 4] [--group 8] [--tokens 128]

How long does a complete GRPO step take (generation, rewards, reference and policy pass, update), compared with TRL's
GRPOTrainer? Both sides have the same checkpoint, prompts rendered by the same template, LoRA r=16 on all projections,
beta 0.04, dapo, temperature 1, AdamW, one update per batch, a reward that costs nothing, and completions that all reach
the limit (see models.py: the checkpoint never ends a completion).

TRL generates with transformers and has PEFT's adapter. It uses no gradient checkpointing (its default, which would only
cost time here), takes the batch in one pass, and neither logs nor saves while the clock runs. In bfloat16 it runs
twice: with weights in bfloat16, and with autocast as well (its default); the ratio is to the faster. The sides take
turns: each of TRL's steps is followed by one of ours. TRL's clock goes from its on_step_begin to its on_step_end, ours
over all of train_step. The first step of each side is warm-up. TRL's phases are `_generate`, the rest of
`_generate_and_score_completions` (reference pass and rewards), and the rest of the step.

Checked in the same run: both sides have the same number of tokens; log-probs of our completions under TRL's model at
step 0. The ceiling is the matrix products of the prefill, of all decode steps, of the policy's forward and backward,
and of the reference pass. The last line of stdout is JSON.
"""

import statistics
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from bench import ceilings, models, steps, timing
from bench.record import Record, parse, phases_line
from bench.sampler import peer_logprobs
from bench.workload import completion_lengths, packed_tokens, work_of
from grpo.base.schema import Group
from grpo.train import GrpoTrainer

RANK = 16
BETA = 0.04
LEARNING_RATE = 1e-5
SIZES = {
    "smoke": {"model": "tiny", "tokens": 8},
    "cpu": {"model": "31m", "prompts": 4, "group": 8, "tokens": 128},  # group: completions per prompt
    "cuda": {"model": "1.5b", "tokens": 512},
}


class Ours:
    """Our steps, with their times and the completions of the first."""

    def __init__(self, trainer: GrpoTrainer, device: str):
        self.trainer, self.device = trainer, device
        self.seconds: list[float] = []
        self.metrics: list[dict] = []
        self.first: list[Group] = []

    def step(self) -> None:
        start = timing.now(self.device)
        metrics, groups = steps.run_step(self.trainer)
        self.seconds.append(timing.now(self.device) - start)
        self.metrics.append(metrics)
        self.first = self.first or groups

    def phases(self) -> dict[str, float]:
        """Return the median seconds of each phase."""
        counted = [steps.phases_of(metrics) for metrics in self.metrics[1:]]
        return {phase: statistics.median(step[phase] for step in counted) for phase in counted[0]}


def trl_trainer(
    path: Path,
    folder: Path,
    ours: GrpoTrainer,
    autocast: bool,
    options,
):
    """Make TRL's trainer, with the prompts and the settings of ours."""
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    config = ours.config
    arguments = GRPOConfig(
        output_dir=str(folder / "trl"),
        use_cpu=options.device == "cpu",
        bf16=autocast,
        seed=config.seed,
        max_steps=options.repeats + 1,
        per_device_train_batch_size=config.per_device_train_batch_size,
        num_generations=config.num_generations,
        max_completion_length=config.max_completion_length,
        temperature=1.0,
        top_k=0,
        beta=BETA,
        loss_type="dapo",
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant",
        gradient_checkpointing=False,
        logging_strategy="no",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    lora = LoraConfig(
        r=RANK,
        lora_alpha=2 * RANK,
        lora_dropout=0.0,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )
    questions = [{"prompt": prompt.text} for prompt in ours.rollout.prompts]
    return GRPOTrainer(
        model=models.theirs(path, models.build_of(options)),
        reward_funcs=steps.letters,
        args=arguments,
        train_dataset=Dataset.from_list(questions),
        processing_class=AutoTokenizer.from_pretrained(path),
        peft_config=lora,
    )


class Peer:
    """TRL's steps, each followed by one of ours."""

    def __init__(self, trainer, ours: Ours):
        from transformers import TrainerCallback

        self.trainer, self.ours = trainer, ours
        self.seconds: list[float] = []
        self.our_seconds: list[float] = []  # of the steps in between, turn by turn
        self.phase_seconds: dict[str, list[float]] = {}
        self.tokens: list[int] = []
        for name in ("_generate", "_generate_and_score_completions"):
            self.phase_seconds[name] = []
            setattr(trainer, name, self._timed(name, getattr(trainer, name)))
        peer = self

        class Turns(TrainerCallback):
            def on_step_begin(self, *_, **__) -> None:
                self.start = timing.now(ours.device)

            def on_step_end(self, *_, **__) -> None:
                peer.seconds.append(timing.now(ours.device) - self.start)
                ours.step()

        trainer.add_callback(Turns())

    def run(self) -> None:
        """Make all steps. The first of ours does not count, because the first of TRL's is warm-up."""
        first = len(self.ours.seconds)
        self.trainer.train()
        self.our_seconds = self.ours.seconds[first + 1 :]

    def _timed(self, name: str, method: Callable) -> Callable:
        def call(*arguments):
            start = timing.now(self.ours.device)
            result = method(*arguments)
            self.phase_seconds[name].append(timing.now(self.ours.device) - start)
            if name == "_generate_and_score_completions":
                self.tokens.append(int(result["completion_mask"].sum()))
            return result

        return call

    def phases(self) -> dict[str, float]:
        """Return the median seconds of each phase."""
        generate = self.phase_seconds["_generate"][1:]
        generate_and_score = self.phase_seconds["_generate_and_score_completions"][1:]
        score = [both - part for both, part in zip(generate_and_score, generate, strict=True)]
        train = [step - part for step, part in zip(self.seconds[1:], generate_and_score, strict=True)]
        phases = {"generate": generate, "reference and reward": score, "train": train}
        return {phase: statistics.median(seconds) for phase, seconds in phases.items()}


def logp_difference(peer, groups: list[Group]) -> float:
    """Return the mean difference to the log-probs of TRL's model, whose adapter is still zero, as ours was."""
    total = num_tokens = 0
    for group in groups:
        for completion in group.completions:
            logp_T = peer_logprobs(peer.model, group.prompt.ids, completion).cpu()
            difference_T = logp_T - torch.tensor(completion.logps)
            total += float(difference_T.abs().sum())
            num_tokens += len(logp_T)
    return total / num_tokens


def ceiling_seconds(ours: Ours) -> float:
    """Return the time of the matrix products of our first step alone."""
    model, work = ours.trainer.model, work_of(ours.first)
    packed, scored = packed_tokens(ours.first), sum(work.lengths)
    training = ceilings.training_seconds(model, packed, scored, num_forward=2)
    return ceilings.generation_seconds(model, work) + training


def make_case(name: str, ours: Ours, peers: Mapping[str, Peer]) -> dict:
    """Make the case. No side's first step counts; ratios pair each of TRL's steps with ours right after it."""
    case = {
        "name": name,
        "seconds": {"ours": timing.spread(ours.seconds[1:])},
        "target": 5.0,
        "phases": {"ours": ours.phases()},
    }
    for variant, peer in peers.items():
        case["seconds"][variant] = timing.spread(peer.seconds[1:])
        case["phases"][variant] = peer.phases()
    if peers:
        fastest = timing.fastest_of(peers, case)
        peer = peers[fastest]
        case |= {"peer": fastest, **timing.ratio(peer.our_seconds, peer.seconds[1:])}
    tokens = sum(completion_lengths(ours.first))
    case |= timing.rates(case, tokens, ceiling_seconds(ours))
    for side, phases in case["phases"].items():
        print(f"{side:28} {phases_line(phases)}")
    return case


def variants_of(options) -> dict[str, bool]:
    """Return TRL's variants: name -> whether it uses autocast."""
    if options.peer == "none":
        return {}
    if options.dtype == "float32":
        return {"trl": False}
    return {"trl, bfloat16 weights": False, "trl, autocast": True}


def main(argv: list[str] | None = None) -> dict:
    wanted = {"trl": ("trl", "datasets", "peft", "transformers"), "none": ()}
    options = parse("bench.end_to_end", __doc__, argv, SIZES, wanted, choices={"model": models.SHAPES})
    keys = steps.common_keys(vars(options) | {"beta": BETA, "rank": RANK}, options.device, options.dtype)
    keys |= {"learning_rate": LEARNING_RATE, "lr_scheduler_type": "constant"}
    record = Record("end_to_end", options, ceilings=ceilings.peaks(options))
    peers: dict[str, Peer] = {}
    with (
        models.temporary_model(options.model, options) as path,
        steps.trainer(path, path.parent, **keys) as trainer,
    ):
        ours = Ours(trainer, options.device)
        ours.step()
        for variant, autocast in variants_of(options).items():
            peer = trl_trainer(path, path.parent, trainer, autocast, options)
            record.checks[f"{variant}: mean log-prob difference"] = logp_difference(peer, ours.first)
            peers[variant] = Peer(peer, ours)
            peers[variant].run()
            record.checks[f"{variant}: tokens"] = peers[variant].tokens[-1]
        if not peers:
            for _ in range(options.repeats):
                ours.step()
        name = f"{options.model}, {options.prompts} x {options.group} x {options.tokens} tokens"
        case = make_case(name, ours, peers)
    record.add(case)
    record.checks["ours: tokens"] = case["tokens"]
    record.checks["ours: sampler/logp_diff_mean"] = ours.metrics[-1]["sampler/logp_diff_mean"]
    return record.finish()


if __name__ == "__main__":
    main()

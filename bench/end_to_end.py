"""python -m bench.end_to_end [--peer trl|none] [--model 31m] [--prompts 4] [--group 8] [--tokens 128]

How long does a whole GRPO step take against TRL's GRPOTrainer: generation, rewards, reference and policy pass, update?
Both: the same checkpoint, prompts rendered by the same template, LoRA r=16 on all projections, beta 0.04, dapo,
temperature 1, AdamW, one update per batch, a reward that costs nothing, completions that all reach the limit
(models.py: the checkpoint never ends by itself).

TRL generates with transformers, has PEFT's adapter and no gradient checkpointing (its default, off here as it only
costs time), takes the whole batch in one pass, and neither logs nor saves while the clock runs. In bfloat16 it runs
twice: with weights in bfloat16, and with those under autocast as well (its default); the ratio is against the faster.
The steps take turns: ours runs between two of TRL's, outside of TRL's clock, which goes from its on_step_begin to its
on_step_end; ours is all of Trainer.train_step. The first step of either is warm-up. TRL's phases: `_generate`, the rest
of `_generate_and_score_completions` (reference pass and rewards), and the rest.

Checked in the same run: as many tokens on both sides; log-probs of our completions under TRL's model at step 0.
Ceiling: matrix products of all decode steps, of the policy's forward and backward, and of the reference pass, alone.
The last line of stdout is JSON.
"""

import statistics
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from bench import ceilings, models, sampler, steps, timing
from grpo.schema import Group
from grpo.train import Trainer

RANK, BETA, RATE = 16, 0.04, 1e-5
OUR_PHASES = ("time/generate", "time/reference", "time/reward", "time/train")


class Ours:
    """Our steps, with their times and the completions of the first."""

    def __init__(self, trainer: Trainer, device: str):
        self.trainer, self.device, self.seconds, self.metrics = trainer, device, [], []
        self.first: list[Group] = []

    def step(self) -> None:
        start = timing.now(self.device)
        metrics, groups = self.trainer.train_step()
        self.seconds.append(timing.now(self.device) - start)
        self.metrics.append(metrics)
        self.first = self.first or groups

    def phases(self) -> dict[str, float]:
        return {
            name.partition("/")[2]: statistics.median(metrics[name] for metrics in self.metrics[1:])
            for name in OUR_PHASES
        }

    def tokens(self) -> int:
        return sum(len(completion.ids) for group in self.first for completion in group.completions)


def trl_trainer(path: Path, folder: Path, ours: Trainer, autocast: bool, options):
    """TRL's trainer on the prompts of ours."""
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    c = ours.config
    arguments = GRPOConfig(
        output_dir=str(folder / "trl"),
        use_cpu=options.device == "cpu",
        bf16=autocast,
        seed=c.seed,
        max_steps=options.repeats + 1,
        per_device_train_batch_size=c.per_device_train_batch_size,
        num_generations=c.num_generations,
        max_completion_length=c.max_completion_length,
        temperature=1.0,
        top_k=0,
        beta=BETA,
        loss_type="dapo",
        learning_rate=RATE,
        lr_scheduler_type="constant",
        gradient_checkpointing=False,
        logging_strategy="no",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    lora = LoraConfig(r=RANK, lora_alpha=2 * RANK, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM")
    return GRPOTrainer(
        model=models.theirs(path, getattr(torch, options.dtype), options.device),
        reward_funcs=steps.letters,
        args=arguments,
        train_dataset=Dataset.from_list([{"prompt": prompt.text} for prompt in ours.rollout.prompts]),
        processing_class=AutoTokenizer.from_pretrained(path),
        peft_config=lora,
    )


class Peer:
    """TRL's steps, each followed by one of ours."""

    def __init__(self, trainer, ours: Ours):
        from transformers import TrainerCallback

        self.trainer, self.ours, self.seconds = trainer, ours, []
        self.beside: list[float] = []  # our steps' seconds, turn by turn
        self.laps: dict[str, list[float]] = {"_generate": [], "_generate_and_score_completions": []}
        self.tokens: list[int] = []
        for name in self.laps:
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
        """All steps; the first of either side is not among `beside`."""
        first = len(self.ours.seconds)
        self.trainer.train()
        self.beside = self.ours.seconds[first + 1 :]

    def _timed(self, name: str, method: Callable) -> Callable:
        def call(*arguments):
            start = timing.now(self.ours.device)
            result = method(*arguments)
            self.laps[name].append(timing.now(self.ours.device) - start)
            if name == "_generate_and_score_completions":
                self.tokens.append(int(result["completion_mask"].sum()))
            return result

        return call

    def phases(self) -> dict[str, float]:
        generate, both = (self.laps[name][1:] for name in ("_generate", "_generate_and_score_completions"))
        return {
            "generate": statistics.median(generate),
            "reference and reward": statistics.median(b - g for b, g in zip(both, generate, strict=True)),
            "train": statistics.median(whole - b for whole, b in zip(self.seconds[1:], both, strict=True)),
        }


def logp_difference(peer, groups: list[Group], device: str) -> float:
    """Mean |log-prob while we sampled - log-prob under TRL's model|; its adapter is still zero, as ours was."""
    differences = []
    for group in groups:
        for completion in group.completions:
            ids = torch.tensor([*group.prompt.ids, *completion.ids], device=device)
            with torch.no_grad():
                logits = peer.model(ids[None, :-1]).logits[0, len(group.prompt.ids) - 1 :].float()
            logps = logits.log_softmax(-1).gather(1, ids[len(group.prompt.ids) :, None])[:, 0].tolist()
            differences += [abs(a - b) for a, b in zip(logps, completion.logps, strict=True)]
    return statistics.mean(differences)


def ceiling_seconds(ours: Ours, dtype: torch.dtype, device: str) -> float:
    config, groups = ours.trainer.model.config, ours.first
    lengths = [len(completion.ids) for group in groups for completion in group.completions]
    work = sampler.Work([group.prompt.ids for group in groups], len(groups[0].completions), lengths)
    packed = sum(len(group.prompt.ids) + sum(len(m.ids) - 1 for m in group.completions) for group in groups)
    forward = ceilings.products(config, packed, sum(lengths))
    passes = ceilings.products_seconds([*forward, *forward, *ceilings.backward(forward)], dtype, device, 3)
    return sampler.ceiling_seconds(config, work, dtype, device) + passes


def show_phases(name: str, seconds: float, phases: Mapping[str, float], tokens: int) -> None:
    parts = [
        f"{phase} {spent:.3f} s" + (f" ({tokens / spent:.0f} tokens/s)" if spent > 1e-3 else "")
        for phase, spent in phases.items()
    ]
    print(f"{name:28} {seconds:.3f} s, {tokens / seconds:.0f} tokens/s:   {'   '.join(parts)}", flush=True)


def main(argv: list[str] | None = None) -> dict:
    arguments = timing.parser("bench.end_to_end", __doc__, ("trl", "none"))
    arguments.add_argument("--model", choices=models.SHAPES, help="default: 31m; on a GPU 1.5b")
    arguments.add_argument("--prompts", type=int, default=4)
    arguments.add_argument("--group", type=int, default=8, help="completions per prompt")
    arguments.add_argument("--tokens", type=int, help="of each completion; default 128, on a GPU 512")
    options = timing.parse(arguments, argv)
    name = options.model or models.default_sizes(options, ("31m",), ("1.5b",))[0]
    tokens = options.tokens or (8 if options.smoke else 512 if options.device == "cuda" else 128)
    peak, dtype, checks, peers = ceilings.peaks(options.device, options.smoke), getattr(torch, options.dtype), {}, {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        path = models.write_model(name, folder, dtype, options.device)
        keys = {
            "num_generations": options.group,
            "per_device_train_batch_size": options.prompts * options.group,
            "max_completion_length": tokens,
            "beta": BETA,
            "lora_r": RANK,
            "lora_alpha": 2 * RANK,
            "learning_rate": RATE,
            "lr_scheduler_type": "constant",
            "torch_dtype": options.dtype,
            "device": options.device,
        }
        with steps.trainer(path, folder, **keys) as trainer:
            ours = Ours(trainer, options.device)
            ours.step()
            variants = (
                ()
                if options.peer == "none"
                else ("trl",)
                if dtype == torch.float32
                else ("trl, bfloat16 weights", "trl, autocast")
            )
            for variant in variants:
                peer = trl_trainer(path, folder, trainer, variant == "trl, autocast", options)
                checks[f"{variant}: mean log-prob difference"] = logp_difference(peer, ours.first, options.device)
                peers[variant] = Peer(peer, ours)
                peers[variant].run()
            if not variants:
                for _ in range(options.repeats):
                    ours.step()
            case, checks = summary(
                ours, peers, dtype, options, checks, f"{name}, {options.prompts} x {options.group} x {tokens} tokens"
            )
    return timing.finish("end_to_end", options, [case], checks, ceilings=peak)


def summary(
    ours: Ours, peers: Mapping[str, Peer], dtype: torch.dtype, options, checks: dict, name: str
) -> tuple[dict, dict]:
    """The case: all our steps but the first, TRL's without theirs; ratios pair each of TRL's steps with ours right
    after it."""
    case = {
        "name": name,
        "seconds": {"ours": timing.spread(ours.seconds[1:])},
        "target": 5.0,
        "tokens": ours.tokens(),
        "phases": {"ours": ours.phases()},
    }
    for variant, peer in peers.items():
        case["seconds"][variant] = timing.spread(peer.seconds[1:])
        case["phases"][variant] = peer.phases()
        checks[f"{variant}: tokens"] = peer.tokens[-1]
    if peers:
        fastest = min(peers, key=lambda variant: statistics.median(peers[variant].seconds[1:]))
        case |= {"peer": fastest, **timing.ratio(peers[fastest].beside, peers[fastest].seconds[1:])}
    seconds = case["seconds"]["ours"]["median"]
    case |= {
        "tokens_per_s": case["tokens"] / seconds,
        "ceiling_share": ceiling_seconds(ours, dtype, options.device) / seconds,
    }
    for side, phases in case["phases"].items():
        show_phases(side, case["seconds"][side]["median"], phases, case["tokens"])
    timing.show(case)
    return case, {
        "ours: tokens": case["tokens"],
        "ours: sampler/logp_diff_mean": ours.metrics[-1]["sampler/logp_diff_mean"],
        **checks,
    }


if __name__ == "__main__":
    main()

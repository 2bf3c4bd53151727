"""Everything that can fail later, checked now: nothing is trained, nothing is written.

python -m grpo.doctor CONFIG [key=value ...] [--json] [--memory-gb N]

Checks configuration, machine, output directory, checkpoint (its files' headers), tokenizer, data, rewards (with their
services and knowledge base) and memory; `--memory-gb` counts for a GPU of that size instead of this machine's memory.
One line each; the exit code is that of the first failure.
"""

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from safetensors import safe_open

from grpo.data.prompts import eos_ids, load_tokenizer
from grpo.data.questions import load_prompts
from grpo.device import ops
from grpo.errors import CONFIG, PREFLIGHT, STORAGE, UserError, describe, escape, redact, run_main
from grpo.model.decoder import Decoder
from grpo.model.lora import Build
from grpo.model.policy import Policy, check_vocabulary, choose_dtype, find_parts, lora_spec
from grpo.model.weights import read_config, tensor_slots
from grpo.run import memory
from grpo.run.config import load_config
from grpo.run.distributed import choose_device
from grpo.run.options import SftConfig, TrainConfig
from rewards.registry import build_rewards

CHECKPOINT_COPIES = 3  # of every trained master: itself and AdamW's two moments


@dataclass
class Finding:
    """One check: what it is about, whether it passed, and what was found or how to mend it."""

    name: str
    ok: bool
    text: str
    exit_code: int = 0


class Doctor:
    """The checks of a stage 2 config, in order; each may use what earlier ones found."""

    def __init__(self, config: TrainConfig, memory_gb: float | None):
        self.config, self.memory_gb = config, memory_gb
        self.device = torch.device("cuda") if memory_gb else choose_device(config.device)
        self.start = config  # where model and tokenizer come from: stage 1's config if that has to run first
        self.policy: Policy | None = None
        self.longest = 0

    def checks(self) -> Iterator[tuple[str, Callable[[], str]]]:
        yield "machine", self.machine
        yield "output", self.output
        if self.config.cold_start:
            yield "stage 1", self.cold_start
        if self.config.toy_world:
            return  # model, data and knowledge base are made by the run itself
        yield "model", self.model
        yield "data", self.data
        yield "rewards", self.rewards
        yield "memory", self.memory

    def machine(self) -> str:
        found = (
            ops.describe(self.device)
            if self.device.type == "cuda" and not self.memory_gb
            else f"{torch.get_num_threads()} CPU threads"
        )
        return f"Python {sys.version.split()[0]}, torch {torch.__version__}, {found}"

    def output(self) -> str:
        path = Path(self.config.output_dir)
        if (
            path.is_dir()
            and any(path.iterdir())
            and not (self.config.resume_from_checkpoint or self.config.overwrite_output_dir)
        ):
            raise UserError(
                f"{path} is not empty",
                "it holds another run",
                "set resume_from_checkpoint=true, overwrite_output_dir=true or another output_dir",
            )
        existing = next(parent for parent in (path, *path.resolve().parents) if parent.exists())
        return f"{path}: {shutil.disk_usage(existing).free / 1e9:.1f} GB free"

    def cold_start(self) -> str:
        stage1, _ = load_config(
            self.config.cold_start, [f"toy_dir={self.config.toy_dir}"] if self.config.toy_world else [], SftConfig
        )
        final = Path(stage1.output_dir) / "final"
        if final.exists():
            self.start = replace(self.config, model_name_or_path=str(final))
            return f"done: {final}"
        self.start = stage1
        return f"{self.config.cold_start} runs first, into {stage1.output_dir}"

    def model(self) -> str:
        folder, _, _ = find_parts(
            self.start.model_name_or_path, self.start.model_revision, self.start.adapter_name_or_path
        )
        lora = lora_spec(self.config)
        model = Decoder(
            read_config(folder), Build(lora, lora is None, choose_dtype(self.config.torch_dtype, self.device), "meta")
        )
        problems = list(misfits(model, folder))
        if problems:
            raise UserError(
                f"the weights in {folder} do not fit its config.json",
                "; ".join(problems[:8]),
                "download the checkpoint again",
                PREFLIGHT,
            )
        source = self.start.tokenizer_name_or_path or folder
        tokenizer = load_tokenizer(Path(source), self.config.chat_template)
        check_vocabulary(tokenizer, model)
        self.policy = Policy(model, tokenizer, eos_ids(folder, tokenizer), None, str(folder))
        state = CHECKPOINT_COPIES * sum(master.nbytes for master in model.parameters())
        free = shutil.disk_usage(next(p for p in Path(self.config.output_dir).resolve().parents if p.exists())).free
        copies = (self.config.save_total_limit or 1) + 1
        if free < copies * state:
            raise UserError(
                "the disk is too small for the checkpoints",
                f"{copies} of {state / 1e9:.2f} GB, {free / 1e9:.2f} GB free",
                "lower save_total_limit, or set output_dir to another disk",
                STORAGE,
            )
        weights = sum(tensor.numel() for tensor in tensor_slots(model).values())
        return f"{model.config.family}, {weights / 1e9:.3f}B weights; a checkpoint takes {state / 1e9:.2f} GB"

    def data(self) -> str:
        self._needs_policy()
        notes: list[str] = []
        self.made = build_rewards(self.config.reward_funcs, asdict(self.config))
        prompts, _ = load_prompts(
            self.config, self.policy, self.made, self.config.dataset_id_or_path, self.config.max_samples, notes.append
        )
        self.prompts = prompts
        self.longest = max(len(prompt.ids) for prompt in prompts) + self.config.max_completion_length
        lengths = sorted(len(prompt.ids) for prompt in prompts)
        return "; ".join(
            [
                f"{len(prompts)} prompts of {lengths[0]} to {lengths[-1]} tokens, half of them up to {lengths[len(lengths) // 2]}",
                *notes,
            ]
        )

    def rewards(self) -> str:
        self._needs_policy()
        notes: list[str] = []
        rows = [prompt.columns for prompt in self.prompts]
        for reward in self.made:
            if reward.prepare:
                reward.prepare(rows, notes.append)
            if reward.close:
                reward.close()
        return "; ".join([", ".join(reward.name for reward in self.made), *notes])

    def memory(self) -> str:
        self._needs_policy()
        model, c = self.policy.model, self.config
        reference = (
            Decoder(model.config, Build(None, False, model.build.dtype, "meta")) if c.beta and not c.lora_r else None
        )
        size = int(self.memory_gb * 1e9) if self.memory_gb else memory.free_bytes(self.device)
        nothing = memory.account(model, 0, 0, memory.Budget(0, "none", 0), reference)
        wanted = c.max_num_seqs or c.per_device_train_batch_size * c.gradient_accumulation_steps
        sequences = memory.choose_num_sequences(model, wanted, self.longest, size - nothing.total)
        free = size - memory.account(model, sequences, self.longest, memory.Budget(0, "none", 0), reference).total
        budget = memory.choose_budget(
            model, self.longest, free, c.max_tokens_per_micro_batch, c.gradient_checkpointing, self.device.type
        )
        needed = memory.account(model, sequences, self.longest, budget, reference)
        plan = f"{needed} of {size / 1e9:.1f} GB: {sequences} sequences at once, micro-batches of {budget.tokens} tokens, recomputing {budget.recompute}"
        if needed.total > size:
            raise UserError(
                "the run does not fit into memory",
                plan,
                "lower max_completion_length, max_num_seqs or lora_r",
                PREFLIGHT,
            )
        return plan

    def _needs_policy(self) -> None:
        if self.policy is None:
            raise UserError("not checked", "the model could not be", "mend that first", PREFLIGHT)


def misfits(model: Decoder, folder: Path) -> Iterator[str]:
    """What differs between the files' headers and the model's tensors."""
    slots, seen = tensor_slots(model), set()
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            for name in file.keys():
                seen.add(name)
                if name in slots and tuple(slots[name].shape) != tuple(file.get_slice(name).get_shape()):
                    yield f"{name} has shape {tuple(file.get_slice(name).get_shape())}, wanted {tuple(slots[name].shape)}"
    yield from (f"missing {name}" for name in slots if name not in seen)


def examine(config: TrainConfig, memory_gb: float | None = None) -> Iterator[Finding]:
    """The findings, each as soon as it is there."""
    for name, check in Doctor(config, memory_gb).checks():
        try:
            yield Finding(name, True, check())
        except Exception as error:  # whatever a check meets is its finding
            code, text = describe(error)
            yield Finding(name, False, text, code)


def main(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help"):
        print(__doc__.strip())
        return 0 if argv else CONFIG
    as_json = "--json" in argv
    argv = [word for word in argv if word != "--json"]
    memory_gb = None
    if "--memory-gb" in argv:
        place = argv.index("--memory-gb")
        try:
            memory_gb = float(argv[place + 1])
        except (IndexError, ValueError):
            raise UserError("--memory-gb needs a number", "", "such as --memory-gb 80") from None
        del argv[place : place + 2]
    config, notices = load_config(argv[0], argv[1:])
    findings = [Finding("config", True, "; ".join([f"{argv[0]} is complete", *notices]))]
    for finding in examine(config, memory_gb):
        findings.append(finding)
    for finding in findings if not as_json else ():
        print(
            escape(
                redact(
                    f"{'ok  ' if finding.ok else 'FAIL'}  {finding.name:8} {finding.text}".replace(
                        "\n", "\n               "
                    )
                )
            )
        )
    if as_json:
        print(redact(json.dumps([asdict(finding) for finding in findings])))
    return next((finding.exit_code for finding in findings if not finding.ok), 0)


if __name__ == "__main__":
    run_main(main)

"""Check everything that can fail later in a run, without training or writing anything.

  python -m grpo.doctor CONFIG [key=value ...] [--json] [--memory-gb N]

Checks the configuration, the machine, the output directory, the checkpoint (the headers of its files), the tokenizer,
the data, the rewards with their services and knowledge base, and memory. Prints one line per check. The exit code is
that of the first failure.
"""

import argparse
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from safetensors import safe_open

from grpo.config.entries import split_arguments
from grpo.config.load import load_config
from grpo.config.options import TrainConfig
from grpo.data.prompts import eos_ids, turn_end
from grpo.data.questions import Questions, load_prompts
from grpo.device import ops
from grpo.device.distributed import choose_device
from grpo.errors import PREFLIGHT, STORAGE, UserError, describe, escape, redact, run_main
from grpo.model.decoder import Decoder
from grpo.model.lora import Build
from grpo.model.policy import Policy, check_vocabulary, choose_dtype, find_parts, load_encoder, lora_spec
from grpo.model.weights import read_config, tensor_slots
from grpo.progress import say_next
from grpo.run import memory
from grpo.run.run_dir import holds_a_run
from grpo.run.trackers import check_trackers
from grpo.sft import is_done, load_stage1
from rewards.registry import build_rewards

CHECKPOINT_COPIES = 3  # of every trained weight: itself and AdamW's two moments; an adapter is written once more
MAX_MISFITS = 8  # tensors to name in a message


@dataclass
class Finding:
    """The result of one check: what it found, or else what is wrong and how to correct it."""

    name: str
    ok: bool
    text: str
    exit_code: int = 0

    def line(self) -> str:
        status = "ok  " if self.ok else "FAIL"
        indented = self.text.replace("\n", "\n" + " " * 15)
        return escape(redact(f"{status}  {self.name:8} {indented}"))


class Doctor:
    """The checks of a stage 2 configuration, in order. Each may use what earlier ones found."""

    def __init__(self, config: TrainConfig, memory_gb: float | None):
        self.config, self.memory_gb = config, memory_gb
        self.device = torch.device("cuda") if memory_gb else choose_device(config.device)
        self.start = config  # names model and tokenizer: stage 1's config if stage 1 has to run first
        self.policy: Policy | None = None
        self.longest = 0  # tokens of the longest prompt with its completion

    def checks(self) -> Iterator[tuple[str, Callable[[], str]]]:
        yield "machine", self.machine
        yield "output", self.output
        yield "trackers", lambda: check_trackers(self.config)
        if self.config.cold_start:
            yield "stage 1", self.cold_start
        if self.config.toy_world:
            return  # the run itself makes model, data and knowledge base
        yield "model", self.model
        yield "data", self.data
        yield "rewards", self.rewards
        yield "memory", self.memory

    def machine(self) -> str:
        if self.device.type == "cuda" and not self.memory_gb:
            device = ops.describe(self.device)
        else:
            device = f"{torch.get_num_threads()} CPU threads"
        return f"Python {sys.version.split()[0]}, torch {torch.__version__}, {device}"

    def output(self) -> str:
        config, path = self.config, Path(self.config.output_dir)
        may_hold_a_run = config.resume_from_checkpoint or config.overwrite_output_dir
        if holds_a_run(path) and not may_hold_a_run:
            raise UserError(
                f"{path} is not empty",
                "it holds another run",
                "set resume_from_checkpoint=true, overwrite_output_dir=true or another output_dir",
            )
        return f"{path}: {self._free_disk() / 1e9:.1f} GB free"

    def cold_start(self) -> str:
        config = self.config
        stage1, _ = load_stage1(config)
        if is_done(stage1, config.cold_start):
            final = Path(stage1.output_dir) / "final"
            self.start = replace(config, model_name_or_path=str(final), adapter_name_or_path=None)
            return f"done: {final}"
        self.start = stage1
        return f"{config.cold_start} runs first, from {stage1.model_name_or_path or 'scratch'} into {stage1.output_dir}"

    def model(self) -> str:
        config, start = self.config, self.start
        template = config.chat_template or start.chat_template
        start = replace(start, chat_template=template, chat_template_kwargs=config.chat_template_kwargs)
        parts = find_parts(start)
        folder = parts.model
        lora, dtype = lora_spec(config), choose_dtype(config.torch_dtype, self.device)
        model = Decoder(read_config(folder), Build(lora, lora is None, dtype, "meta"))
        problems = list(misfits(model, folder))
        if problems:
            raise UserError(
                f"the weights in {folder} do not fit its config.json",
                "; ".join(problems[:MAX_MISFITS]),
                "download the checkpoint again",
                PREFLIGHT,
            )
        tokenizer = load_encoder(start).tokenizer
        check_vocabulary(tokenizer, model)
        self.policy = Policy(model, tokenizer, eos_ids(folder, tokenizer), None, str(folder))
        checkpoint_bytes = self._check_disk(model, parts.adapter)
        num_weights = sum(tensor.numel() for tensor in tensor_slots(model).values())
        num_trained = sum(parameter.numel() for parameter in model.parameters())
        share = num_trained / (num_weights + num_trained) if lora else 1.0
        return (
            f"{model.config.family}, {num_weights / 1e9:.3f}B weights, {num_trained / 1e6:.1f}M trained ({share:.2%}); "
            f"an answer ends with {self._ends()}; a checkpoint takes {checkpoint_bytes / 1e9:.2f} GB"
        )

    def _ends(self) -> str:
        """Name the tokens that end an answer, the chat template's first."""
        policy = self.policy
        first = turn_end(policy.tokenizer)
        tokens = sorted(policy.eos_ids, key=lambda token: token != first)
        return " or ".join(map(str, policy.tokenizer.convert_ids_to_tokens(tokens)))

    def _check_disk(self, model: Decoder, start: Path | None) -> int:
        """Check that the checkpoints fit on the disk; return the bytes of one.

        start: the adapter to start from; every checkpoint holds it as well, stacked on the new one.
        """
        trained = sum(master.nbytes for master in model.parameters())
        one = CHECKPOINT_COPIES * trained
        if model.build.lora is not None:
            one += trained + (sum(path.stat().st_size for path in start.glob("*.safetensors")) if start else 0)
        number = (self.config.save_total_limit or 1) + 1  # the new one is complete before an old one is removed
        free = self._free_disk()
        if free < number * one:
            raise UserError(
                "the disk is too small for the checkpoints",
                f"{number} of {one / 1e9:.2f} GB, {free / 1e9:.2f} GB free",
                "lower save_total_limit, or set output_dir to another disk",
                STORAGE,
            )
        return one

    def _free_disk(self) -> int:
        path = Path(self.config.output_dir).resolve()
        existing = next(folder for folder in (path, *path.parents) if folder.exists())
        return shutil.disk_usage(existing).free

    def data(self) -> str:
        self._need_policy()
        config = self.config
        notes: list[str] = []
        self.built_rewards = build_rewards(config.reward_funcs, asdict(config))
        self.prompts, _ = load_prompts(
            config, self.policy, self.built_rewards, Questions.to_train(config), notes.append
        )
        lengths = sorted(len(prompt.ids) for prompt in self.prompts)
        median = lengths[len(lengths) // 2]
        self.longest = lengths[-1] + config.max_completion_length
        found = f"{len(lengths)} prompts of {lengths[0]} to {lengths[-1]} tokens, half of them up to {median}"
        return "; ".join([found, *notes])

    def rewards(self) -> str:
        self._need_policy()
        notes: list[str] = []
        rows = [prompt.columns for prompt in self.prompts]
        for reward in self.built_rewards:
            if reward.prepare:
                reward.prepare(rows, notes.append)
            if reward.close:
                reward.close()
        names = ", ".join(reward.name for reward in self.built_rewards)
        return "; ".join([names, *notes])

    def memory(self) -> str:
        """Plan memory as the run does: weights first, then the cache, then micro-batches in what is left."""
        self._need_policy()
        model, config = self.policy.model, self.config
        reference = None
        if config.beta and not config.lora_r:
            reference = Decoder(model.config, Build(None, False, model.build.dtype, "meta"))
        size = int(self.memory_gb * 1e9) if self.memory_gb else memory.free_bytes(self.device)
        no_batch = memory.Budget(0, "none", 0)
        weights = memory.account(model, 0, 0, no_batch, reference).total
        wanted = config.max_num_seqs or config.per_device_train_batch_size * config.gradient_accumulation_steps
        num_sequences = memory.choose_num_sequences(model, wanted, self.longest, size - weights)
        with_cache = memory.account(model, num_sequences, self.longest, no_batch, reference).total
        budget = memory.choose_budget(
            model,
            self.longest,
            size - with_cache,
            config.max_tokens_per_micro_batch,
            config.gradient_checkpointing,
            self.device.type,
        )
        needed = memory.account(model, num_sequences, self.longest, budget, reference)
        plan = (
            f"{needed} of {size / 1e9:.1f} GB: {num_sequences} sequences at once, "
            f"micro-batches of {budget.tokens} tokens, recomputing {budget.recompute}"
        )
        if needed.total > size:
            raise UserError(
                "the run does not fit into memory",
                plan,
                "lower max_completion_length, max_num_seqs or lora_r",
                PREFLIGHT,
            )
        return plan

    def _need_policy(self) -> None:
        if self.policy is None:
            raise UserError("not checked", "the model could not be", "correct that first", PREFLIGHT)


def misfits(model: Decoder, folder: Path) -> Iterator[str]:
    """Yield each difference between the headers of a checkpoint's files and the tensors of the model."""
    wanted = {name: tuple(tensor.shape) for name, tensor in tensor_slots(model).items()}
    found = set()
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            for name in file.keys():
                found.add(name)
                shape = tuple(file.get_slice(name).get_shape())
                if name in wanted and shape != wanted[name]:
                    yield f"{name} has shape {shape}, wanted {wanted[name]}"
    for name in wanted:
        if name not in found:
            yield f"missing {name}"


def examine(config: TrainConfig, memory_gb: float | None = None) -> Iterator[Finding]:
    """Run the checks and yield each finding."""
    for name, check in Doctor(config, memory_gb).checks():
        try:
            yield Finding(name, True, check())
        except Exception as error:  # whatever a check raises is its finding
            code, text = describe(error)
            yield Finding(name, False, text, code)


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m grpo.doctor",
        usage="%(prog)s CONFIG [key=value ...] [--json] [--memory-gb N]",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--json", action="store_true", help="print all findings as JSON")
    parser.add_argument("--memory-gb", type=float, metavar="N", help="count memory for a GPU of N GB")
    return parser


def main(argv: list[str]) -> int:
    arguments, rest = make_parser().parse_known_args(argv)
    path, overrides = split_arguments(rest)
    config, notices = load_config(path, overrides)
    findings = [Finding("config", True, "; ".join([f"{path} is complete", *notices]))]
    findings += examine(config, arguments.memory_gb)
    if arguments.json:
        print(redact(json.dumps([asdict(finding) for finding in findings])))
    else:
        for finding in findings:
            print(finding.line())
        if all(finding.ok for finding in findings):
            say_next("the config is ready", ["grpo.train", *rest], ["grpo.train", "--help"])
    return next((finding.exit_code for finding in findings if not finding.ok), 0)


if __name__ == "__main__":
    run_main(main)

"""One invocation of stage 1 or 2: its output directory, signals, checkpoints and end, whatever the end is."""

import logging
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml

from grpo import checkpoint
from grpo.config import AnyConfig, load_config, to_yaml
from grpo.distributed import Ranks, choose_device
from grpo.errors import CONFIG, SIGINT, SIGTERM, Interrupted, UserError, describe
from grpo.log import Log, escape
from grpo.optim import Optimizer
from grpo.policy import Policy
from grpo.run_dir import RunDir, open_debug_log, write_atomically
from grpo.schema import Group

# What a resumed run may change: these freely, the next ones with a notice, anything else not at all.
FREE = {"output_dir", "overwrite_output_dir", "resume_from_checkpoint", "max_steps", "num_train_epochs", "logging_steps", "save_steps",
        "save_total_limit", "report_to", "run_name", "disable_tqdm", "log_completions", "num_completions_to_print", "eval_steps",
        "eval_max_samples", "eval_dataset_id_or_path", "max_num_seqs", "max_tokens_per_micro_batch", "gradient_checkpointing", "device", "cold_start"}
WARNED = {"learning_rate", "beta", "epsilon", "epsilon_high", "delta", "warmup_ratio", "warmup_steps", "lr_scheduler_type", "weight_decay",
          "max_grad_norm", "tf32", "full_determinism"}


class Run:
    """Holds the output directory while in use; on leaving, records how it ended.

    notices: lines to show at the start. `stop_code` is 0, or the exit code that a signal asks for.
    """

    def __init__(self, config: AnyConfig, notices: Sequence[str] = (), ranks: Ranks | None = None):
        self.config, self.notices = config, notices
        self.path = Path(config.output_dir)
        self.device = choose_device(config.device)
        self.ranks, self.owns_ranks = ranks, ranks is None
        self.dir: RunDir | None = None
        self.log: Log | None = None
        self.stop_code = 0
        self.debug = logging.getLogger(f"grpo.{id(self)}")

    def __enter__(self) -> "Run":
        self.ranks = self.ranks or Ranks(self.device)
        if self.ranks.is_main:
            self.dir = RunDir(self.path, bool(self.config.resume_from_checkpoint), self.config.overwrite_output_dir)
            open_debug_log(self.debug, self.path / "debug.log")
            checkpoint.clean(self.path, keep=0)
        self.ranks.barrier()
        self._handlers = {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = self.config.tf32
        torch.use_deterministic_algorithms(self.config.full_determinism, warn_only=True)
        torch.manual_seed(self.config.seed)
        for notice in self.notices:
            self.say(f"note: {notice}")
        return self

    def __exit__(self, kind, error, trace) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        code, reason = (0, "") if error is None else describe(error)
        if error is not None:
            self.debug.error("".join(traceback.format_exception(error)))
        if self.log is not None:
            self.log.close()
        if self.dir is not None:
            self.dir.close(code, reason)
        if self.owns_ranks:
            self.ranks.close()

    def _on_signal(self, number: int, frame: Any) -> None:
        if self.stop_code == SIGINT and number == signal.SIGINT:
            raise KeyboardInterrupt                                # a second Ctrl-C does not wait
        self.stop_code = SIGINT if number == signal.SIGINT else SIGTERM

    def say(self, text: str) -> None:
        """A line for the user, from rank 0."""
        if self.ranks.is_main:
            self.debug.info(text)
            if self.log is not None:
                self.log.say(text)
            else:
                print(escape(text), file=sys.stderr)

    def start_log(self, total_steps: int, first_step: int) -> None:
        if self.ranks.is_main:
            c = self.config
            write_atomically(self.path / "config.resolved.yaml", to_yaml(c))
            self.log = Log(self.path, to_yaml(c), total_steps, first_step, c.report_to, c.run_name, not c.disable_tqdm)

    def report(self, step: int, metrics: Mapping[str, float], groups: Sequence[Group] = ()) -> None:
        """Metrics and completions of a step to wherever they go; the progress bar moves with a step's own metrics."""
        if self.log is None:
            return
        if "step_time" in metrics:
            self.log.advance(metrics)
            self.dir.update(step=step)
        if "step_time" not in metrics or step % self.config.logging_steps == 0:
            self.log.write(step, metrics)
            if groups and self.config.log_completions:
                self.log.write_completions(step, groups, self.config.num_completions_to_print)

    def save_final(self, policy: Policy) -> None:
        """final/: the adapter (or checkpoint) and the tokenizer. It appears whole."""
        if self.ranks.is_main:
            aside = self.path / "final.tmp"
            shutil.rmtree(aside, ignore_errors=True)
            policy.save(aside)
            shutil.rmtree(self.path / "final", ignore_errors=True)
            aside.rename(self.path / "final")
        self.ranks.barrier()

    def stop_if_asked(self, save: Callable[[], None]) -> None:
        """At a step boundary: if any rank has got a signal, all save and end."""
        code = int(self.ranks.max(self.stop_code))
        if code:
            save()
            raise Interrupted(code)

    def save_checkpoint(self, step: int, policy: Policy, optimizer: Optimizer, counters: dict[str, Any]) -> None:
        """checkpoint-N, by rank 0; then retention."""
        if self.ranks.is_main and not (self.path / f"checkpoint-{step}").exists():
            with checkpoint.CheckpointWriter(self.path, step) as folder:
                checkpoint.write_state(folder, optimizer.state(), {"step": step, **counters})
                (folder / "config.resolved.yaml").write_text(to_yaml(self.config), encoding="utf-8")
                if policy.model.build.lora is not None:
                    policy.save(folder)
            checkpoint.clean(self.path, self.config.save_total_limit)
            self.dir.update(step=step, last_checkpoint=f"checkpoint-{step}")
        self.ranks.barrier()

    def restore(self, policy: Policy, optimizer: Optimizer) -> dict[str, Any]:
        """The counters of the checkpoint to resume from, after putting its state back; {} to start from the beginning."""
        if not self.config.resume_from_checkpoint:
            return {}
        folder, notices = checkpoint.find_checkpoint(self.path, self.config.resume_from_checkpoint)
        for notice in notices:
            self.say(f"note: {notice}")
        if folder is None:
            return {}
        self._check_changes(folder)
        tensors, counters = checkpoint.read_state(folder)
        optimizer.load_state(tensors)
        policy.model.refresh()
        self.say(f"resuming from {folder} at step {counters['step']}")
        return counters

    def _check_changes(self, folder: Path) -> None:
        saved, _ = load_config(folder / "config.resolved.yaml", kind=type(self.config))
        before, now = (yaml.safe_load(to_yaml(c)) for c in (saved, self.config))
        changed = {name: (before.get(name), now.get(name)) for name in {*before, *now} if before.get(name) != now.get(name)}
        for name in sorted(changed.keys() & WARNED):
            self.say(f"note: {name} was {changed[name][0]}, is now {changed[name][1]}")
        frozen = sorted(changed.keys() - FREE - WARNED)
        if frozen:
            raise UserError(f"the run in {self.path} was made with another configuration", "; ".join(f"{n}: {changed[n][0]} -> {changed[n][1]}" for n in frozen),
                            "set these back, or start anew in another output_dir", CONFIG)

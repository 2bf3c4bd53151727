"""One invocation of stage 1 or 2: its output directory, signals, checkpoints and end, whatever the end is."""

import hashlib
import json
import logging
import os
import random
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from grpo.attention import select
from grpo.config.load import AnyConfig, load_config, to_yaml
from grpo.device.distributed import TIMEOUT, Ranks, choose_device
from grpo.errors import CONFIG, SIGINT, SIGTERM, STORAGE, Interrupted, UserError, describe, escape, redact
from grpo.model.policy import Policy
from grpo.optim import Optimizer
from grpo.run import checkpoint
from grpo.run.log import Log
from grpo.run.run_dir import RunDir, close_debug_log, open_debug_log
from grpo.schema import Group
from grpo.storage import failpoint, write_atomically

# What a resumed run may change: these freely, the next ones with a notice, anything else not at all.
FREE = {
    "output_dir",
    "overwrite_output_dir",
    "resume_from_checkpoint",
    "max_steps",
    "num_train_epochs",
    "logging_steps",
    "save_steps",
    "save_total_limit",
    "report_to",
    "run_name",
    "disable_tqdm",
    "log_completions",
    "num_completions_to_print",
    "eval_steps",
    "eval_max_samples",
    "eval_dataset_id_or_path",
    "max_num_seqs",
    "max_tokens_per_micro_batch",
    "gradient_checkpointing",
    "device",
    "cold_start",
    *(f"{name}_{key}" for name in ("judge", "decomposer") for key in ("base_url", "api_key_env", "prices")),
    "api_max_concurrency",
    "api_deadline_s",
    "api_requests_per_minute",
    "api_tokens_per_minute",
    "api_cache",
    "verdict_cache",
    "max_unscored",
}
WARNED = {
    "learning_rate",
    "beta",
    "epsilon",
    "epsilon_high",
    "delta",
    "warmup_ratio",
    "warmup_steps",
    "lr_scheduler_type",
    "weight_decay",
    "max_grad_norm",
    "tf32",
    "full_determinism",
    "kernels",
}
GRACE_S = 20.0  # after a signal a step has so long to end; then its rollout is dropped


class Run:
    """Holds the output directory while in use; on leaving, records how it ended.

    notices: lines to show at the start. `stop_code` is 0, or the exit code that a signal asks for. A signal ends the
    run at once before the first step and after the last checkpoint; else at the end of the step, or where
    `interruptible` allows it after GRACE_S.
    """

    def __init__(self, config: AnyConfig, notices: Sequence[str] = (), ranks: Ranks | None = None):
        self.config, self.notices = config, notices
        self.path = Path(config.output_dir)
        self.device = choose_device(config.device)
        self.ranks, self.owns_ranks = ranks, ranks is None
        self.dir: RunDir | None = None
        self.log: Log | None = None
        self.stop_code, self.is_training, self.is_interruptible = 0, False, False
        self.saved_step: int | None = None
        self.debug = logging.getLogger(f"grpo.{id(self)}")

    def __enter__(self) -> "Run":
        if getattr(self.config, "api_deadline_s", 0) >= TIMEOUT.total_seconds():
            raise UserError(
                f"api_deadline_s is {self.config.api_deadline_s:g}",
                f"after {TIMEOUT.total_seconds():g} s the other processes give a silent one up",
                "lower api_deadline_s",
                CONFIG,
            )
        self.ranks = self.ranks or Ranks(self.device)
        if self.ranks.is_main:
            self.dir = RunDir(self.path, bool(self.config.resume_from_checkpoint), self.config.overwrite_output_dir)
            open_debug_log(self.debug, self.path / "debug.log")
            checkpoint.clean(self.path, keep=0)
        self.ranks.barrier()
        self._handlers = {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        self._handlers[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._on_alarm)
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = self.config.tf32
        if self.config.full_determinism:
            os.environ.setdefault(
                "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
            )  # what cuBLAS needs for it, before its first product
        torch.use_deterministic_algorithms(self.config.full_determinism, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = (
            False  # of new tensors: a help in debugging, at the price of time
        )
        select.configure(self.config.kernels == "auto", self.config.full_determinism)
        random.seed(self.config.seed)
        np.random.seed(self.config.seed % 2**32)
        torch.manual_seed(self.config.seed)
        for notice in self.notices:
            self.say(f"note: {notice}")
        return self

    def __exit__(self, kind, error, trace) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        signal.setitimer(signal.ITIMER_REAL, 0)
        code, reason = (0, "") if error is None else describe(error)
        if error is not None:
            self.debug.error("".join(traceback.format_exception(error)))
        if self.log is not None:
            self.log.close()
        if self.dir is not None:
            self.dir.close(code, reason)
        elif error is not None and not self.ranks.is_main:
            self._leave_a_note(code, reason)
        close_debug_log(self.debug)
        if self.owns_ranks:
            self.ranks.close()

    def _leave_a_note(self, code: int, reason: str) -> None:
        """What became of a rank other than 0, which owns run_state.json."""
        with suppress(OSError):  # the same text is on stderr
            write_atomically(
                self.path / f"run_state.rank{self.ranks.rank}.json",
                json.dumps({"exit_code": code, "reason": reason}, indent=2) + "\n",
            )

    def _on_signal(self, number: int, frame: Any) -> None:
        if self.stop_code == SIGINT and number == signal.SIGINT:
            raise KeyboardInterrupt  # a second Ctrl-C does not wait
        self.stop_code = SIGINT if number == signal.SIGINT else SIGTERM
        if not self.is_training:
            raise Interrupted(self.stop_code)
        signal.setitimer(signal.ITIMER_REAL, GRACE_S, 0.5)

    def _on_alarm(self, number: int, frame: Any) -> None:
        if self.is_interruptible:
            self.is_interruptible = False
            raise Interrupted(self.stop_code)

    @contextmanager
    def interruptible(self, together: bool = False) -> Iterator[None]:
        """What runs inside is given up when a signal's grace is over. together: every rank comes by here, so that all
        give up as soon as one does; elsewhere a rank that has peers, who count on it, waits for the end of the step."""
        if self.ranks.world > 1 and not together:
            yield
            return
        dropped, self.is_interruptible = 0, True
        try:
            yield
        except Interrupted as stop:
            dropped = stop.exit_code
        finally:
            self.is_interruptible = False
        dropped = int(self.ranks.max(dropped))
        if dropped:
            raise Interrupted(dropped)

    def say(self, text: str) -> None:
        """A line for the user, from rank 0."""
        if self.ranks.is_main:
            self.debug.info(text)
            if self.log is not None:
                self.log.say(redact(text))
            else:
                print(escape(redact(text)), file=sys.stderr)

    def start_log(self, total_steps: int, first_step: int) -> None:
        self.is_training = True
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
        is_bad = not isfinite(metrics.get("grad_norm", 0.0))  # such a step is always on record
        if "step_time" not in metrics or step % self.config.logging_steps == 0 or is_bad:
            self.log.write(step, metrics)
            if groups and (self.config.log_completions or is_bad):
                self.log.write_completions(step, groups, self.config.num_completions_to_print)

    def save_final(self, policy: Policy) -> None:
        """final/: the adapter (or checkpoint) and the tokenizer. It appears whole."""
        self.is_training = False  # all is saved
        if self.ranks.is_main:
            aside = self.path / "final.tmp"
            shutil.rmtree(aside, ignore_errors=True)
            try:
                policy.save(aside)
            except BaseException:
                shutil.rmtree(aside, ignore_errors=True)
                raise
            failpoint("final-written")
            shutil.rmtree(self.path / "final", ignore_errors=True)
            aside.rename(self.path / "final")
        code = int(self.ranks.max(self.stop_code))  # a signal during the last checkpoint
        if code:
            raise Interrupted(code)

    def stop_if_asked(self, save: Callable[[], None]) -> None:
        """At a step boundary: if any rank has got a signal, all save and end."""
        code = int(self.ranks.max(self.stop_code))
        if code:
            save()
            raise Interrupted(code)

    def save_checkpoint(self, step: int, policy: Policy, optimizer: Optimizer, counters: dict[str, Any]) -> None:
        """checkpoint-N, by rank 0 with every rank's random generators; then retention. All ranks call it.

        A checkpoint of this step that this run has not made itself is replaced: it was not resumed from, or it is of
        another branch."""
        random_states = self.ranks.gather(checkpoint.random_state())
        if self.ranks.is_main and self.saved_step != step:
            text, state = to_yaml(self.config), optimizer.state()
            about = {"world_size": self.ranks.world, "config_sha256": hashlib.sha256(text.encode()).hexdigest()}
            needed = sum(tensor.numel() * tensor.itemsize for tensor in state.values())
            with checkpoint.CheckpointWriter(self.path, step, about, needed) as folder:
                checkpoint.write_state(folder, state, {"step": step, **counters}, random_states)
                (folder / "config.resolved.yaml").write_text(text, encoding="utf-8")
                if policy.model.build.lora is not None:
                    policy.save(folder)
            checkpoint.clean(self.path, self.config.save_total_limit, step)
            self.dir.update(step=step, last_checkpoint=f"checkpoint-{step}")
        self.saved_step = step
        self.ranks.barrier()

    def restore(self, policy: Policy, optimizer: Optimizer) -> dict[str, Any]:
        """The counters of the checkpoint to resume from, after putting its state back; {} to start from the
        beginning."""
        if not self.config.resume_from_checkpoint:
            return {}
        folder, notices = checkpoint.find_checkpoint(self.path, self.config.resume_from_checkpoint)
        for notice in notices:
            self.say(f"note: {notice}")
        if folder is None:
            return {}
        self._check_changes(folder)
        tensors, counters = checkpoint.read_state(folder, self.ranks.rank)
        try:
            optimizer.load_state(tensors)
        except (KeyError, RuntimeError) as error:
            raise UserError(
                f"the checkpoint {folder} does not fit the model",
                f"{type(error).__name__}: {error}",
                "name a checkpoint of this run",
                STORAGE,
            ) from None
        policy.model.refresh()
        if folder.resolve().parent == self.path.resolve():
            self.saved_step = counters["step"]
            if self.ranks.is_main:
                self.dir.update(step=counters["step"], last_checkpoint=folder.name)
        self.say(f"resuming from {folder} at step {counters['step']}")
        return counters

    def _check_changes(self, folder: Path) -> None:
        before = json.loads((folder / checkpoint.MANIFEST_FILE).read_text(encoding="utf-8")).get("world_size", 1)
        if before != self.ranks.world:
            raise UserError(
                f"the run in {self.path} was made by {before} processes, this is one of {self.ranks.world}",
                "their number decides the batch",
                f"start it with torchrun --nproc-per-node {before}, or anew in another output_dir",
                CONFIG,
            )
        saved, _ = load_config(folder / "config.resolved.yaml", kind=type(self.config))
        before, now = (yaml.safe_load(to_yaml(c)) for c in (saved, self.config))
        changed = {
            name: (before.get(name), now.get(name)) for name in {*before, *now} if before.get(name) != now.get(name)
        }
        for name in sorted(changed.keys() & WARNED):
            self.say(f"note: {name} was {changed[name][0]}, is now {changed[name][1]}")
        frozen = sorted(changed.keys() - FREE - WARNED)
        if frozen:
            raise UserError(
                f"the run in {self.path} was made with another configuration",
                "; ".join(f"{n}: {changed[n][0]} -> {changed[n][1]}" for n in frozen),
                "set these back, or start anew in another output_dir",
                CONFIG,
            )

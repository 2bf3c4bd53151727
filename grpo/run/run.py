"""One invocation of stage 1 or 2: its output directory, its processes, signals and log, and how it ends."""

import os
import socket
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Generic, Self

import torch

from grpo.algorithm.schema import Group
from grpo.base.errors import CONFIG, STORAGE, Interrupted, UserError, describe, redact
from grpo.base.storage import write_atomically, write_json
from grpo.config.load import to_yaml
from grpo.config.options import Stage
from grpo.data.count import RowCount
from grpo.data.objects import NO_OBJECTS, Objects
from grpo.engine.device.distributed import Ranks, choose_device
from grpo.run import libraries
from grpo.run.checkpoint import continues_a_run
from grpo.run.diagnosis.glossary import Metrics
from grpo.run.log import Log
from grpo.run.messages import DebugLog, tell
from grpo.run.provenance import environment
from grpo.run.run_dir import CONFIG_FILE, RunDir, holds_a_run, may_be_restarted
from grpo.run.saved import start_of
from grpo.run.signals import Signals
from grpo.run.start import check_start


class Run(Generic[Stage]):
    """Holds the output directory, and records at the end how the run ended. Use it as `with Run(config) as run:`.

    notices: lines to show at the start. ranks: those of the run that this one is part of, if any. objects: the rows,
    rewards and tools of a program.
    """

    writes = True  # whether it has a directory
    ranks: Ranks
    signals: Signals

    def __init__(
        self,
        config: Stage,
        notices: Sequence[str] = (),
        ranks: Ranks | None = None,
        objects: Objects = NO_OBJECTS,
    ):
        # A user's reward may change the directory, so what is relative is found now.
        self.config = replace(config, output_dir=os.path.abspath(config.output_dir))
        self.notices = notices
        self.objects = objects
        self.ranks_of_other = ranks
        self.bring_back = libraries.remember()  # of the process, which may go on after this run
        self.path = Path(self.config.output_dir)
        self.dir: RunDir | None = None
        self.log: Log | None = None
        self.remark = ""  # on a run that is done
        self.debug = DebugLog(self.path / "debug.log")

    @cached_property
    def device(self) -> torch.device:
        return choose_device(self.config.device)

    def __enter__(self) -> Self:
        try:
            self.ranks = self.ranks_of_other or Ranks(self.device, self.config.tensor_parallel_size)
        except BaseException:
            self.bring_back()
            raise
        self.signals = Signals(self.ranks)
        self.signals.open()
        try:
            if self.ranks.world > 1:
                self.ranks.agree(environment(self.config))
            if self.ranks.is_main:
                self._take_directory()
            self.ranks.barrier()
            libraries.configure(self.config)
            for notice in self.notices:
                self.say(f"note: {notice}")
        except BaseException as error:
            is_recorded = self.ranks.is_main and self.dir is None and describe(error)[0] != CONFIG
            if is_recorded and not holds_a_run(self.path):  # which stays as it was
                with suppress(UserError):
                    self.dir = RunDir(self.path, resume=False, overwrite=False)
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def _take_directory(self) -> None:
        """Check the start, and then hold the output directory."""
        check_start(self.config, self.ranks.is_restart, self.objects)
        goes_on = continues_a_run(self.config)
        self.dir = RunDir(self.path, goes_on or self.ranks.is_restart, self.config.overwrite_output_dir)
        if self.config.toy_world or may_be_restarted():  # a world is made there; a restarted run looks there
            self.dir.begin()
        if goes_on and self.config.overwrite_output_dir:
            self.say("note: overwrite_output_dir means nothing here: the run in this directory goes on")

    def prepare(self) -> Stage:
        """Make the toy world, if the configuration names one. Return the configuration with the paths of its start."""
        if self.config.toy_world:
            from grpo.data.worlds.world import make_world  # most runs have data of their own

            self.config = make_world(self.config, self.ranks, self.say)
        self.config = start_of(self.config)
        return self.config

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        self.signals.close()
        self.bring_back()
        is_lost = self.signals.may_end_at_once and error is not None and not isinstance(error, KeyboardInterrupt)
        if is_lost:  # the interrupted library has raised an error of its own
            stop = Interrupted(self.signals.stop_code)
            stop.__cause__ = error
            error = stop
        code, reason = (0, self.remark) if error is None else describe(error)
        trace = "" if error is None else "".join(traceback.format_exception(error))
        if trace and self.dir is not None:
            self.debug.write("ERROR", trace)
        if self.log is not None:
            self.log.close()
        if self.dir is not None:
            self.dir.close(code, reason)
            is_in_haste = isinstance(error, KeyboardInterrupt)
            if self.log is not None and not is_in_haste and code != STORAGE:
                self._write_report()
        elif error is not None and not self.ranks.is_main:
            self._write_rank_state(code, reason, trace)
        if self.ranks_of_other is None:
            self.ranks.close()
        if is_lost and error:
            raise error

    def _write_report(self) -> None:
        """Write report.html. An error there is only noted: the run itself is fine."""
        try:
            from grpo.report.page import write_report  # when all work is done

            write_report(self.path)
        except Exception as error:
            self.debug.write("ERROR", "".join(traceback.format_exception(error)))
            self.say(f"note: report.html could not be written: {type(error).__name__}; see debug.log")

    def _write_rank_state(self, code: int, reason: str, trace: str) -> None:
        """Record how a rank other than 0 failed; run_state.json and debug.log belong to rank 0."""
        state = {"exit_code": code, "reason": reason, "host": socket.gethostname(), "traceback": redact(trace)}
        with suppress(OSError):  # the same text is on stderr
            write_json(self.path / f"run_state.rank{self.ranks.rank}.json", state)

    # --- what the run writes ----------------------------------------------------------------------------------------

    def say(self, text: str) -> None:
        """Show a line to the user, on rank 0, and write it to debug.log."""
        if not self.ranks.is_main:
            return
        self.debug.write("INFO", text)
        tell(text)

    def note(self, **changes: object) -> None:
        """Note changes in run_state.json, and take the place of the run that is overwritten, if there is one."""
        if self.dir is not None:
            self.dir.begin()
            self.dir.update(**changes)

    def start_log(self, total_steps: int, first_step: int) -> None:
        """Begin training: write config.resolved.yaml, and open the log."""
        self.signals.is_training = True
        if self.dir is not None:
            write_atomically(self.path / CONFIG_FILE, to_yaml(self.config))
            self.log = Log(self.config, total_steps, first_step, self.dir.state["id"])

    def report_step(self, step: int, metrics: Metrics, groups: Sequence[Group] = ()) -> None:
        """Log the metrics and completions of a step."""
        if self.log is not None and self.dir is not None:
            self.dir.update(step=step)
            self.dir.drop_old_run()
            self.log.write_step(step, metrics, groups)

    def report_evaluation(self, step: int, metrics: Metrics) -> None:
        """Log the metrics of an evaluation, if there are any."""
        if self.log is not None and metrics:
            self.log.write_evaluation(step, metrics)

    def report_data(self, use: str, count: RowCount) -> None:
        """Say how many rows of a data set are used, and why the others are not; record both by the use."""
        self.say(f"{use}: {count}")
        if self.dir is not None:
            self.dir.update(data={**self.dir.state["data"], use: str(count)})


class SilentRun(Run[Stage]):
    """A run that writes nothing, and shows nothing: what it says is in `said`. It needs no `with`."""

    writes = False

    def __init__(self, config: Stage):
        super().__init__(replace(config, output_dir=os.devnull))
        self.ranks = Ranks(choose_device(config.device))
        self.debug = DebugLog(None)
        self.signals = Signals(self.ranks)  # which no signal reaches
        self.said: list[str] = []
        libraries.configure(config)

    def say(self, text: str) -> None:
        """Keep a line."""
        self.said.append(text)

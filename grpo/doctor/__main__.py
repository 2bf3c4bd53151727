"""Check everything that can fail later in a run, without training.

  python -m grpo.doctor CONFIG [key=value ...] [--json] [--memory-gb N]

CONFIG is that of stage 2, or of stage 1 alone. Checks the configuration, the machine, the output directory, trackers,
the data of both stages, the checkpoint, the tokenizer, each reward, each service (by asking it a question), memory and
a few generated tokens; tries dishonest answers on the rewards (`python -m rewards.audit` tries more). Estimates time
and calls of the run, for which it makes a small first step. Prints one line per check; a failed check does
not stop the others. The exit code is that of the first failure.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain

from grpo.base.errors import CONFIG, describe, escape, redact, run_main
from grpo.base.progress import command_parser, say_next
from grpo.config.load import examine_config, split_arguments
from grpo.config.options import AnyConfig, SftConfig, TrainConfig
from grpo.doctor import estimate, trial
from grpo.run.case import Case, Check, NotChecked
from grpo.run.messages import terminal_columns, wrap
from grpo.run.start import start_checks

INDENT = " " * 22


@dataclass
class Finding:
    """The result of one check: what it found, or what is wrong and how to correct it. ok: None if not checked."""

    name: str
    ok: bool | None
    text: str
    exit_code: int = 0

    def line(self) -> str:
        status = {True: "ok  ", False: "FAIL", None: "--  "}[self.ok]
        text = escape(redact(f"{status}  {self.name:14}  " + self.text.replace("\n", "\n" + INDENT)))
        columns = terminal_columns() if sys.stdout.isatty() else 0
        return "\n".join(wrap(line, columns, INDENT) if columns else line for line in text.split("\n"))


def make_finding(name: str, check: Check, case: Case) -> Finding:
    """Make one check; if it raises an error, that is its finding."""
    try:
        return Finding(name, True, check(case))
    except NotChecked as reason:
        return Finding(name, None, str(reason))
    except Exception as error:
        code, text = describe(error)
        return Finding(name, False, text, code)


def checks(case: Case) -> Iterator[tuple[str, Check]]:
    """Yield the checks of a configuration, in order: each may use the results of earlier ones."""
    yield from start_checks(case, is_doctor=True)
    if case.makes_its_data:
        return
    has_stage1 = isinstance(case.start, SftConfig)
    if has_stage1:
        yield "stage 1 data" if case.stage2 else "data", trial.examples
    if case.stage2:
        yield "prompts", trial.prompts
    yield "prompt", trial.prompt
    yield "memory", trial.memory_plan
    yield "weights", trial.weights  # which are fetched now, if they are on the hub
    if case.stage2:
        yield from trial.service_checks(case)
        yield "audit", trial.short_audit
    yield "sample", trial.sample
    yield "steps", estimate.steps
    yield "time", estimate.duration
    if case.stage2 and has_stage1:
        yield "stage 1 time", estimate.stage1_duration
    if case.stage2:
        yield "cost", estimate.cost


def read_either_stage(path: str, overrides: Sequence[str]) -> tuple[AnyConfig, list[Finding]]:
    """Read a configuration as that of the stage that it fits better; return it, with a finding for each mistake."""
    as_stage2, as_stage1 = (examine_config(path, overrides, kind) for kind in (TrainConfig, SftConfig))
    config, notices, problems = min(as_stage2, as_stage1, key=lambda read: len(read[2]))
    if problems:
        return config, [Finding("config", False, problem, CONFIG) for problem in problems]
    stage = "stage 1" if isinstance(config, SftConfig) else "stage 2"
    return config, [Finding("config", True, "; ".join([f"{path or 'what is typed'} is complete ({stage})", *notices]))]


def _gigabytes(text: str) -> float:
    if not 0 < float(text) < 1e6:
        raise argparse.ArgumentTypeError("must be above 0")
    return float(text)


def make_parser() -> argparse.ArgumentParser:
    usage = "%(prog)s CONFIG [key=value ...] [--json] [--memory-gb N]"
    parser = command_parser("grpo.doctor", __doc__, usage=usage, allow_abbrev=False)
    parser.add_argument("--json", action="store_true", help="print all findings as JSON")
    parser.add_argument("--memory-gb", type=_gigabytes, metavar="N", help="count memory for a GPU of N GB")
    return parser


def main(argv: list[str]) -> int:
    arguments, rest = make_parser().parse_known_args(argv)
    config, first = read_either_stage(*split_arguments(rest))
    case = Case(config, arguments.memory_gb)
    later = (make_finding(name, check, case) for name, check in checks(case))
    findings = []
    for finding in chain(first, later):
        same = [one.name for one in findings if one.ok is False and one.text == finding.text]
        if same and finding.name != same[0]:
            finding = Finding(finding.name, None, f"not checked: {same[0]} says why")
        findings.append(finding)
        if not arguments.json:
            print(finding.line(), flush=True)
    if arguments.json:
        print(redact(json.dumps([asdict(finding) for finding in findings])))
    elif all(finding.ok is not False for finding in findings):
        command = "grpo.sft" if isinstance(config, SftConfig) else "grpo.train"
        say_next(
            "the config is ready",
            [command, *rest],
            [command, "--help"],
        )
    return next((finding.exit_code for finding in findings if finding.ok is False), 0)


if __name__ == "__main__":
    run_main(main)

"""Make a step of a run again, and see what each token did to it.

  python -m grpo.replay RUN STEP [ROW] [key=value ...] [--json]

The step is made by the trainer's own code, from the newest checkpoint before it, on this machine. What it gives is
compared with the run's completions/ and metrics.jsonl: on the same kind of CPU, with the same program, and with the
same C compiler or none, all bits are the same. Grades are those of completions/. Answers that are not there are graded
again, which may ask services.

ROW is the number of a row of the data, as completions/ has it; by default the one with the largest share of the
gradient. Of each of its answers' tokens it shows: the log-probs of sampler, policy and reference; ratio, KL, advantage
and weight; the norm of its part of the gradient; and its share: its component along the whole gradient. All shares of
a step add up to 100 %. If a step has several updates, it is the last one's gradient. Tokens without any are not listed.

A page with the same is written to RUN/replay/, and the report of the run links it. The exit code is 1 if something
differs from the record. `key=value` changes a key of the run, such as device=cpu.
"""

import argparse
import json
import os
import shutil
import sys

from grpo.base.errors import redact, run_main
from grpo.base.progress import command_parser, say_next
from grpo.replay.again import Replay, replay
from grpo.replay.page import as_json, write_page
from grpo.replay.terminal import NARROW, lines_of


def make_parser() -> argparse.ArgumentParser:
    usage = "%(prog)s RUN STEP [ROW] [key=value ...] [--json]"
    parser = command_parser("grpo.replay", __doc__, usage=usage, allow_abbrev=False)
    parser.add_argument("run", metavar="RUN", help="the output_dir of a run of grpo.train")
    parser.add_argument("step", metavar="STEP", type=int, help="a step of the run, from 1")
    parser.add_argument("row", metavar="ROW", type=int, nargs="?", help="a row of the data, as completions/ numbers it")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    return parser


def main(argv: list[str]) -> int:
    overrides = [argument for argument in argv if "=" in argument and not argument.startswith("-")]
    arguments = make_parser().parse_args([argument for argument in argv if argument not in overrides])
    found = replay(arguments.run, arguments.step, arguments.row, overrides)
    if arguments.json:
        print(redact(json.dumps(as_json(found))))
    else:
        is_terminal = sys.stdout.isatty()
        width = shutil.get_terminal_size((NARROW, 24)).columns if is_terminal else NARROW
        print("\n".join(lines_of(found, max(width, NARROW), is_terminal and "NO_COLOR" not in os.environ)))
    page = write_page(found)
    say_next(f"{page}, to open in a browser", ["grpo.explain", arguments.run], ["grpo.report", arguments.run])
    return int(differs(found))


def differs(found: Replay) -> bool:
    """Return whether something is not what the run recorded."""
    return found.num_same < found.num_recorded or found.num_equal < found.num_compared


if __name__ == "__main__":
    run_main(main)

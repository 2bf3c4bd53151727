"""Make one page of a run: what was trained, what happened, curves, completions.

  python -m grpo.report RUN [--output FILE.html]

RUN is the output_dir of a run, which may be under way or may have been killed. The page is written to RUN/report.html;
it needs no network.
"""

import argparse
from pathlib import Path

from grpo.base.errors import run_main
from grpo.base.progress import check_output, command_parser, say_next
from grpo.report.page import write_report


def make_parser() -> argparse.ArgumentParser:
    parser = command_parser("grpo.report", __doc__)
    parser.add_argument("run", metavar="RUN", help="the output_dir of a run")
    parser.add_argument("--output", type=Path, metavar="FILE.html", help="the page (default: RUN/report.html)")
    return parser


def main(argv: list[str]) -> None:
    arguments = make_parser().parse_args(argv)
    if arguments.output:
        check_output(arguments.output)
    page = write_report(arguments.run, arguments.output)
    say_next(f"{page}, to open in a browser", ["grpo.explain", arguments.run], ["grpo.evaluate", arguments.run])


if __name__ == "__main__":
    run_main(main)

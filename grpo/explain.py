"""Explain a run in sentences: what went wrong, since which step, why, and what helps.

  python -m grpo.explain RUN

RUN is the output_dir of a run, which may be under way or may have been killed.
"""

import argparse
import textwrap

from grpo.base.errors import escape, run_main
from grpo.base.progress import command_parser, say_next
from grpo.report.remarks import Remark, explain
from grpo.run.record import read_record

WIDTH = 100


def describe(remark: Remark) -> str:
    """Lay out a remark: the sentence, and indented below it what it means and what to do."""
    lines = textwrap.wrap(remark.sentence, WIDTH)
    for text in (remark.meaning, f"To do: {remark.advice}" if remark.advice else ""):
        lines += textwrap.wrap(text, WIDTH, initial_indent="    ", subsequent_indent="    ")
    return "\n".join(lines)


def make_parser() -> argparse.ArgumentParser:
    parser = command_parser("grpo.explain", __doc__)
    parser.add_argument("run", metavar="RUN", help="the output_dir of a run")
    return parser


def main(argv: list[str]) -> None:
    record = read_record(make_parser().parse_args(argv).run)
    remarks = explain(record)
    print(escape("\n\n".join(map(describe, remarks))))
    say_next("the sentences above", ["grpo.report", record.path], ["grpo.evaluate", record.path])


if __name__ == "__main__":
    run_main(main)

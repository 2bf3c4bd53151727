r"""Try dishonest answers on the rewards of a configuration, and name those that earn as much as honest ones.

  python -m rewards.audit CONFIG [key=value ...] [--rows N] [--calls N] [--form TEXT] [--json]

The attacks of rewards/audit/attacks.py are written for some rows of the configuration's own data. Each reward grades
them, built-in or yours, and so does the weighted sum. Honest completions have the form that rewards and prompt ask for:
<think> and <answer>, \boxed{}, ####, <confidence>. --form names another, such as --form 'So: {answer}'.

A reward is tried with what it sees. If it pays a right answer more than a wrong one, no attack may earn as much as the
right answer, nor more than an honest refusal. If it pays true facts in the reasoning, no other facts may earn as much.
If it pays the form alone, no broken form may. If it sees none of these, as one of length, what earns more than the
right answer is named, and the sum decides. A reward that sees a group is tried with groups, too.

Judges and decomposers are asked at most --calls questions in all. What they were not asked about is not tried, and
counted. Your own function is called a few times for each row, and may ask whom it likes.

The exit code is 1 if an attack earns like a right answer or like true facts, or if your function fails on one. It is 0
if none does, also if there are notes, and 3 if nothing could be tried. To see it find something, try the parser of
judges' replies that KnowRL published:

  python -m rewards.audit rewards/examples/knowrl_judge.yaml
"""

import argparse
import json
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout

from grpo.base.errors import PREFLIGHT, escape, run_main
from grpo.base.progress import command_parser, say_next
from grpo.config.load import load_config, split_arguments
from rewards.audit.findings import TOGETHER, Audit, Finding, Tried
from rewards.audit.trial import NUM_CALLS, NUM_ROWS, audit

WIDTH = 80
MAX_SHOWN = 4  # attacks of a reward that are shown in full
MAX_NAME = 26  # characters of a reward's name in the table
MAX_CHARS = 280  # of a text
INDENT = " " * 11


def lines_of(found: Audit) -> Iterator[str]:
    """Lay out what was found, for a terminal of 80 columns."""
    asked = f"; judges and decomposers were asked {found.num_asked} questions" if found.num_asked else ""
    yield _entry("audit", f"{found}{asked}")
    yield _entry("honest", found.form.replace("\n", " "))
    yield ""
    yield f"{'reward':{MAX_NAME}} {'right':>7} {'refused':>7} {'wrong':>7}  {'sees':12} {'tried':>5} {'paid':>4}"
    for tried in found.tried:
        yield _row(tried)
    for tried in found.tried:
        for reason, count in tried.untried.most_common(3 if tried.reward != TOGETHER else 0):
            yield _entry("not tried", f"{tried.reward}: {count} texts: {reason}")
    for tried in found.tried:
        of_reward = [one for one in found.findings if one.reward == tried.reward]
        paid = [one for one in of_reward if one.is_paid]
        for one in paid[:MAX_SHOWN]:
            yield from _paragraph(one, found.num_rows)
        yield from _names("and", paid[MAX_SHOWN:])
        for bar in dict.fromkeys(one.instead_of for one in of_reward if not one.is_paid):
            first, *more = [one for one in of_reward if not one.is_paid and one.instead_of == bar]
            yield from _paragraph(first, found.num_rows)
            yield from _names("also", more)


def _row(tried: Tried) -> str:
    means = [f"{'-':>7}" if mean is None else f"{mean:+7.2f}" for mean in tried.means.values()]
    sees = " ".join(tried.sees) or "none of it"
    paid = sum(one.is_paid for one in tried.findings)
    name = tried.reward if len(tried.reward) <= MAX_NAME else f"…{tried.reward[1 - MAX_NAME :]}"
    return f"{name:{MAX_NAME}} {' '.join(means)}  {sees if tried.bars else '-':12} {tried.num_tried:5} {paid:4}"


def _names(label: str, more: Sequence[Finding]) -> Iterator[str]:
    """Name attacks that are not shown in full."""
    if more:
        yield _entry(label, ", ".join(one.attack for one in more) + " (--json has the texts)")


def _paragraph(one: Finding, num_rows: int) -> Iterator[str]:
    yield ""
    yield _entry("PAID" if one.is_paid else "note", f"{one.headline} ({one.num_rows} of {num_rows} rows)")
    yield _entry(f"row {one.row}", _shortened(one.question))
    yield _entry("text", json.dumps(_shortened(one.text), ensure_ascii=False))
    yield _entry("remedy", one.remedy)


def _entry(name: str, text: str) -> str:
    """Return a labelled paragraph, in which nothing acts on the terminal."""
    text = escape(text.replace("\n", "\\n"))
    return textwrap.fill(f"{name:10} {text}", WIDTH, subsequent_indent=INDENT, break_on_hyphens=False)


def _shortened(text: str) -> str:
    """Return a text, or its beginning and its end."""
    if len(text) <= MAX_CHARS:
        return text
    half = MAX_CHARS // 2
    return f"{text[:half]} [{len(text) - 2 * half} more characters] {text[-half:]}"


def _at_least(lowest: int) -> type:
    def count(text: str) -> int:
        if int(text) < lowest:
            raise argparse.ArgumentTypeError(f"must be at least {lowest}")
        return int(text)

    return count


def _form(text: str) -> str:
    if "{answer}" not in text:
        raise argparse.ArgumentTypeError("must contain {answer}, and may contain {thought} and {confidence}")
    return text.replace("\\n", "\n")


def make_parser() -> argparse.ArgumentParser:
    usage = "%(prog)s CONFIG [key=value ...] [--rows N] [--calls N] [--form TEXT] [--json]"
    parser = command_parser("rewards.audit", __doc__, usage=usage, allow_abbrev=False)
    parser.add_argument("--rows", type=_at_least(1), default=NUM_ROWS, metavar="N", help=f"of the data ({NUM_ROWS})")
    asked = f"questions to judges and decomposers, at most ({NUM_CALLS}); 0: none"
    parser.add_argument("--calls", type=_at_least(0), default=NUM_CALLS, metavar="N", help=asked)
    parser.add_argument("--form", type=_form, metavar="TEXT", help="an honest completion, with {answer} in it")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    return parser


def main(argv: list[str]) -> int:
    arguments, rest = make_parser().parse_known_args(argv)
    path, overrides = split_arguments(rest)
    config, _ = load_config(path, overrides, is_run=False)
    with redirect_stdout(sys.stderr):  # what a user's function prints is no finding
        found = audit(config, arguments.rows, arguments.calls, arguments.form)
    if arguments.json:
        print(json.dumps(found.as_json()))
    else:
        print("\n".join(lines_of(found)))
    if not any(tried.num_tried for tried in found.tried):
        return PREFLIGHT
    is_paid = any(one.is_paid for one in found.findings)
    if not is_paid:
        say_next(found, ["grpo.doctor", *rest], ["grpo.train", *rest])
    return int(is_paid)


if __name__ == "__main__":
    run_main(main)

"""Make a step of a run again, and see what each token did to it.

  python -m grpo.replay RUN STEP [ROW] [key=value ...] [--json]

The step is made by the trainer's own code, from the newest checkpoint before it, on this machine. What it gives is
compared with the run's completions/ and metrics.jsonl: on the same kind of CPU, with the same program, and with the
same C compiler or none, all bits are the same. Grades are those of completions/. Answers that are not there are graded
again, which may ask services. Tools are called again: one that says something else makes another step.

ROW is the number of a row of the data, as completions/ has it; by default the one with the largest share of the
gradient. Of each of its answers' tokens it shows: the log-probs of sampler, policy and reference; ratio, KL and
advantage; the norm of its part of the gradient; and its share: its component along the whole gradient. The step makes a
token with ↑ likelier, and one with ↓ less likely. All shares of a step add up to 100 %. If a step has several updates,
it is the last one's gradient. Tokens without any are not listed.

The exit code is 1 if something differs from the record, or is missing there. `key=value` changes a key of the run, such
as device=cpu.
"""

import argparse
import json
import textwrap
from collections.abc import Iterator

from grpo.base.errors import escape, redact, run_main
from grpo.base.progress import command_parser, say_next
from grpo.base.storage import Json
from grpo.base.text import in_words
from grpo.replay.again import Replay, replay
from grpo.replay.parts import Seen

WIDTH = 80
MAX_ANSWERS = 12  # of the step that are listed
MARKS = {"": " ", "low": "v", "high": "^"}  # beside a ratio that is clipped
HEADS = "sampler  policy     ref  ratio       kl  adv.     norm   share"
ROOM = WIDTH - len(f"{'':4}   {HEADS}") - 1  # for the text of a token


def make_parser() -> argparse.ArgumentParser:
    usage = "%(prog)s RUN STEP [ROW] [key=value ...] [--json]"
    parser = command_parser("grpo.replay", __doc__, usage=usage, allow_abbrev=False)
    parser.add_argument("run", metavar="RUN", help="the output_dir of a run of grpo.train")
    parser.add_argument("step", metavar="STEP", type=int, help="a step of the run, from 1")
    parser.add_argument("row", metavar="ROW", type=int, nargs="?", help="a row of the data, as completions/ numbers it")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    return parser


def as_json(found: Replay) -> Json:
    """Return everything that is known of a replay."""
    told = dict(vars(found))
    look = told.pop("look")
    strongest_first = sorted(look.answers, key=lambda seen: -seen.norm)
    prompt = look.shown[0].group.prompt
    return {
        **told,
        "grad_norm": look.norm,
        "error": look.error,
        "row": look.row,
        "question": str(prompt.columns.get("question") or prompt.text),
        "answers": list(map(_answer, strongest_first)),
        "shown": [_answer(seen) | {"tokens": seen.tokens} for seen in look.shown],
    }


def _answer(seen: Seen) -> Json:
    completion = seen.completion
    return {
        "row": seen.group.prompt.row,
        "answer": seen.number,
        "reward": completion.reward,
        "outcome": completion.outcome,
        "advantage": completion.advantage,
        "num_tokens": len(completion.ids),
        "norm": seen.norm,
        "share": seen.share,
        "completion": completion.text,
    }


def lines_of(told: Json) -> Iterator[str]:
    """Lay out a replay in 80 columns: what differs, the answers of the step, and the tokens of a row."""
    for line in _summary(told):
        yield from textwrap.wrap(escape(line), WIDTH, subsequent_indent="  ")
    yield "\nthe answers of the step, by the norm of their part"
    yield f"{'row':>8} {'answer':>6} {'reward':>7} {'adv.':>6} {'tokens':>6} {'norm':>8} {'share':>7}  outcome"
    for answer in told["answers"][:MAX_ANSWERS]:
        reward = _number(answer["reward"], ".2f")
        advantage = _number(answer["advantage"], "+z.2f")
        grades = f"{answer['row']:8} {answer['answer']:6} {reward:>7} {advantage:>6}"
        sizes = f"{answer['num_tokens']:6} {answer['norm']:8.1e} {answer['share']:+z7.1%}"
        yield f"{grades} {sizes}  {in_words(answer['outcome'] or '')}"
    if rest := told["answers"][MAX_ANSWERS:]:
        yield f"{'and':>8} {len(rest)} more, {sum(answer['share'] for answer in rest):+z.1%}"
    yield ""
    yield from textwrap.wrap(f"row {told['row']}: {escape(told['question'])}", WIDTH)
    for answer in told["shown"]:
        reward = _number(answer["reward"], ".2f")
        advantage = _number(answer["advantage"], "+z.2f")
        outcome = f" ({in_words(answer['outcome'])})" if answer["outcome"] else ""
        grades = f"reward {reward}{outcome}, advantage {advantage}, share {answer['share']:+.1%}"
        yield f"\nanswer {answer['answer']}: {grades}"
        yield escape(answer["completion"])
        yield f"{'':5} {'token':{ROOM}} {HEADS}" if answer["tokens"] else "nothing of it is trained"
        yield from map(_token, answer["tokens"])
    yield "\n↑ ↓: the step makes the token likelier, less likely; v ^: its ratio is clipped"


def _summary(told: Json) -> Iterator[str]:
    """Yield what was made again, and whether it is what the run has recorded."""
    where = f"checkpoint-{told['start']}" if told["start"] else "the start of the run"
    yield f"step {told['step']} of {told['run']}, made again from {where}"
    if told["num_recorded"]:
        yield f"{told['num_same']} of {told['num_recorded']} recorded answers are the same, with rewards and advantages"
    else:
        yield "completions/ does not hold this step's answers"
    yield f"{told['num_equal']} of {told['num_compared']} recorded metrics of the step have the same bits"
    yield from (f"missing: {name} has not all of this step" for name in told["missing"])
    yield from (f"note: {note}" for note in told["notes"])
    sums = f"; the parts add up to it, to {told['error']:.0e} of it" if told["grad_norm"] else ""
    yield f"gradient: norm {told['grad_norm']:.4g}{sums}"


def _token(token: Json) -> str:
    """Return the line of a token."""
    text = repr(token["text"])[1:-1]
    text = text if len(text) <= ROOM else f"{text[: ROOM - 1]}…"
    logps = f"{token['sampler_logp']:z7.3f} {token['policy_logp']:z7.3f} {_number(token['ref_logp'], 'z.3f'):>7}"
    ratio = f"{token['ratio']:.3f}{MARKS[token['clipped']]}"
    rest = f"{_number(token['kl'], '.1e'):>8} {token['advantage']:+z5.2f} {token['norm']:8.1e} {token['share']:+z7.1%}"
    arrow = "↑" if token["slope"] < 0 else "↓" if token["slope"] > 0 else " "
    return f"{token['place'] + 1:4}{arrow} {escape(text):{ROOM}} {logps} {ratio:>6} {rest}"


def _number(value: float | None, form: str) -> str:
    """Format a number; – for None."""
    return "–" if value is None else f"{value:{form}}"


def main(argv: list[str]) -> int:
    overrides = [argument for argument in argv if "=" in argument and not argument.startswith("-")]
    arguments = make_parser().parse_args([argument for argument in argv if argument not in overrides])
    found = replay(arguments.run, arguments.step, arguments.row, overrides)
    told = as_json(found)
    print(redact(json.dumps(told) if arguments.json else "\n".join(lines_of(told))))
    say_next(f"step {found.step}, made again", ["grpo.explain", arguments.run], ["grpo.report", arguments.run])
    return int(found.differs)


if __name__ == "__main__":
    run_main(main)

"""A step made again, for a terminal: what differs, the answers of the step, and the tokens of a row."""

import textwrap
from collections.abc import Callable, Iterator, Sequence

from grpo.base.errors import escape
from grpo.replay.again import Replay
from grpo.replay.parts import Seen, Token

Paint = Callable[..., str]  # a text and codes of a terminal to what is printed
NARROW, WIDE = 80, 120
MAX_ANSWERS = 12  # of the step that are listed
WEAK, STRONG = 0.01, 0.5  # of the largest norm of an answer: below the first a token is pale, from the second on bold
LIKELIER, LESS_LIKELY, STRONGER, PALE, PLAIN = "\x1b[32m", "\x1b[31m", "\x1b[1m", "\x1b[2m", "\x1b[0m"
COLUMNS = {  # name -> its width, and the text of a token's value
    "sampler": (7, lambda token: f"{token.sampler_logp:z.3f}"),
    "policy": (7, lambda token: f"{token.policy_logp:z.3f}"),
    "ref": (7, lambda token: number(token.ref_logp, "z.3f")),
    "ratio": (6, lambda token: f"{token.ratio:.3f}{MARKS[token.clipped]}"),
    "kl": (7, lambda token: number(token.kl, ".1e")),
    "adv.": (5, lambda token: f"{token.advantage:+z.2f}"),
    "weight": (7, lambda token: f"{token.weight:.1e}"),
    "norm": (7, lambda token: f"{token.norm:.1e}"),
    "share": (7, lambda token: f"{token.share:+z.1%}"),
}
MARKS = {"": " ", "low": "v", "high": "^"}
ONLY_WIDE = "weight"  # a narrow terminal has no room for this column; all tokens of an answer have the same


def number(value: float | None, form: str) -> str:
    """Format a number; – for None."""
    return "–" if value is None else f"{value:{form}}"


def summary(found: Replay) -> Iterator[str]:
    """Yield what was made again, and whether it is what the run recorded."""
    where = f"checkpoint-{found.start}" if found.start else "the start of the run"
    yield f"step {found.step} of {found.run}, made again from {where}"
    if found.num_recorded:
        yield f"{found.num_same} of {found.num_recorded} recorded answers are the same, token by token"
    else:
        yield "completions/ does not hold this step's answers"
    if found.num_compared:
        yield f"{found.num_equal} of {found.num_compared} metrics of the step have the same bits"
    yield from (f"note: {note}" for note in found.notes)
    sums = f"; the parts add up to it, to {found.look.error:.0e} of it" if found.look.norm else ""
    yield f"gradient: norm {found.look.norm:.4g}{sums}"


def lines_of(found: Replay, width: int = NARROW, has_colours: bool = False) -> Iterator[str]:
    """Lay out a replay. width: columns of the terminal; 80 and more look well."""
    paint = coloured if has_colours else plain
    for line in summary(found):
        yield from textwrap.wrap(escape(line), width, subsequent_indent="  ")
    yield ""
    yield "the answers of the step, by the norm of their part"
    yield f"{'row':>8} {'answer':>6} {'reward':>7} {'adv.':>6} {'tokens':>6} {'norm':>8} {'share':>7}  outcome"
    ranked = sorted(found.look.answers, key=lambda seen: -seen.norm)
    yield from (_answer(seen) for seen in ranked[:MAX_ANSWERS])
    if len(ranked) > MAX_ANSWERS:
        rest = sum(seen.share for seen in ranked[MAX_ANSWERS:])
        yield f"{'and':>8} {len(ranked) - MAX_ANSWERS} more, {rest:+z.1%}"
    yield ""
    prompt = found.shown[0][1].group.prompt
    yield from textwrap.wrap(f"row {prompt.row}: {escape(str(prompt.columns.get('question') or prompt.text))}", width)
    for place, seen in found.shown:
        yield ""
        weight = f"{seen.completion.loss_weight:.1e}"
        yield f"answer {place_in_group(seen)}: {escape(_head(seen))}; each token weighs {weight}"
        pieces = [paint(escape(piece), PALE) for piece in found.pieces[place]]
        for token, look in zip(seen.tokens, looks(seen.tokens), strict=True):
            pieces[token.place] = paint(escape(found.pieces[place][token.place]), *look)
        yield "".join(pieces)
        if seen.tokens:
            yield from _table(seen, found.pieces[place], min(width, WIDE), paint)
        else:
            yield paint("nothing of it is trained", PALE)
    yield ""
    yield paint("green: the step makes it likelier", LIKELIER)
    yield paint("red: less likely", LESS_LIKELY) + "; bold: at least half of the largest norm; v ^: clipped"


def coloured(text: str, *codes: str) -> str:
    return f"{''.join(codes)}{text}{PLAIN}" if codes else text


def plain(text: str, *codes: str) -> str:
    return text


def looks(tokens: Sequence[Token]) -> Iterator[tuple[str, ...]]:
    """Yield how each token of an answer looks: which way the step moves it, and how strongly."""
    strongest = max((token.norm for token in tokens), default=0.0)
    for token in tokens:
        direction = LIKELIER if token.slope < 0 else LESS_LIKELY
        is_strong, is_weak = token.norm >= STRONG * strongest, token.norm < WEAK * strongest or not token.norm
        yield (PALE,) if is_weak else (direction, STRONGER) if is_strong else (direction,)


def place_in_group(seen: Seen) -> int:
    """Return which answer to its question a completion is, from 1."""
    return next(place for place, one in enumerate(seen.group.completions, 1) if one is seen.completion)


def _answer(seen: Seen) -> str:
    """Return the line of an answer of the step."""
    completion, row = seen.completion, seen.group.prompt.row
    reward, advantage = number(completion.reward, ".2f"), number(completion.advantage, "+z.2f")
    numbers = f"{reward:>7} {advantage:>6} {len(completion.ids):6} {seen.norm:8.1e} {seen.share:+z7.1%}"
    return f"{row:8} {place_in_group(seen):6} {numbers}  {completion.outcome or ''}"


def _head(seen: Seen) -> str:
    reward, advantage = number(seen.completion.reward, ".2f"), number(seen.completion.advantage, "+z.2f")
    outcome = f" ({seen.completion.outcome})" if seen.completion.outcome else ""
    return f"reward {reward}{outcome}, advantage {advantage}, share {seen.share:+z.1%}"


def _table(seen: Seen, pieces: list[str], width: int, paint: Paint) -> Iterator[str]:
    """Yield the table of the scored tokens of an answer."""
    shown = [name for name in COLUMNS if width >= WIDE or name != ONLY_WIDE]
    room = width - 5 - sum(COLUMNS[name][0] + 1 for name in shown)
    yield paint(f"{'':4} {'token':{room}} " + " ".join(f"{name:>{COLUMNS[name][0]}}" for name in shown), PALE)
    for token, look in zip(seen.tokens, looks(seen.tokens), strict=True):
        text = repr(pieces[token.place])[1:-1]
        text = text if len(text) <= room else f"{text[: room - 1]}…"
        cells = " ".join(f"{COLUMNS[name][1](token):>{COLUMNS[name][0]}}" for name in shown)
        yield f"{token.place + 1:4} {paint(f'{escape(text):{room}}', *look)} {cells}"

r"""python -m bench.verifier [--pairs 5000] [--references FILE ...] [--peer math_verify] [--show 3]

Does the verifier of mathematics pay what is right and nothing else? Reference answers are compared with themselves,
with themselves written in another way that means the same, and with themselves changed so that they mean something
else. The pairs are made by rules, so that what is right is known without a reader: a pair that should be equal and is
not is `missed`, one that should differ and does not is `paid`.

References are those of the files, one answer per line, or rows of JSON or JSONL with a key `answer` (a solution is
cut to its last \boxed{}); without files, the truths of tests/rewards/boxed_cases/. Pairs are spread evenly over the
classes, as far as references allow. With --peer, math-verify judges the same pairs (pip install math-verify).

Each class of the table is one rule; --show prints that many of its failures. The last line of stdout is JSON.
"""

import json
import random
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench import timing
from rewards.boxed import equivalent, gold_answer

CORPUS = timing.ROOT / "tests" / "rewards" / "boxed_cases"
MAX_CHARS = 300  # of a reference: longer ones are explanations

# the answer to a truth, or another (answer, truth) made of it; None where the rule does not apply
Rule = Callable[[str, random.Random], str | tuple[str, str] | None]


@dataclass(frozen=True)
class Pair:
    rule: str
    answer: str
    truth: str
    is_same: bool


@dataclass
class Count:
    """How one class fared."""

    is_same: bool
    pairs: int = 0
    wrong: dict[str, list[Pair]] = field(default_factory=lambda: defaultdict(list))  # judge -> its failures


# --- references ----------------------------------------------------------------------------------------------------
def read_references(paths: Sequence[Path]) -> list[str]:
    """The answers of all files, each once."""
    found = [answer for path in paths for answer in _answers(path)] if paths else _corpus_truths()
    cleaned = (" ".join(gold_answer(answer).split()) for answer in found)
    return sorted({answer for answer in cleaned if answer and len(answer) <= MAX_CHARS and equivalent(answer, answer)})


def _answers(path: Path) -> Iterator[str]:
    text = path.read_text(encoding="utf-8")
    if path.suffix not in (".json", ".jsonl"):
        yield from text.splitlines()
        return
    rows = json.loads(text) if path.suffix == ".json" else [json.loads(line) for line in text.splitlines() if line]
    for row in rows:
        yield str(row["answer"] if isinstance(row, dict) else row)


def _corpus_truths() -> list[str]:
    lines = [line for path in sorted(CORPUS.glob("*.txt")) for line in path.read_text(encoding="utf-8").splitlines()]
    return [line.partition(" ≡ ")[2] for line in lines if " ≡ " in line and not line.startswith("#")]


# --- rules: another way to write the same --------------------------------------------------------------------------
def replace(*pairs: tuple[str, str], unless: str = r"(?!)") -> Rule:
    """Every occurrence of each pattern; the rule does not apply where none is found, or where `unless` is."""

    def rule(text: str, rng: random.Random) -> str | None:
        changed = text
        for pattern, new in pairs:
            changed = re.sub(pattern, new, changed)
        return None if changed == text or re.search(unless, text) else changed

    return rule


def wrap(before: str, after: str, unless: str = r"(?!)") -> Rule:
    """The whole answer between two texts, unless the pattern is found in it."""

    def rule(text: str, rng: random.Random) -> str | None:
        return None if re.search(unless, text) else before + text + after

    return rule


def swap_sides(text: str, rng: random.Random) -> str | None:
    """x < 3 as 3 > x, a = b as b = a."""
    signs = {"=": "=", "<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le", r"\leq": r"\geq", r"\geq": r"\leq"}
    sides = re.split(r"(=|<|>|\\leq?(?![a-z])|\\geq?(?![a-z]))", text)
    if len(sides) != 3 or re.search(r"text|,|;|\$|\\mid|\||:", text):
        return None
    left, sign, right = sides
    if not left.strip() or not right.strip() or left.count("(") != left.count(")"):
        return None
    return f"{right.strip()} {signs[sign]} {left.strip()}"


def reorder_terms(text: str, rng: random.Random) -> str | None:
    """a - b + c as c + a - b."""
    terms = split_outside(text, "+-")
    if len(terms) < 2 or re.search(
        r"[0-9]e-|[=<>,;:|$&~°%]|\\(text|pm|mp|le|ge|ne|in|cup|approx|begin|mathrm)|[A-Za-z]{4}", text
    ):
        return None
    if not terms[0].lstrip().startswith("-"):
        terms[0] = "+" + terms[0]
    rng.shuffle(terms)
    return "".join(terms).removeprefix("+")


def reorder_list(text: str, rng: random.Random) -> str | None:
    """1, 2 as 2, 1: a bare list of numbers has no order."""
    items = split_outside(text, ",")
    if len(items) < 2 or not all(re.fullmatch(r",?\s*-?[0-9./\\fracsqrt{}]+\s*", item) for item in items):
        return None
    if not all(item[1:2] == " " for item in items[1:]):
        return None
    return ", ".join(item.strip(" ,") for item in reversed(items))


def rewrite_number(text: str, rng: random.Random) -> str | None:
    """A whole number in some other notation."""
    if not re.fullmatch(r"-?[0-9]{1,12}", text) or text.lstrip("-").startswith("0"):
        return None
    n = int(text)
    notations = [f"{n}.0", f"{n:,}", rf"\frac{{{2 * n}}}{{2}}", f"{n}/1", f"({n})", f"x={n}", rf"{n}\%", f"{n} apples"]
    return rng.choice(notations)


def split_outside(text: str, separators: str) -> list[str]:
    """The parts that begin at separators outside all brackets; an exponent's sign is none."""
    depth, parts, start = 0, [], 0
    for at, character in enumerate(text):
        depth += (character in "({[") - (character in ")}]")
        before = text[:at].rstrip()
        if character in separators and depth == 0 and before and before[-1] not in "^_*/=<>+-\\,":
            parts.append(text[start:at])
            start = at
    return [*parts, text[start:]]


def on_values(*templates: str, pattern: str = r"") -> Rule:
    """Templates around an answer that is one value; two of them make an answer and a truth."""

    def rule(text: str, rng: random.Random) -> str | tuple[str, str] | None:
        if negate(text, rng) is None or not re.match(pattern, text):
            return None
        made = [template.replace("@", text) for template in templates]
        return made[0] if len(made) == 1 else (made[0], made[1])

    return rule


PROSE = r"(?<!\\)\b[A-Za-z]{4,}|begin|\\cdots|[0-9] \\frac"
NO_VALUE = (
    r"(?<!\\)\b[A-Za-z]{2,}|\\[{}]|[=<>,;:|$%&±~]|\([A-J]\)|^[A-J]$|[0-9]-[0-9]+-|[^\x00-\x7f]"
    r"|\\(text|pm|le|ge|ne|in|cup|begin|approx|log|ln|sin|cos|tan|math)|^[-0. ]+$|[!.]$|_\{?[0-9]+\}?$"
)
WHOLE = r"[2-9][0-9]{0,3}$"
UNICODE = (
    (r"\\pi(?![A-Za-z])", "π"),
    (r"\\infty(?![A-Za-z])", "∞"),
    (r"\\leq?(?![A-Za-z])", "≤"),
    (r"\\geq?(?![A-Za-z])", "≥"),
    (r"\\cdot(?![A-Za-z])", "·"),
    (r"\\cup(?![A-Za-z])", "∪"),
    (r"\^2(?![0-9])", "²"),
    ("-", "−"),
)
ASCII = ((r"\\leq?(?![A-Za-z])", "<="), (r"\\geq?(?![A-Za-z])", ">="), (r"\\neq?(?![A-Za-z])", " != "))
SAME: dict[str, Rule] = {
    "itself": lambda text, rng: text,
    "dollars": wrap("$", "$", r"\$"),
    "parentheses in LaTeX": wrap(r"\(", r"\)", r"\$|\\\("),
    "a full stop": wrap("", ".", r"\.$"),
    "nested box": wrap(r"\boxed{", "}", r"\\text|\$"),
    "display style": wrap(r"\displaystyle ", "", r"\$"),
    "size": wrap(r"\large ", "", r"\$"),
    "check mark": wrap("", r"\ \checkmark", r"\$"),
    "aligned": wrap(r"\begin{aligned} ", r" \end{aligned}", r"\$|begin|&"),
    "the answer is": wrap(r"\text{The answer is } ", "", r"text|=|[A-Za-z]{3}|[<>:;,]|\\[lg]e|\\approx|\\ne"),
    "wider spaces": replace((r"(?<![0-9]e)(?<=[A-Za-z0-9})]) ?([-+=]) ?(?=[A-Za-z0-9\\({])", r" \1\\, ")),
    "no spaces": replace((r"(?<![A-Za-z,]) (?=[-+=(\\\\])", "")),
    "large fractions": replace((r"\\frac(?![a-z])", r"\\dfrac")),
    "fractions of digits": replace((r"\\frac\{([0-9])\}\{([0-9])\}", r"\\frac\1\2")),
    "slashes": replace((r"^(-?)\\d?frac\{([0-9a-z]+)\}\{([0-9a-z])\}$", r"\1\2/\3")),
    "braces around exponents": replace((r"\^([0-9a-z])(?![0-9])", r"^{\1}")),
    "braces around subscripts": replace((r"_([0-9a-z])(?![0-9])", r"_{\1}")),
    "large brackets": replace((r"(?<!left)(?<!\\)([(\[])", r"\\left\1"), (r"(?<!right)(?<!\\)([)\]])", r"\\right\1")),
    "small brackets": replace((r"\\left(?![a-z])\s*(?=[(\[])|\\right(?![a-z])\s*(?=[)\]])", "")),
    "Unicode": replace(*UNICODE),
    "ASCII relations": replace(*ASCII),
    "roman text": replace((r"\\text\s*\{", r"\\mathrm{")),
    "degree sign": replace((r"\^\s*\{?\s*\\circ\s*\}?", "°")),
    "double times": replace((r"\\cdot(?![a-z])", r"\\times")),
    "sides swapped": swap_sides,
    "terms in another order": reorder_terms,
    "list in another order": reorder_list,
    "number in another notation": rewrite_number,
    "doubled and halved": on_values(r"\frac{2(@)}{2}"),
    "negated twice": on_values("-(-(@))"),
    "with its name": on_values("w = @"),
    "in a function": on_values("2f(@)", r"f(0+(@))\cdot 2"),
    "square of a root": on_values(r"\left(\sqrt{@}\right)^2", pattern=WHOLE),
    "roots as powers": replace((r"\\sqrt\{([0-9a-z]+)\}", r"{\1}^{1/2}"), unless=rf"{PROSE}|sin|cos|tan|ln|log"),
    "exponential function": replace((r"(?<![a-z])e\^\{([^{}]*)\}", r"\\exp(\1)"), unless=PROSE),
    "fractions in brackets": replace((r"(?<![0-9])\\d?frac\{([^{}]+)\}\{([^{}]+)\}", r"((\1)/(\2))"), unless=PROSE),
    "with a unit": on_values(r"@\text{ cm}", pattern=WHOLE),
    "digits of another base": on_values("@", r"@_{11}", pattern=WHOLE),
    "a chain that holds": on_values("w = @+1-1 = @"),
    "ratio in other terms": on_values("2:@", r"4:2\cdot @", pattern=WHOLE),
}


# --- rules: something else -----------------------------------------------------------------------------------------
def change_one(pattern: str, new: Callable[[re.Match], str], unless: str = r"(?!)") -> Rule:
    """One occurrence of the pattern, drawn at random."""

    def rule(text: str, rng: random.Random) -> str | None:
        found = [match for match in re.finditer(pattern, text) if new(match) != match[0]]
        if not found or re.search(unless, text):
            return None
        match = rng.choice(found)
        return text[: match.start()] + new(match) + text[match.end() :]

    return rule


def drop_item(text: str, rng: random.Random) -> str | None:
    items = split_outside(text, ",")
    if (
        len(items) < 2
        or len(set(items)) < len(items)
        or re.search(r"text|\\(math|in)|[A-Za-z]{4}|dots|[$(\[]|\\\{", text)
    ):
        return None
    del items[rng.randrange(len(items))]
    return "".join(items).strip(" ,")


def swap_in_tuple(text: str, rng: random.Random) -> str | None:
    """(1, 2) as (2, 1)."""
    inside = re.fullmatch(r"(\\left)?\(([^()]+?)(\\right)?\)", text)
    items = inside[2].split(",") if inside else []
    if len(items) != 2 or items[0].strip() == items[1].strip():
        return None
    return f"({items[1].strip()}, {items[0].strip()})"


def invert_fraction(text: str, rng: random.Random) -> str | None:
    fraction = re.fullmatch(r"(-?)\\d?frac\{([^{}]+)\}\{([^{}]+)\}", text)
    if not fraction or fraction[2].strip(" -") == fraction[3].strip(" -"):
        return None
    return rf"{fraction[1]}\frac{{{fraction[3]}}}{{{fraction[2]}}}"


def negate(text: str, rng: random.Random) -> str | None:
    """The answer with the other sign, if it is one value."""
    return None if re.search(NO_VALUE, text) else f"-({text})"


def next_number(match: re.Match) -> str:
    return str(int(match[0]) + 1)


FUNCTIONS = {"sin": "cos", "cos": "sin", "tan": "cot", "ln": "sin", "log": "cos", "sqrt": "sqrt[3]", "arctan": "arcsin"}
RELATIONS = {"<": r" \le ", ">": r" \ge ", r"\le": " < ", r"\leq": " < ", r"\ge": " > ", r"\geq": " > ", "=": r" \ne "}
NO_NUMBER = r"\\begin|\\dots|\\hspace|\.\.\.|#"
OTHER: dict[str, Rule] = {
    "another number": change_one(r"(?<![0-9.,_{}\^])[1-9][0-9]*(?![0-9]*[.,_^])", next_number, NO_NUMBER),
    "another exponent": change_one(r"(?<=\^)[1-9]|(?<=\^\{)[1-9](?=\})", next_number, r"i\s*\^|begin|\b1\^|text"),
    "another subscript": change_one(r"(?<=_)[1-9]|(?<=_\{)[1-9](?=\})", next_number, "text|log|10"),
    "decimal point moved": change_one(r"([0-9])\.([0-9]+)", lambda m: f"{m[1]}{m[2]}", r"0\.0|\.\."),
    "sign of one term": change_one(
        r"(?<=[0-9A-Za-z})])\s*([-+])\s*(?=[1-9A-Za-z\\(])", lambda m: "-+"[m[1] == "-"], "pm|text"
    ),
    "negative": negate,
    "another variable": change_one(
        r"(?<![A-Za-z\\])[abcnxyrt](?![A-Za-z])", lambda m: "w", r"text|\{?[lcr]+\}|math|[A-Za-z]{4}"
    ),
    "another function": change_one(
        r"\\(sin|cos|tan|ln|sqrt|arctan)(?![a-z\[])", lambda m: "\\" + FUNCTIONS[m[1]], r"\\sqrt\[|-1|\{?1\}"
    ),
    "another relation": change_one(r"<|>|\\leq?(?![a-z])|\\geq?(?![a-z])", lambda m: RELATIONS[m[0]], "text|mid"),
    "equation to inequation": change_one("=", lambda m: RELATIONS["="], r"text|\\[lg]e|[<>]"),
    "another end of an interval": change_one(
        r"(?<=^)\((?=[^()\[\]]*,[^()\[\],]*\]$)|(?<=^)\[(?=[^()\[\]]*,[^()\[\],]*\)$)",
        lambda m: "[("[m[0] == "["],
        "begin",
    ),
    "intersection for union": change_one(r"\\cup", lambda m: r"\cap"),
    "fraction upside down": invert_fraction,
    "tuple swapped": swap_in_tuple,
    "an item less": drop_item,
    "an item more": wrap("", ", 7919", r"text|[A-Za-z]{4}|dots|[$()\[\]=<>;:]|\\(in|le|ge|math)|^[A-J]"),
    "factor dropped": change_one(r"\\pi(?![A-Za-z])", lambda m: " ", r"^\\pi$|[=+\-(,<>]|^-?\\pi|0"),
    "function made linear": change_one(r"\\(sin|cos|ln)\s*\(([a-z])\+", lambda m: rf"\{m[1]}({m[2]})+\{m[1]}("),
    "another letter": lambda text, rng: "B" if re.search(r"^(\\text\{)?\(?A\)?\}?$", text) else None,
    "doubled": on_values("2(@)"),
    "one more": on_values("(@)+1"),
    "functions the other way round": on_values("f(g(@))", "g(f(@))"),
    "factor out of a function": on_values("f(2(@))", "2f(@)"),
    "zero for a function of zero": on_values("0", "(@)I(0)"),
    "value for a function of it": on_values("@", r"\ln w = @"),
    "label for a function of it": on_values("y = @", r"\ln(y) = @"),
    "another argument in the label": on_values("f(w+1) = @", "f(w) = @"),
    "units of another dimension": on_values(r"@\text{ cubic units}", r"@\text{ square units}", pattern=WHOLE),
    "another unit": on_values(r"@\text{ kg}", r"@\text{ g}", pattern=WHOLE),
    "counts swapped": on_values("@ adults, 1 child", "1 adult, @ children", pattern=WHOLE),
    "words swapped": on_values(r"\text{True, False}, @", r"\text{False, True}, @", pattern=WHOLE),
    "another base": on_values("@_{11}", "@_{12}", pattern=WHOLE),
    "an identity of the same value": on_values(r"\log_2 2^{@} = @", r"\log_3 3^{@} = @", pattern=WHOLE),
    "a chain that does not hold": on_values("w = @+1 = @", "@"),
    "ratio upside down": on_values("1:@", "@:1", pattern=WHOLE),
    "a time for a ratio": on_values("4:0@", "4:@", pattern=r"[1-9]$"),
}


def make_pairs(references: Sequence[str], count: int, rng: random.Random) -> list[Pair]:
    """Up to `count` pairs, spread over the rules as evenly as references allow."""
    rules = [(name, rule, True) for name, rule in SAME.items()]
    rules += [(name, rule, False) for name, rule in OTHER.items()]
    made: dict[str, list[Pair]] = {}
    for name, rule, is_same in rules:
        order = rng.sample(references, len(references))
        changed = [(rule(truth, rng), truth) for truth in order]
        made[name] = [Pair(name, *_answer_and_truth(new, truth), is_same) for new, truth in changed if new]
    taken: list[Pair] = []
    left = sorted(made.values(), key=len)
    while left:
        share = (count - len(taken)) // len(left)
        taken += left.pop(0)[:share]
    return taken


def _answer_and_truth(new: str | tuple[str, str], truth: str) -> tuple[str, str]:
    return new if isinstance(new, tuple) else (new, truth)


# --- judging -------------------------------------------------------------------------------------------------------
def math_verify_judge() -> Callable[[str, str], bool]:
    """math-verify as its documentation says: both in a box, the truth first."""
    from math_verify import parse, verify

    def judge(answer: str, truth: str) -> bool:
        gold, given = (parse(rf"\boxed{{{text}}}") for text in (truth, answer))
        return bool(verify(gold, given))

    return judge


def replay(pairs: Sequence[Pair], judges: dict[str, Callable[[str, str], bool]]) -> tuple[dict[str, Count], dict]:
    """(how each class fared, how each judge spent its time)."""
    counts: dict[str, Count] = {}
    seconds: dict[str, list[float]] = {name: [] for name in judges}
    for pair in pairs:
        count = counts.setdefault(pair.rule, Count(pair.is_same))
        count.pairs += 1
        for name, judge in judges.items():
            start = time.perf_counter()
            verdict = judge(pair.answer, pair.truth)
            seconds[name].append(time.perf_counter() - start)
            if verdict is not pair.is_same:
                count.wrong[name].append(pair)
    spent = {name: {"mean": sum(values) / len(values), "max": max(values)} for name, values in seconds.items()}
    return counts, spent


def show(counts: dict[str, Count], judges: Sequence[str], examples: int) -> None:
    for kind, is_same in (("right answers that were missed", True), ("wrong answers that were paid", False)):
        print(f"\n{kind:34}{'pairs':>8}" + "".join(f"{judge:>14}" for judge in judges))
        chosen = {rule: count for rule, count in counts.items() if count.is_same is is_same}
        for rule, count in chosen.items():
            print(f"  {rule:32}{count.pairs:8}" + "".join(f"{len(count.wrong[judge]):14}" for judge in judges))
            for pair in count.wrong["ours"][:examples]:
                print(f"      {pair.answer}  ‖  {pair.truth}")
        totals = (sum(len(count.wrong[judge]) for count in chosen.values()) for judge in judges)
        print(f"  {'all':32}{sum(c.pairs for c in chosen.values()):8}" + "".join(f"{total:14}" for total in totals))


def main(argv: list[str] | None = None) -> dict:
    arguments = timing.parser("bench.verifier", __doc__, peers=("none", "math_verify"), dtypes=())
    arguments.add_argument("--pairs", type=int, default=5000)
    arguments.add_argument("--references", type=Path, nargs="+", default=[], metavar="FILE")
    arguments.add_argument("--show", type=int, default=3, help="failures of each class to print")
    options = timing.parse(arguments, argv)
    rng = random.Random(0)
    references = read_references(options.references)
    pairs = make_pairs(references, 300 if options.smoke else options.pairs, rng)
    judges = {"ours": equivalent}
    if options.peer == "math_verify":
        judges["math_verify"] = math_verify_judge()
    counts, seconds = replay(pairs, judges)
    show(counts, list(judges), options.show)
    options.references = [path.name for path in options.references]
    cases = [
        {
            "name": rule,
            "should_be_equal": count.is_same,
            "pairs": count.pairs,
            "wrong": {judge: len(count.wrong[judge]) for judge in judges},
        }
        for rule, count in counts.items()
    ]
    checks = {
        "references": len(references),
        "pairs": len(pairs),
        "missed by ours": sum(len(count.wrong["ours"]) for count in counts.values() if count.is_same),
        "paid by ours": sum(len(count.wrong["ours"]) for count in counts.values() if not count.is_same),
    }
    return timing.finish("verifier", options, cases, checks, seconds_per_pair=seconds)


if __name__ == "__main__":
    main()

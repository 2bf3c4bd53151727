r"""How a reference answer is written in another way that means the same, or changed so that it means something else.

A rule is a name, whether the meaning stays, the shapes of answers that it applies to, and a function that makes the new
answer of a reference; None where it cannot. What is right is known by the rule, without a reader: each is narrow enough
for that. The rules are in `rules.py`, and `verifier.py` lets the verifier judge what they make.
"""

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from rewards.mathematics import shapes
from rewards.mathematics.algebra import Algebra
from rewards.mathematics.answer import read_answer
from rewards.mathematics.application import mark_applications
from rewards.mathematics.quantity import Scalar
from rewards.mathematics.tokens import tokenize

# what a reference is: a number or a term; one with words or units; several; in brackets; …; anything else is words
Shape = Literal["term", "quantity", "list", "row", "relation", "choice", "matrix", "words"]
# the new answer to the reference, or another (answer, truth) made of it
Made = str | tuple[str, str] | None
Make = Callable[[str, random.Random], Made]

_SHAPES: dict[type, Shape] = {
    shapes.Bag: "list",
    shapes.Row: "row",
    shapes.Named: "relation",
    shapes.Relation: "relation",
    shapes.Chain: "relation",
    shapes.Choice: "choice",
}
SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
).split()
TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
_WORD = re.compile(
    r"(?<!\\)\b[A-Za-z]{3,}|\\text|\\math|[^\x00-\x7f]|\\pm|\\mp|\.\.|dots|[~&|!%$,]|°|\\circ"
    r"|[0-9](?:st|nd|rd|th)|overline|\.$"
)


@dataclass(frozen=True)
class Rule:
    name: str
    is_same: bool
    make: Make
    shapes: frozenset[str] | None = None  # None: any

    def apply(self, reference: str, shape: Shape, rng: random.Random) -> tuple[str, str] | None:
        """(answer, truth), or None where the rule does not apply."""
        if self.shapes is not None and shape not in self.shapes:
            return None
        made = self.make(reference, rng)
        return (made, reference) if isinstance(made, str) else made


def shape_of(reference: str) -> Shape:
    """Which rules may apply to the reference."""
    tokens, _ = mark_applications(*[tokenize(reference)] * 2)
    read = read_answer(tokens, Algebra())
    if isinstance(read, Scalar):
        is_bare = read.unit is None and read.if_unit is None and not read.noun and not _WORD.search(reference)
        return "term" if is_bare and read.value.top else "quantity"
    if isinstance(read, shapes.Grid):
        return "matrix"
    return "words" if _WORD.search(reference.replace(",", "")) else _SHAPES.get(type(read), "words")


# --- how rules make answers ----------------------------------------------------------------------------------------
def wrap(before: str, after: str, unless: str = r"(?!)") -> Make:
    """The whole reference between two texts, unless the pattern is found in it."""
    return lambda text, rng: None if re.search(unless, text) else before + text + after


def replace(*pairs: tuple[str, str], unless: str = r"(?!)") -> Make:
    """Every occurrence of each pattern; not where none is found, or where `unless` is."""

    def make(text: str, rng: random.Random) -> Made:
        changed = text
        for pattern, new in pairs:
            changed = re.sub(pattern, new, changed)
        return None if changed == text or re.search(unless, text) else changed

    return make


def change_one(pattern: str, new: Callable[[re.Match], str], unless: str = r"(?!)") -> Make:
    """One occurrence of the pattern, drawn at random."""

    def make(text: str, rng: random.Random) -> Made:
        found = [match for match in re.finditer(pattern, text) if new(match) != match[0]]
        if not found or re.search(unless, text):
            return None
        match = rng.choice(found)
        return text[: match.start()] + new(match) + text[match.end() :]

    return make


def template(*templates: str, pattern: str = "") -> Make:
    """An answer with the reference in the place of @, or an answer and a truth."""

    def make(text: str, rng: random.Random) -> Made:
        if not re.match(pattern, text):
            return None
        made = [each.replace("@", text) for each in templates]
        return made[0] if len(made) == 1 else (made[0], made[1])

    return make


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


def swap_sides(text: str, rng: random.Random) -> Made:
    """x < 3 as 3 > x, a = b as b = a."""
    turned = {"=": "=", "<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le", r"\leq": r"\geq", r"\geq": r"\leq"}
    sides = re.split(r"(=|<|>|\\leq?(?![a-z])|\\geq?(?![a-z]))", text)
    if len(sides) != 3 or re.search(r",|;|\\mid|\\in|:", text):
        return None
    left, sign, right = sides
    is_whole = left.strip() and right.strip() and left.count("(") == left.count(")")
    return f"{right.strip()} {turned[sign]} {left.strip()}" if is_whole else None


def reorder_terms(text: str, rng: random.Random) -> Made:
    """a - b + c as c + a - b."""
    terms = split_outside(text, "+-")
    if len(terms) < 2 or re.search(r"[0-9]e-|[,:]|vert", text):
        return None
    if not terms[0].lstrip().startswith("-"):
        terms[0] = "+" + terms[0]
    rng.shuffle(terms)
    return "".join(terms).removeprefix("+")


def reorder_list(text: str, rng: random.Random) -> Made:
    """1, 2 as 2, 1: a bare list of numbers has no order."""
    items = split_outside(text, ",")
    are_numbers = all(re.fullmatch(r",?\s*-?[0-9./\\fracsqrt{}]+\s*", item) for item in items)
    is_spaced = all(item[1:2] == " " for item in items[1:])
    if len(items) < 2 or not are_numbers or not is_spaced:
        return None
    return ", ".join(item.strip(" ,") for item in reversed(items))


def rewrite_number(text: str, rng: random.Random) -> Made:
    """A whole number in some other notation."""
    if not re.fullmatch(r"-?[1-9][0-9]{0,11}", text):
        return None
    n = int(text)
    return rng.choice(
        [f"{n}.0", f"{n:,}", rf"\frac{{{2 * n}}}{{2}}", f"{n}/1", f"({n})", f"x={n}", rf"{n}\%", f"{n} apples"]
    )


def rename_parameter(text: str, rng: random.Random) -> Made:
    """f(u) = u^2 and f(v) = v^2."""
    letter = r"(?<![A-Za-z\\_])[xtn](?![A-Za-z_(])"
    names = set(re.findall(letter, text))
    if len(names) != 1 or re.search(r"[uv]|_|'", text):
        return None
    answer, truth = (re.sub(letter, name, text) for name in "uv")
    return f"h(u) = {answer}", f"h(v) = {truth}"


def drop_item(text: str, rng: random.Random) -> Made:
    items = split_outside(text, ",")
    if len(items) < 2 or len({item.strip(" ,") for item in items}) < len(items) or "=" in text:
        return None
    del items[rng.randrange(len(items))]
    return "".join(items).strip(" ,")


def swap_in_tuple(text: str, rng: random.Random) -> Made:
    """(1, 2) as (2, 1)."""
    inside = re.fullmatch(r"(\\left)?\(([^()]+?)(\\right)?\)", text)
    items = inside[2].split(",") if inside else []
    if len(items) != 2 or re.search(r"\.|/|frac", text) or items[0].strip() == items[1].strip():
        return None
    return f"({items[1].strip()}, {items[0].strip()})"


def invert_fraction(text: str, rng: random.Random) -> Made:
    fraction = re.fullmatch(r"(-?)\\d?frac\{([^{}]+)\}\{([^{}]+)\}", text)
    if not fraction or fraction[2].strip(" -") == fraction[3].strip(" -"):
        return None
    return rf"{fraction[1]}\frac{{{fraction[3]}}}{{{fraction[2]}}}"


def shuffle_letters(text: str, rng: random.Random) -> Made:
    """cat as act: letters side by side are no product where they are a word."""
    if not re.fullmatch(r"[A-Za-z]{3,}|[\u4e00-\u9fff]{2,}", text):
        return None
    letters = rng.sample(text, len(text))
    return None if "".join(letters).casefold() == text.casefold() else "".join(letters)


def interval_as_inequality(text: str, rng: random.Random) -> Made:
    """(2, 5] as 2 < w ≤ 5; not where it may be a point."""
    interval = re.fullmatch(r"(?:\\left ?)?([(\[])([^(),\[\]]+),([^(),\[\]]+?)(?:\\right ?)?([)\]])", text)
    if not interval or (interval[1] + interval[4] == "()" and "infty" not in text):
        return None
    low, high = interval[2].strip(), interval[3].strip()
    left = "" if "infty" in low else f"{low} {'<' if interval[1] == '(' else '<='} "
    right = "" if "infty" in high else f" {'<' if interval[4] == ')' else '<='} {high}"
    return f"{left}w{right}" if left or right else None


def to_one_side(text: str, rng: random.Random) -> Made:
    """x + y = 3 as x + y - (3) = 0, for an equation in several variables."""
    sides = text.split("=")
    variables = set(re.findall(r"(?<![A-Za-z\\])[a-z](?![A-Za-z(_])", text)) - set("dei")
    if (
        len(sides) != 2
        or len(variables) < 2
        or re.search(r"[,;:<>|&'_\u4e00-\u9fff]|text|[a-z]\(|begin|\\[npgl]", text)
    ):
        return None
    return f"{sides[0]} - ({sides[1].rstrip('.')}) = 0"


def whole_as_mixed(text: str, rng: random.Random) -> Made:
    r"""\frac{7}{3} as 2\frac{1}{3}."""
    fraction = re.fullmatch(r"\\d?frac\{([0-9]+)\}\{([0-9]+)\}", text)
    if not fraction or int(fraction[1]) < int(fraction[2]) or int(fraction[1]) % int(fraction[2]) == 0:
        return None
    whole, rest = divmod(int(fraction[1]), int(fraction[2]))
    return rf"{whole}\frac{{{rest}}}{{{fraction[2]}}}"


def in_words(text: str, rng: random.Random) -> Made:
    """42 as forty-two."""
    return spelled(int(text)) if re.fullmatch("[1-9][0-9]{0,5}", text) else None


def next_in_words(text: str, rng: random.Random) -> Made:
    return spelled(int(text) + 1) if re.fullmatch("[1-9][0-9]{0,4}", text) else None


def spelled(n: int) -> str:
    """A number below a million in words."""
    if n >= 1000:
        return f"{spelled(n // 1000)} thousand {spelled(n % 1000) if n % 1000 else ''}".strip()
    if n >= 100:
        return f"{spelled(n // 100)} hundred{f' and {spelled(n % 100)}' if n % 100 else ''}"
    return SMALL[n] if n < 20 else TENS[n // 10 - 2] + (f"-{SMALL[n % 10]}" if n % 10 else "")


def swap_entries(text: str, rng: random.Random) -> Made:
    """The first two entries of a matrix the other way round."""
    entries = re.fullmatch(r"(.*?\\begin\{[a-z]+\}(?:\{[a-z]+\})?)([^&\\]+)(&|\\\\)([^&\\]+)((?:&|\\).*)", text)
    if not entries or entries[2].strip() == entries[4].strip() or re.search("[./]", entries[2] + entries[4]):
        return None
    return f"{entries[1]}{entries[4]}{entries[3]}{entries[2]}{entries[5]}"


def next_number(match: re.Match) -> str:
    return str(int(match[0]) + 1)


def rules(is_same: bool, shapes: str | None, **makes: Make) -> list[Rule]:
    """Rules for the same shapes; names are written with underscores."""
    chosen = frozenset(shapes.split()) if shapes else None
    return [Rule(name.replace("_", " "), is_same, make, chosen) for name, make in makes.items()]

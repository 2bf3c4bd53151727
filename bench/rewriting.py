r"""Write a reference answer in another way that means the same, or change it so that it means something else.

A rule is a name, whether the meaning stays, the shapes of answers that it applies to, and a function that makes a new
answer from a reference, or None if it cannot. Each rule is so narrow that nobody has to check what it makes. The rules
are in rules.py, and verifier.py lets the verifier judge what they make.
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

# What a reference is: a number or a term; one with words or units; several; in brackets; …. Anything else is words.
Shape = Literal["term", "quantity", "list", "row", "relation", "choice", "matrix", "words"]
# A new answer to the reference, or another (answer, truth) made from it.
Made = str | tuple[str, str] | None
Make = Callable[[str, random.Random], Made]
NEVER = r"(?!)"  # a pattern that is found nowhere

SHAPES: dict[type, Shape] = {
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
WORD = re.compile(
    r"(?<!\\)\b[A-Za-z]{3,}|\\text|\\math|[^\x00-\x7f]|\\pm|\\mp|\.\.|dots|[~&|!%$,]|°|\\circ"
    r"|[0-9](?:st|nd|rd|th)|overline|\.$"
)


@dataclass(frozen=True)
class Rule:
    """One way to rewrite or change answers of some shapes; None: of any shape."""

    name: str
    is_same: bool
    make: Make
    shapes: frozenset[str] | None = None

    def apply(self, reference: str, shape: Shape, rng: random.Random) -> tuple[str, str] | None:
        """Return (answer, truth), or None if the rule does not apply."""
        if self.shapes is not None and shape not in self.shapes:
            return None
        made = self.make(reference, rng)
        return (made, reference) if isinstance(made, str) else made


def shape_of(reference: str) -> Shape:
    """Return the shape of a reference, which decides what rules may apply to it."""
    tokens = tokenize(reference)
    tokens, _ = mark_applications(tokens, tokens)
    read = read_answer(tokens, Algebra())
    if isinstance(read, Scalar):
        has_unit = read.unit is not None or read.if_unit is not None
        is_bare = not has_unit and not read.noun and not WORD.search(reference)
        return "term" if is_bare and read.value.top else "quantity"
    if isinstance(read, shapes.Grid):
        return "matrix"
    if WORD.search(reference.replace(",", "")):
        return "words"
    return SHAPES.get(type(read), "words")


# --- How rules make answers ----------------------------------------------------------------------------------------


def wrap(before: str, after: str, unless: str = NEVER) -> Make:
    """Put the reference between two texts, unless a pattern is found in it."""
    return lambda text, rng: None if re.search(unless, text) else before + text + after


def replace(*pairs: tuple[str, str], unless: str = NEVER) -> Make:
    """Replace every occurrence of each pattern, unless the pattern `unless` is found."""

    def make(text: str, rng: random.Random) -> Made:
        changed = text
        for pattern, new in pairs:
            changed = re.sub(pattern, new, changed)
        return None if changed == text or re.search(unless, text) else changed

    return make


def change_one(pattern: str, new: Callable[[re.Match], str], unless: str = NEVER) -> Make:
    """Replace one occurrence of the pattern, drawn at random, unless the pattern `unless` is found."""

    def make(text: str, rng: random.Random) -> Made:
        found = [match for match in re.finditer(pattern, text) if new(match) != match[0]]
        if not found or re.search(unless, text):
            return None
        match = rng.choice(found)
        before, after = text[: match.start()], text[match.end() :]
        return before + new(match) + after

    return make


def template(*templates: str, pattern: str = "") -> Make:
    """Write the reference in place of each @. One template makes an answer, two make an answer and a truth."""

    def make(text: str, rng: random.Random) -> Made:
        if not re.match(pattern, text):
            return None
        made = tuple(each.replace("@", text) for each in templates)
        return made[0] if len(made) == 1 else made

    return make


def split_outside(text: str, separators: str) -> list[str]:
    """Split a text at separators outside all brackets. Each part but the first begins with its separator.

    A sign after an operator, as in an exponent, does not separate.
    """
    depth, parts, start = 0, [], 0
    for at, character in enumerate(text):
        depth += (character in "({[") - (character in ")}]")
        before = text[:at].rstrip()
        if character in separators and depth == 0 and before and before[-1] not in "^_*/=<>+-\\,":
            parts.append(text[start:at])
            start = at
    return [*parts, text[start:]]


def swap_sides(text: str, rng: random.Random) -> Made:
    """Write x < 3 as 3 > x, and a = b as b = a."""
    turned = {
        "=": "=",
        "<": ">",
        ">": "<",
        r"\le": r"\ge",
        r"\ge": r"\le",
        r"\leq": r"\geq",
        r"\geq": r"\leq",
    }
    sides = re.split(r"(=|<|>|\\leq?(?![a-z])|\\geq?(?![a-z]))", text)
    if len(sides) != 3 or re.search(r",|;|\\mid|\\in|:", text):
        return None
    left, sign, right = (side.strip() for side in sides)
    is_complete = left and right and left.count("(") == left.count(")")
    return f"{right} {turned[sign]} {left}" if is_complete else None


def reorder_terms(text: str, rng: random.Random) -> Made:
    """Write a - b + c as c + a - b."""
    terms = split_outside(text, "+-")
    if len(terms) < 2 or re.search(r"[0-9]e-|[,:]|vert", text):
        return None
    if not terms[0].lstrip().startswith("-"):
        terms[0] = "+" + terms[0]
    rng.shuffle(terms)
    return "".join(terms).removeprefix("+")


def reorder_list(text: str, rng: random.Random) -> Made:
    """Write 1, 2 as 2, 1: a bare list of numbers has no order."""
    items = split_outside(text, ",")
    are_numbers = all(re.fullmatch(r",?\s*-?[0-9./\\fracsqrt{}]+\s*", item) for item in items)
    is_spaced = all(item[1:2] == " " for item in items[1:])
    if len(items) < 2 or not are_numbers or not is_spaced:
        return None
    return ", ".join(item.strip(" ,") for item in reversed(items))


def rewrite_number(text: str, rng: random.Random) -> Made:
    """Write a whole number in some other notation."""
    if not re.fullmatch(r"-?[1-9][0-9]{0,11}", text):
        return None
    n = int(text)
    half_of_twice = rf"\frac{{{2 * n}}}{{2}}"
    notations = [f"{n}.0", f"{n:,}", half_of_twice, f"{n}/1", f"({n})", f"x={n}", rf"{n}\%", f"{n} apples"]
    return rng.choice(notations)


def rename_parameter(text: str, rng: random.Random) -> Made:
    """Write the function of a term with two names of its parameter: h(u) = u^2 and h(v) = v^2."""
    letter = r"(?<![A-Za-z\\_])[xtn](?![A-Za-z_(])"
    names = set(re.findall(letter, text))
    if len(names) != 1 or re.search(r"[uv]|_|'", text):
        return None
    answer, truth = (re.sub(letter, name, text) for name in "uv")
    return f"h(u) = {answer}", f"h(v) = {truth}"


def drop_item(text: str, rng: random.Random) -> Made:
    """Leave out one item of a list whose items all differ."""
    items = split_outside(text, ",")
    distinct = {item.strip(" ,") for item in items}
    if len(items) < 2 or len(distinct) < len(items) or "=" in text:
        return None
    del items[rng.randrange(len(items))]
    return "".join(items).strip(" ,")


def swap_in_tuple(text: str, rng: random.Random) -> Made:
    """Write (1, 2) as (2, 1)."""
    inside = re.fullmatch(r"(\\left)?\(([^(),]+?),([^(),]+?)(\\right)?\)", text)
    if not inside or re.search(r"\.|/|frac", text):
        return None
    first, second = inside[2].strip(), inside[3].strip()
    return f"({second}, {first})" if first != second else None


def invert_fraction(text: str, rng: random.Random) -> Made:
    """Turn a fraction upside down."""
    fraction = re.fullmatch(r"(-?)\\d?frac\{([^{}]+)\}\{([^{}]+)\}", text)
    if not fraction or fraction[2].strip(" -") == fraction[3].strip(" -"):
        return None
    return rf"{fraction[1]}\frac{{{fraction[3]}}}{{{fraction[2]}}}"


def shuffle_letters(text: str, rng: random.Random) -> Made:
    """Write cat as act: the letters of a word are not a product."""
    if not re.fullmatch(r"[A-Za-z]{3,}|[\u4e00-\u9fff]{2,}", text):
        return None
    shuffled = "".join(rng.sample(text, len(text)))
    return shuffled if shuffled.casefold() != text.casefold() else None


def interval_as_inequality(text: str, rng: random.Random) -> Made:
    """Write (2, 5] as 2 < w ≤ 5, unless it may be a point."""
    interval = re.fullmatch(r"(?:\\left ?)?([(\[])([^(),\[\]]+),([^(),\[\]]+?)(?:\\right ?)?([)\]])", text)
    if not interval or (interval[1] + interval[4] == "()" and "infty" not in text):
        return None
    low, high = interval[2].strip(), interval[3].strip()
    above = "<" if interval[1] == "(" else "<="
    below = "<" if interval[4] == ")" else "<="
    left = "" if "infty" in low else f"{low} {above} "
    right = "" if "infty" in high else f" {below} {high}"
    return f"{left}w{right}" if left or right else None


def to_one_side(text: str, rng: random.Random) -> Made:
    """Write x + y = 3 as x + y - (3) = 0, for an equation in several variables."""
    if re.search(r"[,;:<>|&'_\u4e00-\u9fff]|text|[a-z]\(|begin|\\[npgl]", text):
        return None
    letters = re.findall(r"(?<![A-Za-z\\])[a-z](?![A-Za-z(_])", text)
    variables = set(letters) - set("dei")
    left, _, right = text.partition("=")
    if len(variables) < 2 or text.count("=") != 1:
        return None
    return f"{left} - ({right.rstrip('.')}) = 0"


def whole_as_mixed(text: str, rng: random.Random) -> Made:
    r"""Write \frac{7}{3} as 2\frac{1}{3}."""
    fraction = re.fullmatch(r"\\d?frac\{([0-9]+)\}\{([0-9]+)\}", text)
    if not fraction:
        return None
    top, bottom = fraction.groups()
    whole, rest = divmod(int(top), int(bottom))
    return rf"{whole}\frac{{{rest}}}{{{bottom}}}" if whole and rest else None


def in_words(text: str, rng: random.Random) -> Made:
    """Write 42 as forty-two."""
    return spelled(int(text)) if re.fullmatch("[1-9][0-9]{0,5}", text) else None


def next_in_words(text: str, rng: random.Random) -> Made:
    """Write 42 as forty-three."""
    if not re.fullmatch("[1-9][0-9]{0,4}", text):
        return None
    return spelled(int(text) + 1)


def spelled(n: int) -> str:
    """Write a number below a million in words."""
    if n < 20:
        return SMALL[n]
    if n < 100:
        tens, rest = divmod(n, 10)
        return TENS[tens - 2] + (f"-{SMALL[rest]}" if rest else "")
    size, name, joint = (100, "hundred", " and ") if n < 1000 else (1000, "thousand", " ")
    count, rest = divmod(n, size)
    words = f"{spelled(count)} {name}"
    return words + joint + spelled(rest) if rest else words


def swap_entries(text: str, rng: random.Random) -> Made:
    """Swap the first two entries of a matrix."""
    matrix = re.fullmatch(r"(.*?\\begin\{[a-z]+\}(?:\{[a-z]+\})?)([^&\\]+)(&|\\\\)([^&\\]+)((?:&|\\).*)", text)
    if not matrix:
        return None
    before, first, between, second, after = matrix.groups()
    if first.strip() == second.strip() or re.search("[./]", first + second):
        return None
    return before + second + between + first + after


def next_number(match: re.Match) -> str:
    """Return the whole number after the one that was found."""
    return str(int(match[0]) + 1)


def make_rules(is_same: bool, shapes: str | None, **makes: Make) -> list[Rule]:
    """Make rules for the same shapes. Their names are written with underscores."""
    chosen = frozenset(shapes.split()) if shapes else None
    made = []
    for name, make in makes.items():
        made.append(Rule(name.replace("_", " "), is_same, make, chosen))
    return made

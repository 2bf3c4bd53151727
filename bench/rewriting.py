r"""Reference answers, written in another way that means the same, or changed so that they mean something else.

A rule is a name, whether the meaning stays, the shapes of answers that it applies to, and a function that makes the new
answer of a reference; None where it cannot. What is right is known by the rule, without a reader: each is narrow enough
for that. `verifier.py` lets the verifier judge what they make.
"""

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from rewards.mathematics import value
from rewards.mathematics.algebra import Algebra
from rewards.mathematics.application import mark_applications
from rewards.mathematics.quantity import Scalar
from rewards.mathematics.read import read_answer
from rewards.mathematics.text import tokenize

# what a reference is: a number or a term; one with words or units; several; in brackets; …; anything else is words
Shape = Literal["term", "quantity", "list", "row", "relation", "choice", "matrix", "words"]
# the new answer to the reference, or another (answer, truth) made of it
Made = str | tuple[str, str] | None
Make = Callable[[str, random.Random], Made]

_SHAPES: dict[type, Shape] = {
    value.Bag: "list",
    value.Row: "row",
    value.Named: "relation",
    value.Relation: "relation",
    value.Chain: "relation",
    value.Choice: "choice",
    value.Grid: "matrix",
}
_WORD = re.compile(
    r"(?<!\\)\b[A-Za-z]{3,}|\\text|\\math|[^\x00-\x7f]|\\pm|\\mp|\.\.|dots|[~&|!%$,]|°|\\circ|[0-9]th|overline"
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


def next_number(match: re.Match) -> str:
    return str(int(match[0]) + 1)


# --- the rules -----------------------------------------------------------------------------------------------------
def rules(is_same: bool, shapes: str | None, **makes: Make) -> list[Rule]:
    """Rules for the same shapes; names are written with underscores."""
    chosen = frozenset(shapes.split()) if shapes else None
    return [Rule(name.replace("_", " "), is_same, make, chosen) for name, make in makes.items()]


WHOLE = r"[2-9][0-9]{0,3}$"
LE, GE, NE = r"\\leq?(?![A-Za-z])", r"\\geq?(?![A-Za-z])", r"\\neq?(?![A-Za-z])"
UNICODE = (
    (r"\\pi(?![A-Za-z])", "π"),
    (r"\\infty(?![A-Za-z])", "∞"),
    (LE, "≤"),
    (GE, "≥"),
    (r"\\cdot(?![A-Za-z])", "·"),
    (r"\\cup(?![A-Za-z])", "∪"),
    (r"\^2(?![0-9])", "²"),
    ("-", "−"),
)
FULL_WIDTH = ((r"(?<![0-9]),(?![0-9])", "，"), (r"\(", "（"), (r"\)", "）"), (r"(?<!\\):", "："), ("=", "＝"))
FUNCTIONS = {"sin": "cos", "cos": "sin", "tan": "cot", "ln": "sin", "log": "cos", "sqrt": "sqrt[3]", "arctan": "arcsin"}
RELATIONS = {"<": r" \le ", ">": r" \ge ", r"\le": " < ", r"\leq": " < ", r"\ge": " > ", r"\geq": " > ", "=": r" \ne "}
FORMULAS = "term list row relation matrix"

SAME = [
    *rules(
        True,
        None,
        itself=lambda text, rng: text,
        dollars=wrap("$", "$", r"\$"),
        parentheses_in_LaTeX=wrap(r"\(", r"\)", r"\$|\\\("),
        a_full_stop=wrap("", ".", r"[.…]$"),
        nested_box=wrap(r"\boxed{", "}", r"\\text|\$"),
        display_style=wrap(r"\displaystyle ", "", r"\$"),
        size=wrap(r"\large ", "", r"\$"),
        check_mark=wrap("", r"\ \checkmark", r"\$"),
        aligned=wrap(r"\begin{aligned} ", r" \end{aligned}", r"\$|begin|&"),
        the_answer=wrap(r"\text{Answer: } ", "", r"[:;]"),
        roman_text=replace((r"\\text\s*\{", r"\\mathrm{")),
        degree_sign=replace((r"\^\s*\{?\s*\\circ\s*\}?", "°")),
        large_brackets=replace((r"(?<!left)(?<!\\)([(\[])", r"\\left\1"), (r"(?<!right)(?<!\\)([)\]])", r"\\right\1")),
        small_brackets=replace((r"\\left(?![a-z])\s*(?=[(\[])|\\right(?![a-z])\s*(?=[)\]])", "")),
    ),
    *rules(
        True, "words", another_case=lambda text, rng: text.upper() if re.fullmatch("[A-Z][a-z]{3,}", text) else None
    ),
    *rules(
        True,
        FORMULAS,
        wider_spaces=replace((r"(?<![0-9]e)(?<=[A-Za-z0-9})]) ?([-+=]) ?(?=[A-Za-z0-9\\({])", r" \1\\, ")),
        no_spaces=replace((r"(?<![A-Za-z,]) (?=[-+=(\\\\])", "")),
        large_fractions=replace((r"\\frac(?![a-z])", r"\\dfrac")),
        fractions_of_digits=replace((r"\\frac\{([0-9])\}\{([0-9])\}", r"\\frac\1\2")),
        fractions_in_brackets=replace(
            (r"(?<![0-9])\\d?frac\{([^{}]+)\}\{([^{}]+)\}", r"((\1)/(\2))"), unless=r"[0-9] \\"
        ),
        slashes=replace((r"^(-?)\\d?frac\{([0-9a-z]+)\}\{([0-9a-z])\}$", r"\1\2/\3")),
        braces_around_exponents=replace((r"\^([0-9a-z])(?![0-9])", r"^{\1}")),
        braces_around_subscripts=replace((r"_([0-9a-z])(?![0-9])", r"_{\1}")),
        roots_as_powers=replace((r"\\sqrt\{([0-9a-z]+)\}", r"{\1}^{1/2}"), unless=r"sin|cos|tan|ln|log|\}\^"),
        exponential_function=replace((r"(?<![a-z])e\^\{([^{}]*)\}", r"\\exp(\1)")),
        double_times=replace((r"\\cdot(?![a-z])", r"\\times")),
        Unicode=replace(*UNICODE),
        full_width=replace(*FULL_WIDTH),
        ASCII_relations=replace((LE, "<="), (GE, ">="), (NE, " != ")),
        ASCII_powers=replace((r"\^([0-9a-z])(?![0-9])", r"**\1"), unless=r"\\"),
        sides_swapped=swap_sides,
    ),
    *rules(
        True,
        "term",
        terms_in_another_order=reorder_terms,
        number_in_another_notation=rewrite_number,
        doubled_and_halved=template(r"\frac{2(@)}{2}"),
        negated_twice=template("-(-(@))"),
        with_its_name=template("w = @"),
        in_a_function=template("2f(@)", r"f(0+(@))\cdot 2"),
        parameter_renamed=rename_parameter,
        a_chain_that_holds=template("w = @+1-1 = @"),
        in_degrees=template(r"\beta+(@)^\circ", r"(@)+\beta"),
        square_of_a_root=template(r"\left(\sqrt{@}\right)^2", pattern=WHOLE),
        with_a_unit=template(r"@\text{ cm}", pattern=WHOLE),
        with_a_Chinese_unit=template("@平方米", r"@\text{ m}^2", pattern=WHOLE),
        in_a_smaller_unit=template(r"@000\text{ m}", r"@\text{ km}", pattern=WHOLE),
        digits_of_another_base=template("@", r"@_{11}", pattern=WHOLE),
        ratio_in_other_terms=template("2:@", r"4:2\cdot @", pattern=WHOLE),
        inequality_turned=template("-w > -@", r"w < @", pattern=WHOLE),
        inequality_in_other_terms=template("-4w < 2*@", r"-2w < @", pattern=WHOLE),
    ),
    *rules(True, "list", list_in_another_order=reorder_list),
]

OTHER = [
    *rules(
        False,
        FORMULAS,
        another_number=change_one(r"(?<![0-9.,_{}\^])[1-9][0-9]*(?![0-9]*[.,_^])", next_number, r"begin|dots|[01]\^"),
        another_exponent=change_one(r"(?<=\^)[1-9]|(?<=\^\{)[1-9](?=\})", next_number, r"i\s*\^|begin|\b1\^|\)\^"),
        another_subscript=change_one(r"(?<=_)[1-9]|(?<=_\{)[1-9](?=\})", next_number, "log|10"),
        decimal_point_moved=change_one(r"([0-9])\.([0-9]+)", lambda m: f"{m[1]}{m[2]}", r"\b0\.0+\b|\.\."),
        sign_of_one_term=change_one(
            r"(?<=[0-9A-Za-z})])\s*([-+])\s*(?=[1-9A-Za-z\\(])", lambda m: "-+"[m[1] == "-"], "[0-9]e-"
        ),
        another_variable=change_one(
            r"(?<![A-Za-z\\])[abcnxyrt](?![A-Za-z])", lambda m: "w", r"\{?[lcr]+\}|^[a-z]\([a-z]\)"
        ),
        another_function=change_one(
            r"\\(sin|cos|tan|ln|sqrt|arctan)(?![a-z\[])", lambda m: "\\" + FUNCTIONS[m[1]], r"\\sqrt\[|-1|\{?1\}"
        ),
        another_relation=change_one(rf"<|>|{LE}|{GE}", lambda m: RELATIONS[m[0]], "mid"),
        equation_to_inequation=change_one("=", lambda m: RELATIONS["="], r"\\[lg]e|[<>]"),
        function_made_linear=change_one(r"\\(sin|cos|ln)\s*\(([a-z])\+", lambda m: rf"\{m[1]}({m[2]})+\{m[1]}("),
        intersection_for_union=change_one(r"\\cup", lambda m: r"\cap"),
    ),
    *rules(
        False,
        "row",
        another_end_of_an_interval=change_one(
            r"(?<=^)\((?=[^()\[\]]*,[^()\[\],]*\]$)|(?<=^)\[(?=[^()\[\]]*,[^()\[\],]*\)$)", lambda m: "[("[m[0] == "["]
        ),
        tuple_swapped=swap_in_tuple,
    ),
    *rules(False, "list", an_item_less=drop_item),
    *rules(False, "list term", an_item_more=wrap("", ", 7919", r"[$()\[\]=<>;:]|\\(in|le|ge)|^[A-J]$")),
    *rules(False, "choice term", another_letter=lambda text, rng: "B" if re.search(r"^\(?A\)?$", text) else None),
    *rules(False, "words", letters_in_another_order=shuffle_letters),
    *rules(
        False,
        "term",
        negative=template("-(@)"),
        fraction_upside_down=invert_fraction,
        factor_dropped=change_one(r"\\pi(?![A-Za-z])", lambda m: " ", r"^\\pi$|[=+\-(,<>]|^-?\\pi|0"),
        doubled=template("2(@)"),
        one_more=template("(@)+1"),
        functions_the_other_way_round=template("f(g(@))", "g(f(@))"),
        factor_out_of_a_function=template("f(2(@))", "2f(@)"),
        step_function_as_a_product=template(r"\theta(w-1)+@", r"\theta w-\theta+@"),
        zero_for_a_function_of_zero=template("0", "(@)I(0)"),
        value_for_a_function_of_it=template("@", r"\ln w = @"),
        label_for_a_function_of_it=template("y = @", r"\ln(y) = @"),
        another_argument_in_the_label=template("f(w+1) = @", "f(w) = @"),
        a_chain_that_does_not_hold=template("w = @+1 = @", "@"),
        inequality_not_turned=template("-w > -@", r"w > @", pattern=WHOLE),
        units_of_another_dimension=template(r"@\text{ cubic units}", r"@\text{ square units}", pattern=WHOLE),
        another_unit=template(r"@\text{ kg}", r"@\text{ g}", pattern=WHOLE),
        half_a_unit=template(r"@\text{ foot-pounds}", r"@\text{ feet}", pattern=WHOLE),
        a_rate_for_an_amount=template(r"@\text{ dollars per pound}", r"@\text{ pounds}", pattern=WHOLE),
        another_Chinese_unit=template("@平方米", "@立方米", pattern=WHOLE),
        counts_swapped=template("@ adults, 1 child", "1 adult, @ children", pattern=WHOLE),
        words_swapped=template(r"\text{hot, cold}, @", r"\text{cold, hot}, @", pattern=WHOLE),
        another_base=template("@_{11}", "@_{12}", pattern=WHOLE),
        an_identity_of_the_same_value=template(r"\log_2 2^{@} = @", r"\log_3 3^{@} = @", pattern=WHOLE),
        ratio_upside_down=template("1:@", "@:1", pattern=WHOLE),
        a_time_for_a_ratio=template("4:0@", "4:@", pattern=r"[1-9]$"),
        a_term_for_a_choice=template("(B)+@", "(B)", pattern=WHOLE),
    ),
]


# --- references that are made up -----------------------------------------------------------------------------------
def make_references(count: int, rng: random.Random) -> list[str]:
    """Answers of the forms that mathematics asks for, with random numbers and letters."""
    return sorted({_make_reference(rng) for _ in range(count)})


# separated by two spaces; # is a number, @ a letter
FORMS = r"""
    #  -#  \frac{#}{#}  -\frac{#}{#}  #.#  #\sqrt{#}  \frac{#+\sqrt{#}}{#}  #\pi  \frac{#\pi}{#}  \sqrt[3]{#}  #^{#}
    \log_{#} #  \ln #  e^{#}  #+#i  \binom{#}{3}  #!  #\frac{1}{#}  \sin #^\circ  \arctan\frac{#}{#}  #\cdot 10^{#}
    |@-#|  \lfloor @/# \rfloor  #@^2+#@-#  (@-#)(@+#)  \frac{@+#}{@-#}  \sqrt{@^2+#}  e^{-#@}  \frac{#}{@^2}
    \ln(@+#)  \sin(#@)  \cos^2 @-#  #^@-#  @(@-1)/#  #@_1+@_2  @^3-#@  \frac{@^{#}-1}{@-1}  \frac12 @(a+b)
    f(@+#)-f(@)  \Gamma(#)  P(A)+P(B)-#  #e^{@}\cos(#@)+C  y = #@+#  @ = #  @^2+y^2 = #  f(@) = @^2-#
    \frac{@^2}{#}+\frac{y^2}{#} = 1  a_n = #n-#  \ln y = #@+C  @ < #  @ \ge -#  -# < @ \le #  @^2-#@ > #  (#, -#)
    (-#, #)\cup(#, \infty)  [#, \infty)  (-\infty, -#]  (\frac{#}{#}, #)  (#, #, -#)  #, -#  #, #, #.5  \{#, -#, 0\}
    @ = #, y = #  #\pm\sqrt{#}  \frac{\pi}{#}, \frac{#\pi}{#}  \begin{pmatrix} # & # \\ -# & @ \end{pmatrix}
    \begin{pmatrix} # \\ -# \end{pmatrix}  #\text{ cm}^2  \$#.50  #\%  #^\circ  # apples  #\text{ m/s}  #元  #小时  #:#
    (C)  \text{(D)}
"""


def _make_reference(rng: random.Random) -> str:
    letter = rng.choice("xxxtnzk")
    numbers = (str(rng.randint(2, 99)) for _ in iter(int, 1))
    return re.sub("#", lambda _: next(numbers), rng.choice(re.split(r"\s{2,}", FORMS.strip()))).replace("@", letter)


def make_pairs(references: Sequence[str], count: int, rng: random.Random) -> list[tuple[Rule, str, str]]:
    """Up to `count` triples (rule, answer, truth), spread over the rules as evenly as references allow."""
    shapes = {reference: shape_of(reference) for reference in references}
    made: list[list[tuple[Rule, str, str]]] = []
    for rule in [*SAME, *OTHER]:
        order = rng.sample(references, len(references))
        pairs = [(rule, rule.apply(reference, shapes[reference], rng)) for reference in order]
        made.append([(rule, *pair) for rule, pair in pairs if pair])
    taken: list[tuple[Rule, str, str]] = []
    made.sort(key=len)
    for place, pairs in enumerate(made):
        share = (count - len(taken)) // (len(made) - place)
        taken += pairs[:share]
    return taken

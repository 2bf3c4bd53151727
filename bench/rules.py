"""List the rules by which verifier.py tests the verifier: SAME rewrites an answer, OTHER makes a wrong one."""

import random
import re
from collections.abc import Sequence

from bench.rewriting import (
    Rule,
    change_one,
    drop_item,
    in_words,
    interval_as_inequality,
    invert_fraction,
    make_rules,
    next_in_words,
    next_number,
    rename_parameter,
    reorder_list,
    reorder_terms,
    replace,
    rewrite_number,
    shape_of,
    shuffle_letters,
    swap_entries,
    swap_in_tuple,
    swap_sides,
    template,
    to_one_side,
    whole_as_mixed,
    wrap,
)

NO_CHOICE = r"[^A-J()]|^\(?[EI]\)?$"
NO_NUMBERS = r"[^-0-9., /{}\\fracsqt$]"  # found unless the list holds numbers only
NO_WORDS = r"^[^A-Za-z\\]|[0-9$]|not|\\(?!text)"
PAIR = r"^\(([0-9-]+), ?([0-9-]+)\)$"
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


Pair = tuple[Rule, str, str]  # the rule, an answer, the truth


def braced(condition: str | None) -> str | None:
    """Write a condition as the set of all numbers that meet it."""
    return condition and rf"\{{w \mid {condition}\}}"


SAME = [
    *make_rules(
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
    *make_rules(
        True, "words", another_case=lambda text, rng: text.upper() if re.fullmatch("[A-Z][a-z]{3,}", text) else None
    ),
    *make_rules(
        True,
        FORMULAS,
        wider_spaces=replace((r"(?<![0-9]e)(?<=[A-Za-z0-9})]) ?([-+=]) ?(?=[A-Za-z0-9\\({])", r" \1\\, ")),
        no_spaces=replace((r"(?<![A-Za-z,]) (?=[-+=(\\\\])", "")),
        large_fractions=replace((r"\\frac(?![a-z])", r"\\dfrac")),
        fractions_of_digits=replace((r"\\frac\{([0-9])\}\{([0-9])\}", r"\\frac\1\2")),
        fractions_in_brackets=replace(
            (r"(?<![0-9])\\d?frac\{([^{}]+)\}\{([^{}]+)\}", r"((\1)/(\2))"), unless=r"[0-9] \\|frac\{d ?[A-Za-z]"
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
    *make_rules(
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
        in_words=in_words,
        as_a_mixed_number=whole_as_mixed,
        distributed=template("(w+1)(@)", "(@)w+(@)"),
        reciprocal=template("(@)^{-1}", r"\frac{1}{@}"),
        undone_by_a_logarithm=template(r"\ln e^{@}", "@", pattern="[^i]+$"),
        in_a_sum=template(r"\sum_{k=1}^{n} (@)k+2", r"2+\sum_{k=1}^{n} k\cdot (@)"),
        below_the_line=template("q/vz+@", r"\frac{q}{vz}+@"),
        letters_that_look_like_a_word=template("u+at-(@)", "ta-(@)+u"),
        hours_and_minutes=template("@ hours 30 minutes", "@.5 hours", pattern=WHOLE),
        dollars_and_cents=template("@ dollars and 50 cents", r"\$@.50", pattern=WHOLE),
        Chinese_answer=template("答案是@", pattern=WHOLE),
        a_restriction=template(r"w > 0, w \ne @", r"(0, @) \cup (@, \infty)", pattern=WHOLE),
        root_of_four_times=change_one(
            r"\\sqrt\{([0-9]+)\}", lambda m: rf"\frac{{\sqrt{{4\cdot {m[1]}}}}}{{2}}", r"\}\^"
        ),
        inequality_in_other_terms=template("-4w < 2*@", r"-2w < @", pattern=WHOLE),
    ),
    *make_rules(
        True,
        "list",
        list_in_another_order=reorder_list,
        joined_by_and=replace((r",(?=[^,]*$)", r"\\text{ and }"), unless=NO_NUMBERS),
        in_braces=wrap(r"\{", r"\}", NO_NUMBERS),
    ),
    *make_rules(
        True,
        "row",
        interval_as_inequality=interval_as_inequality,
        interval_as_a_condition=lambda text, rng: braced(interval_as_inequality(text, rng)),
        tuple_with_names=template("(x, y) = @", pattern=r"\([0-9-]+, ?[0-9-]+\)$"),
        point_as_a_column=replace((PAIR, r"\\begin{pmatrix} \1 \\\\ \2 \\end{pmatrix}")),
    ),
    *make_rules(
        True,
        "matrix",
        square_brackets=replace(("pmatrix", "bmatrix")),
        array=replace(
            (r"\\begin\{pmatrix\}", r"\\left(\\begin{array}{cc}"), (r"\\end\{pmatrix\}", r"\\end{array}\\right)")
        ),
    ),
    *make_rules(True, "relation", to_one_side=to_one_side),
    *make_rules(
        True,
        "choice",
        option=wrap("Option ", "", NO_CHOICE),
        Chinese_choice=wrap("故选", "", NO_CHOICE),
    ),
    *make_rules(
        True,
        "quantity",
        unit_left_out=replace(
            (r"(?<=[0-9}])(?:\\,|\\;| )*\\(?:text|mbox|mathrm) ?\{[^{}]*\}(?:\^\{?[0-9]\}?)?$", ""), unless="illion"
        ),
        percent_in_words=replace((r"(?<=[0-9])\\?%$", r"\\text{ percent}")),
        dollars_in_words=replace((r"^\\\$ ?([0-9.]+)$", r"\1 dollars")),
        counted_in_brackets=replace((r"^([0-9]+) ([a-z]{4,})$", r"\1 (\2)")),
        counted_without_brackets=replace((r"^([0-9]+) \(([a-z ]+)\)$", r"\1 \2")),
    ),
]

OTHER = [
    *make_rules(
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
    *make_rules(
        False,
        "row",
        another_end_of_an_interval=change_one(
            r"(?<=^)\((?=[^()\[\]]*,[^()\[\],]*\]$)|(?<=^)\[(?=[^()\[\]]*,[^()\[\],]*\)$)", lambda m: "[("[m[0] == "["]
        ),
        tuple_swapped=swap_in_tuple,
        set_for_a_tuple=replace((PAIR, r"\\{\1, \2\\}")),
        numbers_for_an_interval=replace((r"^\[([^\[\],]+),([^\[\],]+)\]$", r"\\{\1, \2\\}")),
        finite_for_infinite=change_one(r"\\infty", lambda m: "7919"),
    ),
    *make_rules(False, "list", an_item_less=drop_item),
    *make_rules(False, "list term", an_item_more=wrap("", ", 7919", r"[$()\[\]=<>;:]|\\(in|le|ge)|^[A-J]$")),
    *make_rules(
        False,
        "choice term",
        another_letter=change_one(r"^(\(?)([A-I])(?=\)?$)", lambda m: m[1] + chr(ord(m[2]) + 1)),
    ),
    *make_rules(False, "matrix", entries_swapped=swap_entries),
    *make_rules(
        False,
        "words",
        letters_in_another_order=shuffle_letters,
        negated=wrap(r"\text{not }", "", NO_WORDS),
        negated_in_Chinese=wrap("不", "", r"[^\u4e00-\u9fff]"),
    ),
    *make_rules(
        False,
        "quantity",
        another_power_of_the_unit=replace((r"(\\text ?\{ ?(?:cm|m|km|in|ft|inches|feet) ?\})$", r"\1^2")),
    ),
    *make_rules(
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
        product_for_a_mixed_number=replace((r"^([1-9])(?=\\frac\{[1-9]\}\{[1-9]\}$)", r"\1\\cdot")),
        root_dropped=change_one(r"\\sqrt\{([2-9][0-9]*)\}", lambda m: m[1], r"[(,]0|0\\sqrt"),
        exponent_dropped=change_one(r"(?<=[a-z])\^\{?[2-9]\}?", lambda m: "", r"i ?\^"),
        derivative_as_a_quotient=template(r"\frac{dy}{dx} = @", r"\frac{y}{x} = @"),
        another_function_summed=template(r"\sum_{k=1}^{n} (k+@)", r"\sum_{k=1}^{n} k+@"),
        above_for_below_the_line=template("q/vz+@", r"\frac{qz}{v}+@"),
        inequality_not_turned=template("-w > -@", r"w > @", pattern=WHOLE),
        units_of_another_dimension=template(r"@\text{ cubic units}", r"@\text{ square units}", pattern=WHOLE),
        another_unit=template(r"@\text{ kg}", r"@\text{ g}", pattern=WHOLE),
        percent_as_a_fraction=template(r"@\%", "0.0@", pattern="[2-9]$"),
        off_for_more=template(r"@\%\text{ off}", r"@\%\text{ more}", pattern=WHOLE),
        of_something_else=template("@%盐水", "@%糖水", pattern=WHOLE),
        minutes_as_decimals=template("@ hours 30 minutes", "@.3 hours", pattern=WHOLE),
        minutes_left_out=template("@ hours 30 minutes", "@ hours", pattern=WHOLE),
        answers_in_another_order=template("@; 1", "1; @", pattern=WHOLE),
        a_restriction_left_out=template("w > 0", r"w > 0, w \ne @", pattern=WHOLE),
        next_in_words=next_in_words,
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


def make_pairs(references: Sequence[str], count: int, rng: random.Random) -> list[Pair]:
    """Make up to `count` pairs, spread over the rules as evenly as references allow."""
    shapes = {reference: shape_of(reference) for reference in references}
    made: list[list[Pair]] = []
    for rule in (*SAME, *OTHER):
        pairs = []
        for reference in rng.sample(references, len(references)):
            found = rule.apply(reference, shapes[reference], rng)
            if found:
                pairs.append((rule, *found))
        made.append(pairs)
    taken: list[Pair] = []
    made.sort(key=len)
    for place, pairs in enumerate(made):
        share = (count - len(taken)) // (len(made) - place)
        taken += pairs[:share]
    return taken

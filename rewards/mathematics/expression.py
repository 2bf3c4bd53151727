r"""Read one expression as its exact value, by recursive descent with a limit on the depth.

Nothing is ever evaluated as code.

    expression = signs product { (+|-) signs product }
    product = factor { [*|/] signs factor }
    factor = primary { ^ exponent | ! | ° }

`1/2x` is (1/2)·x, as in programming languages; two numbers side by side have no value unless they are a mixed number
(`3 1/2`, `3\frac12`). A letter before a bracket is a factor unless `names.py` marked it as a function: then the
function of that argument is one symbol.
"""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

from rewards.mathematics import symbols
from rewards.mathematics.functions import binomial, call, power
from rewards.mathematics.names import end_of_exponent, end_of_name
from rewards.mathematics.tokens import Token, Tokens, closing_bracket, is_letter, is_mark, text_key
from rewards.mathematics.value import MAX_BITS, Points, Rational, Unreadable, Value, mp

MAX_DEPTH = 60  # of nested groups, fractions, roots, functions and exponents; each costs up to six Python frames
MAX_DIGITS = MAX_BITS // 4  # of a literal or of its power of ten
CLOSERS = {"{": "}", "(": ")", "[": "]", r"\lfloor": r"\rfloor", r"\lceil": r"\rceil"}  # of brackets around one value

CONSTANTS = {"π": mp.pi * 1, "e": mp.e * 1, "i": mp.mpc(0, 1)}

_END = Token("end of text", "")
_GROUPS = frozenset("{([")
_OPERATORS = frozenset((r"\frac", r"\sqrt", r"\binom")) | symbols.ACCENTS


def read_expression(tokens: Tokens, points: Points) -> Value:
    """Return the value of all the tokens together; `Unreadable` if they are not one expression or exceed a limit."""
    return _ExpressionReader(tokens, points).complete()


def expression_or_none(tokens: Tokens, points: Points) -> Value | None:
    """Return the value of all the tokens together, None if they have none."""
    try:
        return read_expression(tokens, points)
    except Unreadable:
        return None


def literal_value(literal: str) -> Fraction:
    """Return the value of a number token: `1234.50`, `1.5e3`, `0.1(6)` for 0.1666…"""
    if len(literal) > MAX_DIGITS:
        raise Unreadable("too many digits")
    if literal.endswith(")"):
        fixed, _, repeated = literal[:-1].partition("(")
        shift = 10 ** len(fixed.partition(".")[2])
        period = (10 ** len(repeated) - 1) * shift
        return Fraction(f"0{fixed}") + Fraction(int(repeated), period)
    _, _, exponent = literal.casefold().partition("e")
    if len(exponent) > 5 or abs(int(exponent or 0)) > MAX_DIGITS:
        raise Unreadable("too large an exponent")
    return Fraction(literal)


class _ExpressionReader:
    """A position in the tokens of one expression."""

    def __init__(self, tokens: Tokens, points: Points):
        self.tokens = tokens
        self.points = points
        self.at = 0
        self.depth = 0
        self.open_bars = 0
        self.is_calculation = False  # something is added, subtracted or multiplied
        self.degree: Value | Rational = 1  # what ° stands for: a unit, but π/180 in an angle

    def peek(self, ahead: int = 0) -> Token:
        return self.tokens[self.at + ahead] if self.at + ahead < len(self.tokens) else _END

    def advance(self) -> Token:
        token = self.peek()
        self.at += 1
        return token

    def accept(self, marks: str) -> str:
        """Take the next token if it is one of these one-character marks; "" if it is another."""
        return self.advance().text if is_mark(self.peek(), marks) else ""

    def expect(self, text: str) -> None:
        if self.advance().text != text:
            raise Unreadable(f"{text} expected")

    # --- the grammar ------------------------------------------------------------------------------------------------
    def complete(self) -> Value:
        """Read an expression, and nothing after it."""
        value = self.expression()
        if self.peek() is not _END:
            raise Unreadable(f"something follows the expression: {self.peek().text}")
        return replace(value, is_calculation=self.is_calculation)

    def expression(self) -> Value:
        total = self.signed(self.product)
        while is_mark(self.peek(), "+-"):
            self.is_calculation = True
            total = total + self.signed(self.product)
        return total

    def signed(self, read: Callable[[], Value]) -> Value:
        """Read signs, and what `read` finds behind them."""
        is_negative = False
        while sign := self.accept("+-"):
            is_negative ^= sign == "-"
        value = read()
        return -value if is_negative else value

    def product(self) -> Value:
        value = self.factor()
        num_divisors = 0
        while True:
            if sign := self.accept("/÷"):
                num_divisors += 1
                self.is_calculation |= sign == "÷" or num_divisors > 1  # 1/2 is a number
                value = value / self.signed(self.divisor)
            elif self.accept("*"):
                self.is_calculation |= not self.starts_power_of_ten()  # 3*10^8 is a number
                value = value * self.signed(self.factor)
            elif self.starts_factor():
                self.is_calculation |= self.peek().kind in ("open", "number")  # 2(3), 3!4!
                value = value * self.factor()
            else:
                return value

    def divisor(self) -> Value:
        """Read one factor, or letters side by side: t/RC is t/(RC). But 1/2x is x/2, and a/x(x+1) is (x+1)a/x."""
        is_letter_first = is_letter(self.peek())
        value = self.factor()
        while is_letter_first and is_letter(self.peek()):
            value = value * self.factor()
        return value

    def starts_factor(self) -> bool:
        """Tell whether the next token multiplies what stands before it.

        A number does only in `3!4!` and `(n+1)2^n`: `x 2`, `\\frac12 3` have no value.
        """
        token = self.peek()
        before = self.peek(-1)
        if token.kind == before.kind == "word" and token.spaced:  # \text{T F T}
            return False
        if token.kind == "number":
            is_power = is_mark(self.peek(1), "^")
            return is_mark(before, "!") or (is_power and (before.text in (")", "}") or before.kind == "name"))
        if token.kind == "open":
            return token.text in CLOSERS
        if token.kind == "command":
            return token.text in _OPERATORS
        if is_mark(token, "|"):
            return not self.open_bars
        return is_letter(token) or token.kind in ("applied", "function")

    def starts_power_of_ten(self) -> bool:
        """Tell whether `10^8` comes next, or `{10}^8`."""
        in_braces = self.peek().text == "{"
        return self.peek(in_braces).text == "10" and is_mark(self.peek(1 + 2 * in_braces), "^")

    def factor(self) -> Value:
        value = self.primary()
        while sign := self.accept("^!°"):
            if sign == "^":
                value = power(value, self.exponent())
            elif sign == "!":
                value = call("factorial", value)
            else:
                value = value * self.degree
        return value

    def exponent(self) -> Value:
        """Read `^2`, `^{-1}`, `^-1`, `^\\pi`."""
        self.descend()
        value = self.signed(self.tower)
        self.depth -= 1
        return value

    def tower(self) -> Value:
        """Read powers of powers, to the right first: 2^3^2 = 2^9."""
        value = self.literal_or_primary()
        return power(value, self.exponent()) if self.accept("^") else value

    def descend(self) -> None:
        """Count a level of nesting: whatever contains itself does so through `primary` or `exponent`."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Unreadable("too deeply nested")

    def primary(self) -> Value:
        self.descend()
        value = self.operand()
        self.depth -= 1
        return value

    def operand(self) -> Value:
        token = self.advance()
        if token.kind == "number":
            return self.number(token)
        if is_letter(token):
            return self.name()
        if token.kind == "applied":
            return self.application()
        if token.kind == "function":
            return self.function(token.text)
        if token.text in CLOSERS:
            return self.group(token.text)
        if is_mark(token, "|"):
            return self.absolute_value()
        if token.text == r"\frac":
            return self.literal_or_primary() / self.literal_or_primary()
        if token.text == r"\binom":
            return binomial(self.literal_or_primary(), self.literal_or_primary())
        if token.text == r"\sqrt":
            return self.radical()
        if token.text in symbols.ACCENTS:
            return self.points.variable(f"{token.text} {self.label()}")
        raise Unreadable(f"no value starts with {token.text!r}")

    # --- its leaves -------------------------------------------------------------------------------------------------
    def number(self, token: Token) -> Value:
        """Read a literal, or the mixed number that starts with it: `3\\frac12`, `3 1/2`."""
        value = self.points.number(literal_value(token.text))
        if not token.text.isdigit():
            return value
        if self.peek().text == r"\frac":
            self.advance()
            above = self.literal_or_primary()
            below = self.literal_or_primary()
            fraction = above / below
            is_mixed = above.whole is not None and fraction.number is not None and 0 < fraction.number < 1
            return value + fraction if is_mixed else value * fraction
        top = self.peek()
        slash = self.peek(1)
        bottom = self.peek(2)
        are_digits = top.text.isdigit() and bottom.text.isdigit()
        if (
            are_digits
            and top.spaced
            and is_mark(slash, "/")
            and 0 < literal_value(top.text) < literal_value(bottom.text)
        ):
            self.at += 3
            value = value + literal_value(top.text) / literal_value(bottom.text)
        return value

    def name(self) -> Value:
        start = self.at - 1
        self.at = end_of_name(self.tokens, start)
        letter = self.tokens[start]._replace(kind="name")  # \text{R} is no r
        name = text_key([letter, *self.tokens[start + 1 : self.at]])
        constant = CONSTANTS.get(name)
        return self.points.variable(name) if constant is None else self.points.constant(name, constant)

    def application(self) -> Value:
        """Read a function about which nothing is known as one symbol of its text: `f(x+1)`, `P(A|B)`, `f^{-1}(x)`."""
        start = self.at - 1
        opening = end_of_exponent(self.tokens, end_of_name(self.tokens, start))
        closing = closing_bracket(self.tokens, opening)
        if self.tokens[closing].kind != "close":
            raise Unreadable("unbalanced brackets")
        self.at = closing + 1
        return self.points.variable(text_key(self.tokens[start : self.at]))

    def label(self) -> str:
        """Return the text of a subscript or of what stands under an accent: one braced group, or one token."""
        start = self.at
        if self.peek().text != "{" and self.peek().kind not in ("name", "word", "number"):
            raise Unreadable("a label expected")
        self.at = closing_bracket(self.tokens, start) + 1
        if self.peek(-1).text != "}" and self.at > start + 1:
            raise Unreadable("unbalanced braces")
        return text_key(self.tokens[start : self.at])

    def group(self, opener: str) -> Value:
        """Read the expression in brackets that are open already."""
        bars = self.open_bars
        self.open_bars = 0
        value = self.expression()
        self.expect(CLOSERS[opener])
        self.open_bars = bars
        return value if opener in _GROUPS else call(opener.removeprefix("\\l"), value)

    def absolute_value(self) -> Value:
        self.open_bars += 1
        value = self.expression()
        self.expect("|")
        self.open_bars -= 1
        return call("abs", value)

    def literal_or_primary(self) -> Value:
        """Read a number without the fraction that might make it a mixed one; or any other primary."""
        if self.peek().kind == "number":
            return self.points.number(literal_value(self.advance().text))
        return self.primary()

    def radical(self) -> Value:
        """Read `\\sqrt[3]{2}`, and `\\sqrt12` for √12, as those who write it mean."""
        degree = self.points.number(2)
        if self.peek().text == "[":
            self.advance()
            degree = self.group("[")
        return power(self.literal_or_primary(), self.points.number(1) / degree)

    def function(self, name: str) -> Value:
        """Read `\\sin^2 2x`, `\\log_2(8)`, `\\tan^{-1} x`.

        Without brackets the argument is the product up to the next function.
        """
        base = times = None
        while sign := self.accept("^_"):
            if sign == "^":
                times = self.exponent()
            elif name in ("log", "lg"):
                base = self.exponent()
            else:
                raise Unreadable(f"{name} with a subscript")
        degree = self.degree
        self.degree = self.points.constant("π", CONSTANTS["π"]) / 180
        argument = self.argument_of_function()
        self.degree = degree
        if times is not None and times.number == -1 and f"arc{name}" in symbols.FUNCTIONS:
            name = f"arc{name}"
            times = None
        value = call("ln", argument) / call("ln", base) if base else call(name, argument)
        return value if times is None else power(value, times)

    def argument_of_function(self) -> Value:
        if self.peek().text in _GROUPS:
            return self.group(self.advance().text)
        argument = self.factor()
        while self.starts_factor() and self.peek().kind != "function":
            argument = argument * self.factor()
        return argument

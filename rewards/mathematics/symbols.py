r"""List the vocabulary of the mathematics reader: characters, LaTeX commands and words, each with its one spelling.

These are tables only; `spelling.py` and `tokens.py` apply them.
"""

import re


def spellings(table: str) -> dict[str, str]:
    """Map each spelling to the first of its entry. Entries end with a semicolon or the line."""
    found: dict[str, str] = {}
    for entry in re.split(" ; |\n", table.strip()):
        first, *others = entry.split()
        found |= dict.fromkeys(others, first)
    return found


_NAMES = (
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho sigma tau upsilon phi chi "
    "psi omega"
).split()
GREEK = dict(zip(_NAMES, "αβγδεζηθικλμνξοπρστυφχψω", strict=True))
GREEK |= dict(zip(map(str.title, _NAMES), "ΑΒΓΔΕΖΗΘΙΚΛΜΝΞΟΠΡΣΤΥΦΧΨΩ", strict=True))
GREEK |= {"varepsilon": "ε", "vartheta": "θ", "varrho": "ρ", "varphi": "φ", "ell": "ℓ", "hbar": "ħ"}
_SIGNS = spellings(r"""
    - − ‐ ‑ ‒ – — ⁃ ; * × · ⋅ ∙ • ∗ ✕ ; / ⁄ ∕ ; ' ′ ’ ‘ ´ ` ; " ″ “ ” „ ; φ ϕ ; ε ϵ
    μ µ ; ° º ˚ ; °C ℃ ; °F ℉ ; ∅ ø ⌀ ; : ∶ ; ≤ ≦ ⩽ ; ≥ ≧ ⩾ ; ≈ ≅ ; | ∣ ‖
    \Rightarrow ⇒ ; \therefore ∴ ; \dots … ⋯ ; \langle ⟨ ; \rangle ⟩ ; \lfloor ⌊
    \rfloor ⌋ ; \lceil ⌈ ; \rceil ⌉ ; \sqrt √ ; \sqrt[3] ∛ ; \sqrt[4] ∜ ; \neg ¬
    \vee ∨ ; \wedge ∧ ; \mathbb{R} ℝ ; \mathbb{Z} ℤ ; \mathbb{N} ℕ ; \mathbb{Q} ℚ
    \mathbb{C} ℂ
""")

# one character -> its replacement; lone surrogates cannot be printed or encoded, so they become U+FFFD
CHARACTERS: dict[int, str] = {
    **dict.fromkeys(range(0xD800, 0xE000), "\ufffd"),
    **dict.fromkeys((*range(9), *range(14, 32), 0x7F, 0xAD, *range(0x200B, 0x2010), 0x2060, 0x2063, 0xFEFF), ""),
    **dict.fromkeys(map(ord, "✓✔☑✅∎"), ""),
    **dict.fromkeys(map(ord, "\u00a0\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000"), " "),
    ord("、"): ", ",
    ord("。"): ". ",
    # a command ends where the next letter begins: √x is \sqrt x
    **{ord(old): f"{new} " if new[:1] == "\\" and new[-1:].isalpha() else new for old, new in _SIGNS.items()},
}

_MARKS = spellings(r"""
    * times cdot ast bullet ; ÷ div ; ± pm ; ∓ mp ; ∞ infty ; ∘ circ ; ° degree
    ≤ le leq leqslant ; ≥ ge geq geqslant ; < lt ; > gt ; ≠ ne neq ; ≈ approx simeq
    ∈ in ; ∪ cup ; ∩ cap ; ∖ setminus backslash ; ∅ emptyset varnothing
    … dots ldots cdots vdots ddots ; → to rightarrow ; : colon ; ' prime
    % % ; $ $ ; # # ; _ _ ; \\ \ cr ; £ pounds ; € euro ; ¢ cent
    | vert lvert rvert mid |
""")
_OPENING = spellings(r"""
    \{ { lbrace ; \langle langle ; [ lbrack ; \lfloor lfloor ; \lceil lceil
""")
_CLOSING = spellings(r"""
    \} } rbrace ; \rangle rangle ; ] rbrack ; \rfloor rfloor ; \rceil rceil
""")
_ALIKE = spellings(r"""
    \frac dfrac tfrac cfrac nicefrac sfrac xfrac flatfrac ; \binom dbinom tbinom ; \overline bar ; \overrightarrow vec
    \hat widehat ; \tilde widetilde
""")
FUNCTIONS = frozenset(
    "sin cos tan cot sec csc sinh cosh tanh coth arcsin arccos arctan arccot ln log lg exp abs gcd lcm".split()
)
_CALLED = {name: name for name in (*FUNCTIONS, "max", "min")}
_KINDS = {"name": GREEK, "mark": _MARKS, "open": _OPENING, "close": _CLOSING, "command": _ALIKE, "function": _CALLED}
# what stands for one symbol -> (kind of token, its text)
SYMBOLS = {r"\&": ("word", "and"), "(": ("open", "("), ")": ("close", ")"), "[": ("open", "["), "]": ("close", "]")}
for _kind, _table in _KINDS.items():
    SYMBOLS |= {"\\" + name: (_kind, text) for name, text in _table.items()}

# letters side by side, not a word, a unit or a Greek letter, unless a number or a word stands before them
PRODUCTS = frozenset("at mg mu nu xi rs pt qt".split())

# what some words stand for without a backslash
BARE_WORDS = {
    **{name: ("name", letter) for name, letter in GREEK.items() if name not in PRODUCTS},
    **dict.fromkeys(("infinity", "Infinity", "inf", "Inf", "oo"), ("mark", "∞")),
    "sqrt": ("command", r"\sqrt"),
    "或": ("word", "or"),
    "和": ("word", "and"),
}

# numbers in words
_ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
NUMBERS = {word: number for number, word in enumerate(_ONES.split())}
NUMBERS |= {word: 10 * number for number, word in enumerate(_TENS.split(), 2)}


def _commands(names: str) -> frozenset[str]:
    return frozenset("\\" + name for name in names.split())


# typesetting without meaning; `\left.` and `\right.` lose their dot in spelling.py
IGNORED = _commands(
    "middle big Big bigg Bigg bigl bigr Bigl Bigr biggl biggr Biggl Biggr displaystyle textstyle "
    "scriptstyle limits nolimits strut mathstrut hline "
    "boldsymbol bm mathop mathbf mathit mathsf mathcal mathfrak mathnormal boxed fbox framebox "
    "ensuremath therefore ( ) [ ] / - "
    "tiny scriptsize footnotesize small normalsize large Large LARGE huge Huge noindent centering hfill "
    "checkmark blacksquare qed QED rm bf it tt sf"
)
BLANKS = _commands(", ; : quad qquad enspace thinspace space") | {"\\ ", "\\"}  # a last backslash lost its space
TEXT_FONTS = _commands(
    "text textbf textit textrm texttt textsf textnormal textup mbox hbox emph mathrm operatorname underline"
)
ACCENTS = _commands("overrightarrow overline hat tilde dot ddot triangle angle overarc")
OF_ANGLES = frozenset("sin cos tan cot sec csc".split())

r"""The vocabulary of the mathematics reader: Unicode characters, LaTeX commands and plain words, each mapped to the one
spelling that the rest of the code knows. Tables only; `text.py` applies them.

Superscripts and vulgar fractions are spelt out with their braces (`2²` is `2^{2}`, `3½` is `3\frac{1}{2}`), which is
why this is a table and not Unicode's NFKC: that would glue them into the number before them (22, 31/2).
"""

from typing import Final

SUPERSCRIPTS: Final = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿⁱ", "0123456789+-ni", strict=True))
SUBSCRIPTS: Final = dict(zip("₀₁₂₃₄₅₆₇₈₉₊₋ₙᵢ", "0123456789+-ni", strict=True))

_VULGAR: Final = {
    "½": "1/2",
    "⅓": "1/3",
    "⅔": "2/3",
    "¼": "1/4",
    "¾": "3/4",
    "⅕": "1/5",
    "⅖": "2/5",
    "⅗": "3/5",
    "⅘": "4/5",
    "⅙": "1/6",
    "⅚": "5/6",
    "⅛": "1/8",
    "⅜": "3/8",
    "⅝": "5/8",
    "⅞": "7/8",
}

GREEK: Final = {
    "alpha": "α",
    "beta": "β",
    "gamma": "γ",
    "delta": "δ",
    "epsilon": "ε",
    "varepsilon": "ε",
    "zeta": "ζ",
    "eta": "η",
    "theta": "θ",
    "vartheta": "θ",
    "iota": "ι",
    "kappa": "κ",
    "lambda": "λ",
    "mu": "μ",
    "nu": "ν",
    "xi": "ξ",
    "pi": "π",
    "rho": "ρ",
    "varrho": "ρ",
    "sigma": "σ",
    "tau": "τ",
    "upsilon": "υ",
    "phi": "φ",
    "varphi": "φ",
    "chi": "χ",
    "psi": "ψ",
    "omega": "ω",
    "Gamma": "Γ",
    "Delta": "Δ",
    "Theta": "Θ",
    "Lambda": "Λ",
    "Xi": "Ξ",
    "Pi": "Π",
    "Sigma": "Σ",
    "Phi": "Φ",
    "Psi": "Ψ",
    "Omega": "Ω",
    "ell": "ℓ",
    "hbar": "ħ",
}

# one character -> its replacement; lone surrogates cannot be printed or encoded, so they become U+FFFD
CHARACTERS: Final[dict[int, str]] = {
    **{0xFEE0 + code: chr(code) for code in range(0x21, 0x7F)},  # full-width ！ to ～
    **dict.fromkeys(range(0xD800, 0xE000), "\ufffd"),
    **dict.fromkeys((*range(9), *range(14, 32), 0x7F, 0xAD, *range(0x200B, 0x2010), 0x2060, 0x2063, 0xFEFF), ""),
    **{ord(decoration): "" for decoration in "✓✔☑✅∎"},
    **{ord(space): " " for space in "\u00a0\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000"},
    **{ord(dash): "-" for dash in "−‐‑‒–—﹣⁃"},
    **{ord(times): "*" for times in "×·⋅∙•∗✕"},
    **{ord(slash): "/" for slash in "÷⁄∕"},
    **{ord(quote): "'" for quote in "′’‘´`"},
    **{ord(quote): '"' for quote in "″“”„"},
    **{ord(vulgar): r"\frac{{{}}}{{{}}}".format(*parts.split("/")) for vulgar, parts in _VULGAR.items()},
    **{
        ord(old): new
        for old, new in {
            "ϕ": "φ",
            "ϵ": "ε",
            "µ": "μ",
            "º": "°",
            "˚": "°",
            "℃": "°C",
            "℉": "°F",
            "∅": "∅",
            "ø": "∅",
            "⌀": "∅",
            "∶": ":",
            "⇒": r"\Rightarrow ",
            "∴": r"\therefore ",
            "…": r"\dots ",
            "⋯": r"\dots ",
            "、": ", ",
            "。": ". ",
            "≦": "≤",
            "⩽": "≤",
            "≧": "≥",
            "⩾": "≥",
            "≅": "≈",
            "∣": "|",
            "‖": "|",
            "⟨": r"\langle ",
            "⟩": r"\rangle ",
            "⌊": r"\lfloor ",
            "⌋": r"\rfloor ",
            "⌈": r"\lceil ",
            "⌉": r"\rceil ",
            "√": r"\sqrt ",
            "∛": r"\sqrt[3]",
            "∜": r"\sqrt[4]",
            "¬": r"\neg ",
            "∨": r"\vee ",
            "∧": r"\wedge ",
            "ℝ": r"\mathbb{R}",
            "ℤ": r"\mathbb{Z}",
            "ℕ": r"\mathbb{N}",
            "ℚ": r"\mathbb{Q}",
            "ℂ": r"\mathbb{C}",
        }.items()
    },
}

# commands that stand for one symbol -> (kind of token, its text)
COMMANDS: Final[dict[str, tuple[str, str]]] = {
    **{"\\" + name: ("name", letter) for name, letter in GREEK.items()},
    r"\times": ("mark", "*"),
    r"\cdot": ("mark", "*"),
    r"\ast": ("mark", "*"),
    r"\bullet": ("mark", "*"),
    r"\div": ("mark", "/"),
    r"\pm": ("mark", "±"),
    r"\mp": ("mark", "∓"),
    r"\infty": ("mark", "∞"),
    r"\circ": ("mark", "∘"),
    r"\degree": ("mark", "°"),
    r"\le": ("mark", "≤"),
    r"\leq": ("mark", "≤"),
    r"\leqslant": ("mark", "≤"),
    r"\lt": ("mark", "<"),
    r"\gt": ("mark", ">"),
    r"\ge": ("mark", "≥"),
    r"\geq": ("mark", "≥"),
    r"\geqslant": ("mark", "≥"),
    r"\ne": ("mark", "≠"),
    r"\neq": ("mark", "≠"),
    r"\approx": ("mark", "≈"),
    r"\simeq": ("mark", "≈"),
    r"\in": ("mark", "∈"),
    r"\cup": ("mark", "∪"),
    r"\cap": ("mark", "∩"),
    r"\setminus": ("mark", "∖"),
    r"\backslash": ("mark", "∖"),
    r"\emptyset": ("mark", "∅"),
    r"\varnothing": ("mark", "∅"),
    r"\dots": ("mark", "…"),
    r"\ldots": ("mark", "…"),
    r"\cdots": ("mark", "…"),
    r"\vdots": ("mark", "…"),
    r"\ddots": ("mark", "…"),
    r"\to": ("mark", "→"),
    r"\rightarrow": ("mark", "→"),
    r"\colon": ("mark", ":"),
    r"\prime": ("mark", "'"),
    r"\%": ("mark", "%"),
    r"\$": ("mark", "$"),
    r"\#": ("mark", "#"),
    r"\&": ("word", "and"),
    r"\_": ("mark", "_"),
    r"\\": ("mark", r"\\"),
    r"\cr": ("mark", r"\\"),
    r"\pounds": ("mark", "£"),
    r"\euro": ("mark", "€"),
    r"\cent": ("mark", "¢"),
    r"\vert": ("mark", "|"),
    r"\lvert": ("mark", "|"),
    r"\rvert": ("mark", "|"),
    r"\mid": ("mark", "|"),
    r"\|": ("mark", "|"),
    r"\{": ("open", r"\{"),
    r"\lbrace": ("open", r"\{"),
    r"\}": ("close", r"\}"),
    r"\rbrace": ("close", r"\}"),
    r"\langle": ("open", r"\langle"),
    r"\rangle": ("close", r"\rangle"),
    r"\lbrack": ("open", "["),
    r"\rbrack": ("close", "]"),
    r"\lfloor": ("open", r"\lfloor"),
    r"\rfloor": ("close", r"\rfloor"),
    r"\lceil": ("open", r"\lceil"),
    r"\rceil": ("close", r"\rceil"),
    r"\dfrac": ("command", r"\frac"),
    r"\tfrac": ("command", r"\frac"),
    r"\cfrac": ("command", r"\frac"),
    r"\dbinom": ("command", r"\binom"),
    r"\tbinom": ("command", r"\binom"),
    r"\bar": ("command", r"\overline"),
    r"\vec": ("command", r"\overrightarrow"),
    r"\widehat": ("command", r"\hat"),
    r"\widetilde": ("command", r"\tilde"),
}

# typesetting without meaning; `\left.` and `\right.` lose their dot in clean.py
_IGNORED: Final = (
    "left right middle big Big bigg Bigg bigl bigr Bigl Bigr biggl biggr Biggl Biggr displaystyle textstyle "
    "scriptstyle limits nolimits strut mathstrut hline "
    "boldsymbol bm mathop mathbf mathit mathsf mathcal mathfrak mathnormal boxed fbox framebox "
    "ensuremath therefore ( ) [ ] / - "
    "tiny scriptsize footnotesize small normalsize large Large LARGE huge Huge noindent centering hfill "
    "checkmark blacksquare qed QED"
)
# environments that only line formulas up: their rows are read one after the other
_ALIGNMENTS: Final = "align aligned alignat alignedat gather gathered split equation displaymath multline center"
_BLANKS: Final = ", ; : quad qquad enspace thinspace space"
_TEXT_FONTS: Final = (
    "text textbf textit textrm texttt textsf textnormal textup mbox hbox emph mathrm operatorname underline"
)
_FUNCTIONS: Final = "sin cos tan cot sec csc sinh cosh tanh coth arcsin arccos arctan arccot ln log lg exp abs"
_BIG_OPERATORS: Final = "sum prod int iint iiint oint lim bigcup bigcap"
_ACCENTS: Final = "overrightarrow overline hat tilde dot ddot triangle angle overarc"

IGNORED: Final = frozenset("\\" + name for name in _IGNORED.split())
BLANKS: Final = frozenset(("\\ ", "\\", *("\\" + name for name in _BLANKS.split())))  # a last backslash lost its space
TEXT_FONTS: Final = frozenset("\\" + name for name in _TEXT_FONTS.split())
FONT_SWITCHES: Final = frozenset((r"\rm", r"\bf", r"\it", r"\tt", r"\sf"))

# letters side by side, not a word, a unit or a Greek letter, unless a number or a word stands before them
PRODUCTS: Final = frozenset(("at", "mg", "mu", "nu", "xi", "rs", "pt", "qt"))

ALIGNMENTS: Final = frozenset(_ALIGNMENTS.split())
FUNCTIONS: Final = frozenset(_FUNCTIONS.split())
BIG_OPERATORS: Final = frozenset("\\" + name for name in _BIG_OPERATORS.split())
ACCENTS: Final = frozenset("\\" + name for name in _ACCENTS.split())

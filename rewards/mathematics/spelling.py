r"""Write untrusted LaTeX, Unicode or plain text in one spelling.

`×` becomes `*`, `\dfrac12` becomes `\frac{1}{2}`, `>=` becomes `≥`. A table of characters (symbols.py) is applied, then
the table of rewritings below, in its order. Time is linear in the text.
"""

import re
import unicodedata
from itertools import groupby

from rewards.mathematics import symbols
from rewards.mathematics.number_words import in_figures

_SCRIPTS = {"<super>": "^", "<sub>": "_"}
_DOTS = r"(?:\.\.\.+|\\[lc]?dots(?![A-Za-z])) ?"
_VECTOR = r"\\(?:vec|overrightarrow|mathbf|boldsymbol|hat) ?(?:[A-Za-z](?![A-Za-z])|\{ ?[A-Za-z]{1,2} ?\})"
_D = r"(?:d|\\partial)"
_DIGITS = r"(?:\{ ?([0-9]+) ?\}|([0-9]))"
_REWRITES = [
    (re.compile(pattern), new)
    for pattern, new in (
        (r"^(\*\*|__|')([^*]+)\1$", r"\2"),  # bold or code in Markdown
        (r"^\](.*),(.*)([\[\]])$", r"(\1,\2\3"),  # French intervals: ]0, 1[
        (r"^([(\[].*),(.*)\[$", r"\1,\2)"),
        (r"\{ ?\\(?:rm|bf|it|tt|sf)(?![A-Za-z])", r"\\text{"),
        (r"(?<=[)\]}]) ?U ?(?=\\?[(\[{]|\\left)", r"\\cup "),
        (r"==+", "="),
        (r"(?<![A-Za-z])(?:np|math)\.(?=[a-z])", ""),  # functions of Python
        (r"(?<=[0-9])\.(?= ?/)", ""),
        (
            r"(?<=[0-9]) \((?!sqrt)(?=[^()]*[A-Za-z]{4})([A-Za-z][A-Za-z' -]*)\)(?![\^_!])",
            r" \\text{(\1)}",
        ),  # 16 (bad carrots)
        (rf"(?<![A-Za-z])C ?_ ?{_DIGITS} ?\^ ?{_DIGITS}", r"\\binom{\1\2}{\3\4}"),
        (r"\{([^{}\\]*)\\choose(?![A-Za-z])([^{}\\]*)\}", r"\\binom{\1}{\2}"),
        (r"(?<=[0-9])(?: |\\[, ])+\\Omega(?![A-Za-z])", r"\\text{ ohm}"),
        (r"(?<![A-Za-z0-9])a (?=dozen|hundred|[a-z]*(?:thousand|illion))", "1 "),
        (r"\\not ?=", "≠"),
        (r"(?:等于|为|是)(?=\$?[-+ 0-9A-Za-z\\(])", r"\\text{ is }"),
        (r"(?<=[0-9)}]) ?或者? ?(?=[-+0-9({\\A-Za-z])", r" \\text{ or } "),
        (r"(?<=[0-9)}]) ?(?:和|与|及) ?(?=[-+0-9({\\A-Za-z])", r" \\text{ and } "),
        (r"(?<=[0-9]) ?万(?![0-9分亿])", r"\\cdot 10^{4}"),
        (r"(?<=[0-9]) ?亿(?![0-9分])", r"\\cdot 10^{8}"),
        (r"(?<=[①-⑳])(?=[①-⑳])", ","),
        (r"\*\*(?= ?[-+({\\\w])", "^"),  # a power in ASCII
        (r">=(?!=)", "≥"),
        (r"(?<!<)<=(?![=>])", "≤"),
        (r"(?<=[A-Za-z ])!=(?!=)", "≠"),  # 3!=6 is about a factorial
        (r"\^ ?(?:\{ ?\\(?:circ|degree) ?\}|\\(?:circ|degree)(?![A-Za-z]))", "°"),
        (r"\^ ?(?:\{ ?\\prime ?\}|\\prime(?![A-Za-z]))", "'"),
        (rf"([0-9]\.[0-9]{{0,6}}?)(?:([0-9]{{2,6}}?)\2+|([0-9])\3\3+){_DOTS}", r"\1\\overline{\2\3}"),  # 0.1666...
        (r"(?<=[0-9]\.)\(([0-9]+)\)", r"\\overline{\1}"),  # 0.(3)
        (r"\.\.\.+", r"\\dots "),
        (r"(?<![A-Za-z\\])([AaPp])\. ?[Mm]\.(?![A-Za-z])", r"\1m"),
        (r"(?<=[0-9])(?:\\[,;: ]|~)(?=[0-9])", " "),
        (r"(?<=[0-9]),\\! ?(?=[0-9]{3}(?![0-9]))", ""),  # thousands: 1,\! 234
        (r"\\! ?", ""),
        (r"(?<![0-9])0\{,\}(?=[0-9])", "0."),  # `{,}` before three digits groups thousands,
        (r"(?<=[0-9])\{,\}(?=[0-9]{3}(?![0-9]))", ""),
        (r"(?<=[0-9])\{,\}(?=[0-9])", "."),  # anywhere else it is a decimal comma
        (r"\\(left|right) ?\.", ""),
        (r"\\[dtc]?frac ?([0-9]) ?([0-9])", r"\\frac{\1}{\2}"),
        (r"(?<![A-Za-z\\])d ?([a-z]) ?/ ?d ?([a-z])(?![A-Za-z])", r"\\frac{d\1}{d\2}"),
        (r"\\(?:text)?color ?\{[A-Za-z]*\}|\\f?colorbox(?: ?\{[A-Za-z]*\})+(?= ?\{)", " "),
        (r"\\[hv]space\*? ?\{[^{}]*\}|\\[hv]?phantom ?\{[^{}]*\}|\\(?:label|tag) ?\{[^{}]*\}", " "),
        (r"(\\begin ?\{[a-z]+\*?\}) ?\[[tbc]\]", r"\1"),
        (r"\{ ?: ?\}", ":"),
        (r"^(?:=>|→|\\(?:rightarrow|Rightarrow|implies)(?![A-Za-z])) ?", ""),
        (r"(\\begin ?\{array\}) ?\{[^{}]*\}", r"\1"),
        (r"(\\\\) ?\[[0-9.]+ ?[a-z]{2}\]", r"\1"),
        (rf"({_VECTOR}) ?\\times(?= ?{_VECTOR})", r"\1 \\cross "),  # no product of numbers
        (rf"\\frac ?\{{ ?{_D} ?\}} ?(?=\{{ ?{_D} ?[a-z])", r"\\differentiate "),  # an operator without a value
        (rf"\\frac ?\{{ ?({_D}(?![a-z]{{2}})[^{{}}]*)\}} ?\{{ ?({_D} ?[a-z][^{{}}]*)\}}", r"\\derivative{\1/\2}"),
        (r"\\mathbb ?\{? ?([A-Z]) ?\}?", r"\\mathbb\1 "),
    )
]
_LOGIC = [  # of relations: p ∧ q is no list of two
    (re.compile(r"\\(?:land|wedge)(?![A-Za-z])"), r"\\text{ and }"),
    (re.compile(r"\\(?:lor|vee)(?![A-Za-z])"), r"\\text{ or }"),
]
_CIRCLED = re.compile(r"\\textcircled ?\{? ?([1-9])(?![0-9]) ?\}?")
_RELATION = re.compile(r"[=<>≤≥≠∈]|\\(?:lt|gt|le|ge|ne|leq|geq|neq|leqslant|geqslant|in)(?![A-Za-z])")
# environments that only line formulas up: their rows are a list, and one that starts with a relation goes on
_ALIGNMENT = re.compile(
    r"\\(?:begin|end) ?\{(?:align(?:at)?(?:ed)?|gather(?:ed)?|split|equation|displaymath|multline|center)\*?\}"
)
_NEXT_ROW = re.compile(rf"\\\\(?!(?: |&)*(?:{_RELATION.pattern}|$))")
_NOT_ASCII = re.compile(r"[^\x00-\x7f]+")
_DOLLAR = re.compile(r"(?<!\\)\$")


def clean(text: str) -> str:
    """Return a text in one spelling, without control characters and lone surrogates.

    Digits and operators are ASCII, spaces are single.
    """
    text = re.sub(r"(?<=[0-9])(?=m[²³])", " ", text)  # 5m²
    text = _NOT_ASCII.sub(_simpler, text.translate(symbols.CHARACTERS))
    text = _CIRCLED.sub(lambda found: chr(ord("①") + int(found[1]) - 1), text)
    text = in_figures(" ".join(text.split()))
    if r"\begin" not in text:  # escaped twice: \\frac; in a matrix \\ ends a row
        text = re.sub(r"\\\\(?=[A-Za-z])", r"\\", text)
    if _ALIGNMENT.search(text) and text.count(r"\begin") == 1:
        text = _NEXT_ROW.sub(",", _ALIGNMENT.sub("", text)).replace(r"\\", " ").replace("&", " ").strip()
    for pattern, new in [*_REWRITES, *(_LOGIC if _RELATION.search(text) else [])]:
        text = pattern.sub(new, text)
    # an even number of dollars delimits formulas; an odd one holds a price
    are_delimiters = len(_DOLLAR.findall(text)) % 2 == 0
    return _DOLLAR.sub("" if are_delimiters else r"\\$", text).strip()


def _simpler(run: re.Match) -> str:
    """Write characters of Unicode in simpler ones: ²³ as ^{23}, ½ as \\frac{1}{2}, ٥ as 5, 𝑥 as x; ① and é stay."""
    found = []
    for tag, characters in groupby(run[0], key=_tag):
        text = "".join(characters)
        simpler = unicodedata.normalize("NFKC", text).translate(symbols.CHARACTERS)
        if tag in _SCRIPTS:
            simpler = f"{_SCRIPTS[tag]}{{{simpler}}}"
        elif tag == "<fraction>":
            simpler = re.sub("([0-9]+)/([0-9]+)", r"\\frac{\1}{\2}", simpler)
        elif tag == "<square>":  # ㎡ and other units
            simpler = " " + re.sub("(?=[23]$)", "^", simpler)
        found.append(simpler if tag else "".join(str(unicodedata.decimal(digit, digit)) for digit in text))
    return "".join(found)


def _tag(character: str) -> str:
    """Return how Unicode says that a character relates to simpler ones: "<super>"; "" if it does not."""
    tag = unicodedata.decomposition(character).partition(" ")[0]
    return tag if tag.startswith("<") and tag != "<circle>" else ""

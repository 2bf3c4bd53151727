r"""Write untrusted LaTeX, Unicode or plain text in one spelling.

`×` becomes `*`, `\dfrac12` becomes `\frac{1}{2}`, `>=` becomes `≥`. A table of characters (symbols.py) is applied, then
the table of rewritings below, in its order. Time is linear in the text.
"""

import re
import unicodedata
from itertools import groupby

from rewards.mathematics import symbols

_SCRIPTS = {"<super>": "^", "<sub>": "_"}
_VECTOR = r"\\(?:vec|overrightarrow|mathbf|boldsymbol|hat) ?(?:[A-Za-z](?![A-Za-z])|\{ ?[A-Za-z]{1,2} ?\})"
_D = r"(?:d|\\partial)"
_REWRITES = [
    (re.compile(pattern), new)
    for pattern, new in (
        (r"^(\*{1,3}|__)([^*]+)\1$", r"\2"),  # bold type in Markdown
        (r"\\(?:text)?color(?:box)? ?\{[^{}]*\}", ""),
        (r"(?i)^(\\text[a-z]* ?\{ ?)?(?:the |final )*ans(?:wer)?(?: is(?![a-z'’]) ?[:=]?| ?[:=≈]) ?", r"\1"),
        (r"(?<=[0-9]) ?[xX] ?(?=10 ?\^)", "*"),
        (r"(?<=[0-9])( ?\\text ?\{)? ?thousand(?![a-z])", r"*10^3\1"),
        (r"(?<=[0-9])( ?\\text ?\{)? ?million(?![a-z])", r"*10^6\1"),
        (r"(?<=[0-9])( ?\\text ?\{)? ?billion(?![a-z])", r"*10^9\1"),
        (r"\{((?:[^{}]|\{[^{}]*\})*)\\over(?![A-Za-z])((?:[^{}]|\{[^{}]*\})*)\}", r"\\frac{\1}{\2}"),
        (r"^(.*)\\over(?![A-Za-z])(.*)$", r"\\frac{\1}{\2}"),
        (r"^\{( ?[a-z] ?(?:[|:]|\\mid)[^{}]*)\}$", r"\\{\1\\}"),
        (r"\\not ?=", "≠"),
        (r"\*\*(?= ?[-+({\\\w])", "^"),  # a power in ASCII
        (r">=(?!=)", "≥"),
        (r"(?<!<)<=(?![=>])", "≤"),
        (r"(?<=[A-Za-z ])!=(?!=)", "≠"),  # 3!=6 is about a factorial
        (r"\^ ?(?:\{ ?\\(?:circ|degree) ?\}|\\(?:circ|degree)(?![A-Za-z]))", "°"),
        (r"° ?(?:\\(?:text|mathrm) ?\{ ?C ?\}|C(?![A-Za-z]))", r"\\text{ celsius}"),
        (r"° ?(?:\\(?:text|mathrm) ?\{ ?F ?\}|F(?![A-Za-z]))", r"\\text{ fahrenheit}"),
        (r"\^ ?(?:\{ ?\\prime ?\}|\\prime(?![A-Za-z]))", "'"),
        (r"\.\.\.+", r"\\dots "),
        (r"(?<=[0-9])(?:\\[,;: ]|~)(?=[0-9])", " "),
        (r"(?<=[0-9]),\\! ?(?=[0-9]{3}(?![0-9]))", ""),  # thousands: 1,\! 234
        (r"\\! ?", ""),
        (r"(?<![0-9])0\{,\}(?=[0-9])", "0."),  # `{,}` before three digits groups thousands,
        (r"(?<=[0-9])\{,\}(?=[0-9]{3}(?![0-9]))", ""),
        (r"(?<=[0-9])\{,\}(?=[0-9])", "."),  # anywhere else it is a decimal comma
        (r"\\(?:left|right)(?![a-z]) ?\.?", ""),
        (r"(^|\\cup|\\in|∪|∈|=) ?\](?=[^\[\]()]*[,;])", r"\1("),  # ]2, 5[ is (2, 5)
        (r"([(\[][^\[\]()]*[,;][^\[\]()]*)\[(?=$| ?(?:\\cup|∪))", r"\1)"),
        (r"\\(?:[dtcsx]|nice|flat)?(frac|binom) ?([0-9]) ?([0-9])", r"\\\1{\2}{\3}"),
        (r"(?<![A-Za-z\\])d ?([a-z]) ?/ ?d ?([a-z])(?![A-Za-z])", r"\\frac{d\1}{d\2}"),
        (rf"\\frac ?\{{ ?{_D}(?![a-z]{{2}})[^{{}}]*\}} ?\{{ ?{_D} ?[a-z]", r"\\derivative\g<0>"),  # no quotient
        (rf"({_VECTOR}) ?\\times(?= ?{_VECTOR})", r"\1 \\cross "),  # no product of numbers
        (r"\{ ?: ?\}", ":"),
        (r"(\\begin ?\{array\}) ?\{[^{}]*\}", r"\1"),
        (r"\\mathbb ?\{? ?([A-Z]) ?\}?", r"\\mathbb\1 "),
    )
]
_DOLLAR = re.compile(r"(?<!\\)\$")
_NOT_ASCII = re.compile(r"[^\x00-\x7f]+")


def clean(text: str) -> str:
    """Return a text in one spelling, without control characters and lone surrogates.

    Digits and operators are ASCII, spaces are single.
    """
    text = _NOT_ASCII.sub(_simpler, text.translate(symbols.CHARACTERS))
    text = " ".join(text.split())
    if r"\begin" not in text:  # escaped twice: \\frac; in a matrix \\ ends a row
        text = re.sub(r"\\\\(?=[A-Za-z])", r"\\", text)
    for pattern, new in _REWRITES:
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
        elif not tag:
            simpler = "".join(str(unicodedata.decimal(digit, digit)) for digit in text)
        found.append(simpler)
    return "".join(found)


def _tag(character: str) -> str:
    """Return how Unicode says that a character relates to simpler ones: "<super>"; "" if it does not."""
    tag = unicodedata.decomposition(character).partition(" ")[0]
    return tag if tag.startswith("<") and tag != "<circle>" else ""

"""Read the letter of a multiple-choice answer: `B`, `(B)`, `B.`, `(B) 12`, `B. Paris`, "Option B"."""

from rewards.mathematics.tokens import Token, Tokens, is_mark, stripped

_LETTERS = frozenset("ABCDEFGHIJ")
_LEADS = "option choice answer 选 故选 选项 选择 答案选 故答案选 应选".split()


def split_choice(tokens: list[Token]) -> tuple[str, list[Token]] | None:
    """Return the letter, A to J, and what follows it; None if this is no choice.

    No choice has no letter in front, or several ("A) 5 B) 6", "(A) (B)"), or is a term ("(B) + 1").
    """
    if len(tokens) > 1 and tokens[0].word in _LEADS:
        tokens = [token for token in tokens[1:] if not is_mark(token, ":")]
    in_brackets = len(tokens) > 1 and tokens[0].text == "("
    if not tokens or tokens[in_brackets].text not in _LETTERS:
        return None
    letter, *rest = tokens[in_brackets:]
    if not rest:
        return letter.text, []
    end, *behind = rest
    has_point = is_mark(end, ".:") and bool(behind) and behind[0].spaced
    if end.text != ")" and (in_brackets or not has_point):
        return None
    body = stripped(behind)
    ends = [after.text in (")", ".", ":") for after in body[1:]] or [True]
    has_others = any(token.text in _LETTERS and is_end for token, is_end in zip(body, ends, strict=False))
    return None if has_others or _goes_on(behind) else (letter.text, body)


def _goes_on(tokens: Tokens) -> bool:
    """Tell whether the letter is a factor or a term in what follows: (B)+1, (B)x, (B)^2. "(B) -1" is B, minus one."""
    if not tokens:
        return False
    first = tokens[0]
    if is_mark(first, "+-±∓"):
        return not first.spaced or len(tokens) == 1 or tokens[1].spaced
    if first.kind in ("name", "open"):
        return not first.spaced
    return is_mark(first, "*/^_!'=<>≤≥≠≈∈∪∖")

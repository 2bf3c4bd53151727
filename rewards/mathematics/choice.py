"""The letter of a multiple-choice answer: `B`, `(B)`, `B.`, `(B) 12`, `B. Paris`, "Option B"."""

from rewards.mathematics.text import Token, Tokens, is_letter, is_mark, stripped


def split_choice(tokens: list[Token]) -> tuple[str, list[Token]] | None:
    """(letter A to J, what follows it), or None: no letter in front, several of them ("A) 5 B) 6", "(A) (B)"), or a
    term ("(B) + 1")."""
    if len(tokens) > 1 and tokens[0].kind == "word" and tokens[0].text.casefold() in ("option", "choice", "answer"):
        tokens = [token for token in tokens[1:] if not is_mark(token, ":")]
    if not tokens:
        return None
    in_brackets = tokens[0].text == "("
    letter, *rest = tokens[in_brackets:] or [tokens[0]]
    if not _is_choice_letter(letter):
        return None
    if not rest:
        return letter.text, []
    ends_with_point = not in_brackets and is_mark(rest[0], ".:") and len(rest) > 1 and rest[1].spaced
    if rest[0].text != ")" and not ends_with_point:
        return None
    body = stripped(rest[1:])
    if _goes_on(rest[1:]) or any(_is_choice_mark(body, at) for at in range(len(body))):
        return None
    return letter.text, body


def _goes_on(tokens: Tokens) -> bool:
    """Whether the letter is a factor or a term in what follows: (B)+1, (B)x, (B)^2; "(B) -1" is choice B, minus one."""
    if not tokens:
        return False
    first = tokens[0]
    if is_mark(first, "+-±∓"):
        is_sign = first.spaced and len(tokens) > 1 and not tokens[1].spaced
        return not is_sign
    if first.kind in ("name", "open"):
        return not first.spaced
    return is_mark(first, "*/^_!'=<>≤≥≠≈∈∪∖")


def _is_choice_letter(token: Token) -> bool:
    return is_letter(token) and len(token.text) == 1 and "A" <= token.text <= "J"


def _is_choice_mark(tokens: Tokens, at: int) -> bool:
    """Whether another choice starts here."""
    if not _is_choice_letter(tokens[at]):
        return False
    if len(tokens) == 1:
        return True
    return at + 1 < len(tokens) and (tokens[at + 1].text == ")" or is_mark(tokens[at + 1], ".:"))

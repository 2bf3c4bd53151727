"""The letter of a multiple-choice answer: `B`, `(B)`, `B.`, `(B) 12`, `B. Paris`, "Option B"."""

from collections.abc import Sequence

from rewards.mathematics.text import Token, is_letter, is_mark, stripped


def split_choice(tokens: list[Token]) -> tuple[str, list[Token]] | None:
    """(letter A to J, what follows it), or None: no letter in front, or several of them ("A) 5 B) 6", "(A) (B)")."""
    if len(tokens) > 1 and tokens[0].kind == "word" and tokens[0].text.casefold() in ("option", "choice", "answer"):
        tokens = [token for token in tokens[1:] if not is_mark(token, ":")]
    in_brackets = bool(tokens) and tokens[0].text == "("
    letter, *rest = tokens[in_brackets:] or [Token("mark", "")]
    if not _is_choice_letter(letter):
        return None
    if not rest:
        return letter.text, []
    ends = rest[0].text == ")" or (not in_brackets and is_mark(rest[0], ".:") and len(rest) > 1 and rest[1].spaced)
    body = stripped(rest[1:])
    if not ends or any(_is_choice_mark(body, at) for at in range(len(body))):
        return None
    return letter.text, body


def _is_choice_letter(token: Token) -> bool:
    return is_letter(token) and len(token.text) == 1 and "A" <= token.text <= "J"


def _is_choice_mark(tokens: Sequence[Token], at: int) -> bool:
    """Whether another choice starts here."""
    if not _is_choice_letter(tokens[at]):
        return False
    return len(tokens) == 1 or (at + 1 < len(tokens) and (tokens[at + 1].text == ")" or is_mark(tokens[at + 1], ".:")))

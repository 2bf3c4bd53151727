"""Stem English words by Porter's rules (M. F. Porter, An algorithm for suffix stripping, 1980).

"published", "publishes" and "publishing" all become "publish", so that a question finds a sentence that uses another
form. A test compares the stems with those of SQLite's `porter` tokenizer. They are made in Python because the same
tokens are also scored outside SQLite (see rank.py).
"""

import re


def _rules(text: str) -> list[tuple[str, str]]:
    """Read "suffix:ending ..." as pairs, the longest suffix first."""
    pairs = [tuple(rule.split(":")) for rule in text.split()]
    return sorted(pairs, key=lambda pair: -len(pair[0]))


STEP_2 = _rules("""
    ational:ate tional:tion enci:ence anci:ance izer:ize bli:ble alli:al entli:ent eli:e ousli:ous ization:ize ation:ate
    ator:ate alism:al iveness:ive fulness:ful ousness:ous aliti:al iviti:ive biliti:ble logi:log""")
STEP_3 = _rules("icate:ic ative: alize:al iciti:ic ical:ic ful: ness:")
STEP_4 = _rules("al: ance: ence: er: ic: able: ible: ant: ement: ment: ent: ion: ou: ism: ate: iti: ous: ive: ize:")
ALL_SUFFIXES = tuple(suffix for suffix, _ in STEP_2 + STEP_3 + STEP_4)


def stem(word: str) -> str:
    """Return the stem of a lower-case word.

    A word of one or two letters, and a word with anything but a to z in it, is its own stem.
    """
    if len(word) < 3 or not (word.isascii() and word.isalpha()):
        return word
    word = _plural_and_past(word)
    word = _replace(word, STEP_2, min_measure=1)
    word = _replace(word, STEP_3, min_measure=1)
    word = _replace(word, STEP_4, min_measure=2)
    return _final_e_and_ll(word)


def _plural_and_past(word: str) -> str:
    """Step 1: remove -s, -ed and -ing, and turn y into i."""
    if word.endswith(("sses", "ies")):
        word = word[:-2]
    elif word.endswith("s") and not word.endswith("ss"):
        word = word[:-1]
    if word.endswith("eed"):
        if _measure(word[:-3]) > 0:
            word = word[:-1]
    elif word.endswith(("ed", "ing")):
        rest = word[:-2] if word.endswith("ed") else word[:-3]
        if _has_vowel(rest):
            word = _restore(rest)
    if word.endswith("y") and _has_vowel(word[:-1]):
        word = word[:-1] + "i"
    return word


def _restore(rest: str) -> str:
    """Make a word of what -ed or -ing leaves: conflat(ed) -> conflate, hopp(ing) -> hop, fil(ing) -> file."""
    if rest.endswith(("at", "bl", "iz")):
        return rest + "e"
    is_doubled = rest[-1:] == rest[-2:-1] and rest[-1] not in "lsz"
    if is_doubled and _letters(rest).endswith("c"):
        return rest[:-1]
    if _measure(rest) == 1 and _ends_short(rest):
        return rest + "e"
    return rest


def _replace(word: str, rules: list[tuple[str, str]], min_measure: int) -> str:
    """Do one of the steps 2 to 4: replace the longest suffix that fits, if the rest of the word has `min_measure`."""
    if not word.endswith(ALL_SUFFIXES):
        return word  # most words: this spares twenty tests
    for suffix, ending in rules:
        if word.endswith(suffix):
            rest = word.removesuffix(suffix)
            if _measure(rest) < min_measure or (suffix == "ion" and rest[-1] not in "st"):
                return word
            return rest + ending
    return word


def _final_e_and_ll(word: str) -> str:
    """Step 5: remove the last e, and one l of -ll."""
    if word.endswith("e"):
        measure = _measure(word[:-1])
        if measure > 1 or (measure == 1 and not _ends_short(word[:-1])):
            word = word[:-1]
    if word.endswith("ll") and _measure(word) > 1:
        word = word[:-1]
    return word


def _letters(word: str) -> str:
    """Tell consonants from vowels: "syzygy" -> "cvcvcv"; y is a vowel after a consonant."""
    kinds = ""
    for letter in word:
        is_vowel = letter in "aeiou" or (letter == "y" and kinds.endswith("c"))
        kinds += "v" if is_vowel else "c"
    return kinds


def _measure(word: str) -> int:
    """Return Porter's m: how often consonants follow a run of vowels ("tree" 0, "trouble" 1, "private" 2)."""
    return len(re.findall("v+c+", _letters(word)))


def _has_vowel(word: str) -> bool:
    return "v" in _letters(word)


def _ends_short(word: str) -> bool:
    """Test for consonant, vowel, consonant other than w, x, y: "hop" takes an e back ("hoping"), "how" does not."""
    return _letters(word).endswith("cvc") and word[-1] not in "wxy"

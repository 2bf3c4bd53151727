"""Porter's stemmer for English (M. F. Porter, An algorithm for suffix stripping, 1980).

"published", "publishes" and "publishing" all become "publish", so that a question finds the sentence that answers it in
another form. The stems are the same as those of SQLite's `porter` tokenizer, which a test holds them against; here they
are made in Python because the same tokens must also be scored outside SQLite (see rank.py). Words are lower case; a
word with other than a to z is left alone.
"""

import re


def _longest_first(rules: dict[str, str]) -> list[tuple[str, str]]:
    return sorted(rules.items(), key=lambda rule: -len(rule[0]))


STEP_2 = _longest_first(
    {
        "ational": "ate",
        "tional": "tion",
        "enci": "ence",
        "anci": "ance",
        "izer": "ize",
        "bli": "ble",
        "alli": "al",
        "entli": "ent",
        "eli": "e",
        "ousli": "ous",
        "ization": "ize",
        "ation": "ate",
        "ator": "ate",
        "alism": "al",
        "iveness": "ive",
        "fulness": "ful",
        "ousness": "ous",
        "aliti": "al",
        "iviti": "ive",
        "biliti": "ble",
        "logi": "log",
    }
)
STEP_3 = _longest_first({"icate": "ic", "ative": "", "alize": "al", "iciti": "ic", "ical": "ic", "ful": "", "ness": ""})
STEP_4 = (
    "ement",
    "able",
    "ance",
    "ence",
    "ible",
    "ment",
    "ant",
    "ate",
    "ent",
    "ion",
    "ism",
    "iti",
    "ive",
    "ize",
    "ous",
    "al",
    "er",
    "ic",
    "ou",
)  # longest first
ALL_SUFFIXES = tuple(suffix for suffix, _ in STEP_2 + STEP_3) + STEP_4


def _letters(word: str) -> str:
    """The word as consonants and vowels: "syzygy" -> "cvcvcv"; y is a vowel after a consonant."""
    kinds = ""
    for letter in word:
        vowel = letter in "aeiou" or (letter == "y" and kinds.endswith("c"))
        kinds += "v" if vowel else "c"
    return kinds


def _measure(word: str) -> int:
    """Porter's m: how many times a vowel run is followed by a consonant run ("tree" 0, "trouble" 1, "private" 2)."""
    return len(re.findall("v+c+", _letters(word)))


def _has_vowel(word: str) -> bool:
    return "v" in _letters(word)


def _ends_short(word: str) -> bool:
    """consonant, vowel, consonant other than w, x, y: "hop" takes an e back ("hoping"), "how" does not."""
    return _letters(word).endswith("cvc") and word[-1] not in "wxy"


def _plural_and_past(word: str) -> str:
    """Step 1: -s, -ed, -ing, and y -> i."""
    if word.endswith(("sses", "ies")):
        word = word[:-2]
    elif word.endswith("s") and not word.endswith("ss"):
        word = word[:-1]
    if word.endswith("eed"):
        word = word[:-1] if _measure(word[:-3]) > 0 else word
    else:
        for suffix in ("ed", "ing"):
            if word.endswith(suffix) and _has_vowel(word[: -len(suffix)]):
                word = _mend(word[: -len(suffix)])
                break
    return word[:-1] + "i" if word.endswith("y") and _has_vowel(word[:-1]) else word


def _mend(stem: str) -> str:
    """What is left of "-ed" or "-ing" becomes a word again: conflat(ed) -> conflate, hopp(ing) -> hop, fil(ing) ->
    file."""
    if stem.endswith(("at", "bl", "iz")):
        return stem + "e"
    if len(stem) > 1 and stem[-1] == stem[-2] and stem[-1] not in "lsz" and _letters(stem).endswith("c"):
        return stem[:-1]
    return stem + "e" if _measure(stem) == 1 and _ends_short(stem) else stem


def _replace(word: str, rules: list[tuple[str, str]]) -> str:
    """The longest suffix that fits is replaced where m > 0 before it; a shorter one is not tried."""
    if not word.endswith(ALL_SUFFIXES):
        return word  # most words: spares twenty tests
    for suffix, ending in rules:
        if word.endswith(suffix):
            rest = word[: -len(suffix)]
            return rest + ending if _measure(rest) > 0 else word
    return word


def _remove(word: str) -> str:
    """Step 4: the longest suffix goes where m > 1 before it; -ion only after s or t."""
    if not word.endswith(ALL_SUFFIXES):
        return word
    for suffix in STEP_4:
        if word.endswith(suffix):
            rest = word[: -len(suffix)]
            return rest if _measure(rest) > 1 and (suffix != "ion" or rest.endswith(("s", "t"))) else word
    return word


def stem(word: str) -> str:
    """The stem of a lower-case word. Words of one or two letters, and words with digits or other scripts, are their own
    stem."""
    if len(word) < 3 or not (word.isascii() and word.isalpha()):
        return word
    word = _plural_and_past(word)
    word = _remove(_replace(_replace(word, STEP_2), STEP_3))
    if word.endswith("e"):  # step 5: the last e, then -ll
        rest = word[:-1]
        if _measure(rest) > 1 or (_measure(rest) == 1 and not _ends_short(rest)):
            word = rest
    return word[:-1] if word.endswith("ll") and _measure(word) > 1 else word

"""List the words around a number: units, and words that change its meaning.

Units may be left out of an answer, and so may a noun that says what is counted. After a word that changes the meaning
nothing may be left out. No unit is turned into another one: 1 km is not 1000 m. Case counts where it tells two units of
the SI from each other, as in mW and MW: kg and KG are one unit, and no unit is meant by "mw".
"""

import re
from collections import Counter

from rewards.mathematics.symbols import BARE_WORDS, FUNCTIONS, GREEK, NUMBERS


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# the first of an entry stands for all of it
_TABLE = """
    m meter metre 米 ; km kilometer kilometre 千米 公里 ; cm centimeter centimetre 厘米 ; mm millimeter millimetre 毫米
    inch in inches ; foot ft feet ; yard yd ; mile mi ; acre ; hectare ha 公顷
    l liter litre 升 ; ml mL milliliter millilitre 毫升 ; gallon gal ; quart qt ; pint pt
    g gram 克 ; kg kilogram kilo 千克 公斤 ; milligram mg ; pound lb lbs ; ounce oz ; ton tonne 吨 ; mole mol
    second s sec 秒 ; millisecond ms ; minute min mins 分钟 ; hour h hr hrs 小时 ; day 天 ; week 周
    month month 个月 ; year yr yrs 年 ; mph ; kph kmh ; hertz hz
    newton n ; joule j ; kilojoule kj ; watt w ; kilowatt kw ; pascal Pa ; kB KB ; kwh ; calorie cal ; ev electronvolt
    volt v ; ohm ; ampere amp ; coulomb ; tesla ; celsius ; fahrenheit
    kelvin ; degree deg 度 ; radian rad ; percent percentage pct ; unit ; person people 人 ; piece 个
    dollar usd buck 美元 ; cent penny pennies ; euro eur ; yuan rmb 元 ; yen jpy ; rupee rs inr
"""
_ENTRIES = [entry.split() for entry in re.split("[;\n]", _TABLE)]
_SPELLINGS = {spelling: entry[0] for entry in _ENTRIES for spelling in entry}
_SI = "m g t s A V W Wh J N Pa Hz eV L B iB b ib bps Bps F H T C S M K mol cal bar ohm rad pc Gy Sv Bq".split()
_PREFIXES = ("", *"YZEPTGMkhdcmnpf")
_SYMBOLS = [prefix + unit for unit in _SI for prefix in _PREFIXES]
_IN_ONE_CASE = Counter(map(str.casefold, _SYMBOLS))
CASED = {  # symbols that only their case tells from others; "3 PM" is a time
    symbol for symbol in _SYMBOLS if symbol[1:] and symbol != "PM" and _IN_ONE_CASE[symbol.casefold()] > 1
}
UNIT_MARKS = dict(zip("%°$€£¢¥₹", "percent degree dollar euro sterling cent yen rupee".split(), strict=True))
_NAMES = {spelling.casefold(): name for spelling, name in _SPELLINGS.items()} | UNIT_MARKS
CURRENCIES = _words("dollar euro sterling cent yen yuan rupee")
POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
UNIT_LETTERS = frozenset("mghslJNWVL")  # \text{m} behind a number is one of these units
# before a number these say nothing more about it ("about 5"; "at most 5" is another matter)
HARMLESS_BEFORE = _words("about approximately approx around roughly exactly only us")
_DENIALS = _words("""
    wrong incorrect incorrectly extraneous reject rejects rejected discard discarded exclude excluded invalid false
    untrue impossible inadmissible spurious erroneous ruled refuted dismissed fail fails failed unacceptable
    inapplicable disproved disqualified meaningless unphysical nope
""")
# after a number these make it another value or no single one ("3 or more", "12 pm", "5 below zero", "3 tenths")
MEANING_AFTER = (
    _words("""
    and or nor to than less not no none am pm base mod modulo remainder r mil lakh lakhs crore crores
    between from if when where with at most least below negative minus plus squared cubed factorial doubled tripled
    halved twice over under is are noon midnight morning afternoon evening was maybe either both
    except unless until through but instead fewer repeating repeated recurring periodic googol
    inverse reciprocal conjugate choose perhaps possibly probably unsure
    dozen hundred thousand dozens hundreds thousands score gross myriad ones tens half halve halves third thirds quarter
    quarters
""")
    | _DENIALS
)
_IS_PART_OR_LARGE = re.compile(
    "(?:four|fif|six|seven|eigh|nin|ten|eleven|twelf|teen|tie|hundred|thousand|illion)ths?"
    "|(?:twen|thir|for|fif|six|seven|eigh|nine)ties|(?:thir|four|fif|six|seven|eigh|nine)teens"
    "|.*(?:teenths?|tieths?|illi(?:on|ard)(?:ths?|s)?)"
).fullmatch
# after a number these say nothing more about it, whatever the question is about
HARMLESS_AFTER = _words("total altogether overall in all each apiece every per of the a an left remaining only exactly")
# these stand for a number or an operation themselves: \text{6 pi} is not 6
_OF_MATHEMATICS = {name.casefold() for name in (*GREEK, *FUNCTIONS, *BARE_WORDS, *NUMBERS)}
# with these a sentence before the answer does not name it ("the answer is not: 5")
NEGATIONS = _words("not no never neither isn aren least most than except") | _DENIALS
# runs of one to three letters that are words even outside \text{...}; any other short run is a product of variables
SHORT_WORDS = (_NAMES.keys() - set("mglshjnwv")) | _words(
    "and or no yes not is the to of per all any are am pm an by at if sq cu up on st nd rd th us cab bad dab dad add"
)
_PLURALS = {
    "children": "child",
    "men": "man",
    "women": "woman",
    "feet": "foot",
    "dice": "die",
}
# in capitals these are two points: the segment NO
NAMES_IN_CAPITALS = _words("no is of to an by at if on up")


def in_one_case(word: str) -> str:
    """Return a word in lower case, but for units that this would mix up: mW and MW."""
    return word if word in CASED else word.casefold()


def unit_named(word: str) -> str | None:
    """Return the one spelling of a known unit ("cm" for "Centimeters" and "$"), None for any other word."""
    if word in CASED:
        return _SPELLINGS.get(word, word)
    word = word.casefold()
    return _NAMES.get(word) or _NAMES.get(word.removesuffix("s"))


def may_be_left_out(word: str) -> bool:
    """Tell whether a word behind a number only says what it counts or measures."""
    if word in MEANING_AFTER or _IS_PART_OR_LARGE(word):
        return False
    return unit_named(word) is not None or (word.isascii() and word not in _OF_MATHEMATICS)


def noun(word: str) -> str:
    """Return a word without the ending of the plural: apple for apples, child for children."""
    return _PLURALS.get(word) or re.sub("(?<=[^s])s$", "", word)


def nouns_of(text: str) -> frozenset[str]:
    """Return all words of a text that a number may count, and those that say nothing more about it."""
    return frozenset(map(noun, re.findall(r"[^\W\d_]+", text.casefold()))) | HARMLESS_AFTER

"""List the words around a number: units, magnitudes, and words that change the meaning.

Units and currencies may be dropped, magnitudes multiply, and after words that change the meaning nothing may be
dropped.
"""

import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from fractions import Fraction

from rewards.mathematics.number_words import DENOMINATORS, MAGNITUDES
from rewards.mathematics.symbols import spellings


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# spellings = what it is: a factor and base units; a base unit has none : prefixes that it takes
_TABLE = """
    m meter metre 米 = 1 m : k c d m; km 公里 = 1000 m; nanometer nanometre 纳米 = 1/1000000000 m
    in inch inches = 127/5000 m; ft foot feet = 381/1250 m; yd yard = 1143/1250 m; mi mile = 201168/125 m
    nmi nautical_mile = 1852 m; lightyear light_year ly 光年; ha hectare 公顷 = 10000 m^2; acre; unit
    l liter litre 升 = 1/1000 m^3 : m; gal gallon; qt quart = 1/4 gal; pt pint = 1/8 gal; floz fluid_ounce fl_oz
    g gram 克 = 1/1000 kg : k m; kg kilo 公斤 = 1 kg; lb lbs pound = 1 pound; oz ounce = 1/16 pound
    ton tonne metric_ton 吨; mol mole
    s sec second 秒 = 1 s : m; min minute mins 分钟 = 60 s; h hr hrs hour 小时 = 3600 s; day 天 = 86400 s
    week 周 = 604800 s; month 月 个月; year yr yrs 年 = 12 month
    mph = 1397/3125 m s^-1; kmh kph = 5/18 m s^-1; hz hertz = 1 s^-1 : k; mhz = 1000000 s^-1; decibel db
    n newton = 1 kg m s^-2; j joule = 1 kg m^2 s^-2 : k; w watt = 1 kg m^2 s^-3 : k; pa pascal = 1 kg m^-1 s^-2 : k
    kwh = 3600000 kg m^2 s^-2; cal calorie = 1 cal : k; ev electronvolt
    v volt; ohm; ampere amp; coulomb; tesla; farad; celsius; fahrenheit; kelvin
    degree deg 度; rad radian; percent percentage pct
    dollar usd buck 美元; cent penny pennies = 1/100 dollar; euro eur; pound_sterling gbp = 1 pound
    yuan rmb cny 元; jiao 角 = 1/10 yuan; yen jpy; rupee rs inr
"""
_PREFIXES = {
    "k": (Fraction(1000), "kilo", "千"),
    "d": (Fraction(1, 10), "deci", "分"),
    "c": (Fraction(1, 100), "centi", "厘"),
    "m": (Fraction(1, 1000), "milli", "毫"),
}
Factors = Sequence[tuple[str, int]]  # (unit, its power)


@dataclass(frozen=True)
class Unit:
    """A product of units: its size, and the power of each base unit in it."""

    size: Fraction
    powers: frozenset[tuple[str, int]]

    @property
    def excludes_counts(self) -> bool:
        """Tell whether a quantity with this unit counts no things: all but "5 units"."""
        return self.powers != frozenset([("unit", 1)])

    def contradicts(self, other: "Unit") -> bool:
        """Tell whether one quantity cannot have both, of whatever size.

        But "square units" may be any square of a length, "units" anything but that, and 5° may be 5 °C.
        """
        ours, theirs = dict(self.powers), dict(other.powers)
        if ours == theirs or {"degree"} < {*ours, *theirs} <= {"degree", "celsius", "fahrenheit"}:
            return False
        if ["unit"] not in (list(ours), list(theirs)):
            return True
        are_lengths = {*ours, *theirs} <= {"unit", "m"}
        return sum(ours.values()) != sum(theirs.values()) if are_lengths else {"unit": 1} not in (ours, theirs)


def _defined(definition: str) -> Unit:
    """Return the unit of a definition: "1 kg m s^-2"."""
    size, *bases = definition.split()
    powers = {}
    for base in bases:
        name, _, power = base.partition("^")
        powers[name] = int(power or 1)
    return Unit(Fraction(size), _without_zeros(powers))


def _without_zeros(powers: Mapping[str, int]) -> frozenset[tuple[str, int]]:
    return frozenset((base, power) for base, power in powers.items() if power)


def _read_table() -> tuple[dict[str, Unit], dict[str, str]]:
    """Return the units by name, and the name of each spelling."""
    known, names = {}, {}
    for entry in re.split(r"[;\n]\s*", _TABLE.strip()):
        entry, _, prefixes = entry.partition(":")
        spelt, _, definition = entry.partition("=")
        name, *others = spelt.split()
        known[name] = unit = _defined(definition or f"1 {name}")
        names |= {spelling.replace("_", " "): name for spelling in (name, *others)}
        for prefix in prefixes.split():
            size, word, chinese = _PREFIXES[prefix]
            known[prefix + name] = Unit(size * unit.size, unit.powers)
            spelt = [(word if spelling.isascii() else chinese) + spelling for spelling in others]
            names |= dict.fromkeys((prefix + name, *spelt), prefix + name)
    return known, names


_KNOWN, SPELLINGS = _read_table()
OF_TWO_WORDS = [f"{spelling}s?" for spelling in SPELLINGS if " " in spelling]

# words of one meaning; the first of a line stands for all of them
FIRST_ALIKE = spellings("""
    up profit gain increase rise growth win more above higher longer older bigger larger greater faster heavier
    down loss decrease drop fall off discount reduction below lower shorter younger smaller slower lighter cheaper
    later after ; earlier before ago ; counterclockwise anticlockwise ; man male men
    woman female women ; long length ; wide width ; high height tall ; deep depth ; thick thickness
    child children ; person people ; foot feet ; tooth teeth ; goose geese ; mouse mice ; die dice
""")
# words that exclude one another: 5 up is not 5 down
OPPOSITES = [
    _words(line)
    for line in """
    up down; left right; north south east west; clockwise counterclockwise; later earlier; boy girl; man woman
    adult child; head tail; red blue green yellow white black orange brown pink purple
""".replace(";", "\n")
    .strip()
    .splitlines()
]
_MARKS = "% percent ° degree $ dollar € euro £ pound_sterling ¢ cent ¥ yen ₹ rupee".split()
UNIT_MARKS = dict(zip(_MARKS[::2], _MARKS[1::2], strict=True))
CURRENCIES = _words("dollar euro pound_sterling cent yen yuan rupee")
ORDINAL_ENDINGS = _words("st nd rd th")
TEMPERATURES = {"c": "celsius", "f": "fahrenheit", "celsius": "celsius", "fahrenheit": "fahrenheit"}
POWER_WORDS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3, "平方": 2, "立方": 3}
CHINESE = sorted((word for word in (*POWER_WORDS, *SPELLINGS) if not word.isascii()), key=len, reverse=True)
UNIT_LETTERS = frozenset("mghsJNWVL")  # a letter after a number and a space may be one of these units
# before a number these say nothing more about it ("about 5"; "at most 5" is another matter)
HARMLESS_BEFORE = _words("about approximately approx around roughly exactly answer final total only us")
# after a number these do not say what it counts
EXTENTS = _words("long wide tall high deep thick")  # after a unit these say which of several lengths it is
HARMLESS_AFTER = (
    _words(
        "total altogether overall combined together in of the an a all each apiece only extra additional remaining old "
        "away apart"
    )
    | EXTENTS
    | ORDINAL_ENDINGS
)
# after a number these make it another value or no single one ("3 or more", "12 pm", "101 base two", "5 below zero", "3
# tenths")
MEANING_AFTER = (
    _words(
        "and or nor to than less not no none am pm base mod modulo remainder r mil lakh lakhs crore crores "
        "between from if when where with at most least below negative minus plus squared cubed factorial "
        "over under is are noon midnight morning afternoon evening was wrong incorrect maybe either both "
        "except unless until through but instead fewer repeating repeated recurring periodic googol"
    )
    | MAGNITUDES.keys()
    | DENOMINATORS.keys()
)
MEANING_CHARACTERS = frozenset("万亿千百十半多余以不或和至到")
# with these a sentence before the answer does not name it ("the answer is not: 5")
NEGATIONS = _words("not no never neither isn aren least most than except wrong incorrect")
# runs of one to three letters that are words even outside \text{...}; any other short run is a product of variables
SHORT_WORDS = (SPELLINGS.keys() - set("mglshjnwv")) | _words(
    "and or no yes not is the to of per all any are am pm an by at if sq cu up on st nd rd th us"
)
# in capitals these are two points: the segment NO
NAMES_IN_CAPITALS = _words("no is of to an by at if on up")


def unit_named(word: str) -> str | None:
    """Return the one spelling of a known unit ("cm" for "Centimeters"), None for any other word."""
    word = word.casefold().rstrip(".")
    if word in SPELLINGS:
        return SPELLINGS[word]
    return SPELLINGS.get(word[:-1]) if word.endswith("s") else None


def magnitude_named(word: str) -> int | None:
    """Return 1,000,000 for "million" and "millions", None for any other word."""
    return MAGNITUDES.get(word.casefold().removesuffix("s"))


def product_of(factors: Factors) -> Unit | None:
    """Return the product of powers of units, None for no factors; an unknown unit is a base unit."""
    size = Fraction(1)
    powers = {}
    for name, power in factors:
        unit = _KNOWN.get(name) or Unit(Fraction(1), frozenset([(name, 1)]))
        size *= unit.size**power
        for base, times in unit.powers:
            powers[base] = powers.get(base, 0) + times * power
    return Unit(size, _without_zeros(powers)) if factors else None


def stem(noun: str) -> str:
    """Return the singular of an English noun, roughly, or another word of its meaning: "adults" and "adult" are one."""
    noun = noun.casefold()
    singular = noun.removesuffix("s")
    return FIRST_ALIKE.get(noun) or FIRST_ALIKE.get(singular, singular)


def are_opposed(ones: Set[str], others: Set[str]) -> bool:
    """Tell whether nouns of the one exclude nouns of the other."""
    return any(ones & group and others & group and not ones & others & group for group in OPPOSITES)


RATIO = product_of([("ratio", 1)])

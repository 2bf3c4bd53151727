"""Words around a number: units and currencies that may be dropped, magnitudes that multiply, and words that change the
meaning, after which nothing may be dropped."""

from typing import Final

_NUMBERS: Final = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen twenty"
)
_BEFORE: Final = "about approximately approx around roughly exactly answer final total only us"
_AFTER: Final = (
    "and or nor to than less not no none am pm base mod modulo remainder r half halves third thirds fourth fourths quarter quarters "
    "fifth fifths sixth sixths seventh sevenths eighth eighths ninth ninths tenth tenths twelfth twelfths sixteenth sixteenths hundredth "
    "hundredths thousandth thousandths mil lakh lakhs crore crores between from if when where with at most least below negative minus "
    "plus squared cubed factorial over under is are was wrong incorrect maybe either both except unless until through but instead "
    "thirty forty fifty sixty seventy eighty ninety repeating repeated recurring periodic googol"
)
_SHORT: Final = "and or no yes not is the to of per all any are am pm an by at if sq st nd rd th us"
_NEGATIONS: Final = "not no never neither isn aren least most than except wrong incorrect"
_THOUSANDS: Final = (
    "thousand million billion trillion quadrillion quintillion sextillion septillion octillion nonillion decillion"
)
_CURRENCIES: Final = "dollar euro pound_sterling cent yen yuan rupee"
_SPELLINGS: Final = {
    "mm": "millimeter millimetre",
    "cm": "centimeter centimetre",
    "dm": "decimeter decimetre",
    "m": "meter metre",
    "km": "kilometer kilometre",
    "in": "inch inches",
    "ft": "foot feet",
    "yd": "yard",
    "mi": "mile",
    "mg": "milligram",
    "g": "gram",
    "kg": "kilogram kilo",
    "oz": "ounce",
    "lb": "lbs",
    "ton": "tonne",
    "ml": "milliliter millilitre",
    "l": "liter litre",
    "gal": "gallon",
    "pt": "pint",
    "qt": "quart",
    "ms": "millisecond",
    "s": "sec second",
    "min": "minute mins",
    "h": "hr hrs hour",
    "day": "",
    "week": "",
    "month": "",
    "year": "yr yrs",
    "mi / h": "mph",
    "km / h": "kmh kph",
    "degree": "deg",
    "rad": "radian",
    "j": "joule",
    "kj": "kilojoule",
    "n": "newton",
    "w": "watt",
    "kw": "kilowatt",
    "v": "volt",
    "ohm": "",
    "hz": "hertz",
    "khz": "",
    "mhz": "",
    "pa": "pascal",
    "kpa": "",
    "mol": "mole",
    "ha": "hectare",
    "acre": "",
    "percent": "percentage pct",
    "dollar": "usd buck",
    "euro": "eur",
    "pound_sterling": "gbp",
    "cent": "",
    "yen": "jpy",
    "yuan": "rmb cny",
    "rupee": "rs inr",
    "celsius": "",
    "fahrenheit": "",
    "kelvin": "",
}
_DIRECTIONS: Final = {
    "up": "profit profits gain gains increase rise",
    "down": "loss losses decrease drop fall",
    "left": "",
    "right": "",
    "north": "",
    "south": "",
    "east": "",
    "west": "",
    "clockwise": "",
    "counterclockwise": "anticlockwise",
}
UNITS: Final = {spelling: unit for unit, others in _SPELLINGS.items() for spelling in (unit, *others.split())}
UNIT_MARKS: Final = {
    "%": "percent",
    "°": "degree",
    "$": "dollar",
    "€": "euro",
    "£": "pound_sterling",
    "¢": "cent",
    "¥": "yen",
    "₹": "rupee",
}
CURRENCIES: Final = frozenset(_CURRENCIES.split())
ORDINAL_ENDINGS: Final = frozenset(("st", "nd", "rd", "th"))
TEMPERATURES: Final = frozenset(("celsius", "fahrenheit"))
DIRECTIONS: Final = {
    word: direction for direction, others in _DIRECTIONS.items() for word in (direction, *others.split())
}
UNIT_LETTERS: Final = frozenset("mghsJNWVL")  # a letter after a number and a space may be one of these units

MAGNITUDES: Final = {"dozen": 12, "hundred": 10**2, **{name: 1000**n for n, name in enumerate(_THOUSANDS.split(), 1)}}
NUMBER_WORDS: Final = {word: value for value, word in enumerate(_NUMBERS.split())}

# before a number these say nothing more about it ("about 5"; "at most 5" is another matter)
HARMLESS_BEFORE: Final = frozenset(_BEFORE.split())
# after a number these make it another value or no single one ("3 or more", "12 pm", "101 base two", "5 below zero", "3
# tenths")
MEANING_AFTER: Final = frozenset(_AFTER.split()) | MAGNITUDES.keys() | NUMBER_WORDS.keys()
MEANING_CHARACTERS: Final = frozenset("万亿千百十半多余以不或和至到")
# with these a sentence before the answer does not name it ("the answer is not: 5")
NEGATIONS: Final = frozenset(_NEGATIONS.split())
# runs of one to three letters that are words even outside \text{...}; any other short run is a product of variables
SHORT_WORDS: Final = (UNITS.keys() - set("mglshjnwv")) | NUMBER_WORDS.keys() | frozenset(_SHORT.split())


def unit_named(word: str) -> str | None:
    """The one spelling of a known unit ("cm" for "Centimeters"), None for any other word."""
    word = word.casefold().rstrip(".")
    return UNITS.get(word) or (UNITS.get(word[:-1]) if word.endswith("s") else None)


def magnitude_named(word: str) -> int | None:
    """1,000,000 for "million" and "millions", None for any other word."""
    return MAGNITUDES.get(word.casefold().removesuffix("s"))

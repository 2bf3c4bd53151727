"""Write dates, numbers and "&" in one form, so that equal ones are made of equal words.

    usual_forms("born 2018-03-13")                ->  "born 13 March 2018"
    usual_forms("March 13th, 2018")               ->  "13 March 2018"
    usual_forms("twenty-four million, or 2400万")  ->  "24000000, or 24000000"
    usual_forms("Johnson & Johnson")              ->  "Johnson and Johnson"

Only what has one reading is rewritten: 03/04/2018 stays, since it is in March or in April. Linear in the text.
"""

import re
from decimal import Decimal
from math import prod

from knowledge.text import compatible
from knowledge.words import BELOW_100, NUMBERS

MONTHS = "January February March April May June July August September October November December".split()

_MONTH = r"(?P<month>(?:Jan|Feb|Mar|Apr|May|June?|July?|Aug|Sept?|Oct|Nov|Dec)(?:\.|(?<=[a-z])[a-z]+)?)"
_DAY = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?"
_YEAR = r"(?P<year>[12]\d{3})"
_FREE, _END = r"(?<![\d.,/-])", r"(?!\d|[./-]\d)"  # nothing around it belongs to the number
_DATES = [
    re.compile(_FREE + pattern + _END)
    for pattern in (
        r"(?P<year>[12]\d{3})(?P<mark>[-/.])(?P<number>\d{1,2})(?P=mark)(?P<day>\d{1,2})",
        r"(?P<first>\d{1,2})(?P<mark>[-/.])(?P<second>\d{1,2})(?P=mark)(?P<year>[12]\d{3})",
        rf"{_DAY} (?:of )?\b{_MONTH},? {_YEAR}",
        rf"\b{_MONTH} {_DAY},? {_YEAR}",
        rf"\b{_MONTH},? {_YEAR}",
        rf"\b{_MONTH} {_DAY}\b",
        rf"{_DAY} (?:of )?\b{_MONTH}\b",
        r"(?P<year>[12]\d{3})年(?:(?P<number>\d{1,2})月(?:(?P<day>\d{1,2})[日号])?)?",
        r"(?P<number>\d{1,2})月(?P<day>\d{1,2})[日号]",
    )
]

_SCALES = {"hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_SCALE = rf"(?:{'|'.join(_SCALES)})\b"
_SPELLED = re.compile(
    rf"\b(?:\d{{1,15}}(?:\.\d{{1,15}})?(?= {_SCALE})|{BELOW_100}\b|a(?= {_SCALE}))"
    rf"(?: {_SCALE}(?: (?:and )?{BELOW_100}\b)?)*",
    re.IGNORECASE,
)
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])")
_ZH_DIGITS = "〇一二三四五六七八九"
_ZH_SCALES = {"十": 10, "百": 100, "千": 1000, "万": 10**4, "亿": 10**8}
_ZH_SPELLED = re.compile(
    "[〇零一二三四五六七八九]{4}(?=年)|"
    "(?<![哪每某第])[一二两三四五六七八九十][〇零一二两三四五六七八九十百千万亿]{0,15}(?=[个年月日号岁名位])|"
    "(?:[一二两三四五六七八九][十百千万亿]|十[一二三四五六七八九])[〇零一二两三四五六七八九十百千万亿]{0,15}"
)
_ZH_SCALED = re.compile(r"(?<![\d.])(\d{1,15}(?:\.\d{1,15})?) ?([百千万亿]{1,4})")


def usual_forms(text: str) -> str:
    """Return the text with its dates, numbers and ampersands in one form, and no full-width characters."""
    text = compatible(text)
    text = re.sub(r"(?<=\w) ?& ?(?=\w)", " and ", text)
    text = _THOUSANDS.sub(lambda match: match[0].replace(",", ""), text)
    text = _ZH_SPELLED.sub(lambda match: str(_chinese_number(match[0])), text)
    text = re.sub(r"(?<=\d)年代", "s ", text)  # 1960年代: the 1960s
    for pattern in _DATES:
        text = pattern.sub(_date, text)
    text = _ZH_SCALED.sub(_scaled, text)
    return _SPELLED.sub(lambda match: _plain(_number(match[0])), text)


def _date(match: re.Match) -> str:
    """Write a date as "13 March 2018", as far as it is known; leave what is no date, or might be two."""
    found = match.groupdict()
    day, number = found.get("day"), found.get("number")
    if "first" in found:
        low, high = sorted((int(found["first"]), int(found["second"])))
        if low != high and high <= len(MONTHS):
            return match[0]
        day, number = high, low
    month = _month(found.get("month"), number)
    if month is None or (day and not 1 <= int(day) <= 31):
        return match[0]
    parts = [str(int(day)) if day else "", month, found.get("year") or ""]
    written = " ".join(part for part in parts if part)
    is_chinese = "年" in match[0] or "月" in match[0]
    if not is_chinese:
        return written
    side = match.string[match.end() : match.end() + 1]  # 1962年前: before 1962
    return f" {written} 之" if side in ("前", "后") else f" {written} "


def _month(name: str | None, number: str | None) -> str | None:
    """Return a month's full name, "" if none is given, and None if there is no such month."""
    if name:
        full = [month for month in MONTHS if month.startswith(name[:3]) and month.startswith(name.rstrip("."))]
        return "September" if name.startswith("Sept") else (full or [None])[0]
    if not number:
        return ""
    return MONTHS[int(number) - 1] if 1 <= int(number) <= len(MONTHS) else None


def _scaled(match: re.Match) -> str:
    """Write 2400万 as 24000000."""
    scale = prod(_ZH_SCALES[char] for char in match[2])
    return _plain(Decimal(match[1]) * scale)


def _number(words: str) -> Decimal:
    """Read "one hundred and thirty thousand" or "2.5 billion"."""
    total = current = Decimal(0)
    for word in re.split(r"[ -](?:and )?", words.lower()):
        if word == "hundred":
            current *= 100
        elif word in _SCALES:
            total, current = total + (current or 1) * _SCALES[word], Decimal(0)
        elif word == "a":
            current += 1
        else:
            current += NUMBERS[word] if word in NUMBERS else Decimal(word)
    return total + current


def _chinese_number(text: str) -> int:
    """Read 五十六, 两千四百万, or the digits of a year: 一九四九."""
    digits = [_ZH_DIGITS.find(char) for char in text.replace("零", "〇").replace("两", "二")]
    if -1 not in digits:
        return int("".join(map(str, digits)))
    total = section = digit = 0
    for char, value in zip(text, digits, strict=True):
        if value >= 0:
            digit = value
        elif _ZH_SCALES[char] < 10**4:
            section, digit = section + (digit or 1) * _ZH_SCALES[char], 0
        else:
            total, section, digit = (total + section + digit) * _ZH_SCALES[char], 0, 0
    return total + section + digit


def _plain(number: Decimal) -> str:
    return format(number.normalize(), "f")

"""Judge without a model, by refusal, equality, numbers and words: for tests and toy worlds, and for short answers.

It errs towards "wrong": what it cannot match earns nothing (a surname for a full name, other words for the same thing),
so that no answer is worth trying but the right one. An answer may be a sentence around the truth. Besides the truth it
may hold words of the question and common ones; any other word may relate to the truth rather than state it ("a suburb
of Paris", "near Paris"), so it may stand only in a subject: "the author is ...". The verb must be the question's, the
units those of question and truth, and the order the truth's. Dates, numbers and "&" are compared in one form
(knowledge/facts/forms.py).
"""

import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from knowledge.facts.forms import MONTHS, usual_forms
from knowledge.store.tokens import UNSPACED
from knowledge.text import fold
from knowledge.words import BOUNDS, ZH_BOUNDS
from rewards.exact import ARTICLES, EMPHASIS, normalise
from rewards.knowrl.judge import Judgement
from rewards.knowrl.refusal import is_refusal
from rewards.mathematics.units import CURRENCIES, UNIT_MARKS, unit_named

MAX_CHARS = 1000  # a longer answer is wrong
MAX_OTHER_WORDS = 1  # in the subject of a sentence around the truth
_LETTER = rf"(?:(?![{UNSPACED}])[^\W_])"
_WORD = re.compile(  # H2O, C++, A-, .NET and 1940s are one word each
    rf"(?P<number>[<>≤≥]?(?:(?<!\w)[-−])?(?:\d+(?:\.\d+)?|\.\d+)(?!{_LETTER})\+?)"
    rf"|(?P<word>[\^=](?=\w)|[@#]?(?:(?<![\w.])\.)?{_LETTER}+(?:[#+*♯]+|-(?!\w))?|[{UNSPACED}]+)"
    r"(?P<genitive>['’][sS]\b)?"
)
_GLUED_UNIT = re.compile(r"(?<=\d)(?!s\b)[^\W\d_]+")  # 5km; but 1940s are no seconds
_PART_END = re.compile(
    r"[,;:!?/&|()\[\]{}\"“”\n、，；：。！？–—]|\.(?!\w)|\b(?:and|or|nor|versus|vs)\b|[和或与]", re.IGNORECASE
)
_LIST_MARK = re.compile(r"[,;:/→、，；>]|[–—]| - ")
_JOINTS = {"and", "or"}
_ZH_JOINT = re.compile("[和与及、，,]")
_NEGATIONS = set(
    "not never no neither nor without except unlike hardly false wrong incorrect untrue unlikely anything anyone "
    "anywhere everything everyone everywhere nothing nobody nowhere none other else rather instead far near cannot "
    "isnt wasnt arent werent cant couldnt dont doesnt didnt wont wouldnt shouldnt hasnt havent hadnt doubt minus half "
    "twice dozen bc bce".split()
)
_UNSPACED_DENIALS = re.compile("|".join(["不是", "没有", "并非", "公元前", "ではな", "아니", "ไม่", *ZH_BOUNDS]))
_UNSPACED_COMMON = "是的在了位于叫做答案为我认想可能它他她个名です은는이가입니다"
_UNSPACED_ENDINGS = "市省县州年月日号岁个人名"  # one may follow: 北京市
_COMMON = set(
    "it its is was are were be been being this that these those there here he she they his her their i we you my our "
    "in on at of by as and or but if so then than also which who whom whose what when "
    "where why how has have had do does did will would can could might must answer think believe guess correct called "
    "named known name sure probably perhaps maybe likely yes well actually really certainly surely definitely just "
    "only course final mr mrs ms dr located situated based takes took place became become came come comes held won "
    "happened year mid early late ad ce about around".split()
)
_EVENTS = [  # an answer to a question about one of these is not about another
    set(verbs.split())
    for verbs in (
        "born birth",
        "die dies died death",
        "live lives lived",
        "work works worked",
        "found founded",
        "begin begins began start starts started",
        "end ends ended",
        "release released",
        "publish published",
        "write writes wrote written",
        "direct directed",
        "star stars starred",
        "plays played",
        "sing sings sang sung",
        "make makes made",
    )
]
_LINKS = {"is", "was", "are", "were", "be", "by", "called", "named", "as"}  # between a subject and the truth
_KINDS = {"city", "town", "village", "state", "province", "country", "island", "year", "month"}  # "the city of Paris"
_ASKED_UNITS = {"much": CURRENCIES, "cost": CURRENCIES, "old": {"year"}, "age": {"year"}}
_MONTHS = {month.lower() for month in MONTHS}
_UNSPACED = re.compile(f"[{UNSPACED}]")


class Word(NamedTuple):
    """A word in one spelling, and how it was written."""

    text: str
    is_capital: bool = False
    is_genitive: bool = False  # followed by 's

    @property
    def is_number(self) -> bool:
        return self.text[-1].isdigit() and self.text.strip("-−<>≤≥").replace(".", "", 1).isdigit()


class OfflineJudge:
    """Compare an answer with the truths by rules. This judge has nothing to reach, to check or to close."""

    async def judge(
        self, question: str, answer: str, truths: Sequence[str], falsehoods: Sequence[str] = ()
    ) -> Judgement:
        """Always reach an outcome: no answer is unscorable. What matches no truth is wrong, so falsehoods add
        nothing."""
        if len(answer) > MAX_CHARS:
            return Judgement("wrong", f"longer than {MAX_CHARS} characters")
        question, said = usual_forms(question), usual_forms(answer)
        accepted = [usual_forms(truth) for truth in truths]
        if normalise(said) in {normalise(truth) for truth in accepted} - {""}:
            return Judgement("correct", "equals the truth")
        if is_refusal(answer):
            return Judgement("refused", "declines to answer")
        mismatches = [_mismatch(question, said, truth) for truth in accepted]
        if "" in mismatches:
            return Judgement("correct", "states the truth")
        return Judgement("wrong", mismatches[0])

    def check_sync(self) -> None:
        """Do nothing: rules always work."""

    def metrics(self) -> dict[str, float]:
        """Count nothing."""
        return {}

    def close(self) -> None:
        """Do nothing: rules hold nothing."""


def words(text: str) -> list[str]:
    """Split a text into words: lower case, no accents, no apostrophes and genitives, 3rd as 3, metres as m."""
    return [word.text for word in _spelled(text)]


def _spelled(text: str) -> list[Word]:
    text = EMPHASIS.sub(r"\2", text)
    text = re.sub(r"([$€£¥₹]) ?(\d[\d.,]*)", lambda price: f"{price[2]} {UNIT_MARKS[price[1]]}", text)
    text = re.sub(r"(?<=\d) ?%|\bper cent\b", " percent", text)
    text = re.sub(r"(?<=\d)(?:st|nd|rd|th)\b", "", text)
    text = _GLUED_UNIT.sub(lambda match: f" {match[0]}" if unit_named(match[0]) else match[0], text)
    text = re.sub(r"['’](?!s\b)|(?<=\d)['’]", "", text, flags=re.IGNORECASE)
    found: list[Word] = []
    for match in _WORD.finditer(text):
        word = fold(match["number"] or match["word"])
        if found and found[-1].is_number and word not in _COMMON:
            word = unit_named(word) or word
        if word not in ARTICLES:
            found.append(Word(word, match[0][0].isupper(), bool(match["genitive"])))
    return found


def is_unspaced(text: str) -> bool:
    """Return whether a text has no spaces between words, as Chinese: its words are looked for as characters."""
    return bool(_UNSPACED.search(text))


def _mismatch(question: str, answer: str, truth: str) -> str:
    """Say why an answer does not state a truth; "" if it does.

    It does with the same numbers, all of the truth's words in their order, nothing that may change what they say, and
    no denial.
    """
    said, gold = _spelled(answer), _spelled(truth)
    if not gold:
        return "the truth holds no word"
    asked = _asked(question, said, gold)
    wanted = {word.text for word in gold}
    allowed = asked | wanted
    other_numbers = {word.text for word in said if word.is_number and word.text not in allowed}
    if other_numbers:
        return f"states other numbers: {', '.join(sorted(other_numbers)[:3])}"
    missing = _missing(gold, said, asked, answer)
    if missing:
        return f"does not say {', '.join(missing[:3])}"
    if _is_ordered(gold, truth) and not _in_order(gold, said, asked, answer):
        return "says the truth's words in another order"
    denials = [word for word in _UNSPACED_DENIALS.findall(answer) if word not in question + truth]
    denials += _denials(said, gold, asked)
    if denials:
        return f"denies or bounds something: {min(denials)}"
    if is_unspaced(truth):
        return _surplus_unspaced(question, answer, truth)
    problem = _event(said, asked, wanted) or _relation(said, gold, asked) or _other(said, gold, allowed)
    candidate = _part_without(allowed, answer) or _rival(question, wanted, said)
    return problem or (f"offers something else too: {candidate}" if candidate else "")


def _asked(question: str, said: list[Word], gold: list[Word]) -> set[str]:
    """Return the words that the question allows: its own, the units that it names, and what repeats its characters."""
    asked = set(words(question))
    asked |= {unit_named(word) for word in asked - _COMMON} - {None}
    if not any(unit_named(word.text) for word in gold):
        asked = asked.union(*(_ASKED_UNITS.get(word, ()) for word in asked))
    characters = {*question, *_UNSPACED_COMMON}
    return asked.union(word.text for word in said if is_unspaced(word.text) and characters.issuperset(word.text))


def _missing(gold: list[Word], said: list[Word], asked: set[str], answer: str) -> list[str]:
    """Find the truth's words that the answer does not say, or not as often as the truth does."""
    required = Counter(word.text for word in gold)
    if any(word.is_number for word in gold):  # "How many seasons?" is answered by "three", too
        required = Counter({word: number for word, number in required.items() if word not in asked})
    required -= Counter(word.text for word in said)
    return [word for word in required if not _holds_unspaced(answer, word)]


def _holds_unspaced(answer: str, word: str) -> bool:
    """Return whether an answer holds a word of a script without spaces; of 李白和杜甫 it may turn the order round."""
    if not is_unspaced(word):
        return False
    parts = _ZH_JOINT.split(word)
    are_names = all(len(part) > 1 for part in parts)
    return word in answer.lower() or (are_names and all(part in answer for part in parts))


def _is_ordered(gold: list[Word], truth: str) -> bool:
    """Return whether the order of the truth's words says something: not in a name, and not in "red and blue"."""
    if sum(word.is_number for word in gold) > 1 or _LIST_MARK.search(truth):
        return True
    content = [word for word in gold if word.text not in _JOINTS]
    num_capital = sum(word.is_capital for word in content)
    return 0 < num_capital < len(content) or (not num_capital and len(content) == len(gold))


def _in_order(gold: list[Word], said: list[Word], asked: set[str], answer: str) -> bool:
    """Return whether the answer says the truth's words in their order; those that it need not say may lack."""
    spoken = [word.text for word in said]
    rest = iter(spoken)
    wanted = [word.text for word in gold if word.text in spoken or word.text not in asked]
    if is_unspaced(answer):
        places = [answer.find(word) for word in wanted if is_unspaced(word)]
        return places == sorted(places)
    return all(word in rest for word in wanted)


def _denials(said: list[Word], gold: list[Word], asked: set[str]) -> list[str]:
    """Find words that deny or bound the truth: none of the question's, unless one stands right before the truth."""
    wanted = {word.text for word in gold}
    denying = _NEGATIONS | BOUNDS
    if all(word.is_number for word in gold):
        denying = denying | {"from"}
    followers = [*said[1:], Word("")]
    return [
        word.text
        for word, follower in zip(said, followers, strict=True)
        if word.text in denying - wanted and (word.text not in asked or follower.text == gold[0].text)
    ]


def _event(said: list[Word], asked: set[str], wanted: set[str]) -> str:
    """Say which event the answer is about, where the question is about another: "she died in Velda"."""
    if not any(asked & verbs for verbs in _EVENTS):
        return ""
    for word in said:
        of_word = [verbs for verbs in _EVENTS if word.text in verbs - wanted]
        if of_word and not asked & of_word[0]:
            return f"is about another event: {word.text}"
    return ""


def _relation(said: list[Word], gold: list[Word], asked: set[str]) -> str:
    """Say what the answer names that only has to do with the truth: "X's brother", "the capital of X"."""
    places = [place for place, word in enumerate(said) if word.text == gold[-1].text]
    if places and not gold[-1].is_genitive and all(said[place].is_genitive for place in places):
        return f"names something of {gold[-1].text}"
    before = {place - len(gold) for place in places if said[place].is_capital == gold[-1].is_capital}
    for place in sorted(before):
        if place > 0 and said[place].text == "of" and said[place - 1].text not in _KINDS:
            return f"names something of the truth: {said[place - 1].text}"
    return ""


def _other(said: list[Word], gold: list[Word], allowed: set[str]) -> str:
    """Say which other words may change the truth: all but one in the subject, and those of time and place in a date."""
    wanted = {word.text for word in gold}
    places = [place for place, word in enumerate(said) if word.text in wanted]
    links = [place for place in range(max(places, default=0)) if said[place].text in _LINKS]
    known = allowed | _COMMON | set().union(*_EVENTS)
    is_date = all(word.is_number or word.text in _MONTHS for word in gold)
    if is_date and not wanted & _MONTHS:
        known |= _MONTHS
    others = []
    for place, word in enumerate(said):
        before, after = said[place - 1 : place], said[place + 1 : place + 2]
        is_place = is_date and word.is_capital and before and before[0].text in ("in", "at")
        is_kind = word.text in _KINDS and after and after[0].text == "of"
        if word.text not in known and not is_kind and not (is_place and word.text not in _MONTHS):
            others.append((place, word))
    names = any(word.is_capital for word in gold)
    late = [word.text for place, word in others if place > max(links, default=-1) or (names and word.is_capital)]
    if late or len(others) > MAX_OTHER_WORDS:
        return f"says something besides the truth: {(late or [others[0][1].text])[0]}"
    return ""


def _rival(question: str, right: set[str], said: list[Word]) -> str:
    """Find a choice of the question ("Ali or Frazier?") that the answer names beside the right one; "" if none."""
    asked = words(question)
    pairs = [(asked[at - 1], asked[at + 1]) for at in range(1, len(asked) - 1) if asked[at] == "or"]
    rivals = {word for pair in pairs if right & set(pair) for word in pair} - right
    if "no" in right:
        rivals.add("yes")
    return min(rivals & {word.text for word in said}, default="")


def _surplus_unspaced(question: str, answer: str, truth: str) -> str:
    """Say what a text without spaces says besides the truth: an ending may follow it, nothing may precede it."""
    rest = re.sub(f"{re.escape(truth)}[{_UNSPACED_ENDINGS}]?", " ", answer)
    if truth not in answer:
        rest = re.sub("|".join(map(re.escape, _ZH_JOINT.split(truth))) + "|" + _ZH_JOINT.pattern, " ", answer)
    others = [char for char in rest if char.isalnum() and char not in question + _UNSPACED_COMMON]
    return f"says something besides the truth: {''.join(others[:10])}" if others else ""


def _part_without(allowed: set[str], answer: str) -> str:
    """Find a part of the answer, between commas and the like, that says something and none of the allowed words."""
    for part in _PART_END.split(answer):
        found = set(words(part)) - _COMMON
        if found and not found & allowed:
            return part.strip()[:40]
    return ""

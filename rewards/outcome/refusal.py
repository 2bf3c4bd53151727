"""Recognise answers that decline to answer, or offer several: alternatives, or candidates that the question names.

A clause declines by its grammar: a negation with a verb of knowing or telling, whose subject is "I" or nobody; "no"
with a noun of knowing; or an answer that is called unknown.
"""

import re
import unicodedata
from collections.abc import Sequence

from knowledge.facts.replies import num_words
from knowledge.store.tokens import UNSPACED
from knowledge.text import fold

_MORE = r"(?:more|additional)"
MAX_CHARS = 1000  # a longer answer says more than that it gives none
_APOSTROPHES = str.maketrans("", "", "'’‘ʼ`´＇")
_CLAUSE_END = re.compile(r"[.!?;,:…\n。！？；，：]|\b(?:but|however|though|although)\b")
_CONTRACTIONS = [  # without their apostrophes
    (re.compile(r"\bcannot\b"), "can not"),
    (re.compile(r"\b(do|does|did|is|are|was|were|could|would|have|has|had)nt\b"), r"\1 not"),
    (re.compile(r"\bcant\b"), "can not"),
    (re.compile(r"\bwont\b"), "will not"),
    (re.compile(r"\bim\b"), "i am"),
    (re.compile(r"\bive\b"), "i have"),
    (re.compile(r"\bid (?=rather|prefer|need|require)"), "i would "),
    (re.compile(r"\b(it|that|there)s\b"), r"\1 is"),
]
_ADVERB = r"\w+ly|just|still|also|even|quite|so|too|very|now|yet"
_ADVERBS = rf"(?:(?:{_ADVERB}) )*"
_LEAD = (
    rf"(?:(?:{_ADVERB}|well|hmm|sorry|and|that|to say|to be honest|at this time|as of now"
    r"|as an? (?:ai|assistant|(?:ai |large )?language model)(?: (?:language )?(?:model|assistant|system))?"
    r"|i (?:am (?:afraid|sorry)|regret|(?:must|have to) (?:say|admit|confess)))(?: |$))*"
)
_NOT = rf"(?:do|did|does|can|could|will|would|have|am|are|is|was) {_ADVERBS}not {_ADVERBS}"
_KNOW = (
    r"(?:know|recall|remember|recollect|say|tell you|answer|respond|determine|verify|confirm|provide|find|identify"
    r"|assist|help you|help with|give (?:you )?an|heard|come across|possess)"
)
_SURE = r"(?:sure|certain|aware|familiar|able to (?:\w+|help))"
_KNOWLEDGE = (
    r"(?:information|info|knowledge|data|details|context|evidence|idea|clue|answer|memory|records?|recollection"
    r"|way of knowing)"
)
_ABOUT = (  # what is not known: it opens with a word that names nothing
    r"(?: (?:the|this|that|it|who|what|when|where|which|why|how|whether|if|about|of|for|to|on|with|regarding|as to|in"
    r"|available|enough|any|anything|exactly|yet|you|specific|an answer|a response|at all|whatsoever)\b.*)?"
)
_SUBJECT = r"(?:(?:this|that|it|the (?:answer|question|information|exact \w+))(?: to (?:this|the)(?: question)?)? )?"
_REFUSAL = re.compile(
    f"{_LEAD}(?:(?:i|we) {_ADVERBS})?(?:"
    + "|".join(
        (
            f"{_NOT}{_KNOW}{_ABOUT}",
            f"(?:have )?never (?:knew|learned|heard){_ABOUT}",
            rf"(?:{_NOT}|not )(?:\w+ ){{0,3}}{_SURE}{_ABOUT}",
            rf"(?:(?:am|are|was|were) {_ADVERBS})?un(?:sure|certain|aware|able to \w+){_ABOUT}",
            rf"(?:{_NOT}(?:have|possess)|have {_ADVERBS}not?|lack) (?:\w+ ){{0,3}}{_KNOWLEDGE}{_ABOUT}",
            rf"(?:there is )?(?:not|insufficient|no) (?:\w+ ){{0,2}}{_KNOWLEDGE}{_ABOUT}",
            r"(?:must|have to|need to|will have to) (?:decline|refuse|refrain|abstain)"
            rf"(?: (?:to|from) (?:answer|respond|say|guess|comment|speculat|provid)\w*)?{_ABOUT}",
            rf"(?:would rather not|prefer not to|would prefer not to) (?:answer|say|guess){_ABOUT}",
            rf"(?:would )?(?:need|require) {_MORE} (?:information|context|details){_ABOUT}",
            rf"{_MORE} (?:information|context|details) (?:is|are|would be) (?:needed|required|necessary){_ABOUT}",
            rf"{_SUBJECT}(?:(?:is|are|remains) {_ADVERBS})?(?:not known|unknown|unanswerable|unclear|uncertain"
            r"|unavailable|not available)(?: to (?:me|us))?",
            rf"{_SUBJECT}(?:can|could) not be (?:known|determined|answered|verified|confirmed|found){_ABOUT}",
            rf"{_SUBJECT}(?:is |lies )?(?:beyond|outside) (?:of )?(?:my|our) \w+",
            r"idk|dunno|n a|do not know",
        )
    )
    + ")|"
    r"(?:抱歉|对不起|不好意思|很遗憾|对此|这个?(?:问题)?|关于这个问题)*(?:我们?)?"
    r"(?:真的?|确实|实在|目前|暂时?|完全|其实|并|也|还|就|很|都|从来?|对此|这个(?:问题)?)*"
    r"(?:(?:不太?|没有?|未|无法|无从|难以|不能|不是很)(?:能够?|太)?"
    r"(?:知道?|清楚|确定|了解|晓得|明白|肯定|回答|提供|得知|获知|判断|听说|记得|查到)"
    r"|(?:没有|无|缺乏|缺少).{0,8}(?:信息|资料|数据|头绪|印象|把握|答案)|一无所知|忘记?了"
    r"|[说答想记]不[上出起清]来?)"
    r"(?:(?:[了呢啊过这该那关谁什哪几多怎何答具相他她它如为问确准]|是[否谁什哪几多]).*)?|未知|信息不足|不详|无可奉告|不得而知"
)
_WHERE = (  # who or what may know more: it opens with a word that names nothing
    r"(?: (?:the|an?|any|some|my|your|this|that|these|more|other|another|official|reliable|relevant|further|if|for|to"
    r"|with|at|on|up|in|me|us|again|elsewhere|online|it|who|someone)\b.*)?"
)
_FILLER = re.compile(  # none of these has room for an answer
    _LEAD + r"(?:sorry|i am sorry|i am afraid|apologies|unfortunately|honestly|for sure|with certainty"
    r"|i apologi[sz]e(?: for (?:the|any|this|that|my|not) \w+(?: \w+)?)?"
    r"|please (?:check|consult|refer|see|ask|verify|clarify|rephrase|specify|provide|give|let|tell|contact|visit|search"
    rf"|look|try|forgive|excuse|note){_WHERE}"
    r"|thank you(?: (?:very|so) much| in advance)?(?: for (?:your|the|asking|understanding)(?: \w+)?)?"
    r"|thanks(?: for \w+)?"
    r"|很?抱歉|对不起|不好意思|很遗憾|对此|谢谢你?您?|作为(?:一[个名])?(?:ai|人工智能)?(?:大?语言)?(?:模型|助手)?"
    r"|请(?:您|你)?(?:查[阅看询找]|参考|参阅|咨询|核实|确认|提供|补充|谅解|见谅|原谅)"
    r"(?:一下|更多|其他|相关|官方|可靠|具体|专业|权威|上下文|背景|有关)?.{0,8})?"
)
_OFFER = re.compile(  # an answer in the same clause: "I don't know the answer it is Paris"
    r"\b(?:answer|question|this|that|know|sure|certain) (?:and )?(?:it|he|she|they) "
    r"(?:is|was|are|were|(?:could|may|might|must|should) be) "
    r"|\b(?:maybe|perhaps|probably|possibly|i (?:think|guess|believe)|my guess is) "
    r"|(?:可能|应该|大概|也许|或许|估计|答案是|[它他她]是)(?!.*(?:谁|什么|哪|几|多少|怎|何|是否))"
)


def is_refusal(answer: str) -> bool:
    """Return whether an answer says that it gives none, and nothing else.

    Every clause declines, apologises or fills, and at least one declines. "I don't know, but perhaps Paris" is an
    attempt, without the comma as well. Nothing is assumed about a question whose right answer is "Unknown". Idioms
    ("Beats me") are not known to it; a judge that is a model knows them.
    """
    if len(answer) > MAX_CHARS:
        return False
    text = unicodedata.normalize("NFKC", answer.translate(_APOSTROPHES)).lower()  # NFKC takes ´ apart, into a space
    clauses = [_plain_words(clause) for clause in _CLAUSE_END.split(text)]
    others = [clause for clause in clauses if not _REFUSAL.fullmatch(clause)]
    if len(others) == len(clauses) or any(_OFFER.search(clause) for clause in clauses):
        return False
    return all(_FILLER.fullmatch(clause) for clause in others)


def _plain_words(clause: str) -> str:
    """Return the words of a clause with one space between, and its contractions written in full."""
    words = " ".join(re.sub(r"[^\w]+|_", " ", clause).split())
    for contraction, full in _CONTRACTIONS:
        words = contraction.sub(full, words)
    return words


# --- answers that offer several --------------------------------------------------------------------------------------
MAX_ALTERNATIVE_WORDS = 12
_ALTERNATIVES = {  # how answers list alternatives: what separates them, and how often at least
    "or": (re.compile(r"\bor\b|或者", re.IGNORECASE), 1),  # 还是 is "still", too
    "slash": (re.compile(r"\s/\s|(?<=[^\W\d_]{3})/(?=[^\W\d_]{3})"), 1),  # "km/h" and "AC/DC" list none
    "semicolon": (re.compile(r"[;；|](?=\s*\w)"), 1),
    "list": (re.compile(r"^[ \t]*[-*•][ \t]+(?=\S)|(?<!\S)\d{1,2}[.)]\s+(?=\S)", re.MULTILINE), 2),
}
_WORD_OR_SIGN = re.compile(f"[{UNSPACED}]|[^\\W{UNSPACED}]+")
_BETWEEN = re.compile(r"\b(?:and|or|nor|versus|vs)\b|还是|或者?|以及|[和与跟及]|[^\w\s'’.-]", re.IGNORECASE)
_SAY_NOTHING = {"a", "an", "the", "both", "either", "all", "neither"}
_NAME_NOTHING = set("is are was were be did does do has have had of in which who whom what when where".split())
_MOST_WORDS = 40  # of an answer that consists of candidates


def lists_alternatives(answer: str, accepted: Sequence[str]) -> str:
    """Say in which way an answer consists of alternatives, unless a truth lists some in that way; "" if it does not.

    All parts must be short: in a longer text an "or" or a list is nearly always incidental, and the judge grades
    alternatives.
    """
    for kind, (separator, min_separators) in _ALTERNATIVES.items():
        parts = separator.split(answer)
        if len(parts) <= min_separators or any(separator.search(truth) for truth in accepted):
            continue
        if all(num_words(part) <= MAX_ALTERNATIVE_WORDS for part in parts):
            return kind
    return ""


def num_candidates(question: str, answer: str) -> int:
    """Count the candidates of the question of which an answer consists; 0 if it says anything else.

    A candidate stands next to a comma, an "or" and the like in the question.

    >>> num_candidates("Who was born first, Tom Hanks or Brad Pitt?", "Brad Pitt, Tom Hanks")
    2
    """
    offered = " | ".join(map(" ".join, _parts(question)))
    words = [word for part in _parts(answer) for word in part]
    if not 0 < len(words) <= _MOST_WORDS or set(words) - set(offered.split()):
        return 0

    count = 0
    start = 0
    while start < len(words):
        longest_first = range(len(words), start, -1)
        start = next((end for end in longest_first if _is_offered(words[start:end], offered)), 0)
        if not start:
            return 0
        count += 1
    return count


def _is_offered(words: list[str], offered: str) -> bool:
    """Tell whether words stand next to a separator of the question."""
    piece = re.escape(" ".join(words))
    return words[0] not in _NAME_NOTHING and bool(re.search(rf"\| {piece}(?!\S)|(?<!\S){piece} \|", offered))


def _parts(text: str) -> list[list[str]]:
    """Return the words between the commas, "or" and the like of a text, without articles."""
    parts = map(_WORD_OR_SIGN.findall, map(fold, _BETWEEN.split(text)))
    return list(filter(None, ([word for word in part if word not in _SAY_NOTHING] for part in parts)))

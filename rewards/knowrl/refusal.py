"""Recognise answers that decline to answer: as KnowRL's first version does, and as this project does.

Both take time linear in the text. KnowRL's patterns miss "I don't know", "unknown" and curly apostrophes, and take "I
can't help falling in love" for a refusal. `matches_knowrl_v1` finds exactly what they find, for the preset knowrl_v1.
"""

import re
import unicodedata

_SPEAK = r"(?:answer|respond|provide|give|tell|assist|help)"
_MORE = r"(?:more|additional)"
_V1 = re.compile(
    "|".join(
        (
            rf"\b(?:cannot|can't|unable to)\s+{_SPEAK}\b",
            r"\bas (?:an AI|a language model|an assistant),?\s+I\s+"
            r"(?:cannot|can't|am unable to|must decline|am not able to|don't have|won't)\b",
            rf"\b(?:need|require) {_MORE}\s+(?:information|details|context|specifics|clarification)\s+"
            r"to\s+(?:answer|respond|provide|help|assist)\b",
            r"\b(?:insufficient information|lack of (?:information|context|details)"
            r"|not enough (?:information|context)|too vague)\s+to\s+"
            r"(?:answer|respond|provide|give|help|assist)\b",
            rf"\b{_MORE} (?:information|context|details)\s+would be\s+(?:needed|required|necessary)\b",
        )
    ),
    re.IGNORECASE,
)
_V1_STAGES = ("one", "two", "last")
_V1_IN_ORDER = (  # each pattern: its stages follow each other on one line, with anything in between
    re.compile(
        r"(?P<one>\bI (?:must|have to|will have to|need to)\b)"
        r"|(?P<last>\b(?:decline|refuse|refrain from|abstain from)\s+(?:answering|responding|providing|giving)\b)"
        r"|(?P<line>\n)",
        re.IGNORECASE,
    ),
    re.compile(
        r"(?P<one>\b(?:ethical|moral|legal)\b)"
        r"|(?P<two>\b(?:concerns|issues|considerations|limitations|constraints)\b)"
        r"|(?P<last>\b(?:prevent|stop|preclude|prohibit|disallow)\b)|(?P<line>\n)",
        re.IGNORECASE,
    ),
)


def matches_knowrl_v1(answer: str) -> bool:
    """Return whether one of the eight patterns of KnowRL's first version occurs in an answer."""
    return bool(_V1.search(answer)) or any(_has_stages_in_order(pattern, answer) for pattern in _V1_IN_ORDER)


def _has_stages_in_order(pattern: re.Pattern[str], text: str) -> bool:
    """Find a pattern's stages in order on one line by one scan: the regular expression `one.*two.*last` is cubic."""
    stages = [name for name in _V1_STAGES if name in pattern.groupindex]
    num_reached = 0
    for match in pattern.finditer(text):
        if match.lastgroup == "line":
            num_reached = 0
        elif match.lastgroup == stages[num_reached]:
            num_reached += 1
            if num_reached == len(stages):
                return True
    return False


MAX_CHARS = 1000  # a longer answer says more than that it gives none
_APOSTROPHES = str.maketrans("", "", "'’‘ʼ`´＇")
_CLAUSE_END = re.compile(r"[.!?;,:…\n。！？；，：]|\b(?:but|however|though|although)\b")
_LEAD = (
    r"(?:(?:well|hmm|sorry|im sorry|i am sorry|unfortunately|honestly|actually|and|so|that|to be honest|at this time"
    r"|as of now) )*"
)
_WE = r"(?:i|we)(?: (?:really|honestly|simply|just|truly|currently|still|also))*"
_NOT = r"(?:do not|dont|did not|didnt|cannot|can not|cant)"
_KNOWLEDGE = r"(?:information|info|knowledge|data|details|context|evidence|idea|clue|answer|memory|record|records)"
_ABOUT = (
    r"(?: (?:the|this|that|it|who|what|when|where|which|why|how|whether|if|about|of|for|enough|any|anything|exactly"
    r"|yet|you|specific|an answer|a response)\b.*)?"
)
_REFUSAL = re.compile(
    _LEAD
    + "(?:"
    + "|".join(
        (
            rf"{_WE} {_NOT} (?:know|recall|remember){_ABOUT}",
            rf"(?:{_WE} am|im|we are) (?:"
            r"not (?:sure|certain|aware|familiar|able to (?:answer|say|tell|determine|provide|verify))"
            r"|unsure|uncertain|unaware"
            r"|unable to (?:answer|respond|say|tell|determine|provide|verify|confirm|recall|assist|help)"
            rf"){_ABOUT}",
            rf"{_WE} (?:do not|dont) have "
            rf"(?:the |any |enough |sufficient |that |specific |reliable |access to )*{_KNOWLEDGE}\b.*",
            rf"{_WE} have no {_KNOWLEDGE}\b.*",
            rf"{_WE} (?:cannot|can not|cant|could not|couldnt|will not|wont) (?:"
            r"answer|respond|say|determine|verify|confirm|provide|find|identify"
            rf"|assist|tell you|give (?:an|you an) answer|help with|help you){_ABOUT}",
            rf"{_WE} (?:must|have to|need to|will have to) (?:decline|refuse|refrain|abstain)\b.*",
            rf"{_WE} (?:would rather not|prefer not to|would prefer not to) (?:answer|say|guess)\b.*",
            r"(?:it is |its |this is )?"
            r"(?:unknown|not known|unanswerable|unavailable|not available|idk|dunno|not sure|unsure|no idea|no clue"
            r"|no answer|n a)(?: to me)?",
            r"(?:dont know|do not know|cannot answer|cant answer|unable to answer)",
            r"(?:the|this|that) (?:answer|question|information|exact \w+)(?: to this(?: question)?)? "
            r"(?:is|are|cannot be|can not be|remains) "
            r"(?:unknown|not known|unavailable|not available|unclear|uncertain|determined|answered|unanswerable)\b.*",
            r"(?:there is |i have )?(?:not enough|insufficient|no(?: reliable)?) "
            rf"{_KNOWLEDGE}(?: (?:available|to|on|about|for)\b.*)?",
            rf"{_MORE} (?:information|context|details) (?:is|are|would be) (?:needed|required|necessary)\b.*",
            rf"{_WE} (?:would )?(?:need|require) {_MORE} (?:information|context|details)\b.*",
            r"(?:抱歉|对不起)?(?:我|我们)?(?:并|也|还)?"
            r"(?:不知道|不清楚|不确定|不了解|无法回答|无法确定|没有足够的信息|答不上来).*|未知|不详|无可奉告",
        )
    )
    + ")"
)
_FILLER = re.compile(
    _LEAD + r"(?:sorry|im sorry|i am sorry|apologies|i apologi[sz]e\b.*|unfortunately|honestly|as an ai\b.*"
    r"|as a (?:large )?language model|as an assistant|please\b.*|thank you\b.*|thanks|to be honest|for sure"
    r"|with certainty|at this time|抱歉|对不起|很抱歉)?"
)
_OFFER = re.compile(  # an answer in the same clause: "I don't know the answer it is Paris"
    r"\b(?:answer|question|this|that|know|sure|certain) (?:and )?(?:it|he|she|they) "
    r"(?:is|was|are|were|(?:could|may|might|must|should) be) "
    r"|\b(?:maybe|perhaps|probably|possibly|i (?:think|guess|believe)|my guess is) "
    r"|(?:可能|应该|大概|也许|或许|估计)(?!.*(?:谁|什么|哪|几|多少|怎|何|是否))"
)


def is_refusal(answer: str) -> bool:
    """Return whether an answer says that it gives none, and nothing else.

    Every clause declines, apologises or fills, and at least one declines. "I don't know, but perhaps Paris" is an
    attempt, without the comma as well. Nothing is assumed about a question whose right answer is "Unknown".
    """
    if len(answer) > MAX_CHARS:
        return False
    text = unicodedata.normalize("NFKC", answer.translate(_APOSTROPHES)).lower()  # NFKC takes ´ apart, into a space
    clauses = [_words_alone(clause) for clause in _CLAUSE_END.split(text)]
    others = [clause for clause in clauses if not _REFUSAL.fullmatch(clause)]
    if len(others) == len(clauses) or any(_OFFER.search(clause) for clause in clauses):
        return False
    return all(_FILLER.fullmatch(clause) for clause in others)


def _words_alone(clause: str) -> str:
    return " ".join(re.sub(r"[^\w]+|_", " ", clause).split())

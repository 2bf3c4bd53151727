"""List the words that the rules of this package know by name, all in this one place.

Changing a list changes tokens, clauses or verdicts: raise the version that is named with it.
"""

# Words that a search ignores (TOKENS_VERSION in store/tokens.py).
STOP_WORDS = frozenset(
    """
    a about after all also am an and any are as at be because been before being between both but by can could d did do
    does doing during each few for from had has have having he her hers herself him himself his how i if in into is it
    its itself ll m me more most my myself no nor not of on or other our ours over own re s same she should so some such
    t than that the their theirs them themselves then there these they this those through to too under until up ve very
    was we were what when where which while who whom whose why will with would you your yours
    aren couldn didn doesn don hadn hasn haven isn shouldn wasn weren wouldn
    """.split()
)

# Words that end with a full stop within a sentence; so do single letters ("J. ", "U.S. ", "e.g. ").
ABBREVIATIONS = tuple(
    """
    Mr Mrs Ms Dr St Jr Sr Prof Gen Col Lt Sgt Capt Rev Hon Gov Sen Rep Mt Ft vs etc cf ca approx Vol Fig Op pp
    Inc Ltd Co Corp Bros Jan Feb Mar Apr Jun Jul Aug Sep Sept Oct Nov Dec
    """.split()
)

# The lists below serve facts/clauses.py (CLAUSES_VERSION), facts/statement.py and facts/lexical.py (its `name`).
VERBS = frozenset(
    """
    is are was were am be has have had became becomes become did does can
    attended began belongs borders bought built came closed created designed died directed discovered earned flows
    followed founded gave governed grew grows holds invented joined keeps launched leads led lies lived lives lost made
    makes married moved opened opens owned owns painted played plays produced published received released ruled runs
    sang sells served serves sings sold speaks spent stands starred stars started studied studies taught teaches took
    trained visited weighs went wins won worked works writes wrote
    """.split()
)
COPULAS = frozenset("is are was were am be become becomes became".split())
AUXILIARIES = frozenset(("do", "does", "did"))
ARTICLES = frozenset(("a", "an", "the"))
PRONOUNS = frozenset(("he", "she", "it", "they"))
POSSESSIVES = frozenset(("his", "her", "its", "their"))
OPENERS = PRONOUNS | POSSESSIVES | ARTICLES | {"there", "i", "we"}

# Words that change what the next one means: "before 1962" is not "1962", "by Jon" is not "Jon".
ZH_BOUNDS = "之前 之后 以前 以后 以上 以下 超过 不到 不足 多于 少于 至少 至多 最多 直到 将近".split()
BOUNDS = frozenset(
    """
    before after until till since over under above below beyond between more less fewer than most least almost nearly
    前 后
    """.split()
).union(ZH_BOUNDS)
RELATIONS = BOUNDS | {"by", "from", "with", "against"}
PREPOSITIONS = RELATIONS | {"in", "on", "at", "as", "during", "for", "to", "of"}
# What follows these, up to a comma, may be about somebody else: "met Jon Orn, who was born in Velda".
SUBORDINATORS = frozenset("who whom whose which where when that because although though if unless".split())

# Numbers in words (facts/forms.py, and rewards/mathematics/number_words.py).
ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen".split()
)
TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
NUMBERS = {word: n for n, word in enumerate(ONES)} | {word: 10 * n for n, word in enumerate(TENS, 2)}
BELOW_100 = rf"(?:(?:{'|'.join(TENS)})(?:[- ](?:{'|'.join(ONES[1:10])}))?|{'|'.join(reversed(ONES))})"

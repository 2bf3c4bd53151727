"""List the words that the rules of this package know by name, all in this one place.

Changing a list changes tokens: raise the version that is named with it.
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

# After a capital letter, or one of these, the sentence ends all the same if an opener follows: "in Washington, D.C. The
# currency". After others it goes on: "Dr. He", "Vol. A", "vs. The Beatles", "e.g. The Hague".
MAY_END = tuple("St Jr Sr etc Inc Ltd Co Corp Bros Jan Feb Mar Apr Jun Jul Aug Sep Sept Oct Nov Dec a.m p.m".split())
OPENERS = tuple(
    """
    The A An This That These Those It Its He His She Her They Their There We Our You Your
    In On At As From For But And Yet Then However Also Although After Before When While Where If Since
    """.split()
)

# Numbers and months in words, in lower case.
ONES = {
    word: number
    for number, word in enumerate(
        """
        zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
        eighteen nineteen
        """.split()
    )
}
TENS = dict(zip("twenty thirty forty fifty sixty seventy eighty ninety".split(), range(20, 100, 10), strict=True))
MONTHS = "january february march april may june july august september october november december".split()

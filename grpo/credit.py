"""Credit to the sentence (FSPO, 2505.24630): a verdict knows its fact, a fact its sentences, a sentence its tokens.

The knowledge base tells true and false steps of the reasoning apart. With `credit: sentence` each token of such a step
gets an advantage of the sign that the step deserves (Eq. 19): a false step in a right answer becomes less likely, and a
true step in a wrong answer more likely. All other tokens keep the advantage of their completion.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import cache

from grpo.schema import Completion, Sentence
from rewards.registry import CHECK_EVERY_ANSWER

MAX_BYTES = 4  # of a character in UTF-8, each perhaps a token of its own
Decode = Callable[[Sequence[int]], str]


def judged_sentences(completion: Completion, decode: Decode) -> list[Sentence]:
    """Return the sentences of a completion that are true or false, in order.

    A sentence is false if the knowledge base refutes a fact of it, else true if the base supports one. A fact of which
    the base knows nothing, or of which nobody can say where it is stated, decides nothing.

    decode: returns the text of tokens, as `Completion.text` has it. If that text is another one, there are no
    sentences.
    """
    verdicts: dict[tuple[int, int], set[str]] = {}
    for fact in _facts(completion):
        for start, end in fact["sentences"]:
            verdicts.setdefault((start, end), set()).add(fact["verdict"])
    judged = [(span, found) for span, found in sorted(verdicts.items()) if found & {"supported", "refuted"}]
    if not judged or decode(completion.ids) != completion.text:
        return []
    tokens = TokenPlaces(completion, decode)
    text = completion.text
    return [
        Sentence(text[start:end], *tokens.of(start, end), is_true="refuted" not in found)
        for (start, end), found in judged
    ]


def _facts(completion: Completion) -> list[dict]:
    """Return the facts of a completion with their verdicts, by a reward that checks those of every answer."""
    scores = [completion.scores[name] for name in CHECK_EVERY_ANSWER if name in completion.scores]
    return scores[0].facts if scores else []


class TokenPlaces:
    """Where the tokens of a completion are in its text.

    A token belongs where it begins, and white space to what follows it: " She" begins the sentence "She ...". Where it
    begins is known from the text of the tokens before it, of which the last ones may be parts of a character.
    """

    def __init__(self, completion: Completion, decode: Decode):
        self.completion, self.decode = completion, decode
        self._start = cache(self._find_start)

    def of(self, start: int, end: int) -> tuple[int, int]:
        """Return the tokens of the characters from `start` to before `end`: the first, and the one after the last."""
        text, places = self.completion.text, range(len(self.completion.ids))
        start = len(text[:start].rstrip())
        return bisect_left(places, start, key=self._start), bisect_left(places, end, key=self._start)

    def _find_start(self, place: int) -> int:
        """Return how many characters are complete before the token at this place.

        A part of a character decodes to U+FFFD, and with some tokenizers so do the complete ones before it. Then the
        text without the last tokens says more.
        """
        complete = 0
        for end in range(place, max(place - MAX_BYTES, -1), -1):
            text = certain = self.decode(self.completion.ids[:end])
            while not self.completion.text.startswith(certain):
                certain = certain[:-1]
            complete = max(complete, len(certain))
            if certain == text:
                break
        return complete

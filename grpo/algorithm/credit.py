"""Find the true and the false sentences of a completion, and their tokens: for `credit: sentence` (FSPO, 2505.24630).

A variant: minimal.py gives every token the advantage of its completion.

A false step in a right answer should become less likely, and a true step in a wrong answer more likely. So the tokens
of such a sentence get an advantage of their own (Eq. 13, `Completion.token_advantages`); all others keep that of their
completion. `Completion.facts` says which sentences state which fact, and what the knowledge base says about it.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from functools import cache

from grpo.algorithm.schema import Completion, Group, Sentence, completions_of, own_words
from grpo.base.text import MAX_CHARACTER_BYTES

Decode = Callable[[Sequence[int]], str]


def set_credit(groups: Iterable[Group], kind: str, decode: Decode, has_tools: bool = False) -> None:
    """Find the tokens that the rewards of graded completions are about. kind: "sentence" or "answer"."""
    for completion in completions_of(groups):
        if kind == "sentence":
            completion.sentences = judged_sentences(completion, decode)
        else:
            completion.credited_from = answer_start(completion, decode, has_tools)


def judged_sentences(completion: Completion, decode: Decode) -> list[Sentence]:
    """Return the sentences of a completion that are true or false, in order.

    A sentence is false if the knowledge base refutes one of its facts, else true if it is the first one to state a fact
    that the base supports: to say it again earns nothing. A fact that the base does not know, or whose sentence was not
    found, decides nothing.

    decode: turns tokens into text. If it does not reproduce `Completion.text`, the tokens cannot be located in it, and
    no sentence is returned.
    """
    verdicts: dict[tuple[int, int], set[str]] = {}
    for fact in completion.facts:
        verdict, spans = fact["verdict"], fact["sentences"]
        if verdict != "refuted":
            spans = spans[:1]
        for start, end in spans:
            of_sentence = verdicts.setdefault((start, end), set())
            of_sentence.add(verdict)
    judged = [(span, found) for span, found in sorted(verdicts.items()) if found & {"supported", "refuted"}]
    if not judged or decode(completion.ids) != completion.text:
        return []
    places = TokenPlaces(completion, decode)
    sentences = []
    for (start, end), found in judged:
        text = completion.text[start:end]
        first, after_last = places.of(start, end)
        sentences.append(Sentence(text, first, after_last, is_true="refuted" not in found))
    return sentences


def answer_start(completion: Completion, decode: Decode, has_tools: bool = False) -> int:
    """Return the first token of the answer block, after its tag; 0 if there is none, or if it cannot be found.

    With `credit: answer` only these tokens get the advantage: what is thought before them is the model's recall, and
    the answer decides whether to trust it. An answer without the block is trained whole. With tools the decision comes
    before it: the model calls one, or closes its thoughts, and the first token of that is returned.
    """
    text = own_words(completion.text, completion.calls)
    before, tag, _ = text.partition("</think>" if has_tools else "<answer>")
    if not (tag or completion.calls) or decode(completion.ids) != completion.text:
        return 0
    start = len(before) if has_tools else len(before + tag)
    if completion.calls:
        first_call, _ = completion.calls[0].span
        start = min(start, first_call)
    places = TokenPlaces(completion, decode)
    first, _ = places.of(start, len(completion.text))
    return first


class TokenPlaces:
    """Where the tokens of a completion are in its text.

    A token is located by its first character, and white space belongs to the word after it: the token " She" is the
    first one of the sentence "She ...".
    """

    def __init__(self, completion: Completion, decode: Decode):
        self.completion, self.decode = completion, decode
        self.start = cache(self._find_start)  # place of a token -> the character at which it begins

    def of(self, start: int, end: int) -> tuple[int, int]:
        """Return the range of tokens that hold the characters [start, end): the first, and the one after the last."""
        text = self.completion.text
        places = range(len(self.completion.ids))
        start = len(text[:start].rstrip())
        first = bisect_left(places, start, key=self.start)
        after_last = bisect_left(places, end, key=self.start)
        return first, after_last

    def _find_start(self, place: int) -> int:
        """Return the character at which the token at this place begins: the number of complete characters before it.

        The last tokens before it may be parts of one character. A part decodes to U+FFFD, and some tokenizers merge
        complete characters into that U+FFFD. Then the text of fewer tokens shows more complete characters.
        """
        complete = 0
        for end in range(place, max(place - MAX_CHARACTER_BYTES, -1), -1):
            text = certain = self.decode(self.completion.ids[:end])
            while not self.completion.text.startswith(certain):
                certain = certain[:-1]
            complete = max(complete, len(certain))
            if certain == text:
                break
        return complete

"""The data that flows through a step, and the one legend for shapes.

Counterpart of the lists of ids of minimal.py: objects that carry what belongs to them.

A tensor's name ends in its shape, one letter per axis (`logp_C`, `hidden_TD`). Every letter but X means one axis:

    T  packed tokens of a micro-batch       C  trained tokens: drawn completion tokens with a gradient
    N  completions of a micro-batch         P  prompts of a micro-batch
    G  completions of a prompt, a group
    B  sequences that decode together       S  positions of a sequence, or of the KV cache
    D  model width                          F  width of the MLP
    H  query heads                          J  query heads that share a key-value head
    K  key-value heads                      Q  queries that share a key-value head: J · S
    E  width of a head
    I  inputs of a linear layer             O  its outputs
    R  LoRA ranks, side by side             V  vocabulary
    L  layers                               W  processes that hold one model together
    X  any other axis, or a part of one     1  an axis of length one
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from grpo.base.storage import Json

if TYPE_CHECKING:
    from torch import Tensor  # it takes seconds, and what reads only the configuration needs no tensors


FinishReason = Literal["stop", "length", "tool"]  # tool: one was called, and gave no result
Outcome = Literal["correct", "wrong", "refused"]
NO_CUT = -math.inf  # no token was cut off, see `Completion.cuts`


@dataclass(frozen=True)
class Prompt:
    """A question, rendered and tokenised.

    >>> Prompt(row=0, text="<user>2+2?<assistant>", ids=(5, 9, 6), columns={"question": "2+2?", "answer": "4"}).ids
    (5, 9, 6)
    """

    row: int  # its number in the data set, from 0, counted before filtering
    text: str  # as rendered by the chat template
    ids: tuple[int, ...]  # its tokens; the last one predicts the first token of every completion
    columns: Json  # the data row: what the rewards see
    messages: tuple[dict[str, str], ...] = ()  # before rendering, if the data holds conversations rather than questions
    turns: tuple[Json, ...] = ()  # before rendering, whatever the data holds


@dataclass
class Order:
    """The order of the rows: one permutation per epoch, which depends only on the seed.

    `position` counts the rows taken since the start, over all epochs and ranks. A checkpoint needs nothing else.
    """

    num_rows: int
    seed: int
    shuffle: bool
    position: int = 0

    def take(self, count: int) -> list[int]:
        """Return the next `count` row indices."""
        taken: list[int] = []
        while len(taken) < count:
            epoch, offset = divmod(self.position, self.num_rows)
            indices = self._epoch(epoch)[offset : offset + count - len(taken)]
            taken += indices
            self.position += len(indices)
        return taken

    def _epoch(self, epoch: int) -> list[int]:
        order = list(range(self.num_rows))
        if self.shuffle:
            random.Random(f"{self.seed}/{epoch}").shuffle(order)
        return order


def hash_seed(*parts: int) -> int:
    """Hash several numbers, such as the run's seed, a step and a place in it, to one 63-bit seed.

    It is FNV-1a over their bytes: another order, or another number of parts, gives another seed.
    """
    seed = 0xCBF29CE484222325
    for part in parts:
        for byte in part.to_bytes(8, "little", signed=True):
            seed = ((seed ^ byte) * 0x100000001B3) % 2**64
    return seed >> 1


@dataclass(frozen=True)
class TrainerState:
    """How far the run is: those attributes of transformers' TrainerState that a reward can use."""

    global_step: int = 0  # steps done
    max_steps: int = 0
    epoch: float = 0.0
    is_world_process_zero: bool = True


@dataclass(frozen=True)
class Mode:
    """How a forward pass treats the adapters.

    use_adapter: False gives the reference policy. dropout_seed: None for no dropout; otherwise the masks depend only on
    this seed and the module's number, so that a recomputed or repeated pass has the same masks.
    """

    use_adapter: bool = True
    dropout_seed: int | None = None


POLICY = Mode()
REFERENCE = Mode(use_adapter=False)


class CheckedFact(TypedDict):
    """A fact that a completion states, and what the knowledge base says of it."""

    fact: str  # what it says
    verdict: Literal["supported", "refuted", "unknown"]
    passage: str | None  # id of the passage that decided; if none did, of the best one found; None if none was found
    text: str | None  # how that passage begins
    sentences: list[list[int]]  # [start, end] of each sentence that states it, in characters of the completion


@dataclass(frozen=True)
class Score:
    """What one reward says about one completion: `value`, a number or None (unscorable), and the `reason` why.

    `outcome` says whether the answer is correct, wrong or refused, if this reward can tell; accuracy and dynamic
    sampling use it, and not the value, which may be shaped. `applies` is False if a user's function returned None for
    all completions of a prompt: then only the other rewards count. `asked` says which services were asked (judge,
    knowledge base, decomposer), and whether each gave a usable answer. `details` holds values to log, such as the share
    of supported facts. `facts` are those that were checked.

    >>> Score(None, "the judge could not be reached").value is None
    True
    """

    value: float | None
    reason: str = ""
    outcome: Outcome | None = None
    applies: bool = True
    asked: dict[str, bool] = field(default_factory=dict)
    details: Json = field(default_factory=dict)
    facts: list[CheckedFact] = field(default_factory=list)


@dataclass(frozen=True)
class Sentence:
    """A sentence of a completion that the knowledge base knows to be true or false; its tokens are `ids[start:end]`."""

    text: str
    start: int
    end: int
    is_true: bool


@dataclass(frozen=True)
class Call:
    """A call of a tool within a completion, and what it gave: the tokens `ids[start:end]`, which were not drawn.

    span: the characters of the completion's text that hold the call and its result, tags included. failure: why there
    is no result; "" if there is one. is_turn: the model's turn ended with it, and the result begins a new one. The last
    of several calls in a turn has the tokens of all their results.
    """

    tool: str
    query: str
    result: str
    start: int
    end: int
    span: tuple[int, int]
    failure: str = ""
    is_turn: bool = False


def own_words(text: str, calls: Sequence[Call], fill: str = " ") -> str:
    """Return a completion's text with `fill` for each character of a call and its result: the rest stays in its place.

    >>> own_words("<f>x</f><result>y</result>ab", [Call("f", "x", "y", 0, 0, (0, 26))], "·")[24:]
    '··ab'
    """
    for call in calls:
        start, end = call.span
        blank = fill * (end - start)
        text = text[:start] + blank + text[end:]
    return text


@dataclass
class Completion:
    """One sampled answer, and what the step adds to it.

    The sampler makes it, and the rollout adds its text. The scorer adds `scores`, `reward` and `facts`,
    `set_advantages` the advantage, `set_loss_weights` the loss weight, `set_credit` `sentences` or `credited_from`, and
    `set_trained` `trained_from`. Passes over the trained tokens add `ref_logps` and `old_logps`.

    `ids` ends with the end-of-sequence token if finish_reason is "stop". `logps[t]` is the log-prob of `ids[t]` under
    the distribution it was drawn from: temperature, top-k and top-p included (nats). `cuts[t]` is the threshold that
    top-k and top-p set: only tokens with at least this log-prob could be drawn (Eq. 17; -inf if nothing was cut off).
    `calls` says which tokens tools have given: they are read, and never trained or counted. The last token is
    drawn.

    >>> c = Completion(ids=[7, 2], logps=[-0.5, -0.1], cuts=[float("-inf")] * 2, finish_reason="stop", text="4")
    >>> len(c.ids) == len(c.logps)
    True
    """

    ids: list[int]
    logps: list[float]
    cuts: list[float]
    finish_reason: FinishReason
    text: str = ""
    calls: list[Call] = field(default_factory=list)
    scores: dict[str, Score] = field(default_factory=dict)  # reward name -> Score
    reward: float | None = None  # weighted sum of the scores; None if any of them is None
    facts: list[CheckedFact] = field(default_factory=list)  # `Score.facts` of the reward that checks every answer
    advantage: float | None = None  # Eq. 1, 2; None until it is known, 0 for an unscorable completion
    loss_weight: float = 0.0  # Eq. 8: weight of each of its tokens in the loss of the step
    sentences: list[Sentence] = field(default_factory=list)  # the true and the false ones (credit: sentence)
    credited_from: int = 0  # the tokens before this one get the advantage 0 (credit: answer)
    environment: Any = None  # what answered it, until it is graded (grpo/tools/environment.py)
    trained_from: int = 0  # the tokens before this one have no gradient; their log-probs are not computed
    ref_logps: list[float] = field(default_factory=list)  # under the frozen reference; empty if beta is 0
    old_logps: list[float] = field(default_factory=list)  # under the policy that sampled; empty while that is trained

    @classmethod
    def given(cls, ids: list[int], finish_reason: FinishReason, text: str = "", **more: Any) -> Completion:
        """Make a completion that was not sampled, whose log-probs and cuts mean nothing. more: its other fields."""
        return cls(ids, [0.0] * len(ids), [NO_CUT] * len(ids), finish_reason, text, **more)

    def drawn(self) -> Sequence[int]:
        """Return the places of the tokens that were drawn: all but those that tools have given.

        >>> Completion([5, 6, 7, 8], [0.0] * 4, [0.0] * 4, "stop", calls=[Call("f", "x", "y", 1, 3, (0, 9))]).drawn()
        [0, 3]
        """
        if not self.calls:
            return range(len(self.ids))
        given = {place for call in self.calls for place in range(call.start, call.end)}
        return [place for place in range(len(self.ids)) if place not in given]

    @property
    def num_drawn(self) -> int:
        """Count the tokens that were drawn: the n_i of Eq. 8."""
        return len(self.ids) - sum(call.end - call.start for call in self.calls)

    @property
    def failure(self) -> str:
        """Return why the completion cannot be scored: a tool that it called has failed; "" if none has."""
        return self.calls[-1].failure if self.calls else ""

    @property
    def outcome(self) -> Outcome | None:
        """Return whether the answer is right, wrong or refused, by the first reward that knows; None if none does."""
        return next((score.outcome for score in self.scores.values() if score.outcome is not None), None)

    def trained(self) -> Sequence[int]:
        """Return the places of its trained tokens: of those that were drawn, the ones from `trained_from` on."""
        drawn = self.drawn()
        return drawn[bisect_left(drawn, self.trained_from) :]

    def token_advantages(self) -> list[float]:
        """Return one advantage per token: the completion's, with the sign that the token's sentence gives it."""
        assert self.advantage is not None
        advantages = [0.0] * self.credited_from + [self.advantage] * (len(self.ids) - self.credited_from)
        for sentence in self.sentences:
            own = abs(self.advantage) if sentence.is_true else 0.0 - abs(self.advantage)  # Eq. 13; -abs(0.0) is -0.0
            advantages[sentence.start : sentence.end] = [own] * (sentence.end - sentence.start)
        return advantages


@dataclass(eq=False)  # two groups are the same only if they are one object
class Group:
    """The completions of one prompt: the unit of sampling, of advantages, and of packing."""

    prompt: Prompt
    completions: list[Completion]
    weights: dict[str, float] = field(default_factory=dict)  # reward -> weight, of those that apply to the prompt

    @property
    def has_signal(self) -> bool:
        """Return whether its scorable rewards differ."""
        return len({completion.reward for completion in self.completions} - {None}) > 1


def completions_of(groups: Iterable[Group]) -> list[Completion]:
    """Return the completions of some groups, in order."""
    return [completion for group in groups for completion in group.completions]


@dataclass(frozen=True)
class PackedGroup:
    """How many tokens of a micro-batch belong to a prompt, and to each of the completions that follow it."""

    prompt_length: int
    completion_lengths: tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """Where the packed tokens of a micro-batch belong.

    They stand in this order: a prompt, its completions, the next prompt, ... A prompt is stored once; each of its
    completions attends to it and to itself. Lengths count packed tokens, so without a completion's last token.

    >>> Layout.of((3, (2, 1)), (2, ())).num_tokens      # 3 + 2 + 1 + 2
    8
    """

    groups: tuple[PackedGroup, ...]

    @classmethod
    def of(cls, *groups: tuple[int, tuple[int, ...]]) -> Layout:
        """Make a layout from pairs (prompt length, completion lengths)."""
        return cls(tuple(PackedGroup(prompt, tuple(completions)) for prompt, completions in groups))

    @property
    def num_tokens(self) -> int:
        return sum(group.prompt_length + sum(group.completion_lengths) for group in self.groups)


@dataclass(frozen=True)
class Subgroup:
    """The completions of a group that are in the same micro-batch: usually all trained ones."""

    group: Group
    completions: list[Completion]


@dataclass(frozen=True)
class PackedTokens:
    """The tokens of some groups one after the other, and which of them predict a drawn token: what a model reads.

    Example: prompt (5, 9, 6) with completions (7, 2) and (8, 8, 2). The last token of a completion predicts nothing, so
    it is a target only: ids_T = 5 9 6 | 7 | 8 8, positions_T = 0 1 2 | 3 | 3 4, targets_C = 7 2 | 8 8 2 and
    source_C = 2 3 | 2 4 5: the place in ids_T whose hidden state predicts each target. Tokens before `trained_from` are
    in ids_T alone, and so are those that tools have given.
    """

    number: int  # among the micro-batches of the step
    completions: list[Completion]
    layout: Layout
    ids_T: Tensor  # int64
    positions_T: Tensor  # int64, from 0 in each sequence
    source_C: Tensor  # int64, index into T
    targets_C: Tensor  # int64
    cut_C: Tensor | None  # float32, see Completion.cuts; None if no token has a cut

    def of_each(self, values_C: Tensor) -> Iterator[tuple[Completion, list[float]]]:
        """Yield each completion with one value per token, given those of trained tokens. The others get 0."""
        left = iter(values_C.tolist())
        for completion in self.completions:
            values = [0.0] * len(completion.ids)
            for place in completion.trained():
                values[place] = next(left)
            yield completion, values


@dataclass(frozen=True)
class PackedBatch(PackedTokens):
    """A micro-batch to train on: its tokens, and one entry per trained token for the loss.

    The loss is a plain weighted sum over C. Its floating-point fields are float32, or float64 in a float64 model.
    """

    completion_C: Tensor  # int64, index into N: which completion a trained token belongs to
    weight_C: Tensor  # Completion.loss_weight
    advantage_C: Tensor  # Completion.token_advantages
    sampler_logp_C: Tensor  # log-probs recorded while sampling
    ref_logp_C: Tensor | None  # under the frozen reference; None if beta is 0
    old_logp_C: Tensor | None  # under the policy that sampled; None if that is the policy itself

"""The data that flows through a step, and the one legend for shapes.

A tensor's name ends in its shape, one letter per axis (`logp_C`, `hidden_TD`):

    T  packed tokens of a micro-batch     C  scored tokens: every completion token of a micro-batch, row by row
    N  completions of a micro-batch       G  completions of one group (same prompt)      P  prompts
    B  sequences that decode together     S  positions of the KV cache
    D  model width    F  MLP width        H  query heads    K  key-value heads           E  width of a head
    I  inputs of a linear layer           O  its outputs    R  LoRA rank                 V  vocabulary    L  layers
"""

from dataclasses import dataclass, field
from typing import Any, Literal

import torch

FinishReason = Literal["stop", "length"]
Outcome = Literal["correct", "wrong", "refused"]


@dataclass(frozen=True)
class Prompt:
    """A question, rendered and tokenised.

    >>> Prompt(row=0, text="<user>2+2?<assistant>", ids=(5, 9, 6), columns={"question": "2+2?", "answer": "4"}).ids
    (5, 9, 6)
    """

    row: int  # index in the data set, counted before anything was filtered
    text: str  # as rendered by the chat template
    ids: tuple[int, ...]  # its tokens; the last one predicts the first token of every completion
    columns: dict[str, Any]  # the data row: what the rewards see


@dataclass
class Completion:
    """One answer as it was sampled.

    `ids` ends with the end-of-sequence token if finish_reason is "stop". `logps[t]` is the log-prob of `ids[t]` under
    the distribution it was drawn from: temperature, top-k and top-p included (nats). `cuts[t]` is that distribution's
    threshold: tokens whose full log-prob lies below it could not be drawn (-inf where nothing was cut off).

    >>> c = Completion(ids=[7, 2], logps=[-0.5, -0.1], cuts=[float("-inf")] * 2, finish_reason="stop", text="4")
    >>> len(c.ids) == len(c.logps)
    True
    """

    ids: list[int]
    logps: list[float]
    cuts: list[float]
    finish_reason: FinishReason
    text: str = ""


@dataclass(frozen=True)
class Score:
    """What one reward function says of one completion: a number, or None (unscorable), and the reason why.

    outcome: how the answer turned out, from rewards that can tell; accuracy and dynamic sampling go by it, never by the
    value, which may be shaped. details: numbers to log, such as the share of supported facts.

    >>> Score(None, "the judge could not be reached").value is None
    True
    """

    value: float | None
    reason: str = ""
    outcome: Outcome | None = None
    details: dict[str, float] = field(default_factory=dict)


@dataclass
class Group:
    """G completions of one prompt: the unit of sampling, of advantages, and of packing."""

    prompt: Prompt
    completions: list[Completion]
    scores: list[dict[str, Score]] = field(default_factory=list)  # per completion: reward name -> Score
    rewards: list[float | None] = field(default_factory=list)  # weighted sum; None if any part is None
    advantages: list[float] = field(default_factory=list)  # 0 for unscorable completions


@dataclass(frozen=True)
class Layout:
    """Where the tokens of a packed row belong: for each prompt its length and the lengths of its completions.

    The order in the row is prompt, its completions, next prompt, ... A prompt is stored once; each of its completions
    attends to it and to itself. Lengths are those of the tokens present in the row.

    >>> Layout(((3, (2, 1)), (2, ()))).num_tokens      # 3 + 2 + 1 + 2
    8
    """

    groups: tuple[tuple[int, tuple[int, ...]], ...]

    @property
    def num_tokens(self) -> int:
        return sum(prompt + sum(completions) for prompt, completions in self.groups)


@dataclass(frozen=True)
class PackedBatch:
    """A micro-batch: some groups as one row of tokens, plus one entry per completion token for the loss.

    Example: prompt (5, 9, 6) with completions (7, 2) and (8, 8, 2). The last token of a completion predicts nothing, so
    it is a target only: ids_T = 5 9 6 | 7 | 8 8, positions_T = 0 1 2 | 3 | 3 4, targets_C = 7 2 | 8 8 2 and
    source_C = 2 3 | 2 4 5: the token of the row whose hidden state predicts each target.
    """

    layout: Layout
    ids_T: torch.Tensor  # int64
    positions_T: torch.Tensor  # int64, from 0 in each sequence
    source_C: torch.Tensor  # int64, index into T
    targets_C: torch.Tensor  # int64
    row_C: torch.Tensor  # int64, index into N: which completion a scored token belongs to
    weight_C: torch.Tensor  # float32, mask / denominator of the step; the loss is a plain weighted sum
    advantage_C: torch.Tensor  # float32
    sampler_logp_C: torch.Tensor  # float32, log-probs recorded while sampling
    cut_C: torch.Tensor  # float32, see Completion.cuts
    rows: tuple[tuple[int, int], ...]  # N entries (group of the step, completion of the group), in order

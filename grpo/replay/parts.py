"""The part of each token in the gradient of a step, each by a backward pass of its own.

The loss depends on the weights through the log-probs ℓ_t of its tokens alone (Eq. 3; with an entropy bonus, through
their entropies, too), so its gradient is a sum over tokens: ∇L = Σ_t dL/dℓ_t ∇ℓ_t. A term is the token's part. Its
share is its component along the whole, as a part of that: the shares of a step add up to 1, and a token with a negative
one pulls against the others.
"""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch

from grpo.algorithm.schema import Completion, Group, PackedBatch
from grpo.algorithm.step import Grpo, Learned
from grpo.base.errors import UserError
from grpo.base.storage import Json


@dataclass
class Seen:
    """A completion of the step: norm and share of its part of the gradient. tokens: of the row that is looked at.

    number: of the answer among those to its prompt, from 1.
    """

    group: Group
    number: int
    completion: Completion
    norm: float = 0.0
    share: float = 0.0
    tokens: list[Json] = field(default_factory=list)


@dataclass
class Look:
    """What was seen of a gradient. norm: of the whole. error: of the sum of all parts, as a part of that norm."""

    row: int
    answers: list[Seen]
    norm: float
    error: float

    @property
    def shown(self) -> list[Seen]:
        """Return the completions of the row."""
        return [seen for seen in self.answers if seen.group.prompt.row == self.row]


@dataclass(kw_only=True, eq=False)
class Observer(Grpo):
    """The learner of a run that looks at the gradient of one step: that of its last update, before it is applied.

    number: of the step, from 1. row: of the data, whose tokens are looked at; None: that with the largest share.
    """

    number: int
    row: int | None = None
    look: Look | None = None

    def add_gradient(self, learned: Learned) -> list[tuple[PackedBatch, torch.Tensor]]:
        passes = super().add_gradient(learned)
        is_last = len(learned.grad_norms) == self.settings.num_iterations - 1
        if self.step == self.number - 1 and is_last and learned.groups:
            self.look = Gradient(self, learned).look(self.row)
        return passes


class Gradient:
    """The gradient that a learner has just added up, and its parts. Afterwards the learner is as it was before."""

    def __init__(self, learner: Grpo, learned: Learned):
        self.learner = learner
        self.groups = learned.groups
        self.num_tokens = learned.num_tokens
        # Any split gives the same gradient, but for the masks of dropout.
        self.is_split = not learner.settings.lora_dropout
        self.grad = learner.optimizer.flat.grad
        self.scale = learner.optimizer.scale.value
        self.whole = self.grad.to(torch.float64, copy=True)
        self.square = float(self.whole @ self.whole)
        self.rest = self.whole.clone()  # what no part has been found for yet

    def look(self, row: int | None) -> Look:
        """Find the part of every completion, and of the tokens of a row: that with the largest share by default.

        UserError (exit 2) if the step does not train on this row.
        """
        rows = {group.prompt.row: 0.0 for group in self.groups}
        if row not in (None, *rows):
            raise UserError(
                f"row {row} is not among those that the step trains on",
                f"they are {', '.join(map(str, sorted(rows)))}",
                "name one of them",
            )
        answers = [Seen(group, *one) for group in self.groups for one in enumerate(group.completions, 1)]
        of_completion = {id(seen.completion): seen for seen in answers}
        with self.learner.model.keeping_activations() if self.is_split else nullcontext():
            for one, completion, own_C in self._completions():
                seen = of_completion[id(completion)]
                seen.norm, seen.share, part = self._part(one, own_C)
                self.rest -= part
            if row is None:
                for seen in answers:
                    rows[seen.group.prompt.row] += seen.share
                row = max(rows, key=rows.get)
            for one, completion, own_C in self._completions():
                seen = of_completion[id(completion)]
                if seen.group.prompt.row == row:
                    _, _, part = self._part(one, own_C)
                    self.rest += part
                    seen.tokens = list(self._tokens(one, seen, own_C))
        self.grad.copy_(self.whole)
        norm = self.square**0.5
        error = float(torch.linalg.vector_norm(self.rest)) / norm if norm else 0.0
        return Look(row, answers, norm / self.scale, error)

    def _completions(self) -> Iterator[tuple["KeptPass", Completion, torch.Tensor]]:
        """Yield each completion, with its micro-batch, and which of the trained tokens there are its own."""
        learner = self.learner
        max_tokens = 1 if self.is_split else learner.memory.budget.tokens
        for batch in learner.make_batches(self.groups, max_tokens):
            logp_C, entropy_C = learner.policy_logprobs(batch)  # Eq. 3
            loss, stats = learner.loss(batch, logp_C, entropy_C, self.num_tokens)
            outputs = [logp_C, entropy_C] if entropy_C.requires_grad else [logp_C]
            slopes = torch.autograd.grad(loss * self.scale, outputs, retain_graph=True)
            one = KeptPass(batch, outputs, slopes, stats)
            for number, completion in enumerate(batch.completions):
                yield one, completion, batch.completion_C == number

    def _part(self, one: "KeptPass", own_C: torch.Tensor) -> tuple[float, float, torch.Tensor]:
        """Return norm and share of the part of some tokens, and the part itself, which the next call replaces."""
        self.grad.zero_()
        own = [torch.where(own_C, slope_C, 0.0) for slope_C in one.slopes]
        torch.autograd.backward(one.outputs, own, retain_graph=True)
        part = self.grad.double()
        share = float(part @ self.whole) / self.square if self.square else 0.0
        return float(torch.linalg.vector_norm(part)) / self.scale, share, part

    def _tokens(self, one: "KeptPass", seen: Seen, own_C: torch.Tensor) -> Iterator[Json]:
        """Yield the trained tokens of a completion, and what each did to the step. Log-probs in nats.

        place: among the tokens of its completion. ref_logp, kl: None without a reference. clipped: the bound of Eq. 5
        that stops its gradient, "low" or "high", or "". slope: dL/dℓ; where it is negative, the step makes the token
        likelier. norm: of its part of the gradient.
        """
        batch = one.batch
        stats = one.stats
        place_C = batch.positions_T[batch.source_C] - len(seen.group.prompt.ids) + 1
        for index in own_C.nonzero()[:, 0].tolist():
            alone_C = torch.arange(len(own_C), device=own_C.device) == index
            norm, share, part = self._part(one, alone_C)
            self.rest -= part
            is_low = bool(stats["clipped_low"][index])
            is_high = bool(stats["clipped_high"][index])
            yield {
                "id": int(batch.targets_C[index]),
                "place": int(place_C[index]),
                "sampler_logp": float(batch.sampler_logp_C[index]),
                "policy_logp": one.outputs[0][index].item(),
                "ref_logp": None if batch.ref_logp_C is None else float(batch.ref_logp_C[index]),
                "ratio": float(stats["ratio"][index]),
                "clipped": "low" * is_low + "high" * is_high,
                "kl": None if batch.ref_logp_C is None else float(stats["kl"][index]),
                "advantage": float(batch.advantage_C[index]),
                "weight": float(batch.weight_C[index]),
                "slope": float(one.slopes[0][index]) / self.scale,
                "norm": norm,
                "share": share,
            }


@dataclass(frozen=True)
class KeptPass:
    """A micro-batch with the log-probs of its tokens, and their entropies if these are trained; their graph is kept.

    slopes: dL/dℓ, dL/dH, scaled.
    """

    batch: PackedBatch
    outputs: Sequence[torch.Tensor]
    slopes: Sequence[torch.Tensor]
    stats: dict[str, torch.Tensor]

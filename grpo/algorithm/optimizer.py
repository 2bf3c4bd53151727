"""AdamW over one flat float32 buffer, its learning-rate schedule, and gradient clipping.

Counterpart of `torch.optim.AdamW` and `clip_grad_norm_` in minimal.py: one update and one norm for all parameters.
engine/model/flat.py has that buffer, in all processes of a run.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from grpo.base.errors import NON_FINITE, UserError

if TYPE_CHECKING:
    from grpo.engine.model.flat import FlatParameters

FIRST_SCALE, SCALE_GROWS_AFTER = 2.0**10, 50  # loss scaling in float16: it doubles after so many finite steps in a row
MASTER = "master"  # name of the weights in `Optimizer.state`
MOMENTS = ("exp_avg", "exp_avg_sq")  # torch's names of AdamW's moments


class LossScale:
    """By how much the loss of a step is multiplied; so is its gradient, until it is applied (1710.03740).

    is_on: for a float16 model, whose smallest gradients would vanish. If a gradient overflows, the scale is halved;
    many finite steps in a row double it. Otherwise the scale is 1.
    """

    def __init__(self, is_on: bool):
        self.is_on = is_on
        self.value = FIRST_SCALE if is_on else 1.0
        self.finite_steps = 0  # in a row

    def adapt(self, is_finite: bool, has_overflowed: bool) -> None:
        """Learn from a step: whether its gradient was finite, and if not, whether that was a matter of the scale."""
        if not self.is_on:
            return
        self.finite_steps = self.finite_steps + 1 if is_finite else 0
        if has_overflowed:
            self.value = max(self.value / 2, 1.0)
        elif is_finite and self.finite_steps % SCALE_GROWS_AFTER == 0:
            self.value *= 2


class Optimizer:
    """AdamW (1711.05101) on flat parameters. Norm weights and biases (fewer than two axes) do not decay.

    scales_loss: whether the loss is scaled (`LossScale`). A step whose gradient is not finite changes no weight. If its
    loss is not finite either, that is no matter of the scale.
    """

    def __init__(
        self,
        flat: FlatParameters,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
        scales_loss: bool = False,
    ):
        self.flat = flat
        groups = []
        states: dict[Tensor, dict[str, Tensor]] = {}
        # Now, and not at the first step: micro-batches get what memory is left.
        self.moments = {name: torch.zeros_like(flat.values[flat.partition]) for name in MOMENTS}
        for part, place, decays in flat.partitioned():
            groups.append({"params": [part], "weight_decay": weight_decay if decays else 0.0})
            moments = {name: moment[place] for name, moment in self.moments.items()}
            states[part] = {"step": torch.zeros((), device=part.device), **moments}
        self.adamw = torch.optim.AdamW(groups, lr=0.0, betas=betas, eps=eps, fused=True)
        self.adamw.state.update(states)
        self.num_updates = 0  # that have begun
        self.scale = LossScale(scales_loss)
        self.loss = torch.zeros((), device=flat.values.device)  # of the step: if finite, the scale has overflowed
        self.has_overflowed = False  # the last gradient, because its loss was scaled up

    @property
    def num_applied(self) -> int:
        """Return how many updates have changed the weights, those before a resume included."""
        return int(self._adamw_step())

    def _adamw_step(self) -> Tensor:
        return next(iter(self.adamw.state.values()))["step"]

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of the loss, times the scale."""
        (loss * self.scale.value).backward()
        self.loss += loss.detach()

    def discard_gradient(self) -> None:
        """Discard the gradient that was accumulated since the last step."""
        self.flat.grad.zero_()
        self.loss.zero_()

    def step(self, learning_rate: float, max_grad_norm: float) -> float:
        """Sum the accumulated gradient, clip it to `max_grad_norm` (0: no clipping), apply it, and clear it.

        Returns the norm before clipping. If that is not finite, the gradient is cleared and nothing else changes.
        """
        self.num_updates += 1  # before anything else: an update that fails halfway must not be repeated
        grad = self.flat.sum_grad()
        scale = self.scale.value
        norm = self.flat.grad_norm() / scale
        is_finite = math.isfinite(norm)
        self.has_overflowed = not is_finite and scale > 1 and not self.flat.anywhere(not self.loss.isfinite())
        if is_finite:
            if max_grad_norm and norm > max_grad_norm:
                grad.mul_(max_grad_norm / (norm + 1e-6) / scale)
            elif self.scale.is_on:
                grad.div_(scale)
            for group in self.adamw.param_groups:
                group["lr"] = learning_rate
            self.adamw.step()
            self.flat.share_update()
        self.discard_gradient()
        self.scale.adapt(is_finite, self.has_overflowed)
        return norm

    def check_finite(self) -> None:
        """Raise UserError (exit 5) if some weight is not finite."""
        if self.flat.anywhere(not all_finite(self.flat.values)):
            raise UserError(
                "the weights are not finite any more",
                f"update {self.num_updates} made them infinite or NaN; nothing is saved from it on",
                "lower learning_rate, or raise adam_epsilon; then continue with resume_from_checkpoint=true",
                NON_FINITE,
            )

    def state(self) -> dict[str, Tensor]:
        """Return everything that a resumed run needs to go on bit for bit, in the layout of one process.

        All processes must call it. The first one gets the state, the others get {}.
        """
        buffers = {MASTER: self.flat.values, **self.moments}
        joined = {name: whole for name, part in buffers.items() if (whole := self.flat.join(part)) is not None}
        if not joined:
            return {}
        tensors = {MASTER: joined[MASTER]}
        if self.scale.is_on:
            scale = [self.scale.value, self.scale.finite_steps]
            tensors["scale"] = torch.tensor(scale, dtype=torch.float64)
        for number, part in enumerate(self.flat.groups()):
            tensors[f"{number}.step"] = self._adamw_step().clone()
            for name in MOMENTS:
                tensors[f"{number}.{name}"] = joined[name][part]
        return tensors

    @torch.no_grad()
    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Restore what `state` returned, on any number of processes."""
        flat = self.flat
        flat.values.copy_(flat.take(tensors[MASTER]))
        if self.scale.is_on:
            scale, finite_steps = tensors["scale"].tolist()
            self.scale.value, self.scale.finite_steps = scale, int(finite_steps)
        numbers = range(len(flat.groups()))
        for name, moment in self.moments.items():
            whole = torch.cat([tensors[f"{number}.{name}"] for number in numbers])
            moment.copy_(flat.take(whole)[flat.partition])
        for state in self.adamw.state.values():
            state["step"].copy_(tensors["0.step"])


def all_finite(values: Tensor) -> bool:
    """Return whether no value is infinite or NaN. Their sum says so at once, unless it overflows itself."""
    return math.isfinite(float(values.sum())) or bool(values.isfinite().all())


def scheduled_rate(update: int, peak: float, schedule: str, warmup: int, total: int) -> float:
    """Return the learning rate of an update (from 0): a linear warm-up, then the decay of `schedule` to 0.

    warmup, total: in updates. As in transformers, update u of w in the warm-up has rate peak · u / w, so the very first
    one has rate 0; "constant" has no warm-up, "constant_with_warmup" has one.
    """
    if update < warmup and schedule != "constant":
        return peak * update / warmup
    done = min((update - warmup) / max(total - warmup, 1), 1.0)
    match schedule:
        case "linear":
            return peak * (1 - done)
        case "cosine":
            return peak * 0.5 * (1 + math.cos(math.pi * done))
        case _:  # constant, after a warm-up or without one
            return peak

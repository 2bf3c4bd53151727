"""AdamW over one flat float32 buffer, its learning-rate schedule, and gradient clipping.

All trained parameters become views of one tensor, and so do their gradients: one fused update, one norm, one
all-reduce.
"""

import math
from collections.abc import Iterable

import torch
from torch import nn

from grpo.base.errors import CONFIG, NON_FINITE, UserError

FIRST_SCALE, SCALE_GROWS_AFTER = 2.0**10, 50  # loss scaling in float16: it doubles after so many finite steps in a row
MASTER = "master"  # name of the weights in `Optimizer.state`


class Optimizer:
    """AdamW (1711.05101) on `parameters`, which are moved into a flat buffer.

    Norm weights and biases (fewer than two axes) do not decay.

    scales_loss: for a float16 model, whose smallest gradients would vanish and whose largest would overflow. `backward`
    multiplies the loss by `scale`. A step whose gradient overflowed changes no weight and halves the scale; many finite
    steps in a row double it (1710.03740).
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
        scales_loss: bool = False,
    ):
        parameters = sorted(parameters, key=lambda parameter: parameter.ndim < 2)  # stable: matrices, then vectors
        if not parameters:
            raise ValueError("nothing to train: no parameter requires a gradient")
        sizes = [parameter.numel() for parameter in parameters]
        if eps < torch.finfo(torch.float32).tiny:
            why = "AdamW divides by it in float32, where it is 0"
            raise UserError(f"adam_epsilon is {eps:g}", why, "set adam_epsilon=1e-8", CONFIG)
        self.flat = torch.cat([parameter.data.flatten() for parameter in parameters])
        self.grad = torch.zeros_like(self.flat)
        for parameter, value, grad in zip(parameters, self.flat.split(sizes), self.grad.split(sizes), strict=True):
            parameter.data, parameter.grad = value.view(parameter.shape), grad.view(parameter.shape)
        decayed = sum(parameter.numel() for parameter in parameters if parameter.ndim >= 2)
        groups = []
        for part, decay in ((slice(0, decayed), weight_decay), (slice(decayed, None), 0.0)):
            if self.flat[part].numel():
                leaf = nn.Parameter(self.flat[part])
                leaf.grad = self.grad[part]
                groups.append({"params": [leaf], "weight_decay": decay})
        self.adamw = torch.optim.AdamW(groups, lr=0.0, betas=betas, eps=eps, fused=True)
        for group in self.adamw.param_groups:  # now, and not at the first step: micro-batches get what memory is left
            leaf = group["params"][0]
            moments = {name: torch.zeros_like(leaf) for name in ("exp_avg", "exp_avg_sq")}
            self.adamw.state[leaf] = {"step": torch.zeros((), device=leaf.device), **moments}
        self.num_backward, self.num_updates = 0, 0  # passes since the last update; updates, skipped ones included
        self.scales_loss, self.scale, self.finite_steps = scales_loss, FIRST_SCALE if scales_loss else 1.0, 0

    @property
    def num_applied(self) -> int:
        """Return how many updates have changed the weights, those before a resume included."""
        return int(next(iter(self.adamw.state.values()))["step"])

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradient of the loss, times `scale`."""
        (loss * self.scale).backward()
        self.num_backward += 1

    def discard_gradient(self) -> None:
        """Discard the gradient that was accumulated since the last step."""
        self.grad.zero_()
        self.num_backward = 0

    def step(self, learning_rate: float, max_grad_norm: float) -> float:
        """Clip the accumulated gradient to `max_grad_norm` (0: no clipping), apply it, and clear it.

        Returns the norm before clipping. If that is not finite, the gradient is cleared and nothing else changes.
        """
        norm = float(torch.linalg.vector_norm(self.grad)) / self.scale
        if math.isfinite(norm):
            if max_grad_norm and norm > max_grad_norm:
                self.grad.mul_(max_grad_norm / (norm + 1e-6) / self.scale)
            elif self.scales_loss:
                self.grad.div_(self.scale)
            for group in self.adamw.param_groups:
                group["lr"] = learning_rate
            self.adamw.step()
        self.discard_gradient()
        self.num_updates += 1
        if self.scales_loss:
            self._rescale(math.isfinite(norm))
        return norm

    def check_finite(self) -> None:
        """Raise UserError (exit 5) if some weight is not finite."""
        if not all_finite(self.flat):
            raise UserError(
                "the weights are not finite any more",
                f"update {self.num_updates} made them infinite or NaN; nothing is saved from it on",
                "lower learning_rate, or raise adam_epsilon; then continue with resume_from_checkpoint=true",
                NON_FINITE,
            )

    def _rescale(self, finite: bool) -> None:
        self.finite_steps = self.finite_steps + 1 if finite else 0
        if not finite:
            self.scale = max(self.scale / 2, 1.0)
        elif self.finite_steps % SCALE_GROWS_AFTER == 0:
            self.scale *= 2

    def state(self) -> dict[str, torch.Tensor]:
        """Return everything that a resumed run needs to go on bit for bit."""
        tensors = {MASTER: self.flat}
        if self.scales_loss:
            tensors["scale"] = torch.tensor([self.scale, self.finite_steps], dtype=torch.float64)
        for number, group in enumerate(self.adamw.param_groups):
            for name, value in self.adamw.state[group["params"][0]].items():
                tensors[f"{number}.{name}"] = value
        return tensors

    @torch.no_grad()
    def load_state(self, tensors: dict[str, torch.Tensor]) -> None:
        """Restore what `state` returned."""
        self.flat.copy_(tensors[MASTER])
        if self.scales_loss:
            self.scale, self.finite_steps = float(tensors["scale"][0]), int(tensors["scale"][1])
        for number, group in enumerate(self.adamw.param_groups):
            for name, value in self.adamw.state[group["params"][0]].items():
                value.copy_(tensors[f"{number}.{name}"])


def all_finite(values: torch.Tensor) -> bool:
    """Return whether no value is infinite or NaN. Their sum says so at once, unless it overflows itself."""
    return math.isfinite(float(values.sum())) or bool(values.isfinite().all())


def scheduled_rate(update: int, peak: float, schedule: str, warmup: int, total: int) -> float:
    """Return the learning rate of an update (from 0): a linear warm-up, then the decay of `schedule` to 0.

    warmup, total: in updates. As in transformers, update u of w in the warm-up has rate peak · u / w, so the very first
    one has rate 0; "constant" has no warm-up, "constant_with_warmup" has one.
    """
    if update < warmup and schedule != "constant":
        return peak * update / warmup
    done = (update - warmup) / max(total - warmup, 1)
    decay = {
        "constant": 1.0,
        "constant_with_warmup": 1.0,
        "linear": max(1 - done, 0.0),
        "cosine": max(0.5 * (1 + math.cos(math.pi * min(done, 1.0))), 0.0),
    }
    return peak * decay[schedule]

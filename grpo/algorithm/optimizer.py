"""AdamW over one flat float32 buffer, its learning-rate schedule, and gradient clipping.

Counterpart of `torch.optim.AdamW` and `clip_grad_norm_` in minimal.py: one update and one norm for all parameters.

All trained parameters become views of one tensor, and so do their gradients: one fused update, one norm, one sum over
replicas. Each replica sums and updates a part of the tensor, keeps AdamW's moments of that part alone, and gets the
other parts from the others (ZeRO-1, 1910.02054). That sends as much as an all-reduce of the gradient.
"""

import math
from collections.abc import Iterable, Mapping

import torch
from torch import nn

from grpo.base.errors import NON_FINITE, UserError
from grpo.engine.device.peers import Peers
from grpo.engine.device.shard import ALONE, Shard
from grpo.engine.model.flat import FlatLayout, overlap
from grpo.engine.model.slices import Share

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
    """AdamW (1711.05101) on `parameters`, which are moved into a flat buffer.

    Norm weights and biases (fewer than two axes) do not decay.

    replicas: the processes that train the same parameters on other data. shard: the processes that hold the model
    together. shares: how those share each parameter (engine/model/slices.py). All processes make the same calls.

    scales_loss: whether the loss is scaled (`LossScale`). A step whose gradient is not finite changes no weight. If its
    loss is not finite either, that is no matter of the scale.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
        scales_loss: bool = False,
        replicas: Peers | None = None,
        shard: Shard = ALONE,
        shares: Mapping[nn.Parameter, Share] | None = None,
    ):
        self.replicas, self.shard = replicas or Peers(), shard
        layout = FlatLayout(parameters, shares or {}, self.replicas.world)
        if not layout.parameters:
            raise ValueError("nothing to train: no parameter requires a gradient")
        self.layout = layout
        self.flat = layout.flatten()
        self.grad = torch.zeros_like(self.flat)
        views = zip(layout.parameters, layout.views(self.flat), layout.views(self.grad), strict=True)
        for parameter, value, grad in views:
            parameter.data = value
            parameter.grad = grad
        length = layout.size // self.replicas.world
        start = self.replicas.rank * length
        self.own = slice(start, start + length)  # what is updated here
        # Now, and not at the first step: micro-batches get what memory is left.
        self.moments = {name: torch.zeros_like(self.flat[self.own]) for name in MOMENTS}
        self.adamw = self._make_adamw(betas, eps, weight_decay)
        self.num_updates = 0  # that have begun
        self.scale = LossScale(scales_loss)
        self.loss = torch.zeros((), device=self.flat.device)  # of the step: if finite, the scale has overflowed
        self.has_overflowed = False  # the last gradient, because its loss was scaled up

    def _make_adamw(self, betas: tuple[float, float], eps: float, weight_decay: float) -> torch.optim.AdamW:
        """Make torch's AdamW of what is updated here: some of the matrices, and some of the vectors."""
        groups = []
        states: dict[torch.Tensor, dict[str, torch.Tensor]] = {}
        matrices = slice(0, self.layout.decayed)
        vectors = slice(self.layout.decayed, self.layout.size)
        for place, decay in ((matrices, weight_decay), (vectors, 0.0)):
            mine = overlap(place, self.own)
            if mine.start == mine.stop:
                continue
            leaf = nn.Parameter(self.flat[mine])
            leaf.grad = self.grad[mine]
            groups.append({"params": [leaf], "weight_decay": decay})
            states[leaf] = {"step": torch.zeros((), device=leaf.device)}
            for name, moment in self.moments.items():
                start = mine.start - self.own.start
                states[leaf][name] = moment[start : start + leaf.numel()]
        adamw = torch.optim.AdamW(groups, lr=0.0, betas=betas, eps=eps, fused=True)
        adamw.state.update(states)
        return adamw

    @property
    def num_applied(self) -> int:
        """Return how many updates have changed the weights, those before a resume included."""
        return int(self._adamw_step())

    def _adamw_step(self) -> torch.Tensor:
        return next(iter(self.adamw.state.values()))["step"]

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradient of the loss, times the scale."""
        (loss * self.scale.value).backward()
        self.loss += loss.detach()

    def discard_gradient(self) -> None:
        """Discard the gradient that was accumulated since the last step."""
        self.grad.zero_()
        self.loss.zero_()

    def step(self, learning_rate: float, max_grad_norm: float) -> float:
        """Sum the accumulated gradient, clip it to `max_grad_norm` (0: no clipping), apply it, and clear it.

        Returns the norm before clipping. If that is not finite, the gradient is cleared and nothing else changes.
        """
        self.num_updates += 1  # before anything else: an update that fails halfway must not be repeated
        grad = self._sum_gradient()
        scale = self.scale.value
        norm = self._norm() / scale
        is_finite = math.isfinite(norm)
        self.has_overflowed = not is_finite and scale > 1 and self._is_loss_finite()
        if is_finite:
            if max_grad_norm and norm > max_grad_norm:
                grad.mul_(max_grad_norm / (norm + 1e-6) / scale)
            elif self.scale.is_on:
                grad.div_(scale)
            for group in self.adamw.param_groups:
                group["lr"] = learning_rate
            self.adamw.step()
            self.replicas.join_parts_(self.flat, self.own)
        self.discard_gradient()
        self.scale.adapt(is_finite, self.has_overflowed)
        return norm

    def _sum_gradient(self) -> torch.Tensor:
        """Sum the gradient of the part that is updated here, over replicas and shards, and return it."""
        grad = self.grad[self.own]
        if self.replicas.world > 1:
            grad.copy_(self.replicas.sum_to_parts(self.grad))
        if self.shard.world > 1:
            self.layout.sum_over_shards(self.grad, self.own, self.shard)
        return grad

    def _norm(self) -> float:
        """Return the norm of the gradient over all processes."""
        if self.replicas.world == self.shard.world == 1:
            return float(torch.linalg.vector_norm(self.grad))
        split, same = self.layout.squares(self.grad, self.own)
        squares = [*self.shard.sum([split]), same]
        return math.sqrt(sum(self.replicas.sum(squares)))

    def _is_loss_finite(self) -> bool:
        """Return whether the loss of the step is finite in all processes."""
        is_bad = float(not math.isfinite(float(self.loss)))
        return self.replicas.max(self.shard.max(is_bad)) == 0

    def check_finite(self) -> None:
        """Raise UserError (exit 5) if some weight is not finite."""
        if self.shard.max(not all_finite(self.flat)):
            raise UserError(
                "the weights are not finite any more",
                f"update {self.num_updates} made them infinite or NaN; nothing is saved from it on",
                "lower learning_rate, or raise adam_epsilon; then continue with resume_from_checkpoint=true",
                NON_FINITE,
            )

    def state(self) -> dict[str, torch.Tensor]:
        """Return everything that a resumed run needs to go on bit for bit, in the layout of one process.

        All processes must call it. The first one gets the state, the others get {}.
        """
        buffers = {MASTER: self.flat, **self.moments}
        if self.replicas.world > 1 or self.shard.world > 1:
            joined = {name: self._joined(buffer) for name, buffer in buffers.items()}
            buffers = {name: buffer for name, buffer in joined.items() if buffer is not None}
            if self.replicas.rank or self.shard.rank:
                return {}
        tensors = {MASTER: buffers[MASTER]}
        if self.scale.is_on:
            scale = [self.scale.value, self.scale.finite_steps]
            tensors["scale"] = torch.tensor(scale, dtype=torch.float64)
        for number, part in enumerate(self.layout.groups(self.shard)):
            tensors[f"{number}.step"] = self._adamw_step().clone()
            for name in MOMENTS:
                tensors[f"{number}.{name}"] = buffers[name][part]
        return tensors

    def _joined(self, buffer: torch.Tensor) -> torch.Tensor | None:
        """Return a buffer of all replicas and shards on the CPU of the first one. buffer: this process's part."""
        is_part = len(buffer) < self.layout.size
        whole = self.replicas.join_parts(buffer) if is_part else buffer
        if whole is None or self.replicas.rank:
            return None
        return self.layout.join(whole, self.shard)

    @torch.no_grad()
    def load_state(self, tensors: dict[str, torch.Tensor]) -> None:
        """Restore what `state` returned, on any number of processes."""
        self.flat.copy_(self.layout.take(tensors[MASTER], self.shard))
        if self.scale.is_on:
            scale, finite_steps = tensors["scale"].tolist()
            self.scale.value, self.scale.finite_steps = scale, int(finite_steps)
        numbers = range(len(self.layout.groups(self.shard)))
        for name, moment in self.moments.items():
            whole = torch.cat([tensors[f"{number}.{name}"] for number in numbers])
            of_shard = self.layout.take(whole, self.shard)
            moment.copy_(of_shard[self.own])
        for state in self.adamw.state.values():
            state["step"].copy_(tensors["0.step"])


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
    done = min((update - warmup) / max(total - warmup, 1), 1.0)
    match schedule:
        case "linear":
            return peak * (1 - done)
        case "cosine":
            return peak * 0.5 * (1 + math.cos(math.pi * done))
        case _:  # constant, after a warm-up or without one
            return peak

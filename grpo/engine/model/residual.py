"""The residual stream, x + y: it is added up when a norm reads it, because one kernel does both.

Counterpart of the two plus signs of `Block` in minimal.py. It saves a pass over the activations for each.
"""

from collections.abc import Callable

import torch

Normed = tuple[torch.Tensor, torch.Tensor]  # the norm of a sum, and the sum


class Residual:
    """A sum of two tensors [T, D] that is made when it is needed. added: the second one; None if there is none."""

    def __init__(self, x_TD: torch.Tensor, added_TD: torch.Tensor | None = None):
        self.x_TD, self.added_TD = x_TD, added_TD

    def __add__(self, added_TD: torch.Tensor) -> "Residual":
        return Residual(self.sum(), added_TD)

    def sum(self) -> torch.Tensor:
        """Return the sum as a tensor."""
        if self.added_TD is not None:
            self.x_TD, self.added_TD = self.x_TD + self.added_TD, None
        return self.x_TD

    def normed(self, add_and_norm: Callable[[torch.Tensor, torch.Tensor | None], Normed]) -> torch.Tensor:
        """Return the norm of the sum, and keep the sum."""
        normed_TD, self.x_TD = add_and_norm(self.x_TD, self.added_TD)
        self.added_TD = None
        return normed_TD

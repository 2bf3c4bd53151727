"""Several processes, one model each (data parallel): `torchrun --nproc-per-node N -m grpo.train CONFIG`.

Each rank samples and trains its share of a step's prompts; gradients, denominators and metrics are summed. Without torchrun
there is one rank and every function here does nothing.
"""

import os
from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist

TIMEOUT = timedelta(minutes=30)   # a rank that is gone ends the others after this; rewards must answer well within it


class Ranks:
    """This process among its peers."""

    def __init__(self, device: torch.device):
        self.world = int(os.environ.get("WORLD_SIZE", 1))
        self.rank = int(os.environ.get("RANK", 0))
        self.device = device
        if self.world > 1 and not dist.is_initialized():
            dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=TIMEOUT)

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        """Adds up a tensor over all ranks, in place."""
        if self.world > 1:
            dist.all_reduce(tensor)
        return tensor

    def sum(self, values: Sequence[float]) -> list[float]:
        """Adds up some numbers over all ranks."""
        if self.world == 1:
            return list(values)
        return self.sum_(torch.tensor(values, dtype=torch.float64, device=self.device)).tolist()

    def max(self, value: float) -> float:
        if self.world == 1:
            return value
        tensor = torch.tensor(value, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return float(tensor)

    def gather(self, value: object) -> list:
        """Every rank's value (small, JSON-like), in the order of ranks."""
        if self.world == 1:
            return [value]
        values: list = [None] * self.world
        dist.all_gather_object(values, value)
        return values

    def barrier(self) -> None:
        if self.world > 1:
            dist.barrier()

    def close(self) -> None:
        if self.world > 1 and dist.is_initialized():
            dist.destroy_process_group()


def choose_device(name: str) -> torch.device:
    """"auto" is this rank's GPU if there is one."""
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
    torch.cuda.set_device(device)
    return device

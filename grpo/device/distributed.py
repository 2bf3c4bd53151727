"""Several processes, one model each (data parallel): `torchrun --nproc-per-node N -m grpo.train CONFIG`.

Each rank samples and trains its share of a step's prompts; gradients, denominators and metrics are summed over ranks.
Without torchrun there is one rank, and no method of `Ranks` communicates.
"""

import ctypes
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from uuid import uuid4

import torch
import torch.distributed as dist

from grpo.base.errors import CONFIG, INTERNAL, UserError, explained, is_out_of_memory, redact

TIMEOUT = timedelta(minutes=30)  # if a rank stops answering, the others end after this; rewards must be faster
ALLOCATOR_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")  # the second is the newer name
VIRTUAL_MEMORY = 102  # CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
MEET = timedelta(minutes=5)  # the ranks have to start within this time of each other
FACT_CHARS = 80  # of a fact in a message


@contextmanager
def _peers() -> Iterator[None]:
    """Turn the error of a collective whose peer has ended into a UserError. It comes at once, or after TIMEOUT."""
    try:
        yield
    except RuntimeError as error:
        is_from_peers = isinstance(error, dist.DistError) or "gloo" in str(error).lower()
        if not is_from_peers or is_out_of_memory(error):
            raise
        raise UserError(
            "another process of this run has ended",
            str(error).splitlines()[0][:200],
            "its own message is on stderr and in run_state.rank*.json of the output directory; "
            "continue with resume_from_checkpoint=true",
            INTERNAL,
        ) from error


def meet(store: dist.Store, rank: int, world: int) -> tuple[dist.Store, bool]:
    """Return a store with only the keys of these processes, and whether others have used `store` before them.

    When torchrun restarts all processes, it keeps the store, with the addresses of the dead ones in it
    (github.com/pytorch/pytorch/issues/135712). So rank 0 gives each start a new name. The other ranks may read an old
    name first; they wait until rank 0 lists them as members.
    """
    me = uuid4().hex
    if rank == 0:
        is_restart = store.check(["start"])
        store.set("start", me)
        members = [store.get(f"{me}/{other}").decode() for other in range(1, world)]
        store.set(f"{me}/members", " ".join(members))
        return dist.PrefixStore(me, store), is_restart
    deadline = time.monotonic() + MEET.total_seconds()
    while time.monotonic() < deadline:
        start = store.get("start").decode()
        store.set(f"{start}/{rank}", me)
        time.sleep(0.1)
        if store.check([f"{start}/members"]) and me in store.get(f"{start}/members").decode():
            return dist.PrefixStore(start, store), False
    raise dist.DistStoreError(f"rank 0 has not answered rank {rank} within {MEET}")


class Ranks:
    """The processes of a run, and the place of this one among them.

    is_restart: whether torchrun has started these processes to replace others that have ended. may_restart: whether it
    may do so again.
    """

    def __init__(self, device: torch.device):
        self.world = int(os.environ.get("WORLD_SIZE", 1))  # number of processes
        self.rank = int(os.environ.get("RANK", 0))
        self.device = device
        num_restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))
        self.is_restart = num_restarts > 0
        self.may_restart = num_restarts < int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", 0))
        if self.world > 1 and not dist.is_initialized():
            with _peers():
                self._join()

    def _join(self) -> None:
        """Form the group of processes."""
        me = f"rank {self.rank} on {socket.gethostname()}"
        what = f"{me} has not met the other {self.world - 1} processes of this run"
        fix = "start all of them within that time of each other; see the message of the one that is missing"
        with explained(dist.DistError, what, fix, INTERNAL):
            found, _, _ = next(dist.rendezvous("env://", self.rank, self.world, timeout=MEET))
            store, others_were_here = meet(found, self.rank, self.world)
        backend = "nccl" if self.device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=store, rank=self.rank, world_size=self.world, timeout=MEET)
        self.is_restart = any(self.gather(self.is_restart or others_were_here))  # an agent counts only its own restarts
        found.set_timeout(TIMEOUT)  # all are connected: from now on they wait for each other's work
        dist.distributed_c10d._set_pg_timeout(TIMEOUT)

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum a tensor over all ranks, in place."""
        if self.world > 1:
            with _peers():
                dist.all_reduce(tensor)
        return tensor

    def sum(self, values: Sequence[float]) -> list[float]:
        """Sum each of some numbers over all ranks."""
        if self.world == 1:
            return list(values)
        return self.sum_(torch.tensor(values, dtype=torch.float64, device=self.device)).tolist()

    def max(self, value: float) -> float:
        """Return the largest value of all ranks."""
        if self.world == 1:
            return value
        tensor = torch.tensor(value, dtype=torch.float64, device=self.device)
        with _peers():
            dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return float(tensor)

    def gather(self, value: object) -> list:
        """Return every rank's value, in the order of ranks. Values should be small."""
        if self.world == 1:
            return [value]
        values: list = [None] * self.world
        with _peers():
            dist.all_gather_object(values, value)
        return values

    def gather_lists(self, values: Sequence[Any]) -> list:
        """Return the values of all ranks in one list, in the order of ranks."""
        return [value for of_rank in self.gather(values) for value in of_rank]

    def of_main(self, value: Any) -> Any:
        """Return rank 0's value on every rank."""
        return self.gather(value)[0]

    def agree(self, facts: Mapping[str, str]) -> None:
        """Raise UserError (exit 2) on every rank if the facts of some rank differ from rank 0's; it names them."""
        (main_host, wanted), *others = self.gather((socket.gethostname(), dict(facts)))
        problems = []
        for rank, (host, found) in enumerate(others, 1):
            for name in sorted({*wanted, *found}):
                if wanted.get(name) != found.get(name):  # cut after redaction: no half of a secret
                    mine, theirs = (redact(facts.get(name, "none"))[:FACT_CHARS] for facts in (wanted, found))
                    problems.append(f"{name}: {mine} on rank 0 ({main_host}), {theirs} on rank {rank} ({host})")
        if problems:
            fix = "give every machine the same program, libraries, configuration, data and model"
            raise UserError("the processes of this run do not agree", "\n     ".join(problems), fix, CONFIG)

    def barrier(self) -> None:
        """Wait until every rank is here."""
        if self.world > 1:
            with _peers():
                dist.barrier()

    def close(self) -> None:
        """Leave the group of processes."""
        if self.world > 1 and dist.is_initialized():
            dist.destroy_process_group()


def choose_device(name: str) -> torch.device:
    """Return the device of this rank; "auto": its GPU if there is one. UserError (exit 2) if the device is missing."""
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if name == "mps" and torch.backends.mps.is_available():
        return torch.device("mps")
    if name == "mps" or not torch.cuda.is_available():
        raise UserError(
            f"device is {name}, and torch finds no such GPU",
            f"this is torch {torch.__version__}; a build for CPUs finds none",
            "set device=auto or device=cpu, or install torch for your GPU (https://pytorch.org/get-started)",
            CONFIG,
        )
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
    is_set = any(name in os.environ for name in ALLOCATOR_VARIABLES)
    if not is_set and has_virtual_memory(device.index):  # fewer gaps between tensors; read when CUDA starts
        os.environ[ALLOCATOR_VARIABLES[0]] = "expandable_segments:True"
    torch.cuda.set_device(device)
    return device


def has_virtual_memory(index: int) -> bool:
    """Ask CUDA's driver whether a GPU can map memory, as expandable segments do. Some virtual machines cannot."""
    try:
        cuda, found = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(0)
    except OSError:
        return False
    asked = cuda.cuInit(0) == 0 and cuda.cuDeviceGetAttribute(ctypes.byref(found), VIRTUAL_MEMORY, index) == 0
    return asked and found.value == 1

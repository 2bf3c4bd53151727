"""Several processes: `torchrun --nproc-per-node N -m grpo.train CONFIG`.

The ranks form replicas of the model (data parallel), each of `tensor_parallel_size` shards (tensor parallel, see
shard.py). The shards of a replica have consecutive ranks. Each replica samples and trains its share of a step's
prompts; gradients, denominators and metrics are summed over replicas. Without torchrun there is one rank, and no method
of `Ranks` communicates.
"""

import ctypes
import os
import socket
import time
from collections.abc import Mapping
from datetime import timedelta
from uuid import uuid4

import torch
import torch.distributed as dist

from grpo.base.errors import CONFIG, INTERNAL, UserError, explained, redact
from grpo.engine.device.peers import Peers, explain_lost_peers
from grpo.engine.parallel.shard import ALONE, Shard

TIMEOUT = timedelta(minutes=30)  # if a rank stops answering, the others end after this; rewards must be faster
ALLOCATOR_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")  # the second is the newer name
VIRTUAL_MEMORY = 102  # CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
MEET = timedelta(minutes=5)  # the ranks have to start within this time of each other
WITH_TORCHRUN = "start it with torchrun --nproc-per-node N -m grpo.train …; for one process, unset RANK and WORLD_SIZE"
FACT_CHARS = 80  # of a fact in a message


def _place() -> tuple[int, int]:
    """Return the number of this process and how many there are, as torchrun sets them; UserError (exit 2) if wrong."""
    texts = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
    with explained(ValueError, "this process does not know its place among others", WITH_TORCHRUN, CONFIG):
        rank, world = map(int, texts)
        if not 0 <= rank < world:
            raise ValueError(f"RANK is {rank}, and WORLD_SIZE is {world}")
    return rank, world


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


class Ranks(Peers):
    """All processes of a run, and the place of this one among them.

    num_shards: processes that hold one model together. shard: the place of this one among those. replicas: the
    processes that have the same part of the other replicas; what is counted or summed per step counts replicas.
    is_restart: whether torchrun has started these processes to replace others that have ended.
    """

    device: torch.device
    shard: Shard
    replicas: Peers

    def __init__(self, device: torch.device, num_shards: int = 1):
        super().__init__(*_place(), device)
        self.shard, self.replicas = ALONE, self
        if self.world % num_shards:
            raise UserError(
                f"tensor_parallel_size is {num_shards}, and there {'is' if self.world == 1 else 'are'} {self.world} "
                f"process{'es' * (self.world > 1)}",
                "each copy of the model takes that many processes",
                f"start it with torchrun --nproc-per-node {num_shards}, or a multiple of it; or set "
                f"tensor_parallel_size to a divisor of {self.world}",
                CONFIG,
            )
        self.is_restart = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)) > 0
        if self.world > 1 and not dist.is_initialized():
            with explain_lost_peers():
                self._join()
        self.agree({"tensor_parallel_size": str(num_shards)})  # else some would wait for shards that never come
        if num_shards > 1:
            with explain_lost_peers():
                self._share(num_shards)

    def _join(self) -> None:
        """Form the group of processes."""
        me = f"rank {self.rank} on {socket.gethostname()}"
        what = f"{me} has not met the other {self.world - 1} processes of this run"
        fix = "start all of them within that time of each other; see the message of the one that is missing"
        with explained(dist.DistError, what, fix, INTERNAL), explained(ValueError, what, WITH_TORCHRUN, CONFIG):
            found, _, _ = next(dist.rendezvous("env://", self.rank, self.world, timeout=MEET))
            store, others_were_here = meet(found, self.rank, self.world)
        backend = "nccl" if self.device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=store, rank=self.rank, world_size=self.world, timeout=MEET)
        self.is_restart = any(self.gather(self.is_restart or others_were_here))  # an agent counts only its own restarts
        found.set_timeout(TIMEOUT)  # all are connected: from now on they wait for each other's work
        dist.distributed_c10d._set_pg_timeout(TIMEOUT)

    def _share(self, num_shards: int) -> None:
        """Form the groups of the shards of each replica, and of the same shard of all replicas.

        With NCCL, CUDA graphs hold collectives of the shards (engine/sampling/decode_step.py). NCCL must not register
        their memory then: with expandable segments, that hangs (github.com/pytorch/torchtitan/issues/3306).
        """
        os.environ.setdefault("NCCL_GRAPH_REGISTER", "0")
        everybody = list(range(self.world))
        of_replicas = [everybody[first : first + num_shards] for first in everybody[::num_shards]]
        shards, _ = dist.new_subgroups_by_enumeration(of_replicas, TIMEOUT)
        of_shards = [everybody[number::num_shards] for number in range(num_shards)]
        replicas, _ = dist.new_subgroups_by_enumeration(of_shards, TIMEOUT)
        self.shard = Shard(self.rank % num_shards, num_shards, self.device, shards)
        self.replicas = Peers(self.rank // num_shards, self.world // num_shards, self.device, replicas)

    @property
    def is_main(self) -> bool:
        return self.rank == 0

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
            with explain_lost_peers():
                dist.barrier()

    def close(self) -> None:
        """Leave the group of processes."""
        if self.world > 1 and dist.is_initialized():
            dist.destroy_process_group()


def choose_device(name: str) -> torch.device:
    """Return the device of this rank, and prepare CUDA if it is a GPU of that kind. "auto": its GPU if there is one.

    UserError (exit 2) if the device is missing.
    """
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
    if not is_set and has_virtual_memory(device.index):
        os.environ[ALLOCATOR_VARIABLES[0]] = "expandable_segments:True"  # read when CUDA starts: fewer gaps in memory
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

"""Two ranks' sums, maxima and lists; and one rank alone, for which they do nothing."""

import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from making import cases, free_port, refused

from grpo.engine.device import distributed
from grpo.engine.device.distributed import Ranks, choose_device, meet
from grpo.engine.device.peers import explain_lost_peers

CPU = torch.device("cpu")
RANK = """
import json, sys, torch
from grpo.engine.device.distributed import Ranks
ranks = Ranks(torch.device("cpu"))
mine = float(ranks.rank + 1)
tensor = torch.tensor([mine, -10 * mine])
same = ranks.sum_(tensor) is tensor
ranks.barrier()
print(json.dumps([ranks.world, ranks.is_main, same, tensor.tolist(), ranks.sum([mine, 0.1, 2.0**-40]),
                  ranks.max(-mine), ranks.max(mine), ranks.min(mine),
                  ranks.gather({"rank": ranks.rank}), ranks.gather_lists([mine, -mine])]))
ranks.close()
"""


def start_two(*command):
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "GLOO_SOCKET_IFNAME": "lo"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return [
        subprocess.Popen([sys.executable, "-c", *command], env={**os.environ, **shared, "RANK": str(rank)}, **pipes)
        for rank in range(2)
    ]


def test_two_ranks():
    answers = [json.loads(child.communicate(timeout=300)[0]) for child in start_two(RANK)]
    sums = [3.0, 0.2, 2.0**-39]  # in float64: in float32 0.1 + 0.1 were 0.20000000298
    both = [[3.0, -30.0], sums, -1.0, 2.0, 1.0, [{"rank": 0}, {"rank": 1}], [1.0, -1.0, 2.0, -2.0]]
    assert answers == [[2, True, True, *both], [2, False, True, *both]]


JOINED_ALREADY = """
import torch, torch.distributed as dist
from grpo.engine.device.distributed import Ranks
dist.init_process_group("gloo")
ranks = Ranks(torch.device("cpu"), 2)
print(ranks.shard.rank, ranks.shard.world, ranks.replicas.rank, ranks.replicas.world)
ranks.close()
"""


def test_ranks_that_a_program_has_joined_already_share_a_model_too():
    said = [child.communicate(timeout=300)[0].split() for child in start_two(JOINED_ALREADY)]
    assert said == [["0", "2", "0", "1"], ["1", "2", "0", "1"]]


@pytest.mark.parametrize("first", [0, 2])
def test_processes_that_are_started_again_never_read_the_keys_of_the_dead(first):
    """torchrun keeps the store. Rank `first` comes alone, and finds what the starts before have left there."""
    kept = dist.HashStore()
    with ThreadPoolExecutor(3) as pool:
        for start in range(3):
            alone = pool.submit(meet, kept, first, 3)
            time.sleep(0.3)
            assert not alone.done()
            others = [pool.submit(meet, kept, rank, 3) for rank in range(3) if rank != first]
            met = [future.result(60) for future in (alone, *others)]
            stores = [store for store, _ in met]
            assert any(has_forerunners for _, has_forerunners in met) == (start > 0)
            assert not any(store.check(["address"]) for store in stores)
            stores[0].set("address", str(start))
            assert [store.get("address") for store in stores] == [str(start).encode()] * 3


def find_gpus(monkeypatch, cuda, mps=False):
    """Let torch find these GPUs; return the list of those that are set."""
    taken = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    return taken


@pytest.mark.parametrize("name, there, wanted", cases(__file__, "devices"))
def test_the_device_is_the_ranks_own_gpu_or_the_cpu_or_refused(monkeypatch, name, there, wanted):
    monkeypatch.setenv("LOCAL_RANK", "3")
    taken = find_gpus(monkeypatch, "cuda" in there, "mps" in there)
    if wanted == "refused":
        refused(lambda: choose_device(name), f"device is {name}, and torch finds no such GPU", exit_code=2)
    else:
        device = torch.device(wanted)
        assert choose_device(name) == device and taken == [device] * (device.type == "cuda")


def one_of(monkeypatch, world):
    """This process becomes rank 0 of so many."""
    given = {"WORLD_SIZE": str(world), "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    for name, value in given.items():
        monkeypatch.setenv(name, value)


def test_ranks_that_do_not_meet_say_so_soon(monkeypatch):
    """Here the other one was killed before it came."""
    monkeypatch.setattr(distributed, "MEET", timedelta(seconds=1))
    one_of(monkeypatch, 2)
    refused(lambda: Ranks(CPU), "rank 0 on", "has not met the other 1 processes", "start all of them", exit_code=1)


DIES = """
import os, signal, sys, torch
from datetime import timedelta
from grpo.engine.device import distributed
distributed.MEET, meet = timedelta(seconds=5), distributed.meet
def meet_and_die(store, rank, world):
    met = meet(store, rank, world)
    if rank == int(sys.argv[1]):
        os.kill(os.getpid(), signal.SIGKILL)
    return met
distributed.meet = meet_and_die
try:
    distributed.Ranks(torch.device("cpu"))
except distributed.UserError as error:
    sys.exit(f"{error.exit_code} {error}")
"""


@pytest.mark.parametrize("dead", [0, 1])
def test_a_rank_that_dies_before_it_is_connected_is_not_waited_for(dead):
    """The other one gives up after MEET, not after TIMEOUT."""
    children = start_two(DIES, str(dead))
    said = [child.communicate(timeout=300)[1] for child in children]
    assert children[dead].returncode == -9 and children[1 - dead].returncode == 1
    assert re.search("1 error: (another process of this run has ended|rank 1 .* has not met)", said[1 - dead])


def test_connected_ranks_wait_for_each_other_much_longer(monkeypatch):
    """As one may have to wait for the rewards of another."""
    monkeypatch.setattr(dist.distributed_c10d, "_world", dist.distributed_c10d._World())
    one_of(monkeypatch, 1)
    ranks = Ranks(CPU)
    ranks._join()
    options = dist.distributed_c10d._get_default_group()._get_backend(CPU).options
    dist.destroy_process_group()
    assert options._timeout == distributed.TIMEOUT > distributed.MEET


@pytest.mark.parametrize(
    "can_map, users, added",
    [
        (True, {}, {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}),
        (False, {}, {}),
        (True, {"PYTORCH_CUDA_ALLOC_CONF": "x:1"}, {}),
        (True, {"PYTORCH_ALLOC_CONF": "x:1"}, {}),
    ],
)
def test_memory_grows_in_place_where_the_driver_can_and_the_user_has_not_chosen(monkeypatch, can_map, users, added):
    monkeypatch.setattr(os, "environ", users.copy())
    find_gpus(monkeypatch, cuda=True)
    monkeypatch.setattr(distributed, "has_virtual_memory", lambda index: can_map)
    choose_device("cuda")
    assert os.environ == users | added


def test_a_broken_connection_is_told_apart_from_a_bug():
    @explain_lost_peers()
    def fail(text):
        raise RuntimeError(text)

    error = refused(lambda: fail("[gloo] Connection closed by peer\nmore"), "another process of this run", exit_code=1)
    assert error.why == "[gloo] Connection closed by peer"
    with pytest.raises(RuntimeError, match="shapes differ"):
        fail("shapes differ")


def test_facts_that_differ_are_named_without_half_of_a_secret(monkeypatch):
    """A long fact is cut, and the secret lies across the cut."""
    monkeypatch.setenv("MY_API_KEY", "sesame-open-the-door")
    ranks = Ranks(CPU)
    facts = [{"data": "x" * 70 + f"sesame-open-the-door{end}", "same": "y"} for end in "ab"]
    monkeypatch.setattr(ranks, "gather", lambda value: [("one", facts[0]), ("two", facts[1])])
    why = refused(lambda: ranks.agree(facts[0]), "do not agree", "data: x", exit_code=2).why
    assert "same" not in why and "sesame" not in why


@pytest.mark.parametrize("rank, world", ["02", "a2", "22", ("-1", "2"), "00", ("0", "")])
def test_a_process_that_torchrun_has_not_started_is_told_how_to_be(rank, world, monkeypatch):
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", world)
    assert "torchrun" in refused(lambda: Ranks(CPU), "process", exit_code=2).fix

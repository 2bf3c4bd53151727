"""The path of a GPU, walked without one: what it launches, that the host waits for nothing, and that it takes the
memory that was planned."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from grpo.kernels.swiglu import swiglu
from walking import ANSWER, CASES, PHASES, PROMPT, Case, micro_batch, optimizer_of, row, walking

from grpo.algorithm.logprobs import batch_logprobs
from grpo.algorithm.loss import policy_loss
from grpo.algorithm.schema import POLICY
from grpo.config.options import TrainConfig
from grpo.engine.model import memory
from grpo.engine.model.build import ALL_PROJECTIONS
from grpo.engine.sampling.decode_step import KVCache

TABLE = json.loads(Path(__file__).with_name("launches.json").read_text())


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("name", CASES)
def test_each_phase_launches_what_the_table_says(name, phase):
    """Where the change is meant: python -m tests.kernels.walking > tests/kernels/launches.json"""
    assert row(CASES[name], phase) == TABLE[name][phase]


@pytest.mark.parametrize("waits", [
    lambda x: x[0].item(),
    lambda x: x.cpu(),
    lambda x: x + torch.ones(3),
    lambda x: swiglu(x[None], torch.ones(1, 3)),
    lambda x: swiglu(*torch.empty(2, 1, 2**26 + 1, device="meta")),
])  # fmt: skip
def test_a_walk_refuses_what_waits_or_cannot_be_launched(waits):
    with walking(), pytest.raises((RuntimeError, NotImplementedError, AssertionError)):
        waits(torch.ones(3, device="meta"))


@pytest.mark.parametrize("copies", [lambda: torch.tensor([1, 2], device="meta"), lambda: torch.ones(2).to("meta")])
def test_a_graph_takes_nothing_from_the_cpu(copies):
    with walking() as walk:
        copies()
        walk.inside_graph = True
        with pytest.raises(AssertionError):
            copies()


def test_a_walk_counts_the_bytes_that_live():
    with walking() as walk:
        x = torch.ones(100, device="meta")
        y = x.view(10, 10)[2:] + 1
        assert (walk.live, walk.peak) == (720, 720)
        del x
        assert walk.live == 320
        walk.begin()
        y.add_(torch.ones(80, device="meta").view(8, 10))
        del y
        assert (walk.live, walk.peak) == (0, 640)


MEMORY = {  # a model, and the GB of its device
    "7b r=256": (CASES["7b r=256"], 84.9),
    "7b r=256 int8": (CASES["7b r=256 int8"], 40.0),
    "7b r=256 nf4": (CASES["7b r=256 nf4"], 24.0),
    "7b r=64, 2 shards": (CASES["7b r=64, 2 shards"], 40.0),
    "1.5b r=64, attention": (Case("1.5b", 64, ALL_PROJECTIONS[:4]), 24.0),
    "1.5b r=64, values and gates": (Case("1.5b", 64, ("v_proj", "gate_proj")), 24.0),
}
LEAST = {"none": 0.92, "mlp": 0.8, "all": 0.7}  # of what was counted: gradients in a layer come last, if at all


@pytest.mark.parametrize("name", MEMORY)
def test_what_lives_is_what_was_planned(name):
    """Model, optimizer and cache exactly, what is kept to 0.2 %; and the peak stays below the plan."""
    case, gigabytes = MEMORY[name]
    config = TrainConfig(per_device_train_batch_size=12, gradient_accumulation_steps=8, beta=0.001)
    with walking() as walk:
        model = case.build()
        optimizer = optimizer_of(model)
        plan = memory.make_plan(memory.Loaded(model, model), config, PROMPT + ANSWER, int(gigabytes * 1e9), "cuda")
        assert plan.fits
        assert plan.budget.fused
        scalars = walk.live - plan.needed.weights - plan.needed.training  # of the optimizer, and s of each layer
        assert 0 <= scalars < 1000
        cache = KVCache.of(model, plan.num_sequences, PROMPT + ANSWER).kv_L2BKSE
        assert cache.nbytes == plan.needed.cache
        del cache

        batch, model.recompute = micro_batch(), plan.budget.recompute
        tokens, num_layers = batch.layout.num_tokens, model.config.num_layers
        _ = model.tables
        walk.begin()
        before = walk.live
        logp_C, _ = batch_logprobs(model, batch, POLICY, 1.0, plan.budget.chunk)
        kept = (walk.live - before) / tokens
        loss, _ = policy_loss(batch, logp_C, config)
        optimizer.backward(loss)
        attention, mlp, once = memory.kept_bytes_per_token(model, fused=True)
        if plan.budget.recompute == "none":
            assert kept == pytest.approx(num_layers * (attention + mlp) + once, rel=2e-3)
        counted = memory.Loaded(model).account(budget=replace(plan.budget, tokens=tokens))
        ratio = (walk.peak - before) / (counted.activations + counted.logits)
        assert LEAST[plan.budget.recompute] < ratio <= 1

"""Memory: what is counted against what autograd really keeps and a process really takes; and what happens when it runs
out."""

import errno
import json
import sqlite3
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from making import cases, kept_by_autograd, measured_in_forks, refused, write_chat_checkpoint
from test_train import configured

from grpo.algorithm.optimizer import Optimizer
from grpo.algorithm.schema import Layout, Prompt
from grpo.base.errors import CONFIG, INTERNAL, MEMORY, STORAGE, UserError, describe, is_out_of_memory, is_storage_error
from grpo.config.options import SftConfig, TrainConfig
from grpo.engine.attention import choice
from grpo.engine.attention.packed import PackedAttention
from grpo.engine.device.quantised import FORMATS
from grpo.engine.model import memory
from grpo.engine.model.build import ALL_PROJECTIONS, Build, LoraSpec
from grpo.engine.model.decoder import OwnDecoder
from grpo.engine.model.flat import FlatParameters
from grpo.engine.model.model_config import ModelConfig
from grpo.engine.model.weights import make_decoder
from grpo.engine.parallel.shard import Shard
from grpo.run.run import Run
from grpo.train import GrpoTrainer, longest_groups

SMALL = {
    "model_type": "qwen2",
    "vocab_size": 2048,
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
}
NARROW = SMALL | {"hidden_size": 128, "intermediate_size": 352}  # half the memory of a token, a quarter of the work


def decoder(raw, rank, dtype, device="cpu"):
    return OwnDecoder(ModelConfig.from_hf(raw), Build(LoraSpec(rank, rank) if rank else None, False, dtype, device))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("recompute", "where"), [
    *((recompute, {}) for recompute in ("none", "mlp", "all")),
    *(("none", {"targets": targets}) for targets in (ALL_PROJECTIONS[:4], ("o_proj", "down_proj"))),
    *((recompute, {"layers": (2, 3)}) for recompute in ("none", "mlp")),
], ids=str)  # fmt: skip
def test_what_is_kept_is_what_autograd_keeps(dtype, recompute, where):
    """Of all four layers, or of the last two: below the first adapter nothing is kept."""
    build = Build(LoraSpec(16, 16, **where), False, dtype, "cpu")
    model, layout = OwnDecoder(ModelConfig.from_hf(SMALL), build), Layout.of((40, (60, 60, 60)))
    model.recompute = recompute
    measured = kept_by_autograd(model, PackedAttention(layout, dtype, "cpu"), layout.num_tokens)
    attention, mlp, _ = memory.kept_bytes_per_token(model)
    not_kept = {"none": 0, "mlp": mlp, "all": attention + mlp}[recompute] + 5 * dtype.itemsize * 704  # in the backward
    rel = 0.15 if "layers" in where else {"none": 0.05, "mlp": 0.1, "all": 0.5}[recompute]  # `all` keeps hardly any
    assert measured == pytest.approx(memory.activation_bytes_per_token(model, recompute) - not_kept, rel=rel)


PASS = f"""
from contextlib import nullcontext
import torch._dynamo  # which recomputation imports
from torch.utils._python_dispatch import TorchDispatchMode
import grpo.trainer
from grpo.engine.attention.packed import PackedAttention
from grpo.algorithm.schema import Layout
from grpo.engine.device.products import slow_dtype
from grpo.algorithm.logprobs import token_logprobs
from grpo.engine.model import memory
from grpo.engine.model.decoder import Decoder, OwnDecoder
from grpo.engine.model.model_config import ModelConfig
from grpo.engine.model.weights import make_decoder
from grpo.engine.model.build import ALL_PROJECTIONS, Build, LoraSpec
class WithoutArithmetic(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, inputs=(), options=None):
        if function._schema.name not in ("aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm"):
            return function(*inputs, **(options or {{}}))
        left, right = inputs[-2:]
        out = (options or {{}}).get("out")
        return left.new_zeros(*left.shape[:-1], right.shape[-1]) if out is None else out.zero_()
def run(model, dtype, prompt, completion, rows):
    layout = Layout.of((prompt, (completion,) * rows))
    T = layout.num_tokens
    hidden = model(torch.zeros(T, dtype=torch.int64), torch.arange(T) % 4096, PackedAttention(layout, dtype, "cpu"))
    token_logprobs(hidden, model.head(), torch.zeros(T, dtype=torch.int64), 1.0, chunk=256)[0].sum().backward()
    return T
def measure(name, recompute):
    dtype = getattr(torch, name)
    model = OwnDecoder(ModelConfig.from_hf({NARROW!r}), Build(LoraSpec(16, 16), False, dtype, "cpu"))
    model.recompute = recompute
    run(model, dtype, 8, 8, 2)
    before = status("VmRSS")
    with WithoutArithmetic() if slow_dtype(dtype, torch.device("cpu")) else nullcontext():
        tokens = run(model, dtype, 96, 100, 39)
    counted = memory.Loaded(model).account(budget=memory.Budget(tokens, recompute, 256))
    return (status("VmHWM") - before) / (counted.activations + counted.logits)
"""


def test_a_process_takes_what_is_counted():
    """Growth of the resident peak through one training pass over what is counted (autograd's count has the other
    cases). A CPU without bfloat16 would emulate its products for minutes: there only their memory is taken. (All
    weights are zero, and so are the products.)"""
    cases = [("float32", "none"), ("bfloat16", "mlp")]
    for case, ratio in zip(cases, measured_in_forks(PASS, cases), strict=True):
        assert 0.8 < ratio < 1.15, case


def test_a_new_optimizer_takes_what_is_counted_for_training():
    """Before the first step, so that what is free then is free for micro-batches."""
    model = decoder(SMALL, 8, torch.float32)
    optimizer = Optimizer(FlatParameters(model.parameters()), (0.9, 0.99), 1e-8, 0.0)
    moments = [value for name, value in optimizer.state().items() if "exp_avg" in name]
    held = [optimizer.flat.values, optimizer.flat.grad, *moments]
    counted = memory.Loaded(model).account().training
    assert sum(tensor.nbytes for tensor in held) == counted == 4 * optimizer.flat.values.nbytes


def test_an_account_by_hand():
    """SMALL with rank 2, bfloat16. 4 layers, 2 key heads of 64: a token's cache is 2 x 4 x 2 x 64 x 2 = 2048 bytes. An
    adapter is float32: A of 2 rows per projection, B of 2 columns; master, gradient and two moments are 4 copies."""
    model, budget = decoder(SMALL, 2, torch.bfloat16, "meta"), memory.Budget(100, "none", 10)
    needed = memory.Loaded(model).account(3, 50, budget)
    inputs, outputs = 256 * 6 + 704, 256 + 128 + 128 + 256 + 704 + 704 + 256  # q k v o gate up, down
    assert needed.training == 4 * 4 * 4 * 2 * (inputs + outputs)
    assert needed.cache == 3 * 50 * 2048 == 3 * 50 * memory.kv_bytes_per_token(model)
    assert needed.logits == 10 * 2048 * (2 + 4 + 4)
    assert memory.logits_bytes_per_row(decoder(SMALL, 2, torch.float32, "meta")) == 2048 * 12
    assert needed.activations == int(100 * memory.activation_bytes_per_token(model, "none"))
    reference = decoder(SMALL, 0, torch.bfloat16, "meta")
    extra = sum(tensor.nbytes for tensor in reference.buffers())
    assert memory.Loaded(model, reference).account(3, 50, budget).total == needed.total + extra
    assert memory.Loaded(model, model).account(3, 50, budget) == needed  # the same model, without its adapter


@pytest.mark.parametrize("N", [1, 2])
def test_an_account_of_8_bits_on_one_of_n_shards_by_hand(N):
    """A part of a layer of SMALL: of q, k, v, gate, up some outputs, of o and down some inputs, some of the tokens.
    A byte per number, a float32 scale per row, the tail (s B) and a copy of A in bfloat16."""
    build = Build(LoraSpec(2, 2), False, torch.bfloat16, "meta", quantised=FORMATS["int8"], shard=Shard(0, N))
    loaded = memory.Loaded(make_decoder(ModelConfig.from_hf(SMALL), build))
    needed = loaded.account(3, 50, memory.Budget(100, "none", 10))
    matrices = {  # outputs, inputs, columns of the tail
        "qkv": (512 // N, 256, 6),
        "o": (256, 256 // N, 2),
        "gate_up": (1408 // N, 256, 4),
        "down": (256, 704 // N, 2),
    }
    layer = sum(O * I + 4 * O + 2 * (O * R + R * I) for O, I, R in matrices.values()) + 2 * (512 // N + 2 * 256)
    scratch = 1408 // N * (256 + 4)  # the largest matrix with its tail
    assert needed.weights == 4 * layer + 2 * (2 * 2048 // N * 256 + 256 + scratch)
    A = sum(R * I for _, I, R in matrices.values())
    B = 2 * ((512 + 1408) // N + 256 + 256)
    assert needed.training == 4 * 4 * 4 * (A + B)
    assert needed.cache == 3 * 50 * 2048 // N


def test_a_budget_by_hand():
    """On a CPU a quarter of what is free stays free. 0.75 x free - logits, over the bytes of a token."""
    model = decoder(SMALL, 0, torch.float32, "meta")
    row = memory.logits_bytes_per_row(model)
    cost = {level: memory.activation_bytes_per_token(model, level) for level in memory.RECOMPUTE_LEVELS}
    assert cost["none"] > cost["mlp"] > cost["all"]

    def free(tokens, level):
        return int((tokens * cost[level] + 256 * row) / 0.75) + 1

    def choose(free_bytes, longest=100, **keys):
        return memory.choose_budget(model, TrainConfig(**keys), longest, free_bytes, kind="cpu")

    for size, keys, wanted in cases(__file__, "budgets"):
        tokens, level = size.split()
        found = choose(free(int(tokens), level), **json.loads(keys))
        assert wanted in f"{found.tokens} {found.recompute} {found.chunk}", size
    scarce = choose(free(900, "all"))
    assert scarce.recompute == "all" and 128 < scarce.chunk < 256
    assert scarce.tokens == int((0.75 * free(900, "all") - scarce.chunk * row) / cost["all"]) < 1024
    assert choose(free(900, "all"), longest=950).tokens == 950  # it must fit; perhaps it does
    small = int(200 * row / 0.1) + 1  # logits take a tenth at most, and 128 rows at least
    assert choose(small).chunk == 200 and choose(1000).chunk == 128


def test_a_plan_shares_out_what_weights_and_cache_leave():
    """A user's max_num_seqs stands, whatever it takes; stage 1 has no cache."""
    model, size = decoder(SMALL, 8, torch.bfloat16, "meta"), 2 * 10**8
    loaded = memory.Loaded(model)
    left = size - loaded.account().total
    cache = 7 * 1000 * memory.kv_bytes_per_token(model)

    def planned(config, kind="cuda"):
        return memory.make_plan(loaded, config, 1000, size, kind)

    made = planned(TrainConfig(max_num_seqs=7))
    assert (made.num_sequences, made.needed.cache) == (7, cache) and made.fits and "fits into 0.2 GB" in str(made)
    assert made.budget == memory.choose_budget(model, TrainConfig(), 1000, left - cache, kind="cuda")
    huge = planned(TrainConfig(max_num_seqs=10**5))
    assert huge.needed.cache > size and not huge.fits
    crowd = TrainConfig(per_device_train_batch_size=1000, gradient_accumulation_steps=1000)
    assert planned(crowd).num_sequences == memory.choose_num_sequences(model, 10**6, 1000, left)
    assert planned(SftConfig()).num_sequences == planned(SftConfig()).needed.cache == 0
    assert planned(TrainConfig()).budget.fused and not planned(TrainConfig(kernels="none")).budget.fused
    assert not planned(TrainConfig(), "cpu").budget.fused


def test_what_is_counted_as_kept_depends_on_the_attention_that_was_chosen(monkeypatch):
    model = decoder(SMALL, 8, torch.bfloat16, "meta")
    assert memory.choose_budget(
        model, TrainConfig(), 100, 10**9, kind="cuda"
    ).fused  # nothing was tried: the doctor plans for a GPU
    model.build = replace(model.build, device="cuda")
    for problem in ("", "wrong by 1.0e-01"):
        monkeypatch.setattr(choice, "flash_problem", lambda heads, problem=problem: problem)
        assert memory.choose_budget(model, TrainConfig(), 100, 10**9).fused == (not problem)


def test_how_many_sequences_are_decoded_together():
    """Half of what is free: 100 positions of 4096 bytes (float32) are 409,600 bytes a sequence."""
    model = decoder(SMALL, 0, torch.float32, "meta")
    for free, number in ((8 * 819_200, 8), (8 * 819_200 - 1, 7), (100 * 819_200, 8), (1, 1)):
        assert memory.choose_num_sequences(model, 8, 100, free) == number


ERRORS = {
    MEMORY: [
        MemoryError(),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        torch.distributed.DistBackendError("NCCL error: unhandled cuda error, Cuda failure 2 'out of memory'"),
        *map(
            RuntimeError,
            [
                "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you",
                "DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes.",
                "could not create a primitive",
                "could not create a memory object",
                "std::bad_alloc",
                "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported",
                "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
                "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
                "cudaErrorMemoryAllocation",
                "unable to mmap 8 bytes from file <x>: Cannot allocate memory (12)",
            ],
        ),
    ],
    STORAGE: [
        Exception("File too large (os error 27)"),  # tokenizers
        RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)"),
        sqlite3.OperationalError("database or disk is full"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
    ],
    INTERNAL: [
        RuntimeError("shapes differ"),
        ValueError("can't allocate memory"),
        RuntimeError("could not create a primitive descriptor for a matmul primitive"),
        OSError(errno.ENOENT, "out of memory"),
        OSError(errno.ENOENT, "no space"),
        sqlite3.OperationalError("no such table: disk"),
        KeyError("no space"),
    ],
    CONFIG: [UserError("out of memory")],
}


@pytest.mark.parametrize(("error", "code"), [(error, code) for code in ERRORS for error in ERRORS[code]], ids=str)
def test_what_counts_as_out_of_memory_and_as_a_full_disk(error, code):
    with pytest.raises(type(error)) as caught:
        raise error
    assert describe(caught.value)[0] == code
    assert is_out_of_memory(error) == (code == MEMORY) and is_storage_error(error) == (code == STORAGE)


# --- when it runs out ----------------------------------------------------------------------------------------------


@pytest.fixture()
def made(tmp_path):
    """Makes the trainers of runs of these names and keys."""
    checkpoint, opened = write_chat_checkpoint(tmp_path / "model"), []

    def make(name, **keys):
        keys = {"beta": 0.04, "max_completion_length": 10, **keys}
        config, _ = configured(tmp_path, checkpoint, name, **keys)
        run = Run(config).__enter__()
        opened.append((run, GrpoTrainer(config, run)))
        return opened[-1][1]

    yield make
    for run, built in opened:
        built.rollout.scorer.close()
        run.__exit__(None, None, None)


def wrap_passes(trainer, replacement):
    """Let a function take the place of the trainer's passes over micro-batches. It is given the batch and the pass."""
    original = trainer.learner.logprobs

    def one_pass(model, batch, *more):
        if model is not trainer.model:
            return original(model, batch, *more)
        return replacement(batch, lambda: original(model, batch, *more))

    trainer.learner.logprobs = one_pass


def run_out_above(trainer, tokens, phase):
    """Let the pass of a micro-batch with more than so many packed tokens fail, before or after its forward."""

    def fail(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    def limited(batch, run):
        is_large = batch.layout.num_tokens > tokens
        if is_large and phase == "forward":
            fail()
        logp_C, entropy_C = run()
        if is_large and logp_C.requires_grad:
            logp_C.register_hook(fail)
        return logp_C, entropy_C

    wrap_passes(trainer, limited)


def step(trainer):
    """A step as a run makes it; its metrics."""
    trainer.run_step()
    return trainer.summarise_step()[0]


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_smaller_micro_batches_end_at_the_same_weights(made, phase, capsys):
    """To a hundredth of an update (learning rate 5e-3): AdamW divides by gradients whose sum has another order."""
    whole, halved = made("whole"), made("halved")
    run_out_above(halved, 120, phase)
    for _ in range(2):
        step(whole), step(halved)
    assert halved.memory.budget.tokens <= 240 < whole.memory.budget.tokens
    assert "note: out of memory (" in capsys.readouterr().err
    torch.testing.assert_close(halved.optimizer.flat.values, whole.optimizer.flat.values, rtol=1e-3, atol=5e-5)
    assert not torch.equal(whole.optimizer.flat.values, made("untrained").optimizer.flat.values)


def test_a_step_that_is_done_again_forgets_what_its_first_try_had_summed(made):
    """The first try ends at the second micro-batch, when the first one has added to the gradient and the metrics."""
    steps = {}
    for name in ("whole", "again"):
        trainer = made(name)
        trainer.memory.use(4 * trainer.longest)  # several micro-batches
        passes, original = [], trainer.learner.policy_logprobs

        def second_fails(batch, passes=passes, original=original, name=name):
            passes.append(batch.number)
            if name == "again" and len(passes) == 2:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            return original(batch)

        trainer.learner.policy_logprobs = second_fails
        steps[name] = step(trainer) | {"tokens counted": trainer.learned.meter.num_tokens}
        assert passes[:2] == [0, 1]
        assert (passes[2:].count(0) == 1) == (name == "again")
    assert steps["whole"]["grad_norm"] > 0.01
    for metric in ("grad_norm", "loss", "entropy", "tokens counted"):
        assert steps["again"][metric] == pytest.approx(steps["whole"][metric], rel=1e-4, abs=1e-6)


def test_a_step_that_is_done_again_asks_the_other_ranks_nothing_twice(made, monkeypatch):
    """They do not do it again: they would wait for one another. Its time is that of both tries."""
    asked = {}
    for name in ("whole", "halved"):
        trainer, calls = made(name, scale_rewards="batch", dynamic_sampling=True, num_iterations=2), Mock()
        trainer.run.signals.interruptible = lambda together=False: nullcontext()  # which asks only if all ranks come by
        askers = {"sum": trainer.ranks, "max": trainer.ranks, "gather": trainer.ranks}
        for method, asker in (askers | {"sum_grad": trainer.optimizer.flat}).items():
            calls.attach_mock(Mock(wraps=getattr(asker, method)), method)
            monkeypatch.setattr(asker, method, getattr(calls, method))
        if name == "halved":
            run_out_above(trainer, 120, "backward")
        tokens = trainer.memory.budget.tokens
        trainer.run_step()
        assert (trainer.memory.budget.tokens < tokens) == (name == "halved")
        times = trainer.clock.result()
        assert times["step_time"] > times["time/generate"] > 0
        asked[name] = [call[0] for call in calls.method_calls]
    assert asked["whole"] == asked["halved"] and {"sum", "max", "sum_grad", "gather"} == set(asked["whole"])


def test_what_cannot_be_halved_ends_with_exit_8_and_says_what_to_lower(made):
    small = made("small")
    run_out_above(small, 0, "forward")
    before = small.optimizer.flat.values.clone()
    told = "2.00 GiB", "activations", "max_tokens_per_micro_batch"
    refused(lambda: step(small), *told, exit_code=MEMORY)
    assert torch.equal(small.optimizer.flat.values, before)


def runs_out(calls):
    def fails(*arguments):
        calls.append(1)
        raise torch.OutOfMemoryError("CUDA out of memory.")

    return fails


def test_halving_ends_where_the_longest_would_not_fit():
    limit, calls = memory.MemoryLimit(memory.Budget(1001, "mlp", 128, True), 250), []
    with pytest.raises(torch.OutOfMemoryError):
        limit.run(runs_out(calls))
    assert limit.budget == memory.Budget(250, "mlp", 128, True) and len(calls) == 3


def test_no_second_try_where_it_would_not_help(made, monkeypatch):
    """Generation does not get smaller with micro-batches. In an update that has begun, the others wait for this
    process's part of the gradient, and not for another try."""
    begun, full, calls = made("begun"), made("full"), []
    begun.memory.use(4 * begun.longest)  # it could be halved
    monkeypatch.setattr(begun.optimizer.flat, "sum_grad", runs_out(calls))
    refused(lambda: step(begun), exit_code=MEMORY)
    monkeypatch.setattr(full.sampler, "sample", runs_out(calls))
    refused(lambda: step(full), "max_num_seqs", exit_code=MEMORY)
    assert len(calls) == 2


def test_the_longest_step_is_made_of_the_longest_prompt_and_fills_a_micro_batch():
    """A prompt of 5 tokens, and 3 completions of 7, whose last one is not packed: 23 tokens; so 100 need 5 groups."""
    prompts = [Prompt(row, "", tuple(range(length)), {}) for row, length in enumerate((2, 5, 3))]
    config = SimpleNamespace(max_completion_length=7, num_generations=3)
    groups = longest_groups(prompts, config, num_tokens=100)
    found = [(group.prompt.row, [len(completion.ids) for completion in group.completions]) for group in groups]
    assert found == [(1, [7] * 3)] * 5


def test_the_longest_step_finds_the_size_that_fits_and_leaves_no_trace(made, capsys):
    first, second = made("tried"), made("not_tried")
    run_out_above(first, 200, "backward")
    seen = []
    wrap_passes(first, lambda batch, run: (seen.append(batch.layout.num_tokens), run())[1])
    first.try_largest()
    assert max(seen) > 200 >= seen[-1] > 100  # it tried the largest, and what fits fills its budget
    assert "the longest step fits" in capsys.readouterr().err
    assert not first.optimizer.flat.grad.any()
    run_out_above(second, 200, "backward")
    metrics = step(first), step(second)
    assert metrics[0]["loss"] == pytest.approx(metrics[1]["loss"], abs=1e-6)
    torch.testing.assert_close(first.optimizer.flat.values, second.optimizer.flat.values, rtol=1e-4, atol=1e-6)

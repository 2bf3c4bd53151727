"""Which implementation is chosen: what is missing, wrong or slow is not; and on a GPU, each is right."""

import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from grpo.base.errors import INTERNAL, MEMORY, UserError
from grpo.engine.attention import decode
from grpo.engine.attention.select import choose, choose_packed, decode_choice
from grpo.engine.device import kernel_choice
from grpo.engine.device.capture import WARM_UPS, CudaCapture

WANTED = torch.linspace(1, 2, 7, dtype=torch.float64)


def missing():
    raise ImportError("No module named 'somewhere'\nsecond line")


def refusing():
    raise RuntimeError("head dimension 96 is not supported")


CANDIDATES = {
    "missing": missing,
    "refusing": refusing,
    "wrong": lambda: WANTED * 1.1,
    "not a number": lambda: WANTED * float("nan"),
    "right": lambda: WANTED + 0,
    "faster": lambda: WANTED * (1 + 1e-9),
    "fallback": lambda: WANTED.float(),
}
SECONDS = {"right": 3e-5, "faster": 2e-5, "fallback": 9e-5}


def clock(run):
    name = next(name for name, candidate in CANDIDATES.items() if candidate is run)
    return SECONDS[name]  # only what is right may be timed


def test_the_fastest_of_those_that_are_right_or_the_first_where_bits_must_repeat():
    choice = choose(CANDIDATES, WANTED, 1e-6, clock)
    assert choice.name == "faster"
    assert str(choice) == (
        "faster (faster 20 µs, missing: ImportError: No module named 'somewhere', refusing: RuntimeError: "
        "head dimension 96 is not supported, wrong: wrong by 1.0e-01, "
        "not a number: wrong by nan, right 30 µs, fallback 90 µs)"
    )
    assert choose(CANDIDATES, WANTED, 1e-6, clock, repeatable=True).name == "right"


def broken():
    raise KeyError("a mistake of ours")


@pytest.mark.parametrize(("candidates", "error", "text"), [
    ({"wrong": CANDIDATES["wrong"]}, RuntimeError, "no implementation passed.*wrong by 1.0e-01"),
    ({"broken": broken, "fallback": CANDIDATES["fallback"]}, KeyError, "a mistake of ours"),
])  # fmt: skip
def test_nothing_right_is_an_error_and_an_unexpected_exception_is_not_swallowed(candidates, error, text):
    with pytest.raises(error, match=text):
        choose(candidates, WANTED, 1e-6, clock)


def test_what_tritons_compiler_raises_is_the_end_of_that_candidate():
    OutOfResources = pytest.importorskip("triton.runtime.errors").OutOfResources

    def too_large():
        raise OutOfResources(282688, 232448, "shared memory")

    choice = choose({"too large": too_large, "fallback": CANDIDATES["fallback"]}, WANTED, 1e-6, clock)
    assert choice.name == "fallback" and "OutOfResources" in str(choice)


def model_of(num_heads, num_kv_heads, head_dim, dtype, device="cpu"):
    """What a choice looks at."""
    config = SimpleNamespace(num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim)
    return SimpleNamespace(shard_config=config, build=SimpleNamespace(dtype=dtype, device=device))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_on_a_cpu_attention_is_torchs_own(dtype):
    assert decode_choice(model_of(4, 2, 16, dtype), 3, 50).name == "sdpa"
    assert choose_packed(4, 2, 16, dtype, "cpu").name == "sdpa"
    assert not kernel_choice.uses_kernels(torch.ones(3))


def test_reading_beyond_a_length_is_noticed():
    """A decoder that ignores the lengths is wrong in the trial."""

    def careless(lengths, num_positions):
        return decode.sdpa(torch.full_like(lengths, num_positions), num_positions)

    with pytest.raises(RuntimeError, match="no implementation passed"):
        decode_choice(model_of(4, 2, 16, torch.float32), 3, 50, kernels={"sdpa": careless})


def test_torch_flash_sees_the_cache_as_one_run_of_tokens(monkeypatch):
    """Its arguments, by a stand-in that computes from them alone what FlashAttention would."""

    def forward(q, k, v, q_starts, k_starts, max_q, max_k, dropout, causal, debug, *, seqused_k):
        assert k.is_contiguous() and k.shape[1] == 1
        assert max_q == 1 and not causal
        assert seqused_k.dtype == q_starts.dtype == torch.int32
        out = torch.empty_like(q)
        for row in range(len(q)):
            keys = slice(int(k_starts[row]), int(k_starts[row]) + int(seqused_k[row]))
            p = torch.softmax(q[row] @ k[keys, 0].T / q.shape[2] ** 0.5, -1)
            out[row] = p @ v[keys, 0]
        assert k_starts[-1] == len(k) and int(seqused_k.max()) <= max_k
        return out, None, None, None, None

    monkeypatch.setattr(torch.ops.aten, "_flash_attention_forward", forward)
    generator = torch.Generator().manual_seed(0)
    cache = torch.randn(3, 2, 5, 2, 40, 8, generator=generator)  # L2BKSE, of which 4 rows and 30 positions are read
    k, v = cache[1, :, :4, :, :30]
    q, lengths = torch.randn(4, 6, 8, generator=generator), torch.tensor([1, 30, 17, 2])
    wanted = decode.sdpa(lengths, 30)(q, k, v)
    assert torch.allclose(decode.torch_flash(lengths, 30)(q, k, v), wanted, atol=1e-6)


def test_a_failed_capture_ends_the_process_and_is_no_reason_to_try_another(monkeypatch):
    """After it, the allocator is damaged: what comes next would fail for a reason that nobody understands."""
    monkeypatch.setattr(torch.cuda, "Stream", lambda: SimpleNamespace(wait_stream=lambda other: None))
    for name, stand_in in {
        "graph_pool_handle": lambda: 0,
        "current_stream": lambda: torch.cuda.Stream(),
        "stream": lambda stream: nullcontext(),
        "CUDAGraph": lambda: None,
        "graph": lambda *given, **options: nullcontext(),
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    calls = []

    def fails_when_recorded(error):
        calls.append(1)
        if len(calls) > WARM_UPS:
            raise error

    for error, code in ((RuntimeError("not permitted\nat all"), INTERNAL), (torch.OutOfMemoryError("full"), MEMORY)):
        calls.clear()
        candidates = {"records": lambda: WANTED, "fallback": lambda: WANTED}

        def clock(run, error=error):
            return CudaCapture()(lambda: fails_when_recorded(error))

        with pytest.raises(UserError, match="could not be recorded") as raised:
            choose(candidates, WANTED, 1e-6, clock)
        assert raised.value.exit_code == code and raised.value.why.endswith(str(error).splitlines()[0])


def test_why_triton_fails_is_said_whole(monkeypatch):
    """Its last words name what a compiler lacks."""

    def fails(*given, **options):
        raise RuntimeError("x" * 300 + " and why\nsecond line")

    monkeypatch.setattr("triton.knobs.runtime.interpret", False)
    monkeypatch.setitem(sys.modules, "grpo.kernels.rms_norm", SimpleNamespace(rms_norm=fails))
    monkeypatch.setattr(kernel_choice, "_waves", lambda *shape, device: torch.ones(shape))
    assert kernel_choice.triton_problem.__wrapped__() == f"Triton failed: RuntimeError: {'x' * 300} and why"


@pytest.mark.gpu
@pytest.mark.parametrize(("heads", "kv_heads", "width"), [(28, 4, 128), (12, 2, 128), (14, 2, 64), (16, 8, 128)])
@pytest.mark.parametrize("rows", [1, 96])
def test_every_decoder_is_right_on_a_gpu(heads, kv_heads, width, rows):
    choice = decode_choice(model_of(heads, kv_heads, width, torch.bfloat16, "cuda"), rows, 1280)
    assert not [name for name, result in choice.trials.items() if isinstance(result, str) and name != "flash-attn"], (
        choice
    )


@pytest.mark.gpu
def test_the_packed_attention_of_a_gpu_is_torchs_flash():
    trials = choose_packed(28, 4, 128, torch.bfloat16, "cuda").trials
    assert all(isinstance(result, float) for result in trials.values())


@pytest.mark.gpu
def test_the_kernels_are_in_use_on_a_gpu():
    assert kernel_choice.uses_kernels(torch.ones(3, device="cuda", dtype=torch.bfloat16)), (
        kernel_choice.triton_problem()
    )


@pytest.mark.gpu
def test_the_self_test_on_a_gpu_draws_nothing():
    before = torch.cuda.get_rng_state()
    assert kernel_choice.triton_problem.__wrapped__() == ""
    assert torch.equal(torch.cuda.get_rng_state(), before)

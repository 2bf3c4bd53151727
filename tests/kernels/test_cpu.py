"""The kernels in C, against float64 (twins.py), and when they are used."""

import ctypes
import os
import shutil
import subprocess

import pytest
import torch
from grpo.kernels.cpu import LANES, PANEL, SOURCE, CpuKernels, _is_mine
from making import load, write_checkpoint
from test_decode_attention import SHAPES, assert_equals_twin, problem
from test_layers import relative

from grpo.engine.attention.decode import DecodeAttention
from grpo.engine.device import kernel_choice, ops
from grpo.engine.sampling.decode_step import KVCache
from grpo.engine.sampling.layers_in_c import LayersInC

CAN_RUN = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512") and shutil.which(os.environ.get("CC", "cc"))
needs_them = pytest.mark.skipif(not CAN_RUN, reason="needs a compiler and a CPU with AVX2")
LENGTHS = [1, 2, 8, 63, 64, 65, 200, 131]


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    return CpuKernels(tmp_path_factory.mktemp("compiled"))


def threads(number):
    torch.set_num_threads(number)


@pytest.fixture(autouse=True)
def same_threads_afterwards():
    before = torch.get_num_threads()
    yield
    threads(before)


@needs_them
@pytest.mark.parametrize("T", [0, 1, 3, 4, 5, 30, 130])
@pytest.mark.parametrize(("O", "I"), [(1, 1), (PANEL - 1, 5), (PANEL, 33), (PANEL + 1, 576), (200, 64)])
def test_products_equal_float64(kernels, T, O, I):
    """Rows that do not fill a tile, outputs that do not fill a panel, and views with gaps."""
    wide_TI, wide_OI = torch.randn(T, 2 * I), torch.randn(O, 2 * I)
    for x_TI, weight_OI in ((wide_TI[:, :I], wide_OI[:, I:]), (wide_TI[:, :I].contiguous(), wide_OI[:, :I])):
        found = kernels.product(x_TI, kernels.prepack(weight_OI))
        wanted = x_TI.double() @ weight_OI.double().T
        assert found.shape == (T, O)
        assert not T or (found - wanted).abs().max() <= 2e-6 * I**0.5 * 3


@needs_them
def test_a_row_is_the_same_in_any_company_and_on_any_number_of_threads(kernels):
    x_TI, packed = torch.randn(37, 100), kernels.prepack(torch.randn(250, 100))
    whole = kernels.product(x_TI, packed)
    q, k, v, lengths = problem(9, 3, 64, LENGTHS)
    attended = kernels.decode_attention(q, k, v, lengths)
    for number in (1, 2, 3):
        threads(number)
        for rows in (slice(0, 1), slice(5, 11), slice(36, 37), slice(0, 37)):
            assert torch.equal(kernels.product(x_TI[rows], packed), whole[rows])
        for rows in (slice(0, 1), slice(2, 7), slice(0, 8)):
            found = kernels.decode_attention(q[rows], k[rows], v[rows], lengths[rows])
            assert torch.equal(found, attended[rows])


@needs_them
@pytest.mark.parametrize(("heads", "kv_heads", "width"), SHAPES)
def test_attention_equals_the_twin_and_reads_no_further(kernels, heads, kv_heads, width):
    """Beyond a row's length the cache holds NaN."""
    assert_equals_twin(kernels.decode_attention, *problem(heads, kv_heads, width, LENGTHS))


def use_them(monkeypatch):
    """Use the kernels on each CPU that can run them, also where torch's operations would be taken."""
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")


@needs_them
@pytest.mark.parametrize("family", ["qwen2", "qwen3", "llama"])
@pytest.mark.parametrize("rank", [0, 4])
def test_layers_in_one_call_equal_the_model_in_float64(tmp_path, monkeypatch, asked_anew, family, rank):
    """With biases, norms of heads, an adapter, sequences of different lengths and NaN beyond them in the cache; on its
    own, a row has the same bits, whatever the number of threads."""
    use_them(monkeypatch)
    write_checkpoint(tmp_path, family, intermediate_size=72)
    model, exact = (load(tmp_path, rank=rank, dtype=dtype) for dtype in (torch.float32, torch.float64))
    id_B, position_B = torch.tensor([5, 6, 7]), torch.tensor([0, 3, 40])
    started_BS = torch.arange(64) < torch.tensor([0, 3, 40, 0])[:, None]
    drawn = torch.randn(KVCache.of(model, 4, 64).kv_L2BKSE.shape, generator=torch.Generator().manual_seed(0))
    before = drawn.where(started_BS[:, None, :, None], torch.nan)

    def decode(rows, dtype=torch.float32):
        cache = KVCache(before[:, :, rows].to(dtype, copy=True))
        cache.kv_L2BKSE.nan_to_num_() if dtype == torch.float64 else None  # torch reads beyond, and multiplies by 0
        ids, positions = id_B[rows], position_B[rows]
        if dtype == torch.float32:
            return LayersInC.of(model)(ids, positions, cache.kv_L2BKSE), cache.kv_L2BKSE
        return exact(ids, positions, DecodeAttention.over_used_positions(cache, positions, 41)), cache.kv_L2BKSE

    with torch.inference_mode(), model.sampling():
        found, wanted = decode(slice(0, 3)), decode(slice(0, 3), torch.float64)
        for ours, slow in zip(found, wanted, strict=True):
            assert relative(ours.nan_to_num(), slow) <= 1e-6
        for number in (1, 3):
            threads(number)
            for b in range(3):
                hidden, kv = decode(slice(b, b + 1))
                assert torch.equal(hidden[0], found[0][b])
                assert torch.equal(kv[:, :, 0].nan_to_num(9), found[1][:, :, b].nan_to_num(9))
    assert LayersInC.of(model) is None  # nothing is packed any more


@needs_them
def test_it_is_compiled_once(tmp_path, monkeypatch):
    """A kept file needs no compiler. It is made anew for another source, and in place of a damaged one."""
    CpuKernels(tmp_path / "kept")
    (kept,) = (tmp_path / "kept").iterdir()
    commands = []
    run = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda command, **more: commands.append(command) or run(command, **more))
    CpuKernels(tmp_path / "kept")
    assert not commands
    whole = kept.read_bytes()
    for size in (0, 1000, len(whole) - 1):
        kept.unlink()  # this process still holds the old one
        kept.write_bytes(whole[:size])
        assert CpuKernels(tmp_path / "kept").attends(LANES)
        assert commands
        assert kept.read_bytes() == whole
        commands.clear()
    changed = tmp_path / "changed.c"
    changed.write_text(SOURCE.read_text() + "\n")
    monkeypatch.setattr("grpo.kernels.cpu.SOURCE", changed)
    CpuKernels(tmp_path / "kept")
    assert len(list((tmp_path / "kept").glob("*.so"))) == 2


@needs_them
def test_only_what_nobody_else_can_have_written_is_loaded(tmp_path, monkeypatch):
    """One entry that cannot be read, or that others may write, turns off itself alone; so does a folder of theirs."""
    folder, loaded = tmp_path / "kept", []
    CpuKernels(folder)
    (kept,) = folder.iterdir()
    load = ctypes.CDLL
    monkeypatch.setattr(ctypes, "CDLL", lambda name: loaded.append(name) or load(name))
    key = kept.name.rpartition("-")[0]
    (folder / f"{key}-a.so").symlink_to("nowhere")
    (folder / f"{key}-b.so").mkdir()
    os.mkfifo(folder / f"{key}-c.so")
    for path, mode in ((kept, 0o720), (kept, 0o702), (kept, 0o000), (folder, 0o777), (folder, 0o770)):
        before = path.stat().st_mode
        path.chmod(mode)
        kept.unlink() if mode == 0 and os.getuid() == 0 else None  # root reads all the same
        assert CpuKernels(folder).attends(LANES)
        assert path == folder or not kept.stat().st_mode & 0o077
        path.chmod(before)
    CpuKernels(folder)
    assert loaded[-1] == str(kept)
    monkeypatch.setattr(os, "getuid", lambda: kept.stat().st_uid + 1)
    assert not _is_mine(folder)
    assert not _is_mine(kept)


@needs_them
def test_a_folder_that_cannot_be_written_costs_a_compilation(tmp_path):
    (tmp_path / "file").write_text("")
    for folder in (None, tmp_path / "file" / "kernels"):
        assert CpuKernels(folder).attends(LANES)


@needs_them
def test_arguments_that_would_damage_memory_are_refused(kernels):
    packed = kernels.prepack(torch.ones(30, 40))
    q, k, v, lengths = problem(4, 2, 16, [3, 5])
    for call in (
        lambda: kernels.product(torch.ones(3, 39), packed),
        lambda: kernels.product(torch.ones(2, 3, 40), packed),
        lambda: kernels.product(torch.ones(3, 40).double(), packed),
        lambda: kernels.decode_attention(q, k, v, lengths.int()),
        lambda: kernels.decode_attention(q.double(), k, v, lengths),
        lambda: kernels.decode_attention(q, k.mT, v.mT, lengths),
    ):
        with pytest.raises(AssertionError):
            call()


@needs_them
def test_long_sums_are_exact_enough(kernels):
    """A chain of so many positive numbers would be off by ten times as much."""
    x_TI, weight_OI = torch.rand(2, 20_000), torch.rand(30, 20_000)
    wanted = x_TI.double() @ weight_OI.double().T
    assert ((kernels.product(x_TI, kernels.prepack(weight_OI)) - wanted) / wanted).abs().max() <= 1e-6


@needs_them
@pytest.mark.parametrize("broken", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_stays_so(kernels, broken):
    """The sampler finds broken weights by their log-probs."""
    x_TI, weight_OI = torch.ones(5, 40), torch.ones(30, 40)
    weight_OI[7, 3] = broken
    finite = kernels.product(x_TI, kernels.prepack(weight_OI)).isfinite()
    assert not finite[:, 7].any()
    assert finite.sum() == 5 * 29


@pytest.fixture
def asked_anew():
    """Whether the kernels can be used is found out once per process; here for each test."""
    kernel_choice._cpu_kernels.cache_clear()
    yield
    kernel_choice._cpu_kernels.cache_clear()


@pytest.mark.parametrize(("capability", "compiler", "reason"), [
    ("AVX512", "cc", "for AVX512 there are no kernels in C"),
    ("NO AVX", "cc", "for NO AVX there are no kernels in C"),
    ("AVX2", "/nonexistent", "the kernels in C failed: [Errno 2]"),
    ("AVX2", "cc '", "the kernels in C failed: ValueError"),
    ("AVX2", "false", "the kernels in C failed: OSError: Command"),
])  # fmt: skip
def test_without_them_torch_computes_it(monkeypatch, asked_anew, tmp_path, capability, compiler, reason):
    monkeypatch.setenv("CC", compiler)
    monkeypatch.setenv("GRPO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    weight = torch.randn(30, 20)
    assert kernel_choice.on_cpu(weight) is None
    assert isinstance(ops.prepack(weight), torch.Tensor)
    assert kernel_choice.describe("cpu").startswith(f"torch's own operations ({reason}")
    assert not list(tmp_path.rglob("*.so"))


@needs_them
def test_they_are_for_float32_alone_and_a_key_turns_them_off(monkeypatch, asked_anew):
    use_them(monkeypatch)
    assert kernel_choice.on_cpu(torch.ones(3))
    assert kernel_choice.describe("cpu") == "kernels in C while it generates in float32"
    assert not kernel_choice.on_cpu(torch.ones(3, dtype=torch.bfloat16)) and not kernel_choice.on_cpu(
        torch.ones(3).double()
    )
    monkeypatch.setattr(kernel_choice.ProcessSettings, "kernels", False)
    assert not kernel_choice.on_cpu(torch.ones(3))
    assert kernel_choice.describe("cpu") == "torch's own operations (kernels: none)"


@needs_them
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_the_self_test_does_not_depend_on_the_defaults_of_the_process(monkeypatch, asked_anew, dtype):
    use_them(monkeypatch)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device("meta"):
            assert kernel_choice.on_cpu(torch.ones(3, dtype=torch.float32, device="cpu")), kernel_choice.describe("cpu")
    finally:
        torch.set_default_dtype(before)


@needs_them
@pytest.mark.parametrize("name", ["product", "decode_attention"])
def test_wrong_results_are_noticed(monkeypatch, asked_anew, name):
    use_them(monkeypatch)
    right = getattr(CpuKernels, name)
    monkeypatch.setattr(CpuKernels, name, lambda *given: right(*given) * 1.001)
    assert not kernel_choice.on_cpu(torch.ones(3))
    assert "off by" in kernel_choice.describe("cpu")


def test_a_head_of_another_width_is_torchs():
    assert CpuKernels.attends(None, LANES)
    assert not CpuKernels.attends(None, LANES + 4)

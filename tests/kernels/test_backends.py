"""Which implementation is chosen: the first that is there and right; and on a GPU, ours are."""

import sys
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch
from making import refused

from grpo.base.errors import INTERNAL, MEMORY
from grpo.engine.attention import choice, decode, flash
from grpo.engine.attention.packed import PackedAttention
from grpo.engine.device import kernel_choice
from grpo.engine.sampling.decode_step import WARM_UPS, CudaCapture
from grpo.policy import choose_dtype


def missing():
    raise ModuleNotFoundError("No module named 'somewhere'")


def refusing():
    raise NotImplementedError("head dimension 96 is not supported\nsecond line")


@pytest.mark.parametrize(("error", "problem"), [
    (lambda: 1e-6, ""),
    (lambda: 1.1e-6, "wrong by 1.1e-06"),
    (lambda: float("nan"), "wrong by nan"),
    (missing, "not installed"),
    (refusing, "NotImplementedError: head dimension 96 is not supported"),
])  # fmt: skip
def test_a_self_test_says_what_is_wrong(error, problem):
    assert choice._problem(error, 1e-6) == problem


@pytest.mark.parametrize(("problems", "chosen"), [
    ({}, "flash-attn"),
    ({"flash-attn": "not installed"}, "triton (flash-attn: not installed)"),
    ({"flash-attn": "wrong", "triton": "slow"}, "sdpa (flash-attn: wrong, triton: slow)"),
])  # fmt: skip
def test_the_first_that_is_right_is_taken_and_the_log_says_why_not_the_others(monkeypatch, problems, chosen):
    model = model_of(4, 2, 16, torch.bfloat16, "cuda")
    monkeypatch.setattr(choice, "_tried", lambda name, heads: problems.get(name, ""))
    monkeypatch.setattr(choice, "flash_problem", lambda heads: "")
    assert choice.describe(model) == f"decode attention {chosen}; packed attention FlashAttention"
    assert chosen.startswith(choice.decode_kernel(model))
    monkeypatch.setattr(kernel_choice.ProcessSettings, "kernels", False)
    assert choice.decode_kernel(model) == "sdpa"


def model_of(num_heads, num_kv_heads, head_dim, dtype, device="cpu"):
    """What a choice looks at."""
    config = SimpleNamespace(num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim)
    return SimpleNamespace(shape=config, build=SimpleNamespace(dtype=dtype, device=device), can_be_captured=True)


def test_reading_beyond_a_length_is_noticed():
    """A decoder that ignores the lengths is wrong in the trial."""

    def careless(lengths, num_positions):
        return decode.sdpa(torch.full_like(lengths, num_positions), num_positions)

    heads = choice.Heads(4, 2, 16, torch.float32, "cpu")
    assert choice.decode_error(decode.sdpa, heads) < 1e-6 < 0.1 < choice.decode_error(careless, heads)


def test_a_wrong_gradient_is_noticed(monkeypatch):
    """Of packed attention, both the output and all gradients are compared."""
    heads = choice.Heads(4, 2, 16, torch.float32, "cpu")
    stand_in = lambda layout, device: PackedAttention(layout, torch.float32, device)  # noqa: E731
    monkeypatch.setattr(flash, "FlashPackedAttention", stand_in)
    assert choice.flash_error(heads) < 1e-6

    class Halved(PackedAttention):
        def attend(self, q_THE, k_TKE, v_TKE):
            return super().attend(q_THE, k_TKE, (v_TKE + v_TKE.detach()) / 2)

    monkeypatch.setattr(flash, "FlashPackedAttention", lambda layout, device: Halved(layout, torch.float32, device))
    assert choice.flash_error(heads) > 0.1


def test_a_failed_capture_ends_the_process(monkeypatch):
    """After it, the allocator is damaged: what comes next would fail for a reason that nobody understands."""
    monkeypatch.setattr(torch, "cuda", MagicMock())
    for error, code in ((RuntimeError("not permitted\nat all"), INTERNAL), (torch.OutOfMemoryError("full"), MEMORY)):
        step = MagicMock(side_effect=[None] * WARM_UPS + [error])
        found = refused(lambda step=step: CudaCapture()(step), "could not be recorded", exit_code=code)
        assert found.why.endswith(str(error).splitlines()[0])


def test_a_card_before_sm_80_has_torchs_operations_and_float16(monkeypatch):
    """Triton multiplies there without tensor cores, and its tiles spill hundreds of registers."""
    normed = torch.nn.functional.rms_norm(torch.ones(3, 100), (100,))
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: (7, 5))
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.is_bf16_supported", lambda including_emulation: False)
    monkeypatch.setattr("triton.knobs.runtime.interpret", False)
    monkeypatch.setattr(kernel_choice, "_waves", lambda *shape, device: torch.ones(shape))
    monkeypatch.setitem(sys.modules, "grpo.kernels.rms_norm", SimpleNamespace(rms_norm=lambda *_: (normed, None)))
    assert "sm_75" in kernel_choice.triton_problem.__wrapped__()
    assert choose_dtype("auto", torch.device("cuda")) == torch.float16


@pytest.mark.gpu
@pytest.mark.parametrize(("heads", "kv_heads", "width"), [(28, 4, 128), (12, 2, 128), (14, 2, 64), (16, 8, 128)])
def test_our_kernels_and_flash_attention_pass_on_a_gpu(heads, kv_heads, width):
    model = model_of(heads, kv_heads, width, torch.bfloat16, "cuda")
    assert choice.decode_problem("triton", choice.Heads.of(model)) == ""
    assert choice.flash_problem(choice.Heads.of(model)) == ""


@pytest.mark.gpu
def test_the_self_test_on_a_gpu_draws_nothing():
    before = torch.cuda.get_rng_state()
    assert kernel_choice.triton_problem.__wrapped__() == ""
    assert kernel_choice.uses_kernels(torch.ones(3, device="cuda"))
    assert torch.equal(torch.cuda.get_rng_state(), before)

"""Split-KV attention over the slot cache, against float64; everything beyond a row's length is NaN."""

import pytest
import torch
from grpo.kernels.decode_attention import POSITIONS, choose_splits, decode_attention
from grpo.kernels.twins import decode_attention as slow
from test_layers import random

LENGTHS = [1, 2, POSITIONS - 1, POSITIONS, POSITIONS + 1, 200, 0, 131]


def problem(heads, kv_heads, width, lengths=LENGTHS, dtype=torch.float32, device="cpu", positions=210):
    """Views of a larger cache, as grpo/engine/sampling/decode_step.py gives them."""
    kv = torch.full((2, len(lengths) + 2, kv_heads, positions + 30, width), float("nan"))
    for slot, length in enumerate(lengths):
        kv[:, slot, :, :length] = random(2, kv_heads, length, width)
    q = random(len(lengths), heads, width, dtype=dtype, device=device)
    k, v = kv.to(dtype).to(device)[:, : len(lengths), :, :positions]
    return q, k, v, torch.tensor(lengths, device=device)


def assert_equals_twin(attend, q, k, v, lengths):
    """Also with scores of ±1e4: a softmax without its maximum subtracted would overflow."""
    for factor, tolerance in ((1, 2e-6), (1e4, 1e-2)):
        wanted = slow(q * factor, k.nan_to_num(), v.nan_to_num(), lengths)
        assert (attend(q * factor, k, v, lengths) - wanted).abs().max() <= tolerance


SHAPES = [(4, 2, 16), (7, 1, 64), (12, 2, 128), (3, 3, 8), (20, 1, 24)]


@pytest.mark.parametrize("splits", [1, 4])
@pytest.mark.parametrize(("heads", "kv_heads", "width"), SHAPES)
def test_equals_the_twin(device, heads, kv_heads, width, splits):
    """GQA groups of 1 to 20, head widths that are and are not powers of two."""
    attend = lambda *given: decode_attention(*given, 210, splits)  # noqa: E731
    assert_equals_twin(attend, *problem(heads, kv_heads, width, device=device))


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(device, dtype, splits):
    if device == "cpu" and dtype == torch.bfloat16:
        pytest.skip("the interpreter multiplies bfloat16's bits as integers")
    q, k, v, lengths = problem(14, 2, 64, dtype=dtype, device=device)
    wanted = slow(q, k.nan_to_num(), v.nan_to_num(), lengths)
    error = (decode_attention(q, k, v, lengths, 210, splits).double() - wanted).norm() / wanted.norm()
    assert error <= (6e-3 if dtype == torch.bfloat16 else 1e-3)


def test_number_of_stretches():
    """On 132 multiprocessors: many for one sequence, one when the rows fill the device, none shorter than four
    tiles."""
    assert choose_splits(4, 4096, 132) == 16
    assert choose_splits(96 * 4, 1280, 132) == 2
    assert choose_splits(288 * 4, 1280, 132) == 1
    assert choose_splits(4, 100, 132) == 1

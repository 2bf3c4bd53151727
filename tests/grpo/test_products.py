"""y = x Wᵀ + b, packed and not, against float64; what oneDNN promises here and torch's own products do not."""

import ctypes
import os
import sys

import pytest
import torch
from commands import python

from grpo.engine.device import products
from grpo.engine.device.ops import append_product
from grpo.engine.device.products import Product, add_product, linear, prepack

TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float64: 1e-5}
needs_onednn = pytest.mark.skipif(not products.onednn_dtypes(), reason="this build of torch has no oneDNN products")


def case(dtype, rows=20, inputs=48, outputs=72):
    torch.manual_seed(0)
    return torch.randn(rows, inputs).to(dtype), torch.randn(outputs, inputs).to(dtype), torch.randn(outputs).to(dtype)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("rows", [0, 1, 20])
@pytest.mark.parametrize("layout", ["plain", "transposed", "gaps", "packed"])
def test_equals_float64(dtype, rows, layout):
    x, weight, bias = case(dtype, rows)
    stored = {
        "plain": weight,
        "transposed": weight.T.contiguous().T,
        "gaps": torch.cat([weight, weight], dim=1)[:, :48],
        "packed": prepack(weight),
    }[layout]
    wanted = x.double() @ weight.double().T + bias.double()
    tolerance = TOLERANCES[dtype]
    torch.testing.assert_close(linear(x, stored, bias).double(), wanted, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(linear(x, stored).double(), wanted - bias.double(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_gradients_are_those_of_autograd(dtype):
    inputs = [x.requires_grad_() for x in case(dtype)]
    g = torch.randn(20, 72).to(dtype)
    got = torch.autograd.grad(Product.apply(*inputs), inputs, g)
    wanted = torch.autograd.grad(torch.nn.functional.linear(*inputs), inputs, g)
    for ours, theirs in zip(got, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=TOLERANCES[dtype], atol=2.5 * TOLERANCES[dtype])


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_a_product_appended_to_its_input_and_one_that_is_added(dtype):
    """Also where the input has spare columns for it: then nothing is copied."""
    x, weight, _ = case(dtype)
    wanted = torch.cat([x, linear(x, weight)], dim=1)
    assert torch.equal(append_product(x, prepack(weight))[0], wanted)
    wide = torch.cat([x, torch.full((20, 72), float("nan"), dtype=dtype)], dim=1)[None]
    assert append_product(wide, prepack(weight))[0].data_ptr() == wide.data_ptr() and torch.equal(wide[0], wanted)
    y = torch.randn(20, 72).to(dtype)
    assert torch.equal(add_product(y.clone(), x, weight), y + linear(x, weight))


def test_a_cpu_without_bfloat16_keeps_onednn_for_float32():
    """Whether a dtype works says nothing about the other: most laptops have float32 alone."""
    assert torch.float32 in products.onednn_dtypes() or not hasattr(torch.ops.mkldnn, "_linear_pointwise")


@needs_onednn
@pytest.mark.parametrize("dtype", products.onednn_dtypes())
def test_packing_and_the_other_rows_change_no_bit(dtype):
    """With matrix units (AMX), oneDNN adds bfloat16 products of few rows in another order: then a rounding apart."""
    x, weight, bias = case(dtype, rows=100, inputs=528, outputs=704)
    packed = prepack(weight)
    assert packed is not weight
    whole = linear(x, weight, bias)
    has_matrix_units = dtype == torch.bfloat16 and torch.cpu._is_amx_tile_supported()
    for rows in (1, 2, 3, 17, 48, 99):
        for stored in (packed, weight):
            found = linear(x[:rows], stored, bias)
            if has_matrix_units:
                torch.testing.assert_close(found, whole[:rows], rtol=2**-7, atol=2**-3)
            else:
                assert torch.equal(found, whole[:rows])


def test_without_onednn_torch_computes_it(monkeypatch):
    monkeypatch.setattr(products, "onednn_dtypes", lambda: ())
    x, weight, bias = case(torch.float32)
    assert prepack(weight) is weight
    assert torch.equal(linear(x, prepack(weight), bias), torch.nn.functional.linear(x, weight, bias))


def test_cublas_is_told_to_add_parts_of_a_product_in_float32():
    settings = torch.backends.cuda.matmul
    assert not settings.allow_bf16_reduced_precision_reduction
    assert not settings.allow_fp16_reduced_precision_reduction


class MallocInfo(ctypes.Structure):
    """glibc's struct mallinfo2."""

    _fields_ = [(name, ctypes.c_size_t) for name in "arena a b c mapped d e used free top".split()]


@needs_onednn
@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="this C library does not count what it gave")
def test_products_of_ever_new_shapes_do_not_fill_the_memory():
    """Steps with new lengths. Kept without limit, the products of 500 new shapes took 220 MB."""
    script = """
import torch
from grpo.engine.device.products import linear, weight_gradient
from test_products import used_bytes
weight = torch.ones(96, 64)
for rows in range(2, 702):
    x = torch.ones(rows, 64)
    weight_gradient(linear(x, weight), x)
    if rows in (201, 701):
        print(used_bytes())
"""
    early, late = map(int, python("-c", script, PYTHONPATH=os.pathsep.join(sys.path)).stdout.split())
    assert late - early < 30e6


def used_bytes():
    """Memory that this process has allocated and not freed."""
    count = ctypes.CDLL(None).mallinfo2
    count.restype = MallocInfo
    return count().used


@pytest.mark.parametrize("works", [torch.bfloat16, None])
def test_emulated_products_are_announced(monkeypatch, works):
    monkeypatch.setattr(products, "onednn_dtypes", lambda: (torch.float32, works))
    assert bool(products.slow_dtype(torch.bfloat16, torch.device("cpu"))) == (works is None)
    assert not products.slow_dtype(torch.float32, torch.device("cpu"))
    assert not products.slow_dtype(torch.bfloat16, torch.device("cuda"))

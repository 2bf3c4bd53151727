"""RMSNorm, SwiGLU and rotary positions against float64, forward and backward."""

import pytest
import torch
from grpo.kernels import reference
from grpo.kernels.rms_norm import MAX_PROGRAMS, rms_norm
from grpo.kernels.rotary import rotate, rotate_into_cache
from grpo.kernels.swiglu import TILE, swiglu

from grpo.device.products import append_product

BF16 = torch.bfloat16


def random(*shape, seed=0, dtype=torch.float32, device="cpu"):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape))).to(dtype).to(device)


def relative(got, wanted):
    return float((got.detach().double() - wanted.detach()).norm() / wanted.detach().norm())


def gradients(outputs, weights, inputs):
    return torch.autograd.grad(
        [sum((y.double() * w.double()).sum() for y, w in zip(outputs, weights, strict=True))], inputs
    )


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize(("rows", "width"), [(1, 1), (5, 100), (33, 128), (700, 64), (3, 3584), (2, 5000)])
def test_rms_norm(device, rows, width, residual):
    x, w, dy, dh = (
        random(*shape, seed=i, device=device)
        for i, shape in enumerate([(rows, width), (width,), (rows, width), (rows, width)])
    )
    inputs = [x.requires_grad_(), w.requires_grad_()] + (
        [random(rows, width, seed=9, device=device).requires_grad_()] if residual else []
    )
    outputs = {
        name: function(inputs[0], inputs[1], 1e-6, *inputs[2:])
        for name, function in (("ours", rms_norm), ("slow", reference.rms_norm))
    }
    assert all(relative(got, wanted) <= 1e-6 for got, wanted in zip(outputs["ours"], outputs["slow"], strict=True))
    ours, slow = (gradients(outputs[name], (dy, dh), inputs) for name in ("ours", "slow"))
    assert all(relative(got, wanted) <= 2e-6 for got, wanted in zip(ours, slow, strict=True))


def test_the_weights_gradient_is_over_all_rows(device):
    """Also where a program takes several tiles of them."""
    width, rows = 4096, MAX_PROGRAMS + 3  # one row to a tile
    x, w, dy = (
        random(*shape, seed=i, device=device) for i, shape in enumerate([(rows, width), (width,), (rows, width)])
    )
    inputs = [x.requires_grad_(), w.requires_grad_()]
    ours, slow = (gradients([function(x, w, 1e-6)[0]], [dy], inputs) for function in (rms_norm, reference.rms_norm))
    assert all(relative(got, wanted) <= 2e-6 for got, wanted in zip(ours, slow, strict=True))


def test_rms_norm_in_bfloat16_rounds_as_the_model_does(device, bf16_step):
    """The same roundings as model.RMSNorm: of the normalised row, then of its product with the weight. (Equal on a GPU
    but for a few entries next to an edge; the interpreter cuts off, so there only the bound holds.)"""
    x, w = random(9, 300, dtype=BF16, device=device), random(300, seed=1, dtype=BF16, device=device)
    exact = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6)
    y, _ = rms_norm(x, w, 1e-6)
    wanted = exact.to(BF16) * w
    assert relative(y, wanted.double()) <= 2 * bf16_step and (device == "cpu" or (y != wanted).float().mean() <= 0.01)


def test_rms_norm_with_a_frozen_weight_and_one_output_used(device):
    x, residual, w = (
        random(4, 96, device=device).requires_grad_(),
        random(4, 96, seed=1, device=device).requires_grad_(),
        random(96, seed=2, device=device),
    )
    for used in (0, 1):
        ours = torch.autograd.grad(rms_norm(x, w, 1e-6, residual)[used].square().sum(), (x, residual))
        slow = torch.autograd.grad(reference.rms_norm(x, w, 1e-6, residual)[used].square().sum(), (x, residual))
        assert all(relative(got, wanted) <= 2e-6 for got, wanted in zip(ours, slow, strict=True))


def test_rms_norm_of_heads(device):
    """The norm of Qwen3's queries: rows are heads, in a view of a joint product."""
    joint, w = random(6, 5 * 16, device=device), random(16, seed=1, device=device)
    heads = joint[:, 16:64].unflatten(-1, (-1, 16))
    assert relative(rms_norm(heads, w, 1e-6)[0], reference.rms_norm(heads, w, 1e-6)[0]) <= 1e-6


@pytest.mark.parametrize(("rows", "width"), [(1, 1), (3, TILE - 1), (2, TILE), (5, 2 * TILE + 9)])
def test_swiglu(device, rows, width):
    joint = random(rows, 2 * width, device=device)
    gate, up = (x.requires_grad_() for x in joint.split(width, dim=-1))  # views of one product
    dy = random(rows, width, seed=1, device=device)
    ours, slow = (function(gate, up) for function in (swiglu, reference.swiglu))
    assert relative(ours, slow) <= 1e-6
    assert all(
        relative(a, b) <= 2e-6
        for a, b in zip(gradients([ours], [dy], (gate, up)), gradients([slow], [dy], (gate, up)), strict=True)
    )


@pytest.mark.parametrize("dtype", [torch.float32, BF16])
def test_room_for_the_next_product_in_norm_and_swiglu(device, dtype):
    """The copies are the same, and the spare columns are left alone; `append_product` then fills them."""
    x, residual, gate = (random(5, 48, seed=i, dtype=dtype, device=device) for i in range(3))
    w, A = random(48, seed=3, dtype=dtype, device=device), random(8, 48, seed=4, dtype=dtype, device=device)
    with torch.inference_mode():
        cases = [(rms_norm, (x, w, 1e-6, residual), 1), (rms_norm, (x, w, 1e-6, residual), 2), (swiglu, (gate, x), 1)]
        for function, inputs, copies in cases:
            columns = 8 // copies
            alone, wide = function(*inputs), function(*inputs, room=(copies, columns))
            if function is rms_norm:
                assert torch.equal(alone[1], wide[1])
                alone, wide = alone[0], wide[0]
            assert wide.shape == (copies, 5, 48 + columns) and wide[..., 48:].isnan().all()
            assert all(torch.equal(copy, alone) for copy in wide[..., :48])
            filled = append_product(wide, A, copies)
            assert filled[0].data_ptr() == wide.data_ptr()
            for got, wanted in zip(filled, append_product(alone, A, copies), strict=True):
                assert relative(got, wanted.double()) <= (1e-6 if dtype == torch.float32 else 8e-3)


def test_gradients_that_arrive_with_gaps_between_rows(device):
    """As they do from a product that holds the adapter's columns, too."""
    x, w = random(6, 40, device=device).requires_grad_(), random(40, seed=1, device=device).requires_grad_()
    gate = random(6, 40, seed=2, device=device).requires_grad_()
    dy, dh = random(2, 6, 56, seed=3, device=device)[..., :40]
    assert not dy.is_contiguous()
    mine = torch.autograd.grad(rms_norm(x, w, 1e-6, gate), (x, w, gate), (dy, dh))
    wanted = gradients(reference.rms_norm(x, w, 1e-6, gate), (dy, dh), (x, w, gate))
    mine += torch.autograd.grad(swiglu(gate, x), (gate, x), dy)
    wanted += gradients([reference.swiglu(gate, x)], [dy], (gate, x))
    assert all(relative(a, b) <= 2e-6 for a, b in zip(mine, wanted, strict=True))


def test_swiglu_of_large_gates(device):
    gate = torch.tensor([[-1e4, -90.0, 0.0, 90.0, 1e4]], device=device).requires_grad_()
    up = torch.ones_like(gate)
    y = swiglu(gate, up)
    (dgate,) = torch.autograd.grad(y.sum(), gate)
    assert (
        torch.allclose(y.double(), reference.swiglu(gate, up), atol=1e-30)
        and dgate.isfinite().all()
        and dgate[0, -1] == 1
    )


def angles(rows, width, device, dtype=torch.float32):
    angle = random(rows, 1, width // 2, seed=3, device=device)
    return tuple(torch.cat([f(angle)] * 2, -1).to(dtype) for f in (torch.cos, torch.sin))


@pytest.mark.parametrize(("rows", "heads", "width"), [(1, 1, 2), (7, 3, 24), (4, 28, 128)])
def test_rotate(device, rows, heads, width):
    joint = random(rows, (heads + 2) * width, device=device)
    x = joint[:, width:-width].unflatten(-1, (-1, width)).requires_grad_()
    cos, sin = angles(rows, width, device)
    dy = random(rows, heads, width, seed=1, device=device)
    ours, slow = rotate(x, cos, sin), reference.rotate(x, cos, sin)
    assert relative(ours, slow) <= 1e-6
    assert relative(gradients([ours], [dy], (x,))[0], gradients([slow], [dy], (x,))[0]) <= 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, BF16])
@pytest.mark.parametrize(("heads", "kv_heads", "width"), [(4, 2, 16), (3, 1, 24)])
def test_rotate_into_cache(device, heads, kv_heads, width, dtype):
    """Queries, keys and values are views of one product; nothing else in the cache is touched."""
    B, S = 5, 11
    joint = random(B, (heads + 2 * kv_heads) * width, dtype=dtype, device=device)
    q, k, v = (
        x.unflatten(-1, (-1, width)) for x in joint.split([heads * width, kv_heads * width, kv_heads * width], -1)
    )
    cos, sin = angles(B, width, device, dtype)
    position = torch.tensor([0, 10, 3, 3, 7], device=device)
    cache = torch.zeros(2, B + 1, kv_heads, S + 2, width, dtype=dtype, device=device)
    rotated = rotate_into_cache(q, k, v, cos, sin, *cache[:, :B, :, :S], position)
    wanted = torch.zeros_like(cache)
    for row in range(B):
        wanted[0, row, :, position[row]] = reference.rotate(k, cos, sin)[row].to(dtype)
        wanted[1, row, :, position[row]] = v[row]
    bound = 1e-6 if dtype == torch.float32 else 4e-3
    assert relative(rotated, reference.rotate(q, cos, sin)) <= bound and relative(cache, wanted.double()) <= bound
    assert torch.equal(cache == 0, wanted == 0)


def test_same_bits_again(device):
    """Gradients of the weight, too: summed over programs in a fixed order."""
    x, w, dy = (
        random(3000, 40, device=device).requires_grad_(),
        random(40, seed=1, device=device).requires_grad_(),
        random(3000, 40, seed=2, device=device),
    )
    first, again = (gradients([rms_norm(x, w, 1e-6)[0]], [dy], (x, w)) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))

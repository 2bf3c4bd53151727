"""RMSNorm, SwiGLU and rotary positions against float64, forward and backward."""

import pytest
import torch
from grpo.kernels import twins
from grpo.kernels.append_product import append_product as fused_append
from grpo.kernels.rms_norm import MAX_PROGRAMS, rms_norm
from grpo.kernels.rotary import rotate, rotate_into_cache
from grpo.kernels.swiglu import TILE, swiglu

BF16 = torch.bfloat16


def random(*shape, seed=0, dtype=torch.float32, device="cpu"):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape))).to(dtype).to(device)


def relative(got, wanted):
    return float((got.detach().double() - wanted.detach()).norm() / wanted.detach().norm())


def results_of(function, inputs, used, gap):
    """Its outputs, and the gradients of the inputs that take one, by those outputs that are used."""
    outputs = function(*inputs)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    arriving = []
    for place, y in enumerate(outputs[used]):
        wide = random(*y.shape[:-1], y.shape[-1] + gap, seed=place, dtype=y.dtype, device=y.device)
        arriving.append(wide[..., : y.shape[-1]])
    return outputs, torch.autograd.grad(outputs[used], [x for x in inputs if x.requires_grad], arriving)


def assert_equals_twin(function, twin, *inputs, used=slice(None), gap=0):
    """gap: between the rows of gradients that arrive, as from a product that holds an adapter's columns too."""
    ours, slow = (results_of(one, inputs, used, gap) for one in (function, twin))
    for found, wanted, bound in zip(ours, slow, (1e-6, 2e-6), strict=True):
        assert all(relative(got, exact) <= bound for got, exact in zip(found, wanted, strict=True))


def assert_norm_equals_twin(*inputs, **options):
    norms = [lambda x, w, *residual, norm=norm: norm(x, w, 1e-6, *residual) for norm in (rms_norm, twins.rms_norm)]
    assert_equals_twin(*norms, *inputs, **options)


def leaves(*shapes, device):
    return [random(*shape, seed=number, device=device).requires_grad_() for number, shape in enumerate(shapes)]


SHAPES = [(1, 1), (5, 100), (33, 128), (700, 64), (3, 3584), (2, 5000)]


@pytest.mark.parametrize(("rows", "width", "residual", "options"), [
    *((*shape, residual, {}) for shape in SHAPES for residual in (False, True)),
    (MAX_PROGRAMS + 3, 4096, False, {}),  # a program takes several tiles, of one row each
    (4, 96, True, {"used": slice(0, 1)}),
    (4, 96, True, {"used": slice(1, 2)}),
    (6, 40, True, {"gap": 16}),
])  # fmt: skip
def test_rms_norm(device, rows, width, residual, options):
    x, w, *added = leaves((rows, width), (width,), *[(rows, width)] * residual, device=device)
    w.requires_grad_("used" not in options)  # frozen where one output is used
    assert_norm_equals_twin(x, w, *added, **options)


def test_rms_norm_in_bfloat16_rounds_as_the_model_does(device, bf16_step):
    """The same roundings as model.RMSNorm: of the normalised row, then of its product with the weight. (Equal on a GPU
    but for a few entries next to an edge; the interpreter cuts off, so there only the bound holds.)"""
    x, w = random(9, 300, dtype=BF16, device=device), random(300, seed=1, dtype=BF16, device=device)
    exact = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6)
    y, _ = rms_norm(x, w, 1e-6)
    wanted = exact.to(BF16) * w
    assert relative(y, wanted.double()) <= 2 * bf16_step
    assert device == "cpu" or (y != wanted).float().mean() <= 0.01


def test_rms_norm_of_heads(device):
    """The norm of Qwen3's queries: rows are heads, in a view of a joint product."""
    joint, w = leaves((6, 5 * 16), (16,), device=device)
    assert_norm_equals_twin(joint[:, 16:64].unflatten(-1, (-1, 16)), w)


@pytest.mark.parametrize(
    ("rows", "width", "gap"), [(1, 1, 0), (3, TILE - 1, 0), (2, TILE, 0), (5, 2 * TILE + 9, 0), (6, 40, 16)]
)
def test_swiglu(device, rows, width, gap):
    (joint,) = leaves((rows, 2 * width), device=device)
    assert_equals_twin(swiglu, twins.swiglu, *joint.split(width, dim=-1), gap=gap)  # views of one product


@pytest.mark.parametrize("dtype", [torch.float32, BF16])
@pytest.mark.parametrize(
    ("rows", "width", "rank", "copies"),
    [(1, 1, 1, 1), (3, 1024, 4, 1), (5, 1030, 6, 1), (4, 2100, 12, 3), (0, 8, 4, 1)],
)
def test_append_product(device, rows, width, rank, copies, dtype):
    """To rows of a larger tensor, which are copied, and to copies that have room. A row's bits are its own."""
    joint, A = random(rows, width + 8, dtype=dtype, device=device), random(rank, width, dtype=dtype, device=device)
    x = joint[:, 8:]
    wide = torch.full((copies, rows, width + rank // copies), float("nan"), dtype=dtype, device=device)
    wide[..., :width] = x
    made, filled = fused_append(x, A, copies), fused_append(wide, A, copies)
    assert filled[0].data_ptr() == wide.data_ptr()
    assert len(made) == len(filled) == copies
    for got, again, wanted in zip(made, filled, twins.append_product(x, A, copies), strict=True):
        assert torch.equal(got, again)
        assert torch.equal(got[:, :width], x)
        assert not rows or relative(got, wanted) <= (1e-6 if dtype == torch.float32 else 2**-8)
    if rows:
        assert torch.equal(fused_append(x[-1:], A)[0], fused_append(x, A)[0][-1:])


def test_swiglu_of_large_gates(device):
    gate = torch.tensor([[-1e4, -90.0, 0.0, 90.0, 1e4]], device=device).requires_grad_()
    y = swiglu(gate, torch.ones_like(gate))
    (dgate,) = torch.autograd.grad(y.sum(), gate)
    assert torch.allclose(y.double(), twins.swiglu(gate, torch.ones_like(gate)), atol=1e-30)
    assert dgate.isfinite().all()
    assert dgate[0, -1] == 1


def angles(rows, width, device, dtype=torch.float32):
    angle = random(rows, 1, width // 2, seed=3, device=device)
    return tuple(torch.cat([f(angle)] * 2, -1).to(dtype) for f in (torch.cos, torch.sin))


@pytest.mark.parametrize(("rows", "heads", "width"), [(1, 1, 2), (7, 3, 24), (4, 28, 128)])
def test_rotate(device, rows, heads, width):
    (joint,) = leaves((rows, (heads + 2) * width), device=device)
    x = joint[:, width:-width].unflatten(-1, (-1, width))
    assert_equals_twin(rotate, twins.rotate, x, *angles(rows, width, device))


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
        wanted[0, row, :, position[row]] = twins.rotate(k, cos, sin)[row].to(dtype)
        wanted[1, row, :, position[row]] = v[row]
    bound = 1e-6 if dtype == torch.float32 else 4e-3
    assert relative(rotated, twins.rotate(q, cos, sin)) <= bound
    assert relative(cache, wanted.double()) <= bound
    assert torch.equal(cache == 0, wanted == 0)

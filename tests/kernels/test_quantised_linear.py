"""Products of few rows with a weight in 8 or 4 bits, against float64; rows and columns beyond the matrices are NaN."""

import pytest
import torch
from grpo.kernels.quantised_linear import MOST_ROWS, quantised_linear
from grpo.kernels.twins import int8_rows, lora_linear, nf4_rows
from test_layers import random

from grpo.engine.device.quantised import FORMATS, levels_of
from grpo.engine.model.build import Build
from grpo.engine.model.weight import QuantisedWeight

TWINS = {"int8": int8_rows, "nf4": nf4_rows}
HELD = pytest.mark.parametrize("held", TWINS)


def problem(rows, outputs, inputs, columns, dtype, device, held="int8"):
    """The input [x | h], with other numbers to its right, the weight, and the numbers that it was made of."""
    options = {"dtype": dtype, "device": device}
    exact = random(outputs, inputs, **options)
    weight = QuantisedWeight(Build(None, False, dtype, device, FORMATS[held]), outputs, inputs, columns)
    weight.rows().copy_(exact)
    weight.tail.copy_(random(outputs, columns, **options))
    wide = torch.full((rows, inputs + columns + 8), float("nan"), **options)
    x = wide[:, : inputs + columns].copy_(random(rows, inputs + columns, **options))
    return x, weight.rows(tail=columns), random(outputs, **options), exact


def kernel(x, weight, bias=None):
    levels = levels_of(weight.format, x.device)
    return quantised_linear(x, weight.q_OX, weight.scale_OX, weight.tail_OR, bias, levels)


SHAPES = [(1, 1, 2, 0), (5, 40, 24, 3), (17, 33, 320, 0), (MOST_ROWS + 3, 70, 130, 140)]


@HELD
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_equals_the_twin(device, shape, dtype, held):
    """y = x Wᵀ + h tailᵀ + b: the twin's A picks h out of the input."""
    if device == "cpu" and dtype == torch.bfloat16:
        pytest.skip("the interpreter multiplies bfloat16's bits as integers")
    x, weight, bias, exact = problem(*shape, dtype, device, held)
    _, outputs, inputs, columns = shape
    W = torch.cat([TWINS[held](exact.cpu()).to(device), torch.zeros(outputs, columns, device=device)], dim=1)
    A = torch.eye(inputs + columns, device=device)[inputs:]
    error = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 6e-3}[dtype]
    for b in (None, bias):
        wanted = lora_linear(x, W, b, A, weight.tail_OR, 1.0)
        assert (kernel(x, weight, b).double() - wanted).norm() <= error * wanted.norm()


@HELD
def test_it_multiplies_by_the_numbers_that_training_uses(device, held):
    """Exactly: with a unit vector as input, the output is a column of the dequantised weight."""
    _, weight, _, _ = problem(1, 40, 16, 4, torch.float16, device, held)
    units = torch.eye(20, dtype=torch.float16, device=device)
    assert torch.equal(kernel(units, weight).T, weight.dequantise())

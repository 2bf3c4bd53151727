"""What bfloat16 would lose: an update of the size of a first step (lr 1e-5), and the sum of many gradients.

On a CPU, torch adds bfloat16 in float32 by itself; on a GPU it would round at every addition.
"""

from contextlib import nullcontext

import pytest
import torch

from grpo.algorithm.logprobs import _Sources
from grpo.engine.device.quantised import FORMATS
from grpo.engine.model.build import Build, LoraSpec
from grpo.engine.model.lora import Linear

WIDTH, RANK = 512, 64


@pytest.mark.parametrize(
    ("dtype", "held"), [("bfloat16", None), ("bfloat16", "int8"), ("bfloat16", "nf4"), ("float32", None)]
)
@pytest.mark.parametrize("decoding", [False, True])
def test_the_slope_on_the_exact_change(device, decoding, dtype, held):
    """Rounding hides a change below a step of the output, but not on average; over 1024 x 512 outputs the slope's
    standard error is about 0.01 in bfloat16. A bfloat16 weight that the change is merged into would lose much of it;
    one in float32 does not, and is what a CPU decodes with."""
    dtype = getattr(torch, dtype)
    generator = torch.Generator().manual_seed(0)
    build = Build(LoraSpec(RANK, 2 * RANK, targets=("o_proj",)), False, dtype, device, FORMATS.get(held))
    layer = Linear(WIDTH, {"o_proj": WIDTH}, False, build)
    layer.base("o_proj")[0].copy_(torch.randn(WIDTH, WIDTH, generator=generator) / WIDTH**0.5)
    layer.init_adapter(generator)
    x = torch.randn(1024, WIDTH, generator=generator).to(dtype).to(device)

    def outputs():
        layer.refresh()
        with torch.no_grad(), layer.sampling() if decoding else nullcontext():
            (y,) = layer(x)
            is_merged = layer.prepacked is not None and layer.prepacked.A_RI is None
            assert is_merged == (decoding and dtype == torch.float32 and device == "cpu")
            return y.double()

    before = outputs()
    A, B = layer.adapter("o_proj")
    B.copy_(torch.randn(WIDTH, RANK, generator=generator).sign() * 1e-5)
    exact = layer.lora.scale * (x.double() @ A.double().T) @ B.double().T
    slope = float(((outputs() - before) * exact).sum() / exact.square().sum())
    assert 0.95 <= slope <= 1.05


def test_the_gradient_of_a_prompts_last_token_is_summed_in_float32(device):
    """Of 96 completions: rounded at the end only, by half a step; rounded 96 times it would be many."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(5, 300, generator=generator).bfloat16().to(device).requires_grad_()
    source = torch.tensor([3] * 96 + [0, 4, 0], device=device)
    gradient = (1 + torch.rand(99, 300, generator=generator)).bfloat16().to(device)
    taken = _Sources.apply(hidden, source)
    taken.backward(gradient)
    exact = torch.zeros(5, 300, dtype=torch.float64, device=device).index_add_(0, source, gradient.double())
    assert torch.equal(taken, hidden[source])
    assert ((hidden.grad.double() - exact).abs() <= 0.51 * 2**-7 * exact).all()

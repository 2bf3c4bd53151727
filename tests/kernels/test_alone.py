"""Each row of a kernel's result is its own: the same bits again, in other company; and of no rows there is
nothing."""

import pytest
import torch
from grpo.kernels.decode_attention import decode_attention
from grpo.kernels.inverse_cdf import PIECE, draw_rows
from grpo.kernels.log_softmax_rows import TILE, log_softmax_rows
from grpo.kernels.nucleus import thresholds
from grpo.kernels.quantised_linear import quantised_linear
from grpo.kernels.rms_norm import rms_norm
from test_layers import random

from grpo.engine.device.quantised import FORMATS
from grpo.engine.model.build import Build
from grpo.engine.model.weight import QuantisedWeight

ROWS = 5


def weight(device):
    made = QuantisedWeight(Build(None, False, torch.float16, device, FORMATS["int8"]), 70, 129).rows()
    made.copy_(random(70, 129))
    return made


def drawn(logits, seeds, positions):
    """What is recorded, and the tokens that are returned."""
    record = (
        torch.zeros(len(logits), 400, dtype=torch.int64, device=logits.device),
        *logits.new_zeros(2, len(logits), 400),
    )
    return *record, draw_rows(logits, seeds, positions, 0.9, None, record)


SEEDS = torch.arange(ROWS) * 77
CASES = {  # the rows that are given; and the results, one for each row
    "log_softmax_rows": (
        [random(ROWS, TILE + 999), SEEDS],
        lambda logits, targets: log_softmax_rows(logits.clone(), targets, 1.0, torch.float32),
    ),
    "draw_rows": (
        [random(ROWS, PIECE + 3), SEEDS, SEEDS],
        drawn,
    ),
    "thresholds": ([random(ROWS, PIECE + 5)], lambda logits: thresholds(logits, 0.9, 0, 0.9)),
    "decode_attention": (
        [random(ROWS, 12, 64), *random(2, ROWS, 2, 210, 64), torch.tensor([1, 200, 131, 64, 65])],
        lambda q, k, v, lengths: [decode_attention(q, k, v, lengths, 210, 3)],
    ),
    "quantised_linear": (
        [random(ROWS, 129, dtype=torch.float16)],
        lambda x: [quantised_linear(x, (W := weight(x.device)).q_OX, W.scale_OX, W.tail_OR, None)],
    ),
    "rms_norm": ([random(ROWS, 16)], lambda x: rms_norm(x, random(16).to(x.device), 1e-6)[:1]),
}


@pytest.mark.parametrize("name", CASES)
def test_a_row_is_its_own(device, name):
    given, compute = CASES[name]
    given = [x.to(device) for x in given]
    first = compute(*given)
    assert all(map(torch.equal, first, compute(*given)))
    alone = compute(*(x[2:4] for x in given))
    assert all(torch.equal(together[2:4], one) for together, one in zip(first, alone, strict=True))
    assert all(len(result) == 0 for result in compute(*(x[:0] for x in given)))

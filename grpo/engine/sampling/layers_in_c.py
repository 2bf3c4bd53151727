"""The layers of a decode step as one call in C, while a CPU generates in float32 (kernels/cpu.c, `decode_layers`).

Counterpart of the blocks in minimal.py. It computes what `OwnDecoder.forward` does with DecodeAttention, which serves
everywhere else. What it saves is the host's work between the operations of thin layers, and that threads start and wait
for each of them.
"""

import torch
from torch import Tensor

from grpo.engine.device.kernel_choice import on_cpu
from grpo.engine.device.ops import Panels
from grpo.engine.model.decoder import Block, Decoder, OwnDecoder, RMSNorm
from grpo.engine.model.lora import Linear


class LayersInC:
    """The layers of a model that samples: its weights are prepacked, and must not change."""

    def __init__(self, model: OwnDecoder):
        kernels = on_cpu(model.embedding.value)
        assert kernels is not None
        self.model, self.kernels = model, kernels
        self.weights = [_weights(block) for block in model.blocks]  # held here while C has their addresses
        addresses = [[0 if weight is None else weight.data_ptr() for weight in layer] for layer in self.weights]
        self.table_LX = torch.tensor(addresses, dtype=torch.int64)

    @classmethod
    def of(cls, model: Decoder) -> "LayersInC | None":
        """Return the layers of a model if C computes them: dense float32 on a CPU with kernels, and not shared out."""
        if type(model) is not OwnDecoder:
            return None
        for linear in model.linears():
            if linear.prepacked is None or not isinstance(linear.prepacked.weights[0], Panels):
                return None
        layers = cls(model)
        return layers if layers.kernels.attends(model.shape.head_dim) else None

    def __call__(self, id_B: Tensor, position_B: Tensor, kv_L2BKSE: Tensor) -> Tensor:
        """Return the final hidden states [B, D], as the model does, and store keys and values in the cache."""
        model, shape = self.model, self.model.shape
        x_BD, added_BD = self.kernels.decode_layers(
            self.table_LX,
            model.embed(id_B),
            *model.cos_sin(position_B),
            position_B,
            kv_L2BKSE,
            shape.norm_eps,
            shape.intermediate_size,
            shape.num_heads,
        )
        hidden_BD, _ = model.norm(x_BD, added_BD)
        return hidden_BD


def _weights(block: Block) -> list[Tensor | None]:
    """Return the weights of a layer in the order of `struct layer` in cpu.c."""
    attention, mlp = block.attention, block.mlp
    return [
        _norm(block.attention_norm),
        *_linear(attention.qkv),
        _norm(attention.q_norm),
        _norm(attention.k_norm),
        *_linear(attention.o),
        _norm(block.mlp_norm),
        *_linear(mlp.gate_up),
        *_linear(mlp.down),
    ]


def _norm(norm: RMSNorm | None) -> Tensor | None:
    return None if norm is None else norm.weight.value


def _linear(linear: Linear) -> tuple[Tensor, Tensor | None]:
    """Return the prepacked weight, and the bias."""
    assert linear.prepacked is not None
    (weight,) = linear.prepacked.weights
    assert isinstance(weight, Panels)
    return weight.values, linear.added_bias()

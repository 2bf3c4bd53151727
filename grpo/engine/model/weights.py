"""Models from checkpoints in Hugging Face's layout, and back."""

from pathlib import Path

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor

from grpo.base.errors import PREFLIGHT, UserError, explained
from grpo.base.progress import counted
from grpo.base.storage import read_json, write_json
from grpo.engine.device.quantised import QuantisedRows
from grpo.engine.device.waits import watch
from grpo.engine.model.adapter import Adapter
from grpo.engine.model.build import Build
from grpo.engine.model.decoder import EMBEDDING, Decoder, OwnDecoder
from grpo.engine.model.lora import Linear
from grpo.engine.model.model_config import ModelConfig
from grpo.engine.model.tensor_files import DAMAGED, FILE_BYTES, NAMES_SHOWN, finite, read_tensors, write_tensors
from grpo.engine.model.weight import master_dtype
from grpo.engine.parallel.shard import Split
from grpo.engine.parallel.splits import split_of, splits_of_adapter

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32, "float64": torch.float64}


def read_model_config(folder: Path, backend: str = "auto") -> ModelConfig:
    """Read config.json of a checkpoint folder; UserError (exit 3) if it is absent, or nothing here can compute it.

    backend: as in Build.
    """
    path = folder / "config.json"
    if not path.exists():
        fix = "set model_name_or_path to a Hugging Face checkpoint folder or hub id"
        raise UserError(f"{folder} is not a checkpoint", "it has no config.json", fix, PREFLIGHT)
    kinds = (*DAMAGED, RuntimeError, StrictDataclassError)
    with explained(kinds, f"{path} cannot be read", "download the checkpoint again"):
        return ModelConfig.from_hf(read_json(path), backend)


def make_decoder(config: ModelConfig, build: Build) -> Decoder:
    """Make the decoder of a checkpoint, or this process's part of it, without its weights."""
    if config.by_transformers:
        from grpo.engine.model.transformers_model import TransformersModel  # for models of other families

        return TransformersModel(config, build)
    if build.shard.world > 1:
        from grpo.engine.parallel.shared_decoder import SharedDecoder  # for models that are shared

        return SharedDecoder(config, build)
    return OwnDecoder(config, build)


@torch.no_grad()
def load_decoder(folder: Path, build: Build, adapter: Adapter | None = None) -> Decoder:
    """Build the decoder of a checkpoint and load its weights, converted to build.dtype (on the meta device: shapes).

    adapter: is added to them, before they are converted. A shard (build.shard) takes its parts of them.
    UserError (exit 3) lists the tensors that are missing, unexpected, of another shape, or not finite.
    """
    if torch.device(build.device).type == "cpu":
        watch()
    config = read_model_config(folder, build.backend)
    if config.by_transformers:
        return _load_transformers_model(folder, config, build, adapter)
    model = make_decoder(config, build)
    named, seen, problems = model.named_tensors(), set(), []
    splits = {name: split_of(model, name, tensor) for name, tensor in named.items()}
    shapes = {name: build.shard.whole_shape(tensor.shape, splits[name]) for name, tensor in named.items()}
    if adapter:
        adapter.check_shapes({name: shapes[f"{name}.weight"] for name in model.projections()})
    pairs = adapter.pairs if adapter else {}
    is_meta = torch.device(build.device).type == "meta"
    tied = None  # a head in the file, though config.json says that it is the embedding
    tensors = read_tensors(folder)
    if config.raw.get("quantization_config"):
        from grpo.engine.model.bitsandbytes import unpacked  # few files hold their weights in few bits

        tensors = unpacked(lambda: read_tensors(folder))
    for name, stored in counted(tensors, len(named), f"loading {folder}", "tensors"):
        shape = torch.Size(stored.get_shape())
        if name not in named:
            is_head = model.config.tied_head and name == "lm_head.weight"
            if is_head and not is_meta:
                tied = build.shard.take(stored, splits[EMBEDDING])
            if not (is_head or name.endswith("rotary_emb.inv_freq")):  # which follow from others
                problems.append(f"unexpected {name}")
        elif shapes[name] != shape:
            problems.append(f"{name} has shape {tuple(shape)}, wanted {tuple(shapes[name])}")
        elif not is_meta:
            tensor = build.shard.take(stored, splits[name])
            module = name.removesuffix(".weight")
            if module in pairs:
                tensor = _with_adapter(module, tensor, pairs[module], build, splits[name])
            if not torch.isfinite(tensor.to(build.dtype)).all():
                problems.append(f"{name} holds numbers that are not finite in {build.dtype}")
            named[name].copy_(tensor)
        seen.add(name)
    problems += [f"missing {name}" for name in named if name not in seen]
    if tied is not None and not torch.equal(tied.to(model.output().stored), model.output().stored):
        problems.append(f"lm_head.weight is not {EMBEDDING}; write tie_word_embeddings: false to keep both")
    if problems:
        raise _do_not_fit(folder, problems)
    model.refresh()
    return model


def _load_transformers_model(
    folder: Path,
    config: ModelConfig,
    build: Build,
    adapter: Adapter | None,
) -> Decoder:
    """Load a checkpoint with transformers: `load_decoder` for a model that its modules compute."""
    from grpo.engine.model import transformers_model as by  # for models of other families

    is_meta = torch.device(build.device).type == "meta"
    with explained(Exception, f"transformers cannot load {folder}", by.UNREADABLE):
        if is_meta:
            headers = {name: torch.empty(stored.get_shape(), device="meta") for name, stored in read_tensors(folder)}
            net, problems = by.read_headers(config, build.dtype, headers)
        else:
            net, problems = by.read_net(folder, build.dtype, build.device)
    if problems:
        raise _do_not_fit(folder, problems)
    if adapter:
        layers = by.linears_of(net)
        adapter.check_shapes({name: by.weight_of(layer).shape for name, layer in layers.items()})
        for name, pair in adapter.pairs.items() if not is_meta else ():
            weight_OI = by.weight_of(layers[name])
            weight_OI.copy_(_with_adapter(name, weight_OI, pair, build, None))
    with explained(Exception, f"{config.family} cannot be computed here", by.ANOTHER):
        return by.TransformersModel(config, build, net)


def _with_adapter(
    module: str,
    weight_OI: Tensor,
    pair: tuple[Tensor, Tensor],
    build: Build,
    split: Split | None,
) -> Tensor:
    """Return W + B A of this shard, in float32 at least, on the model's device."""
    A, B = (build.shard.take(*half) for half in zip(pair, splits_of_adapter(split), strict=True))
    merged = weight_OI.to(build.device, master_dtype(build.dtype)) + B.to(build.device) @ A.to(build.device)
    finite(f"{module}, merged with its adapter,", merged, build.dtype)
    return merged


def _do_not_fit(folder: Path, problems: list[str]) -> UserError:
    more = f" … and {len(problems) - NAMES_SHOWN} more" if len(problems) > NAMES_SHOWN else ""
    return UserError(
        f"the weights in {folder} do not fit its config.json",
        "; ".join(problems[:NAMES_SHOWN]) + more,
        "check that config.json and the safetensors files belong together",
        PREFLIGHT,
    )


def save_checkpoint(
    model: Decoder,
    folder: Path | None,
    dtype: torch.dtype | None = None,
    file_bytes: int = FILE_BYTES,
) -> None:
    """Write config.json and safetensors with every adapter merged, in `dtype` (the model's by default).

    Merging happens in float32 and rounds once. The tokenizer is not written. All shards of a model call it together;
    folder: None for those that only contribute their parts.
    """
    dtype, shard = dtype or model.build.dtype, model.build.shard
    named, found = model.named_tensors(), model.projections()
    splits = {name: split_of(model, name, tensor) for name, tensor in named.items()}

    def read(name: str) -> Tensor:
        linear, projection = found.get(name.removesuffix(".weight"), (None, ""))
        merged = finite(name, _merged(named[name], linear, projection), dtype)
        return shard.join(merged, splits[name]).contiguous().cpu()

    if model.config.by_transformers:
        from grpo.engine.model.transformers_model import TransformersModel  # likewise

        assert isinstance(model, TransformersModel) and folder is not None
        model.write({name: read(name) for name in named}, folder, dtype)
        return
    if folder is None:
        for name in named:
            read(name)
        return
    folder.mkdir(parents=True, exist_ok=True)
    raw = {key: value for key, value in model.config.raw.items() if key not in ("torch_dtype", "quantization_config")}
    raw["dtype"] = str(dtype).removeprefix("torch.")
    write_json(folder / "config.json", raw)
    shapes = {name: shard.whole_shape(tensor.shape, splits[name]) for name, tensor in named.items()}
    write_tensors({name: shape.numel() * dtype.itemsize for name, shape in shapes.items()}, read, folder, file_bytes)


@torch.no_grad()
def _merged(tensor: Tensor | QuantisedRows, linear: Linear | None, projection: str) -> Tensor:
    """Return a checkpoint tensor with its adapter merged, if it has one: W + s B A."""
    assert isinstance(tensor, Tensor)  # few bits are never saved: see Policy.save_merged
    if linear is None or projection not in linear.rank_slices:
        return tensor.detach()
    A, B = linear.adapter(projection)
    return tensor.to(A.dtype) + linear.lora.scale * (B @ A)

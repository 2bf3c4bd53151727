"""The policy with all that belongs to it: decoder, tokenizer, end tokens, and the model that it started from."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from grpo.base.errors import PREFLIGHT, UserError
from grpo.base.folders import check_unchanged
from grpo.base.storage import write_json
from grpo.config.options import AnyConfig, TrainConfig
from grpo.data.prompts import ChatEncoder, eos_ids, has_tokenizer, load_tokenizer
from grpo.engine.device.quantised import FORMATS, Format
from grpo.engine.model.adapter import (
    Adapter,
    is_adapter,
    load_adapter,
    read_settings,
    save_adapter,
    trained_adapter,
)
from grpo.engine.model.build import ALL_PROJECTIONS, Build, LoraSpec
from grpo.engine.model.decoder import Decoder
from grpo.engine.model.memory import loading
from grpo.engine.model.weight import master_dtype
from grpo.engine.model.weights import DTYPES, load_decoder, read_model_config, save_checkpoint
from grpo.engine.parallel.shard import ALONE, Shard

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass
class Policy:
    """A decoder to train or to sample from, with its tokenizer.

    start: the adapter that was merged into it, if any. base: the checkpoint's name, and its revision on the hub.
    folders: of checkpoint and adapter.
    """

    model: Decoder
    tokenizer: "PreTrainedTokenizerBase"
    eos_ids: tuple[int, ...]
    start: Adapter | None
    base: tuple[str, str]
    folders: tuple[Path, ...] = ()

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of some tokens, without special tokens."""
        return self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def save(self, folder: Path | None) -> None:
        """Write adapter and tokenizer, or a complete checkpoint if the weights themselves were trained.

        All shards of the model call it together; folder: None for those that only contribute their parts.
        """
        lora = self.model.build.lora
        if lora is None:
            self.save_merged(folder)
            return
        adapter = trained_adapter(self.model, self.start, *self.base)
        if folder is None:
            return
        if self.start is None:
            save_adapter(adapter, folder, lora.alpha, lora.dropout)
        else:
            save_adapter(adapter, folder)  # a stack of two has no alpha of its own
        self.tokenizer.save_pretrained(folder)

    def save_merged(self, folder: Path | None, dtype: torch.dtype | None = None) -> None:
        """Write a complete checkpoint: the weights with every adapter merged, the tokenizer, and the end tokens.

        Other tools need the end tokens: config.json may name others than the model has learned. folder: as in `save`.
        """
        save_checkpoint(self._unquantised(), folder, dtype or self.model.build.dtype)
        if folder is None:
            return
        write_json(folder / "generation_config.json", {"eos_token_id": list(self.eos_ids)})
        self.tokenizer.save_pretrained(folder)

    def _unquantised(self) -> Decoder:
        """Return the model; if it is in few bits, one of its checkpoint's own weights with all adapters merged."""
        if not self.model.build.quantised:
            return self.model
        build = Build(None, False, master_dtype(self.model.build.dtype), "cpu")
        return load_decoder(self.folders[0], build, trained_adapter(self.model, self.start, *self.base))


@loading()
def load_policy(config: AnyConfig, device: torch.device, train_weights: bool = True, shard: Shard = ALONE) -> Policy:
    """Load the policy at step 0, with a new adapter.

    With lora_r 0 there is no adapter: all weights are trained, or none if `train_weights` is False. A model path with
    an adapter stands for the adapter on its base. shard: the part of the model to load.
    """
    tokenizer = load_encoder(config).tokenizer  # before the weights, which take minutes
    folders = find_folders(config)
    end_ids = eos_ids(folders.model, tokenizer)
    build = build_of(config, folders.model, device, train_weights, shard)
    start = load_adapter(folders.adapter) if folders.adapter else None
    model = load_decoder(folders.model, build, start)
    if model.config.by_transformers:
        from grpo.engine.sampling.check import check_model  # with the modules of transformers

        check_model(model)
    generator = torch.Generator().manual_seed(config.seed)
    for linear in model.lora_linears():
        linear.init_adapter(generator)
    check_vocabulary(tokenizer, model)
    used = tuple(filter(None, (folders.model, folders.adapter)))
    return Policy(model, tokenizer, end_ids, start, folders.base, used)


def build_of(
    config: AnyConfig,
    folder: Path,
    device: torch.device,
    train_weights: bool = True,
    shard: Shard = ALONE,
) -> Build:
    """Return how to build the model of a run, whose checkpoint is in this folder."""
    lora = lora_spec(config)
    trains = train_weights and lora is None
    dtype = choose_dtype(config.torch_dtype, device)
    quantised = format_of(config, folder)
    return Build(lora, trains, dtype, device, quantised, shard, config.model_backend)


def load_encoder(config: AnyConfig) -> ChatEncoder:
    """Load the tokenizer of a policy with its chat template; UserError (exit 3) if they cannot make prompts."""
    folder = find_folders(config, weights=False).tokenizer
    return ChatEncoder(load_tokenizer(folder, config.chat_template, config.chat_template_kwargs))


def format_of(config: AnyConfig, folder: Path) -> Format | None:
    """Return the few bits that frozen weights are in, if any: as base_weights says, or else as the file has them."""
    named = config.base_weights or read_model_config(folder, config.model_backend).base_weights
    return FORMATS.get(named) if config.lora_r else None


@loading()
def load_reference(config: TrainConfig, policy: Policy) -> Decoder:
    """Return the frozen policy of step 0.

    With LoRA it is the same decoder (run it without its adapter); otherwise it is a second copy of the model.
    """
    if policy.model.build.lora is not None:
        return policy.model
    build = replace(policy.model.build, lora=None, train_weights=False)
    return load_decoder(find_folders(config).model, build, policy.start)


def load_for_inference(config: AnyConfig, device: torch.device) -> Policy:
    """Load a checkpoint, or an adapter merged into its base as the file has it, to generate with."""
    return load_policy(replace(config, lora_r=0), device, train_weights=False)


@dataclass(frozen=True)
class ModelFolders:
    """The folders of a model: of its checkpoint, of an adapter to merge into that, and of its tokenizer.

    base: how an adapter trained on the checkpoint names it (a hub id, or an absolute path), and its revision.
    """

    model: Path
    adapter: Path | None
    tokenizer: Path
    base: tuple[str, str]


def find_folders(config: AnyConfig, weights: bool = True) -> ModelFolders:
    """Find the model that a configuration names. An adapter's own tokenizer, if it has one, goes before its base's.

    weights: False downloads, of a hub's model, config and tokenizer alone.
    """
    name = config.model_name_or_path
    revision = config.model_revision
    folder = _fetch(name, revision, weights=weights)
    adapter = _fetch(config.adapter_name_or_path, kind="adapter") if config.adapter_name_or_path else None
    base = str(Path(name).resolve()) if Path(name).exists() else name
    if is_adapter(folder):
        if adapter:
            raise UserError(
                "two adapters to start from",
                f"model_name_or_path is an adapter itself: {folder}",
                "set only one of them",
                PREFLIGHT,
            )
        adapter = folder
        base, its_revision = base_of(adapter)
        is_of_base = revision != "main" and Path(name).is_dir()  # a folder has no revision of its own
        revision = revision if is_of_base else its_revision
        folder = _fetch_base(base, revision, adapter, weights)
    if config.tokenizer_name_or_path:
        tokenizer = _fetch(config.tokenizer_name_or_path, ignored="*.safetensors", weights=False)
    else:
        tokenizer = adapter if adapter and has_tokenizer(adapter) else folder
    return ModelFolders(folder, adapter, tokenizer, (base, revision))


def is_gguf(name: str) -> bool:
    """Return whether a model's name is that of a GGUF file."""
    return name.lower().endswith(".gguf") and not Path(name).is_dir()


def _fetch(name: str, revision: str = "main", ignored: str = "", kind: str = "model", weights: bool = True) -> Path:
    """Return the folder of a model: a local one, one made of a GGUF file, or one of the hub, downloaded if need be.

    UserError (exit 6) if a local one has a manifest that its files do not fit; files that fit `ignored` need not.
    kind, weights: as for `fetch_model`.
    """
    if is_gguf(name):
        from grpo.engine.model.gguf import open_gguf  # few models come as such a file

        return open_gguf(name)
    if Path(name).is_dir():
        check_unchanged(Path(name), ignored)
        return Path(name)
    from grpo.data.hub import fetch_model  # what is not here

    return fetch_model(name, revision, kind, weights)


def find_model(name: str, near: Path) -> str:
    """Return the model that a file in the folder `near` names: a hub id, or a folder's or GGUF file's absolute path.

    A relative path is tried from the current folder first, then from `near` and from the folders above it.
    """
    for start in (Path(), near, *near.resolve().parents):
        if (start / name).is_file() or (start / name / "config.json").is_file():
            return str((start / name).resolve())
    return name


def base_of(adapter: Path) -> tuple[str, str]:
    """Return the base model of an adapter, a hub id or an absolute path, and its revision on the hub."""
    settings = read_settings(adapter)
    base = settings.get("base_model_name_or_path")
    if not base:
        raise UserError(
            f"the adapter {adapter} does not name its base model",
            "adapter_config.json has no base_model_name_or_path",
            "set model_name_or_path to the base, and adapter_name_or_path to the adapter",
            PREFLIGHT,
        )
    return find_model(base, adapter), settings.get("revision") or "main"


def _fetch_base(base: str, revision: str, adapter: Path, weights: bool) -> Path:
    try:
        return _fetch(base, revision, weights=weights)
    except UserError as error:
        if error.exit_code != PREFLIGHT:
            raise
        raise UserError(
            f"the base model of the adapter {adapter} cannot be found",
            f"{error.what}: {error.why}",
            "set model_name_or_path to the base, and adapter_name_or_path to the adapter; or correct "
            "base_model_name_or_path in its adapter_config.json",
            PREFLIGHT,
        ) from None


def lora_spec(config: AnyConfig) -> LoraSpec | None:
    """Return the adapters that the configuration asks for; None if all weights are trained."""
    if not config.lora_r:
        return None
    everything = (None, ("all",), ("all-linear",))
    targets = ALL_PROJECTIONS if config.lora_target_modules in everything else tuple(config.lora_target_modules)
    layers = config.lora_layers_to_transform
    return LoraSpec(config.lora_r, config.lora_alpha, config.lora_dropout, targets, layers)


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """Return the dtype of this name; "auto" depends on the device."""
    if name == "auto":
        if device.type != "cuda":
            return torch.float32
        is_old = torch.cuda.is_available() and not torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.float16 if is_old else torch.bfloat16  # a T4 (sm_75) has float16 alone
    return DTYPES[name]


def check_vocabulary(tokenizer: "PreTrainedTokenizerBase", model: Decoder) -> None:
    """Raise UserError (exit 3) if the tokenizer has ids that the model has no embedding for."""
    largest = max(tokenizer.get_vocab().values())
    if largest >= model.config.vocab_size:
        raise UserError(
            "the tokenizer does not belong to the model",
            f"it has token id {largest}, the embedding has {model.config.vocab_size} rows",
            "set tokenizer_name_or_path to the model's own tokenizer",
            PREFLIGHT,
        )

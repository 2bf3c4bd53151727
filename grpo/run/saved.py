"""The models that runs have written: what a path stands for, the config it was trained with, and how to load it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from grpo.algorithm.optimizer import MASTER
from grpo.base.errors import PREFLIGHT, STORAGE, UserError
from grpo.base.storage import read_mapping
from grpo.config.load import keys_of, load_config
from grpo.config.options import AnyConfig, SftConfig, Stage, TrainConfig
from grpo.config.values import Values
from grpo.data.prompts import has_tokenizer
from grpo.engine.model.adapter import is_adapter
from grpo.engine.model.flat import FlatParameters
from grpo.policy import Policy, find_model, load_for_inference, load_policy
from grpo.run import checkpoint
from grpo.run.checkpoint import find_checkpoint
from grpo.run.run_dir import CONFIG_FILE, STATE_FILE

RUN_FILES = (CONFIG_FILE, STATE_FILE)  # a directory with one of them is a run's, or one of its checkpoints
SHARED = ("system_prompt", "prompt_template", "torch_dtype")  # by stage 1 and stage 2
TOKENIZER = ("tokenizer_name_or_path", "chat_template", "chat_template_kwargs")  # a model has its own


@dataclass(frozen=True)
class SavedModel:
    """A model, as a command names it.

    name: the folder of a checkpoint or adapter, or a hub id. config_path: the configuration of the run that made it;
    None if it was not made by a run.
    """

    name: str
    config_path: Path | None

    @property
    def is_bare_state(self) -> bool:
        """Return whether it is a checkpoint of full fine-tuning, which holds the optimizer's state and no model."""
        folder = Path(self.name)
        return (folder / checkpoint.STATE_FILE).exists() and not is_adapter(folder)

    def config(self) -> AnyConfig | None:
        """Return the configuration of the run: of stage 2, or of stage 1."""
        if self.config_path is None:
            return None
        keys = read_mapping(self.config_path)
        kind: type[AnyConfig] = TrainConfig if "reward_funcs" in keys else SftConfig
        return load_config(self.config_path, kind=kind, is_run=not keys)[0]  # of a damaged file, all is missing


def find_saved(name: str) -> SavedModel:
    """Return what a name stands for. A run's directory stands for its final/, or else for its newest checkpoint.

    UserError if the run has written neither (exit 3), or if it is a damaged checkpoint (exit 6). The files of other
    folders are compared with their manifest when they are loaded (grpo/policy.py).
    """
    folder = Path(name)
    if (folder / checkpoint.STATE_FILE).exists():
        if problem := checkpoint.problem_with(folder):
            raise UserError(f"{name} is damaged", problem, "name another checkpoint of the run", STORAGE)
        return SavedModel(name, _existing(folder / CONFIG_FILE))
    if not any((folder / file).exists() for file in RUN_FILES):
        config_path = _existing(folder.resolve().parent / CONFIG_FILE)
        is_of_run = folder.resolve().name in checkpoint.POLICIES
        return SavedModel(name, config_path if is_of_run else None)
    if (folder / "final").is_dir():
        return find_saved(str(folder / "final"))
    newest, notices = find_checkpoint(folder, wanted=True)
    if newest is None:
        raise UserError(
            f"the run in {folder} has written no model yet",
            "; ".join(notices),
            f"continue it with resume_from_checkpoint=true output_dir={folder}, or name a model",
            PREFLIGHT,
        )
    return SavedModel(str(newest), _existing(newest / CONFIG_FILE))


def start_of(config: Stage) -> Stage:
    """Return the configuration with the folder that its model stands for, if that is a run or a checkpoint.

    UserError (exit 3) if it is a checkpoint of full fine-tuning, which holds no model.
    """
    if not config.model_name_or_path or not Path(config.model_name_or_path).is_dir():
        return config
    saved = find_saved(config.model_name_or_path)
    if saved.is_bare_state:
        raise UserError(
            f"{saved.name} is a checkpoint of full fine-tuning",
            "it holds the state of the optimizer and no model to start from",
            f"write its model first: python -m grpo.export {saved.name} OUT --merge; then set model_name_or_path=OUT",
            PREFLIGHT,
        )
    return replace(config, model_name_or_path=saved.name)


def read_config(saved: SavedModel, overrides: Sequence[str]) -> TrainConfig:
    """Return the configuration to use a model with: that of the run that made it, with `overrides`.

    From a run of stage 1, which has no prompt_template, it takes only the SHARED keys. A run keeps its own prompt, even
    if `overrides` name a reward that has one.
    """
    made_with = saved.config()
    if made_with is None:
        return load_config(None, overrides, TrainConfig, is_run=False)[0]
    chosen = keys_of(overrides)
    path = saved.config_path if isinstance(made_with, TrainConfig) else None
    config, _ = load_config(path, overrides, TrainConfig, is_run=False)
    shared = {name: getattr(made_with, name, getattr(TrainConfig, name)) for name in SHARED if name not in chosen}
    config = replace(config, **shared)
    if not has_tokenizer(Path(saved.name)):
        return config
    unset: Values = {name: None for name in TOKENIZER if name not in chosen}
    return replace(config, **unset)


def load_saved(saved: SavedModel, config: TrainConfig, device: torch.device) -> Policy:
    """Load a model to generate with, or to write in another format. `config` says how; `saved` says which."""
    folder, made_with = Path(saved.name), saved.config()
    if not (saved.is_bare_state and made_with):
        return load_for_inference(replace(config, model_name_or_path=saved.name), device)
    made_with = replace(
        made_with,
        torch_dtype="float32",  # of the master weights
        model_name_or_path=find_model(made_with.model_name_or_path, folder),
    )
    if has_tokenizer(folder):
        made_with = replace(made_with, **{name: getattr(config, name) for name in TOKENIZER})
        made_with = replace(made_with, tokenizer_name_or_path=made_with.tokenizer_name_or_path or saved.name)
    policy = load_policy(made_with, device)
    state, _ = checkpoint.read_state(folder)
    flat = FlatParameters(policy.model.parameters())
    flat.values.copy_(flat.take(state[MASTER]))
    policy.model.refresh()
    return policy


def _existing(path: Path) -> Path | None:
    return path if path.exists() else None

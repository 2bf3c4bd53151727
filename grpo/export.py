"""A run's result in the formats of other tools.

python -m grpo.export CHECKPOINT OUT [--merge] [--dtype bfloat16]

CHECKPOINT is a run's checkpoint-N/ or final/, or any adapter. Without --merge OUT gets a PEFT adapter and the
tokenizer; with it a whole Hugging Face checkpoint with the adapter merged, in float32 and rounded once.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import torch

from grpo.config.load import load_config
from grpo.config.options import SftConfig, TrainConfig
from grpo.data.prompts import load_tokenizer
from grpo.errors import CONFIG, PREFLIGHT, UserError, run_main
from grpo.model.adapter import is_adapter, load_adapter, save_adapter
from grpo.model.policy import Policy, load_for_inference, load_policy
from grpo.model.weights import DTYPES, save_checkpoint
from grpo.run import checkpoint


def export(source: Path, target: Path, merge: bool, dtype: str) -> None:
    """Writes `target`; exit 3 if there is nothing there to export, 6 if a checkpoint is damaged."""
    if target.exists() and any(target.iterdir()):
        raise UserError(f"{target} is not empty", "", "give a new folder", CONFIG)
    if (source / checkpoint.MANIFEST_FILE).exists():
        checkpoint.find_checkpoint(source.parent, str(source))
    if merge:
        policy = _load(source, dtype)
        save_checkpoint(policy.model, target, DTYPES.get(dtype))
        policy.tokenizer.save_pretrained(target)
    elif is_adapter(source):
        save_adapter(load_adapter(source), target)
        load_tokenizer(source).save_pretrained(target)
    else:
        raise UserError(
            f"{source} holds no adapter",
            "the weights themselves were trained, or it is no result of a run",
            "use --merge to write the whole checkpoint",
            PREFLIGHT,
        )


def _load(source: Path, dtype: str) -> Policy:
    """The policy of an adapter folder, or of a checkpoint of full fine-tuning, whose weights are in the optimizer's
    masters."""
    resolved = source / "config.resolved.yaml"
    if is_adapter(source) or not resolved.exists():
        return load_for_inference(TrainConfig(model_name_or_path=str(source), torch_dtype=dtype), torch.device("cpu"))
    from grpo.optim import Optimizer

    kind = TrainConfig if "reward_funcs" in resolved.read_text(encoding="utf-8") else SftConfig
    config, _ = load_config(resolved, kind=kind)
    policy = load_policy(replace(config, torch_dtype="float32"), torch.device("cpu"))
    Optimizer(policy.model.parameters(), (0.9, 0.999), 1e-8, 0.0).load_state(checkpoint.read_state(source)[0])
    policy.model.refresh()
    return policy


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m grpo.export", description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--merge", action="store_true", help="write a whole checkpoint with the adapter merged")
    parser.add_argument(
        "--dtype", default="auto", choices=["auto", *DTYPES], help="of the merged checkpoint; auto: float32 on a CPU"
    )
    arguments = parser.parse_args(argv)
    export(arguments.checkpoint, arguments.out, arguments.merge, arguments.dtype)


if __name__ == "__main__":
    run_main(main)

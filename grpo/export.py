"""Write the result of a run in the formats of other tools.

  python -m grpo.export MODEL OUT [--merge] [--dtype bfloat16]

Without --merge, OUT gets a PEFT adapter and the tokenizer. With --merge, it gets a complete Hugging Face checkpoint:
the adapter is merged in float32, and the result is rounded once.
"""

from dataclasses import replace
from pathlib import Path

import torch

from grpo.base.errors import CONFIG, PREFLIGHT, UserError, run_main
from grpo.base.folders import write_folder
from grpo.base.progress import command_parser, say_next
from grpo.config.options import TrainConfig
from grpo.data.prompts import load_tokenizer
from grpo.model.adapter import is_adapter, load_adapter, save_adapter
from grpo.model.policy import base_of, find_parts
from grpo.model.weights import DTYPES
from grpo.run.saved import find_saved, load_saved

CPU = torch.device("cpu")


def export(source: Path, target: Path, merge: bool, dtype: str) -> None:
    """Write `source` to the folder `target`. UserError: exit 3 if it holds nothing to export, 6 if it is damaged."""
    check_folder(target)
    saved = find_saved(str(source))
    source = Path(saved.name)
    if merge:
        policy = load_saved(saved, TrainConfig(torch_dtype=dtype), CPU)
        with write_folder(target) as folder:
            policy.save_merged(folder, DTYPES.get(dtype))
    elif is_adapter(source):
        adapter = replace(load_adapter(source), base_model=base_of(source)[0])
        tokenizer = load_tokenizer(find_parts(TrainConfig(model_name_or_path=str(source))).tokenizer)
        with write_folder(target) as folder:
            save_adapter(adapter, folder)
            tokenizer.save_pretrained(folder)
    elif not source.exists():
        why = f"there is no such folder, seen from {Path.cwd()}"
        fix = "name a run, a checkpoint or an adapter, or use --merge for a model of the hub"
        raise UserError(f"{source} does not exist", why, fix, PREFLIGHT)
    else:
        why = "the run trained the weights themselves, or this is not the result of a run"
        raise UserError(f"{source} holds no adapter", why, "use --merge to write the complete checkpoint", PREFLIGHT)


def check_folder(path: Path) -> None:
    """Raise UserError (exit 2) if a folder is not empty, or cannot be created or renamed."""
    if path.is_mount():
        raise UserError(f"{path} is the root of a file system", "it cannot be renamed", "give a folder in it", CONFIG)
    try:
        is_new = not path.exists()
        path.mkdir(parents=True, exist_ok=True)
        is_empty = not any(path.iterdir())
        if is_new:
            path.rmdir()
    except OSError as error:
        raise UserError(f"cannot use the folder {path}", str(error), "give a new folder", CONFIG) from None
    if not is_empty:
        raise UserError(f"{path} is not empty", "", "give a new folder", CONFIG)


def main(argv: list[str]) -> None:
    parser = command_parser("grpo.export", __doc__)
    models = "a run, its checkpoint-N/ or final/, any adapter, or a hub id (--merge)"
    parser.add_argument("model", type=Path, metavar="MODEL", help=models)
    parser.add_argument("out", type=Path, metavar="OUT", help="a new folder")
    parser.add_argument("--merge", action="store_true", help="write a complete checkpoint with the adapter merged")
    dtypes = ["auto", *DTYPES]
    parser.add_argument("--dtype", default="auto", choices=dtypes, help="of the merged checkpoint; auto: float32")
    arguments = parser.parse_args(argv)
    export(arguments.model, arguments.out, arguments.merge, arguments.dtype)
    say_next(arguments.out, ["grpo.generate", arguments.out], ["grpo.evaluate", arguments.out, "--data", "FILE"])


if __name__ == "__main__":
    run_main(main)

"""Write the result of a run in the formats of other tools.

  python -m grpo.export MODEL OUT [--merge] [--dtype bfloat16]

Without --merge, OUT gets a PEFT adapter and the tokenizer; if the base is a GGUF file, which PEFT cannot load, also the
base as a Hugging Face checkpoint. With --merge, OUT gets a complete Hugging Face checkpoint: the adapter is merged in
float32, and the result is rounded once. If the run trained on weights in 8 bits, or the result is rounded to 16, it
says so.
"""

import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from grpo.base.errors import CONFIG, PREFLIGHT, UserError, explained, run_main
from grpo.base.folders import write_folder
from grpo.base.progress import command_parser, say_next
from grpo.config.options import TrainConfig
from grpo.data.prompts import load_tokenizer
from grpo.engine.model.adapter import is_adapter, load_adapter, save_adapter
from grpo.engine.model.weights import DTYPES
from grpo.policy import find_folders, is_gguf
from grpo.run.saved import SavedModel, find_saved, load_saved

CPU = torch.device("cpu")
ROUNDED = ("bfloat16", "float16")


def export(source: Path, target: Path, merge: bool, dtype: str = "auto") -> None:
    """Write `source` to the folder `target`. UserError: exit 3 if it holds nothing to export, 6 if it is damaged."""
    check_folder(target)
    saved = find_saved(str(source))
    source = Path(saved.name)
    if merge:
        policy = load_saved(saved, TrainConfig(torch_dtype=dtype), CPU)
        with write_folder(target) as folder:
            policy.save_merged(folder, DTYPES.get(dtype))
        for note in _departures(saved, dtype):
            print(f"note: {note}; python -m grpo.evaluate answers questions with both", file=sys.stderr)
    elif is_adapter(source):
        export_adapter(source, target)
    elif not source.exists():
        raise UserError(
            f"{source} does not exist",
            f"there is no such folder, seen from {Path.cwd()}",
            "name a run, a checkpoint or an adapter, or use --merge for a model of the hub",
            PREFLIGHT,
        )
    else:
        raise UserError(
            f"{source} holds no adapter",
            "the run trained the weights themselves, or this is not the result of a run",
            "use --merge to write the complete checkpoint",
            PREFLIGHT,
        )


def _departures(saved: SavedModel, dtype: str) -> Iterator[str]:
    """Yield how a merged checkpoint differs from the model of the run."""
    config = saved.config()
    if is_adapter(Path(saved.name)) and config is not None and config.base_weights:
        yield f"merged into the file's own weights, while the run trained with them in {config.base_weights}"
    if dtype in ROUNDED:
        yield f"rounded to {dtype}"


def export_adapter(source: Path, target: Path) -> None:
    """Write an adapter that PEFT can load, and its tokenizer; also its base, if that is a GGUF file."""
    folders = find_folders(TrainConfig(model_name_or_path=str(source)))
    tokenizer = load_tokenizer(folders.tokenizer)
    base = folders.base[0]
    has_own_base = is_gguf(base)
    adapter = replace(load_adapter(source), base_model=str(target.resolve() / "base") if has_own_base else base)
    with write_folder(target) as folder:
        save_adapter(adapter, folder)
        tokenizer.save_pretrained(folder)
        if has_own_base:
            shutil.copytree(folders.model, folder / "base")
    if has_own_base:
        num_bytes = sum(path.stat().st_size for path in (target / "base").iterdir())
        why = f"PEFT cannot load the GGUF file {base}"
        print(f"note: {why}: the adapter's base is now {target / 'base'}, {num_bytes / 1e9:.2g} GB", file=sys.stderr)


def check_folder(path: Path) -> None:
    """Raise UserError (exit 2) if a folder is not empty, or cannot be created or renamed."""
    if path.is_mount():
        raise UserError(f"{path} is the root of a file system", "it cannot be renamed", "give a folder in it", CONFIG)
    with explained(OSError, f"cannot use the folder {path}", "give a new folder", CONFIG):
        is_new = not path.exists()
        path.mkdir(parents=True, exist_ok=True)
        is_empty = not any(path.iterdir())
        if is_new:
            path.rmdir()
    if not is_empty:
        raise UserError(f"{path} is not empty", "an export fills a folder of its own", "give a new folder", CONFIG)


def main(argv: list[str]) -> None:
    parser = command_parser("grpo.export", __doc__)
    models = "a run, its checkpoint-N/ or final/, any adapter, or a hub id (--merge)"
    parser.add_argument("model", type=Path, metavar="MODEL", help=models)
    parser.add_argument("out", type=Path, metavar="OUT", help="a new folder")
    parser.add_argument("--merge", action="store_true", help="write a complete checkpoint with the adapter merged")
    dtypes = ["auto", *DTYPES]
    parser.add_argument("--dtype", default="auto", choices=dtypes, help="of the merged checkpoint; auto: float32")
    arguments = parser.parse_args(argv)
    if arguments.dtype != "auto" and not arguments.merge:
        raise UserError(
            "--dtype is given without --merge",
            "it is the data type of a merged checkpoint; an adapter stays in float32, as it was trained",
            "add --merge, or leave --dtype out",
            CONFIG,
        )
    export(arguments.model, arguments.out, arguments.merge, arguments.dtype)
    say_next(arguments.out, ["grpo.generate", arguments.out], ["grpo.evaluate", arguments.out, "--data", "FILE"])


if __name__ == "__main__":
    run_main(main)

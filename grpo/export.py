"""Write the result of a run in the formats of other tools.

  python -m grpo.export MODEL OUT [--merge] [--dtype bfloat16]

Without --merge, OUT gets a PEFT adapter and the tokenizer. With --merge, it gets a complete Hugging Face checkpoint:
the adapter is merged in float32, and the result is rounded once. What rounding changes is measured on the first of the
run's held-out questions, if it has some.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

import torch

from grpo.algorithm.schema import Prompt, completions_of
from grpo.base.errors import CONFIG, PREFLIGHT, UserError, explained, run_main
from grpo.base.folders import write_folder
from grpo.base.progress import command_parser, say_next
from grpo.config.options import TrainConfig
from grpo.data.prompts import load_tokenizer
from grpo.data.questions import QuestionData, Questions, load_prompts
from grpo.engine.device.draw import SamplingParams
from grpo.engine.model import memory
from grpo.engine.model.adapter import is_adapter, load_adapter, save_adapter
from grpo.engine.model.policy import Policy, find_parts
from grpo.engine.model.weights import DTYPES, named_tensors
from grpo.engine.sampling.sampler import Sampler
from grpo.evaluation.answers import generate_groups
from grpo.run.saved import SavedModel, find_saved, load_saved

CPU = torch.device("cpu")
ROUNDED = ("bfloat16", "float16")
NUM_COMPARED, COMPARED_TOKENS = 8, 32  # held-out questions, and tokens of each answer, to show what rounding changes


def export(source: Path, target: Path, merge: bool, dtype: str) -> None:
    """Write `source` to the folder `target`. UserError: exit 3 if it holds nothing to export, 6 if it is damaged."""
    check_folder(target)
    saved = find_saved(str(source))
    source = Path(saved.name)
    if merge:
        policy = load_saved(saved, TrainConfig(torch_dtype=dtype), CPU)
        with write_folder(target) as folder:
            policy.save_merged(folder, DTYPES.get(dtype))
        if dtype in ROUNDED:
            print(effect_of_rounding(saved, policy, dtype), file=sys.stderr)
    elif is_adapter(source):
        parts = find_parts(TrainConfig(model_name_or_path=str(source)))
        adapter = replace(load_adapter(source), base_model=parts.base[0])
        tokenizer = load_tokenizer(parts.tokenizer)
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


def effect_of_rounding(saved: SavedModel, rounded: Policy, dtype: str) -> str:
    """Say how many tokens of greedy answers to held-out questions are the same before and after rounding to `dtype`."""
    config = saved.config()
    questions = Questions.held_out(config) if isinstance(config, TrainConfig) else None
    num_weights = sum(tensor.numel() for tensor in named_tensors(rounded.model).values())
    try:
        if not questions:
            raise UserError("no held-out questions are known")
        if num_weights * torch.float32.itemsize > memory.free_bytes(CPU):
            raise UserError("memory does not hold the model in float32")
        prompts = load_prompts(QuestionData(config), rounded, replace(questions, max_samples=NUM_COMPARED)).prompts
    except UserError as error:
        return f"rounded to {dtype}; what that changes was not measured: {error.what}"
    exact = load_saved(saved, TrainConfig(torch_dtype="float32"), CPU)
    pairs = list(zip(_greedy(exact, prompts), _greedy(rounded, prompts), strict=True))
    same = sum(_num_shared(*pair) for pair in pairs)
    total = sum(len(tokens) for tokens, _ in pairs)
    return (
        f"rounded to {dtype}: {same} of {total} greedy tokens ({same / total:.0%}) are those of float32, "
        f"up to the first difference in each of {len(pairs)} answers to held-out questions"
    )


def _num_shared(a: Sequence[int], b: Sequence[int]) -> int:
    """Return how many tokens two answers share before they differ."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


def _greedy(policy: Policy, prompts: Sequence[Prompt]) -> list[list[int]]:
    """Return the first tokens of the greedy answers."""
    sampling = SamplingParams(COMPARED_TOKENS, temperature=0.0)
    groups = generate_groups(policy, Sampler(policy.model, policy.eos_ids, len(prompts)), prompts, 1, sampling, seed=0)
    return [list(completion.ids) for completion in completions_of(groups)]


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

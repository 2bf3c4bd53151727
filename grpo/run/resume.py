"""What a run resumes from: the checkpoint, and whether the run is still the one that it was.

Keys in FREE may change silently, those in WARNED with a notice. Other keys, and the inputs, stop the run unless
`allow_changes` names them.
"""

import socket
from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path

from grpo.base.errors import CONFIG, STORAGE, UserError
from grpo.base.folders import MANIFEST_FILE, sha256
from grpo.base.storage import Json, read_json
from grpo.config.load import load_config
from grpo.config.options import AnyConfig, keys_that
from grpo.engine.device.distributed import Ranks
from grpo.run.checkpoint import checkpoints, problem_with
from grpo.run.provenance import EXAMPLE, differences, program, written
from grpo.run.run_dir import CONFIG_FILE

FREE, WARNED = set(keys_that("free")), set(keys_that("warned"))
BATCH = ("per_device_train_batch_size", "gradient_accumulation_steps")


def is_own(folder: Path, run_dir: Path) -> bool:
    """Return whether a folder is one of a run's checkpoints."""
    return folder.resolve() in map(Path.resolve, checkpoints(run_dir))


def continues_a_run(config: AnyConfig) -> bool:
    """Return whether a run continues the one in its output directory. It begins there with another run's checkpoint."""
    wanted = config.resume_from_checkpoint
    return is_own(Path(wanted), Path(config.output_dir)) if isinstance(wanted, str) else wanted


def find_checkpoint(run_dir: Path, wanted: bool | str) -> tuple[Path | None, list[str]]:
    """Return the checkpoint to resume from, and notices.

    wanted: True for the newest valid checkpoint (None if there is none); or the path of one.
    """
    if isinstance(wanted, str):
        _check_named(Path(wanted), run_dir)
        return Path(wanted), []
    notices = []
    for folder in checkpoints(run_dir):
        problem = problem_with(folder)
        if not problem:
            return folder, notices
        notices.append(f"{folder.name} is not used: {problem}")
    return None, [*notices, f"no valid checkpoint in {run_dir}: starting from step 0"]


def _check_named(folder: Path, run_dir: Path) -> None:
    """Raise UserError for a checkpoint that is not valid (exit 6), or is not the newest of its own run (exit 2)."""
    if problem := problem_with(folder):
        fix = "name another one, or use resume_from_checkpoint=true"
        raise UserError(f"{folder} is not a valid checkpoint", problem, fix, STORAGE)
    if is_own(folder, run_dir) and folder.resolve() != checkpoints(run_dir)[0].resolve():
        raise UserError(
            f"{folder} is not the newest checkpoint of its run",
            f"the run in {run_dir} would hold later models that do not belong to it",
            "set another output_dir, where the run goes on from this checkpoint; or remove the later ones",
            CONFIG,
        )


def agree_on_checkpoint(config: AnyConfig, ranks: Ranks, say: Callable[[str], None]) -> Path | None:
    """Return the checkpoint to resume from. Rank 0 chooses it, and the other ranks must see the same one."""
    chosen = ranks.of_main(_choose(config, ranks, say) if ranks.is_main else None)
    if chosen is None:
        return None
    own_name, manifest = chosen
    seen = Path(config.output_dir) / own_name if own_name else Path(config.resume_from_checkpoint)
    if not (seen / MANIFEST_FILE).exists() or sha256(seen / MANIFEST_FILE) != manifest:
        raise UserError(
            f"rank {ranks.rank} on {socket.gethostname()} does not see the checkpoint {seen} of rank 0",
            "all machines read the checkpoint that rank 0 has written",
            "set output_dir to a folder of storage that all machines share",
            STORAGE,
        )
    return seen


def _choose(config: AnyConfig, ranks: Ranks, say: Callable[[str], None]) -> tuple[str, str] | None:
    """Choose the checkpoint to resume from; return its name, "" if it is of another run, and a hash of its manifest."""
    run_dir, wanted = Path(config.output_dir), config.resume_from_checkpoint
    if ranks.is_restart and (not wanted or checkpoints(run_dir)):
        wanted = True
    if not wanted:
        return None
    folder, notices = find_checkpoint(run_dir, wanted)
    for notice in notices:
        say(f"note: {notice}")
    if folder is None and (run_dir / "final").is_dir():
        raise UserError(
            f"the run in {run_dir} has a result, and no checkpoint to continue from",
            "; ".join(notices[:-1]) or "its checkpoints were removed; to start from step 0 would replace final/",
            f"use {run_dir}/final as it is, or set another output_dir; overwrite_output_dir=true starts anew",
            STORAGE,
        )
    if folder is None:
        return None
    return folder.name if is_own(folder, run_dir) else "", sha256(folder / MANIFEST_FILE)


def check_changes(folder: Path, config: AnyConfig, num_replicas: int) -> list[str]:
    """Compare a run with the checkpoint it resumes from; return notices. UserError (exit 2) if it may not resume.

    num_replicas: processes, divided by those that share a model.
    """
    manifest = read_json(folder / MANIFEST_FILE)
    saved, _ = load_config(folder / CONFIG_FILE, kind=type(config))
    before, now = _compared(saved, manifest.get("world_size", 1)), _compared(config, num_replicas)
    changes = differences(before, now)
    frozen = {name: f"{old} -> {new}" for name, (old, new) in changes.items() if name not in FREE | WARNED}
    _refuse_changes("configuration", frozen, config)
    changes |= differences(manifest.get("program", program()), program())
    return [f"{name} was {old}, is now {new}" for name, (old, new) in changes.items() if name not in FREE]


def _compared(config: AnyConfig, num_replicas: int) -> Json:
    """Return the keys to compare: the batch size of a step in place of its factors, which matter to bnpo alone."""
    keys = written(config)
    sizes = [keys.pop(name) for name in BATCH] + [num_replicas]
    divided = f", {' x '.join(map(str, sizes))}" if keys.get("loss_type") == "bnpo" else ""
    return keys | {BATCH[0]: f"{prod(sizes)} in all processes{divided}"}


def check_inputs(before: Mapping[str, str], now: Mapping[str, str], config: AnyConfig) -> list[str]:
    """Compare the inputs of a run with those of the checkpoint; return notices. UserError (exit 2) if one has changed.

    An input that the checkpoint does not know is not compared.
    """
    changes = {name: "its content has changed" for name in now if before.get(name, now[name]) != now[name]}
    notices = []
    if changes.pop(EXAMPLE, None) and "chat_template" not in changes:
        notices = [f"the chat template prints something else than before, such as the date: {now[EXAMPLE]!r}"]
        if "dataset" in changes:
            changes["dataset"] += f", perhaps because {notices[0]}"
    _refuse_changes(", ".join(changes).replace("_", " "), changes, config)
    return notices


def _refuse_changes(what: str, changes: Mapping[str, str], config: AnyConfig) -> None:
    """Raise UserError (exit 2) for changes that `allow_changes` does not name."""
    refused = [name for name in changes if name.partition(" ")[0] not in config.allow_changes]
    names = dict.fromkeys(name.partition(" ")[0] for name in refused)
    if refused:
        raise UserError(
            f"the run in {config.output_dir} was made with another {what}",
            "; ".join(f"{name}: {changes[name]}" for name in refused),
            f"set these back, start anew in another output_dir, or accept them: allow_changes={','.join(names)}",
            CONFIG,
        )

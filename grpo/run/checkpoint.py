"""Checkpoints from which a run continues bit for bit, and which of them it continues from.

They are complete or absent: see grpo/base/folders.py.

A folder that does not match its manifest is not a checkpoint. Files are safetensors and JSON; nothing is pickled.
"""

import json
import random
import re
import shutil
import socket
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from grpo.algorithm.optimizer import MASTER, all_finite
from grpo.base import folders
from grpo.base.errors import CONFIG, STORAGE, UserError, explained, reason
from grpo.base.folders import MANIFEST_FILE, sha256, write_folder
from grpo.base.storage import Json, failpoint, read_json, save_tensors
from grpo.config.options import AnyConfig
from grpo.engine.device.distributed import Ranks
from grpo.engine.model.decoder import Decoder
from grpo.engine.parallel.splits import trained_bytes

FORMAT = 4
COPIES = 3  # of every trained weight: itself and AdamW's two moments; an adapter is written a second time
STATE_FILE = "state.safetensors"
COUNTERS_FILE = "trainer_state.json"
POLICIES = ("final", "best")  # folders of a run that hold a model and no state of the optimizer
BEST_FILE = "best.json"  # in best/: which policy that is
PREFIX = "optimizer."  # of the tensors' names in STATE_FILE
_NAME = re.compile(r"checkpoint-(\d+)")


def new_checkpoint(
    run_dir: Path, step: int, about: Json | None = None, needed_bytes: int = 0
) -> AbstractContextManager[Path]:
    """Return the writer of a checkpoint. about: further entries of its manifest. needed_bytes: an estimate."""
    fix = "free some space and resume with resume_from_checkpoint=true; older checkpoints are intact"
    about = {"format": FORMAT, "step": step, **(about or {})}
    return write_folder(run_dir / f"checkpoint-{step}", about, needed_bytes, fix)


def check_disk(model: Decoder, config: AnyConfig, adapter: Path | None) -> int:
    """Check that the checkpoints of a run fit on its disk; return the bytes of one. UserError (exit 6) if they do not.

    adapter: the one to start from; every checkpoint holds it as well, stacked on the new one.
    """
    trained = trained_bytes(model)
    one = COPIES * trained
    if model.build.lora is not None:
        one += trained + (sum(path.stat().st_size for path in adapter.glob("*.safetensors")) if adapter else 0)
    number = (config.save_total_limit or 1) + 1  # the new one is complete before an old one is removed
    disk = shutil.disk_usage(existing_part(Path(config.output_dir or ".")))
    is_known = disk.total > 0  # some network file systems tell no size
    if is_known and disk.free < number * one:
        raise UserError(
            "the disk is too small for the checkpoints",
            f"{number} of {one / 1e9:.2g} GB, {disk.free / 1e9:.2g} GB free",
            "lower save_total_limit, or set output_dir to another disk",
            STORAGE,
        )
    return one


def existing_part(path: Path) -> Path:
    """Return a path, or the nearest of its parents that exists."""
    path = path.resolve()
    return next(part for part in (path, *path.parents) if part.exists())


def problem_with(folder: Path) -> str:
    """Return why a folder is not a valid checkpoint, with the name of the file; "" if it is valid."""
    problem = folders.problem_with(folder)
    if problem:
        return problem
    manifest = read_json(folder / MANIFEST_FILE)
    if manifest.get("format") != FORMAT:
        return f"its format is {manifest.get('format')}, this program reads {FORMAT}"
    for name in (STATE_FILE, COUNTERS_FILE):
        if name not in manifest["files"]:
            return f"{MANIFEST_FILE} does not list {name}"
    try:
        with safe_open(folder / STATE_FILE, "pt") as state:
            is_finite = all_finite(state.get_tensor(f"{PREFIX}{MASTER}"))
    except Exception as error:  # foreign files raise errors of every kind
        return f"{STATE_FILE} cannot be read: {reason(error)}"
    return "" if is_finite else f"{STATE_FILE} holds weights that are not finite"


def checkpoints(run_dir: Path) -> list[Path]:
    """Return the folders that are named like checkpoints, newest first. They need not be valid."""
    found = [path for path in run_dir.glob("checkpoint-*") if path.is_dir() and _NAME.fullmatch(path.name)]
    return sorted(found, key=step_of, reverse=True)


def step_of(folder: Path) -> int:
    """Return the step in the name of a checkpoint."""
    return int(folder.name.removeprefix("checkpoint-"))


def recover(run_dir: Path) -> None:
    """Finish the checkpoints and policies that a killed run had written completely; remove those it had only begun."""
    for folder in run_dir.glob(f"*{folders.UNFINISHED}"):
        name = folder.name.removesuffix(folders.UNFINISHED)
        if name in POLICIES or _NAME.fullmatch(name):
            folders.recover(folder)


def remove_old(run_dir: Path, keep: int, newest: int | None = None) -> None:
    """Remove old checkpoints: the last `keep` stay (0: all).

    newest: the step of the checkpoint just written. Checkpoints of later steps must be damaged, since the run was not
    resumed from them; they are kept and not counted.
    """
    if not keep:
        return
    found = [folder for folder in checkpoints(run_dir) if newest is None or step_of(folder) <= newest]
    for folder in found[keep:]:
        folders.remove(folder)


def random_state() -> Json:
    """Return the state of every random generator of this process, as JSON."""
    numbers = np.random.get_state()
    assert isinstance(numbers, tuple)
    kind, words, position, has_gauss, gauss = numbers
    version, internal, next_gauss = random.getstate()
    uses_cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
    return {
        "python": [version, list(internal), next_gauss],
        "numpy": [kind, words.tolist(), position, has_gauss, gauss],
        "torch": _to_hex(torch.get_rng_state()),
        "cuda": _to_hex(torch.cuda.get_rng_state()) if uses_cuda else None,
    }


def restore_random_state(state: Json) -> None:
    """Set every random generator of this process to a state from `random_state`."""
    version, internal, next_gauss = state["python"]
    random.setstate((version, tuple(internal), next_gauss))
    kind, words, position, has_gauss, gauss = state["numpy"]
    np.random.set_state((kind, np.array(words, dtype=np.uint32), position, has_gauss, gauss))
    torch.set_rng_state(_from_hex(state["torch"]))
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state(_from_hex(state["cuda"]))


def _to_hex(state: Tensor) -> str:
    return state.numpy().tobytes().hex()


def _from_hex(text: str) -> Tensor:
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)


def write_state(
    folder: Path,
    tensors: dict[str, Tensor],
    counters: Json,
    random_states: Sequence[Json] = (),
) -> None:
    """Write optimizer tensors, counters and the random state of every replica (by default that of this process)."""
    tensors = {f"{PREFIX}{name}": value.detach().cpu().contiguous() for name, value in tensors.items()}
    save_tensors(tensors, folder / STATE_FILE)
    failpoint("save-tensors")
    text = json.dumps({**counters, "rng": list(random_states) or [random_state()]})
    (folder / COUNTERS_FILE).write_text(text + "\n", encoding="utf-8")


def read_state(folder: Path, rank: int = 0) -> tuple[dict[str, Tensor], Json]:
    """Return the tensors and counters of a checkpoint, and restore the random generators of this replica."""
    with explained(Exception, f"the checkpoint {folder} cannot be read", "use an older one", STORAGE):
        tensors = load_file(folder / STATE_FILE)
        counters = read_json(folder / COUNTERS_FILE)
        states = counters.pop("rng")
        restore_random_state(states[rank % len(states)])  # of another number of replicas, perhaps
    return {name.removeprefix(PREFIX): value for name, value in tensors.items()}, counters


# --- which one a run continues from ---------------------------------------------------------------------------------


def is_own(folder: Path, run_dir: Path) -> bool:
    """Return whether a folder is one of a run's checkpoints."""
    return folder.resolve() in map(Path.resolve, checkpoints(run_dir))


def continues_a_run(config: AnyConfig) -> bool:
    """Return whether a run continues the one in its output directory. It begins there with another run's checkpoint."""
    wanted = config.resume_from_checkpoint
    return is_own(Path(wanted), Path(config.output_dir)) if isinstance(wanted, str) else wanted


def find_checkpoint(run_dir: Path, wanted: bool | str) -> tuple[Path | None, list[str]]:
    """Return the checkpoint to resume from, and notices.

    wanted: True for the newest valid checkpoint (None if there is none; exit 6 if there is a result nevertheless); or
    the path of one. UserError if that is not valid (exit 6), or is not the newest of its own run (exit 2).
    """
    saved = checkpoints(run_dir)
    if isinstance(wanted, str):
        named = Path(wanted)
        if problem := problem_with(named):
            raise UserError(
                f"{named} is not a valid checkpoint",
                problem,
                "name another one, or use resume_from_checkpoint=true",
                STORAGE,
            )
        if is_own(named, run_dir) and named.resolve() != saved[0].resolve():
            raise UserError(
                f"{named} is not the newest checkpoint of its run",
                f"the run in {run_dir} would hold later models that do not belong to it",
                "set another output_dir, where the run goes on from this checkpoint; or remove the later ones",
                CONFIG,
            )
        return named, []
    notices: list[str] = []
    for folder in saved:
        problem = problem_with(folder)
        if not problem:
            return folder, notices
        notices.append(f"{folder.name} is not used: {problem}")
    if (run_dir / "final").is_dir():
        raise UserError(
            f"the run in {run_dir} has a result, and no checkpoint to continue from",
            "; ".join(notices) or "its checkpoints were removed; to start from step 0 would replace final/",
            f"use {run_dir}/final as it is, or set another output_dir; overwrite_output_dir=true starts anew",
            STORAGE,
        )
    return None, [*notices, f"no valid checkpoint in {run_dir}: starting from step 0"]


def agree_on_checkpoint(config: AnyConfig, ranks: Ranks, say: Callable[[str], None]) -> Path | None:
    """Return the checkpoint to resume from. Rank 0 chooses it, and the other ranks must see the same one."""
    run_dir = Path(config.output_dir)

    def choose() -> tuple[str, str] | None:
        """Return the name of the checkpoint, "" if it is of another run, and a hash of its manifest."""
        wanted = config.resume_from_checkpoint
        if ranks.is_restart and (not wanted or checkpoints(run_dir)):
            wanted = True
        folder, notices = find_checkpoint(run_dir, wanted) if wanted else (None, [])
        for notice in notices:
            say(f"note: {notice}")
        if folder is None:
            return None
        return folder.name if is_own(folder, run_dir) else "", sha256(folder / MANIFEST_FILE)

    chosen = ranks.of_first(choose)
    if chosen is None:
        return None
    own_name, manifest = chosen
    seen = run_dir / own_name if own_name else Path(str(config.resume_from_checkpoint))
    if not (seen / MANIFEST_FILE).exists() or sha256(seen / MANIFEST_FILE) != manifest:
        raise UserError(
            f"rank {ranks.rank} on {socket.gethostname()} does not see the checkpoint {seen} of rank 0",
            "all machines read the checkpoint that rank 0 has written",
            "set output_dir to a folder of storage that all machines share",
            STORAGE,
        )
    return seen

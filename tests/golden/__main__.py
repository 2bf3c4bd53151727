"""Compare short training runs, bit for bit, with what they gave before a change.

    python -m tests.golden record  [NAME ...]      on a commit that you trust
    python -m tests.golden compare [NAME ...]      after a change that must not move a bit; exit status 1 if one moved

Each case is a whole run of a few steps. Recorded are a hash of its final weights, a hash of its completions with all
their rewards, and every metric that is not a time or a size of memory. Bits depend on the kind of CPU and the release
of torch, so each kind has a file of its own beside this one. Of a case that its file lacks nothing is said but that.
"""

import argparse
import hashlib
import json
import multiprocessing
import os
import platform
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

sys.path.extend(str(Path(__file__).resolve().parents[2] / folder) for folder in ("", "tests", "tests/faults"))
os.environ.update(HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1", PYTHONPATH=os.pathsep.join(sys.path[-3:]))

import torch.utils.tensorboard  # imported once here, shared by every case
import transformers.models.auto.tokenization_auto  # noqa: F401
import yaml
from making import free_port, read_lines, write_chat_checkpoint, write_rows, write_tool_checkpoint
from running import QUESTIONS
from safetensors.torch import load_file

from grpo import sft, train

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
NOT_REPEATABLE = ("time", "tokens_per_second", "peak_memory", "pid", "host")
RUN = yaml.safe_load("""
    reward_funcs: [fakes:mixed]
    num_generations: 4
    per_device_train_batch_size: 16
    max_completion_length: 12
    lora_r: 8
    lora_alpha: 16
    learning_rate: 0.005
    max_steps: 4
    save_steps: 2
    lr_scheduler_type: cosine
    warmup_steps: 1
    beta: 0.01
    report_to: [none]
    disable_tqdm: true
    """)
VARIANTS = yaml.safe_load("""
    lora: {}
    lora_bfloat16: {torch_dtype: bfloat16}
    lora_float16: {torch_dtype: float16}
    full: {lora_r: 0, learning_rate: 0.001}
    full_bfloat16: {lora_r: 0, learning_rate: 0.001, torch_dtype: bfloat16}
    iterations: {num_iterations: 2, importance_sampling_level: sequence, epsilon: 0.0003, epsilon_high: 0.0004}
    dropout: {lora_dropout: 0.3, num_iterations: 2, max_tokens_per_micro_batch: 100}
    batch_scaling: {scale_rewards: batch, loss_type: grpo, max_tokens_per_micro_batch: 100}
    bnpo: {loss_type: bnpo, gradient_accumulation_steps: 2, per_device_train_batch_size: 8}
    dr_grpo: {loss_type: dr_grpo, scale_rewards: false, mask_truncated_completions: true}
    cuts: {top_p: 0.8, top_k: 50, temperature: 0.7, sampler_importance_sampling_correction: true}
    recompute: {gradient_checkpointing: true, use_bias_correction_kl: true, num_iterations: 2, delta: 1.5}
    dynamic_sampling: {dynamic_sampling: true, dynamic_sampling_max_rollouts: 3, scale_rewards: batch}
    few_slots: {max_num_seqs: 5, reward_funcs: [fakes:mixed, format], reward_weights: [1.0, 0.5]}
    """)


# --- the cases -----------------------------------------------------------------------------------------------------


def write(folder: Path, name: str, keys: dict) -> Path:
    """A config file of a run into folder/name. JSON is YAML."""
    path = folder / f"{name}.yaml"
    path.write_text(json.dumps({**keys, "output_dir": str(folder / name)}))
    return path


def checkpoint(folder: Path) -> str:
    return str(write_chat_checkpoint(folder / "model", spread=0.3))


def questions(folder: Path) -> str:
    rows = [{name: row[name] for name in ("question", "answer")} for row in QUESTIONS]
    return str(write_rows(folder / "questions.jsonl", rows))


def stage2(folder: Path, keys: dict, *calls: list[str]) -> Path:
    """A run, started with each of these lists of overrides."""
    start = {"model_name_or_path": checkpoint(folder), "dataset_id_or_path": questions(folder)}
    config = write(folder, "run", RUN | start | keys)
    for overrides in calls or [[]]:
        train.main([str(config), *overrides])
    return folder / "run"


def variant(folder: Path, keys: dict) -> Path:
    return stage2(folder, {"eval_dataset_id_or_path": questions(folder), **keys})


def resumed(folder: Path) -> Path:
    """Stopped after two steps and resumed."""
    keys = {"lr_scheduler_type": "constant"}
    return stage2(folder, keys, ["max_steps=2"], ["max_steps=4", "resume_from_checkpoint=true"])


def calling(folder: Path) -> Path:
    """Completions that call tools, and are credited from there on; a call counts as declining (Eq. 14)."""
    keys = {"tools": ["fakes:search", "fakes:shout"], "max_tool_calls": 2, "max_tool_result_tokens": 6}
    keys |= {
        "reward_funcs": ["fakes:mixed", "abstention", "tool_cost"],
        "judge": "offline",
        "max_completion_length": 50,
    }
    keys |= {"refusal_target": 0.4, "credit": "answer", "scale_rewards": "none", "system_prompt": "think"}
    return variant(folder, keys | {"model_name_or_path": str(write_tool_checkpoint(folder / "calling"))})


def stage1(folder: Path, keys: dict) -> Path:
    turns = [("user", f"What is {n} + 1?", "assistant", f"It is {n + 1}.") for n in range(24)]
    rows = [{"messages": [{"role": a, "content": b}, {"role": c, "content": d}]} for a, b, c, d in turns]
    start = {key: RUN[key] for key in ("lora_r", "learning_rate", "report_to", "disable_tqdm")}
    start |= {"model_name_or_path": checkpoint(folder), "per_device_train_batch_size": 8, "max_steps": 5}
    start["dataset_id_or_path"] = str(write_rows(folder / "rows.jsonl", rows))
    sft.main([str(write(folder, "run", start | keys))])
    return folder / "run"


def toy(folder: Path, name: str) -> Path:
    """A tiny configuration, with a shorter cold start and three steps."""
    cold, whole = (yaml.safe_load((ROOT / "configs" / f"{file}.yaml").read_text()) for file in (f"{name}_sft", name))
    cold_start = str(write(folder, "cold", cold | {"max_steps": 25}))
    shorter = {"cold_start": cold_start, "max_steps": 3, "eval_max_samples": 48, "disable_tqdm": True}
    train.main([str(write(folder, "run", whole | shorter))])
    return folder / "run"


def two_ranks(folder: Path) -> Path:
    """Two processes of half the batch each."""
    keys = {"per_device_train_batch_size": 8, "scale_rewards": "batch", "lora_dropout": 0.1}
    start = {"model_name_or_path": checkpoint(folder), "dataset_id_or_path": questions(folder)}
    command = [sys.executable, "-m", "grpo.train", str(write(folder, "run", RUN | keys | start))]
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "GLOO_SOCKET_IFNAME": "lo"}
    shared |= os.environ
    ranks = [subprocess.Popen(command, env=shared | {"RANK": str(n), "LOCAL_RANK": str(n)}) for n in range(2)]
    assert [rank.wait() for rank in ranks] == [0, 0]
    return folder / "run"


CASES: dict[str, Callable[[Path], Path]] = {
    **{name: lambda folder, keys=keys: variant(folder, keys) for name, keys in VARIANTS.items()},
    "resumed": resumed,
    "two_ranks": two_ranks,
    "tools": calling,
    "sft": lambda folder: stage1(folder, {"lora_dropout": 0.1, "max_tokens_per_micro_batch": 100}),
    "sft_full_bfloat16": lambda folder: stage1(folder, {"lora_r": 0, "torch_dtype": "bfloat16"}),
    "tiny": lambda folder: toy(folder, "tiny"),
    "tiny_math": lambda folder: toy(folder, "tiny_math"),
}


# --- what is recorded ----------------------------------------------------------------------------------------------


def repeatable(value: object) -> object:
    """The value without its times, sizes of memory, and paths. Not-a-number becomes text, which equals itself."""
    if isinstance(value, dict):
        return {k: repeatable(v) for k, v in value.items() if not any(word in k for word in NOT_REPEATABLE)}
    if isinstance(value, list):
        return [repeatable(v) for v in value]
    return repr(value) if isinstance(value, float) else value


def outcome(run_dir: Path) -> dict:
    """What a run gave."""
    weights, completions = hashlib.sha256(), hashlib.sha256()
    for file in sorted((run_dir / "final").glob("*.safetensors")):
        for name, tensor in sorted(load_file(file).items()):
            weights.update(name.encode() + str(tuple(tensor.shape)).encode())
            weights.update(tensor.float().numpy().tobytes())
    for file in sorted((run_dir / "completions").glob("*.jsonl")):
        rows = read_lines(file)
        for row in rows:  # without the tokens, which say what the texts say, and are younger than the records
            row.pop("ids", None)
        completions.update(json.dumps(repeatable(rows), sort_keys=True).encode())
    metrics = repeatable(read_lines(run_dir / "metrics.jsonl"))
    if any("tools/called_frac" in line for line in metrics):  # which rows decode together depends on when tools reply
        metrics = [{k: v for k, v in line.items() if not k.startswith("sampler/")} for line in metrics]
    evaluation = run_dir / "evaluation.json"
    table = repeatable(json.loads(evaluation.read_text())) if evaluation.exists() else None
    hashes = {"weights": weights.hexdigest(), "completions": completions.hexdigest()}
    return hashes | {"metrics": metrics, "evaluation": table}


def run_case(name: str) -> dict | str:
    """In a process of its own: the outcome of a case, or what a run that failed has said."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for stream in (1, 2):
            os.dup2(os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
        try:
            return outcome(CASES[name](Path(folder)))
        except BaseException:
            return Path("log").read_text(errors="replace")[-3000:] + traceback.format_exc()
        finally:
            os.chdir("/")


def cpu_kind() -> str:
    """What the bits depend on: torch's release, the instruction set that it uses, and matrix units."""
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    found = [name for name in ("amx_bf16", "avx512_bf16", "avx512_vnni") if name in flags]
    parts = [platform.machine(), torch.backends.cpu.get_cpu_capability(), *found, torch.__version__.partition("+")[0]]
    return "-".join(parts).replace(" ", "_")


def run_cases(names: list[str]) -> dict[str, dict]:
    """The outcome of each case, a few at a time."""
    with multiprocessing.get_context("fork").Pool(os.cpu_count(), maxtasksperchild=1) as pool:
        outcomes = dict(zip(names, pool.map(run_case, names, chunksize=1), strict=True))
    for name, found in outcomes.items():
        if isinstance(found, str):
            raise SystemExit(f"{found}\n{name}: the run failed")
    return outcomes


def differences(name: str, wanted: dict, found: dict) -> list[str]:
    """In words, what moved."""
    if wanted == found:
        return []
    moved = [part for part in wanted if wanted[part] != found[part]]
    lines = [f"{name}: {', '.join(moved)} moved"]
    for before, after in zip(wanted["metrics"], found["metrics"], strict=False):
        keys = [key for key in {**before, **after} if before.get(key) != after.get(key)]
        if keys:
            shown = [f"{key} {before.get(key)} -> {after.get(key)}" for key in keys[:4]]
            return [*lines, f"    first at step {before['step']}: {'; '.join(shown)}"]
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.golden", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("action", choices=["record", "compare"])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(CASES))
    options = parser.parse_args()
    file = HERE / f"{cpu_kind()}.json"
    recorded = json.loads(file.read_text()) if file.exists() else {}
    names = options.names or list(CASES)
    if options.action == "record":
        found = run_cases(names)
        file.write_text(json.dumps({**recorded, **found}, indent=1, sort_keys=True) + "\n")
        print(f"recorded {len(found)} cases in {file.relative_to(ROOT)}")
        return 0
    if missing := [name for name in names if name not in recorded]:
        print(f"not recorded for this kind of CPU ({file.stem}), and not compared: {', '.join(missing)}")
        print("`python -m tests.golden record` on a commit that you trust records them")
        names = [name for name in names if name in recorded]
    if not names:
        return 2
    moved = [line for name, found in run_cases(names).items() for line in differences(name, recorded[name], found)]
    print("\n".join(moved) or f"{len(names)} cases: no bit moved")
    return int(bool(moved))


if __name__ == "__main__":
    sys.exit(main())

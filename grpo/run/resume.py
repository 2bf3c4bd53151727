"""What a resumed run may change: the keys in FREE silently, those in WARNED with a notice, all others not at all."""

import json
from pathlib import Path
from typing import Any

import yaml

from grpo.config.load import load_config, to_yaml
from grpo.config.options import AnyConfig
from grpo.errors import CONFIG, UserError
from grpo.run.checkpoint import MANIFEST_FILE

FREE = {
    "output_dir",
    "overwrite_output_dir",
    "resume_from_checkpoint",
    "max_steps",
    "num_train_epochs",
    "logging_steps",
    "save_steps",
    "save_total_limit",
    "report_to",
    "run_name",
    "project",
    "swanlab_project",
    "swanlab_workspace",
    "wandb_project",
    "wandb_entity",
    "disable_tqdm",
    "log_completions",
    "num_completions_to_print",
    "eval_steps",
    "eval_max_samples",
    "eval_dataset_id_or_path",
    "max_num_seqs",
    "max_tokens_per_micro_batch",
    "gradient_checkpointing",
    "device",
    "cold_start",
    "judge_base_url",
    "judge_api_key_env",
    "judge_prices",
    "decomposer_base_url",
    "decomposer_api_key_env",
    "decomposer_prices",
    "judge_max_tokens",
    "decomposer_max_tokens",
    "api_plain_http",
    "api_max_concurrency",
    "api_deadline_s",
    "api_requests_per_minute",
    "api_tokens_per_minute",
    "api_cache",
    "verdict_cache",
    "max_unscored",
    "reward_timeout_s",
}
WARNED = {
    "learning_rate",
    "beta",
    "epsilon",
    "epsilon_high",
    "delta",
    "warmup_ratio",
    "warmup_steps",
    "lr_scheduler_type",
    "weight_decay",
    "max_grad_norm",
    "tf32",
    "full_determinism",
    "kernels",
}


def check_changes(folder: Path, config: AnyConfig, num_ranks: int) -> list[str]:
    """Compare a run with the checkpoint it resumes from; return notices. UserError (exit 2) if it may not resume."""
    manifest = json.loads((folder / MANIFEST_FILE).read_text(encoding="utf-8"))
    saved_ranks = manifest.get("world_size", 1)
    if saved_ranks != num_ranks:
        raise UserError(
            f"the run in {config.output_dir} was made by {saved_ranks} processes, this is one of {num_ranks}",
            "their number decides the batch",
            f"start it with torchrun --nproc-per-node {saved_ranks}, or anew in another output_dir",
            CONFIG,
        )
    saved, _ = load_config(folder / "config.resolved.yaml", kind=type(config))
    before, now = _plain(saved), _plain(config)
    changed = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
    frozen = [name for name in changed if name not in FREE | WARNED]
    if frozen:
        raise UserError(
            f"the run in {config.output_dir} was made with another configuration",
            "; ".join(f"{name}: {before.get(name)} -> {now.get(name)}" for name in frozen),
            "set these back, or start anew in another output_dir",
            CONFIG,
        )
    return [f"{name} was {before.get(name)}, is now {now.get(name)}" for name in changed if name in WARNED]


def _plain(config: AnyConfig) -> dict[str, Any]:
    """Return the keys as they are written to config.resolved.yaml."""
    return yaml.safe_load(to_yaml(config))

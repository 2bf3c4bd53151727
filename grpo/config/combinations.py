"""Combinations of configuration keys that cannot work."""

import os
import re
from dataclasses import asdict

from grpo.config.options import INPUTS, WITH_KNOWLEDGE, AnyConfig, TrainConfig
from grpo.config.values import did_you_mean
from rewards.registry import BUILT_IN, built_in, expand

TRACKERS = ("tensorboard", "swanlab", "wandb", "trackio", "none")
RUN_NAME = re.compile(r"[A-Za-z0-9._-]+")


def find_problems(config: AnyConfig) -> list[str]:
    """Return a message for each combination of keys that cannot work."""
    unknown = sorted(set(config.report_to) - set(TRACKERS))
    no_change = sorted(set(config.allow_changes) - set(INPUTS) - set(asdict(config)))
    checks = [
        (config.max_steps == 0, "max_steps is 0: nothing to do"),
        (
            config.lora_r == 0 and config.adapter_name_or_path and config.lora_dropout,
            "lora_dropout without an adapter (lora_r is 0)",
        ),
        (
            config.run_name is not None and not RUN_NAME.fullmatch(config.run_name),
            f"run_name may hold letters, digits, dots, dashes and underscores; got {config.run_name!r:.80}",
        ),
        (no_change, f"allow_changes: neither a key nor one of {', '.join(INPUTS)}: {', '.join(no_change)}"),
        (unknown, f"report_to: unknown {', '.join(unknown)}"),
    ]
    if isinstance(config, TrainConfig):
        checks = [*_training_checks(config), *_reward_checks(config), *checks]
    return [message for is_wrong, message in checks if is_wrong]


def _training_checks(config: TrainConfig) -> list[tuple[bool, str]]:
    """Return pairs (is wrong, message) about batch sizes, sampling and the prompt."""
    num_completions = config.per_device_train_batch_size * config.gradient_accumulation_steps
    return [
        (
            num_completions % config.num_generations,
            f"per_device_train_batch_size x gradient_accumulation_steps = {num_completions} completions "
            f"cannot be split into groups of num_generations = {config.num_generations}",
        ),
        (
            (config.top_p < 1 or config.top_k) and config.num_iterations > 1,
            "top_p and top_k need num_iterations: 1, "
            "since the tokens that they keep are known only for the policy that sampled",
        ),
        (
            config.eval_size and config.eval_dataset_id_or_path,
            "eval_size and eval_dataset_id_or_path both name held-out questions; set one of them, such as eval_size=0",
        ),
        (
            config.questions_per_step,  # load.py has replaced it by batch sizes, unless that is impossible
            f"questions_per_step = {config.questions_per_step} cannot be divided among the processes",
        ),
        (
            config.keep_best and not (config.eval_size or config.eval_dataset_id_or_path or config.toy_world),
            "keep_best needs held-out questions: set eval_dataset_id_or_path or eval_size",
        ),
        ("{question}" not in config.prompt_template, "prompt_template does not contain {question}"),
    ]


def _reward_checks(config: TrainConfig) -> list[tuple[bool, str]]:
    """Return pairs (is wrong, message) about the rewards and what they need."""
    rewards = expand(config.reward_funcs or ())
    all_rewards = [*rewards, *expand(config.eval_reward_funcs or ())]
    has_knowledge = config.knowledge_base or os.environ.get("FACTSCORE_DB_PATH") or config.toy_world in WITH_KNOWLEDGE
    return [
        *((True, message) for message in map(_unknown_reward, dict.fromkeys(all_rewards)) if message),
        (config.reward_funcs == (), "reward_funcs is empty: nothing is paid"),
        (
            config.reward_weights and len(config.reward_weights) != len(rewards),
            f"reward_weights has {len(config.reward_weights or ())} entries, "
            f"reward_funcs stands for {len(rewards)}: {', '.join(rewards)}",
        ),
        (config.reward_weights and not any(config.reward_weights), "reward_weights are all 0: nothing is paid"),
        (len(set(rewards)) != len(rewards), "reward_funcs names a reward twice"),
        (
            not has_knowledge and any(built_in(name).checks_facts for name in all_rewards),
            "factuality needs a knowledge base, and neither knowledge_base nor FACTSCORE_DB_PATH is set; build one "
            "with `python -m knowledge.build SOURCE OUT.db` and set knowledge_base: OUT.db",
        ),
        (
            config.credit == "sentence" and not any(built_in(name).checks_every_answer for name in rewards),
            "credit: sentence needs the verdicts on the facts of every answer; add factuality to reward_funcs, and 0 "
            "to reward_weights if it is not to be paid",
        ),
        (
            config.credit == "sentence" and config.importance_sampling_level == "sequence",
            "credit: sentence needs importance_sampling_level: token, since with one ratio per sequence every token is "
            "trained by the mean of the sequence's advantages",
        ),
        (
            "soft_overlong_punishment" in all_rewards
            and not 0 < config.soft_punish_cache <= config.max_completion_length,
            "soft_overlong_punishment needs 0 < soft_punish_cache <= max_completion_length",
        ),
    ]


def _unknown_reward(name: str) -> str:
    """Return what is wrong with the name of a reward; "" if it may be one."""
    if name in BUILT_IN or ":" in name:
        return ""
    if name.endswith(".py"):
        return f"reward_funcs: {name} is a file; name the function in it, too: {name}:FUNCTION"
    close = did_you_mean(name, list(BUILT_IN))
    return f"reward_funcs: unknown reward {name}{close or '; built in are ' + ', '.join(BUILT_IN)}"

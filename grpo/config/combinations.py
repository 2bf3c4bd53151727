"""Combinations of configuration keys that cannot work."""

import re
from collections.abc import Iterator
from dataclasses import asdict

from grpo.base.text import did_you_mean
from grpo.config.options import FORM, INPUTS, SEARCH, WITH_KNOWLEDGE, AnyConfig, TrainConfig
from rewards.registry import BUILT_IN, NO_KNOWLEDGE_BASE, built_in, expand

_PLAIN_URL = re.compile(r"(\w+://)?([\w.-]+|\[[\da-fA-F:.]+\])?(:\d+)?(/[\w.~:-]*)*")


def find_problems(config: AnyConfig, is_run: bool = True) -> Iterator[str]:
    """Yield a message for each combination of keys that cannot work. is_run: also for what only training needs."""
    if isinstance(config, TrainConfig):
        yield from _reward_problems(config)
        if is_run:
            yield from _training_problems(config)
            yield from _unmet_needs(config)
    for name in config.tools:  # in stage 1, results after a misspelt one would be trained
        if name.endswith((".py", ":")):
            yield f"tools: {name} names no function; write it as path/file.py:FUNCTION"
        elif name != SEARCH and ":" not in name:
            yield f"tools: unknown tool {name}; built in is {SEARCH}, others are package.module:function"
    if config.base_weights and not config.lora_r:
        yield "base_weights is for frozen weights, and lora_r: 0 trains them; set lora_r, or base_weights: null"
    if config.tensor_parallel_size > 1 and not config.lora_r:
        yield "tensor_parallel_size shares frozen weights, and lora_r: 0 trains them; set lora_r, or train replicas"
    if config.max_steps == 0:
        yield "max_steps is 0: nothing to do"
    if config.run_name is not None and not re.fullmatch(r"[A-Za-z0-9._-]+", config.run_name):
        yield f"run_name may hold letters, digits, dots, dashes and underscores; got {config.run_name!r:.80}"
    if unknown := sorted(set(config.allow_changes) - set(INPUTS) - set(asdict(config))):
        yield f"allow_changes: neither a key nor one of {', '.join(INPUTS)}: {', '.join(unknown)}"


def _reward_problems(config: TrainConfig) -> Iterator[str]:
    """Yield what is wrong with the prompt, and with the names and weights of rewards."""
    if "{question}" not in config.prompt_template:
        yield "prompt_template does not contain {question}"
    rewards = expand(config.reward_funcs or ())
    weights = config.reward_weights
    all_rewards = [*rewards, *expand(config.eval_reward_funcs or ())]
    for name in dict.fromkeys(all_rewards):
        if name.endswith(".py"):
            yield f"reward_funcs: {name} is a file; name the function in it, too: {name}:FUNCTION"
        elif name not in BUILT_IN and ":" not in name:
            close = did_you_mean(name, list(BUILT_IN)) or f"; built in are {', '.join(BUILT_IN)}"
            yield f"reward_funcs: unknown reward {name}{close}"
    if weights and len(weights) != len(rewards):
        yield f"reward_weights has {len(weights)} entries, reward_funcs stands for {len(rewards)}: {', '.join(rewards)}"
    if config.reward_funcs == () or (weights and not any(weights)):
        yield "nothing is paid: reward_funcs is empty, or reward_weights are all 0"
    if len(set(rewards)) != len(rewards):
        yield "reward_funcs names a reward twice"
    for key in ("judge_base_url", "decomposer_base_url"):
        if not _PLAIN_URL.fullmatch(getattr(config, key) or ""):
            why = "more than host, port and path, perhaps a key, which files would show"
            yield f"{key} is {why}; see {key[:-8]}api_key_env"
    fits = 0 < config.soft_punish_cache <= config.max_completion_length
    if "soft_overlong_punishment" in all_rewards and not fits:
        yield "soft_overlong_punishment needs 0 < soft_punish_cache <= max_completion_length"


def _training_problems(config: TrainConfig) -> Iterator[str]:
    """Yield what is wrong with batch sizes, sampling and held-out questions."""
    num_completions = config.completions_per_replica
    if num_completions % config.num_generations:
        yield (
            f"per_device_train_batch_size x gradient_accumulation_steps = {num_completions} completions "
            f"cannot be split into groups of num_generations = {config.num_generations}"
        )
    if (config.top_p < 1 or config.top_k) and config.num_iterations > 1:
        yield "top_p and top_k need num_iterations: 1, since only the policy that sampled knows the tokens they keep"
    if config.eval_size and config.eval_dataset_id_or_path:
        yield "eval_size and eval_dataset_id_or_path both name held-out questions; set one of them, such as eval_size=0"
    if config.questions_per_step:  # load.py has replaced it by batch sizes, unless that is impossible
        yield f"questions_per_step = {config.questions_per_step} cannot be divided among the processes"
    if config.keep_best and not (config.eval_size or config.eval_dataset_id_or_path or config.toy_world):
        yield "keep_best needs held-out questions: set eval_dataset_id_or_path or eval_size"
    if config.cold_start == FORM and config.toy_world:
        yield "cold_start: form is for a model of yours; a toy world writes its own cold start: name its config"


def _unmet_needs(config: TrainConfig) -> Iterator[str]:
    """Yield what rewards, tools and variants of the step need and have not."""
    rewards = [built_in(name) for name in expand(config.reward_funcs or ())]
    held_out = [built_in(name) for name in expand(config.eval_reward_funcs or ())]
    if not config.knowledge_base and config.toy_world not in WITH_KNOWLEDGE:
        if any(reward.checks_facts for reward in (*rewards, *held_out)):
            yield f"factuality needs a knowledge base, and knowledge_base is not set; {NO_KNOWLEDGE_BASE}"
        if SEARCH in config.tools:
            yield f"the tool search needs a knowledge base, and knowledge_base is not set; {NO_KNOWLEDGE_BASE}"
    if config.environment and config.tool_format == "tags":
        yield "environment: its methods are called by the chat template; leave out tool_format: tags"
    if "tool_cost" in (config.reward_funcs or ()) and not (config.tools or config.environment):
        yield "tool_cost is the price of calls, and there are no tools to call; set tools, such as [search]"
    if config.refusal_target is not None and not any(reward.asks_judge for reward in rewards):
        yield "refusal_target needs a reward that knows which answers decline; add abstention to reward_funcs"
    if config.refusal_target is not None and config.multi_objective_aggregation != "sum_then_normalize":
        yield "refusal_target moves one sum of rewards; set multi_objective_aggregation: sum_then_normalize"
    if config.loss_type == "cispo" and (config.epsilon_high or 0) <= 1:
        yield "loss_type: cispo caps the ratio itself at epsilon_high, which is above 1; set it, such as 5"
    if config.loss_type == "cispo" and config.delta is not None:
        yield "delta bounds the ratio of another loss: loss_type: cispo has one bound, epsilon_high; leave delta out"
    if config.credit == "sentence" and not any(reward.checks_every_answer for reward in rewards):
        yield (
            "credit: sentence needs the verdicts on the facts of every answer; add factuality to reward_funcs, and 0 "
            "to reward_weights if it is not to be paid"
        )
    if config.credit == "sentence" and config.importance_sampling_level == "sequence":
        yield (
            "credit: sentence needs importance_sampling_level: token, since with one ratio per sequence every token is "
            "trained by the mean of the sequence's advantages"
        )

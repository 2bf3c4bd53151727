"""What the words of other programs mean here, and what their files leave out.

The programs are TRL, transformers, PEFT, LLaMA-Factory, KnowRL, the guide to mathematics, and trackers. A file may use
the words of several. Names stand in texts, separated by spaces; `*` in them stands for any ending. A key of the stage
itself keeps its meaning, whatever these tables say. A file with all keys of TRL, transformers or PEFT at their own
defaults is read without a mistake, whatever is missing here (tests/grpo/test_foreign.py).
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Set
from fnmatch import fnmatchcase
from importlib.util import find_spec
from typing import TypeVar

from grpo.config.options import ENVIRONMENT, SEARCH, WITH_KNOWLEDGE, SftConfig, Stage, TrainConfig
from grpo.config.values import Values
from rewards.prompts import BOXED, STEP_BY_STEP, tag_of, with_tools
from rewards.registry import built_in, expand

T = TypeVar("T")

# --- tables of words ----------------------------------------------------------------------------------------------


def _by_name(table: Mapping[T, str]) -> dict[str, T]:
    """Return name -> entry, from a table of entry -> names."""
    return {name: entry for entry, names in table.items() for name in names.split()}


ALIASES = _by_name(  # our key -> its other names
    {
        "adapter_name_or_path": "adapter_path",
        "answer_field": "best_answer_field",
        "beta": "kl_coef",
        "chat_template": "chat_template_path",
        "dataset_id_or_path": "data_path dataset dataset_name dataset_path train_file",
        "dataset_split": "dataset_splits dataset_train_split",
        "epsilon": "clip_range cliprange clip_ratio",
        "eval_dataset_id_or_path": "eval_dataset eval_file test_file val_file validation_file",
        "eval_dataset_split": "dataset_test_split",
        "eval_size": "val_size",
        "gradient_accumulation_steps": "gradient_accumulation",
        "gradient_checkpointing": "activation_checkpointing",
        "learning_rate": "lr",
        "lora_layers_to_transform": "layers_to_transform",
        "lora_r": "lora_rank r",
        "lora_target_modules": "lora_target target_modules",
        "lr_scheduler_type": "learning_rate_scheduler",
        "math_reward_correct": "reward_correct",
        "math_reward_no_answer": "reward_no_answer",
        "math_reward_wrong": "reward_wrong",
        "max_completion_length": "max_new_tokens",
        "max_length": "cutoff_len max_seq_length",
        "max_tool_calls": "max_tool_calling_iterations",
        "model_name_or_path": "model_name model_path",
        "num_generations": "num_return_sequences",
        "num_train_epochs": "epochs num_epochs",
        "per_device_train_batch_size": "batch_size",
        "project": "swanlab_project trackio_project wandb_project",
        "run_name": "swanlab_experiment_name wandb_name wandb_run_name",
        "shuffle_dataset": "shuffle",
        "tokenizer_name_or_path": "tokenizer_name tokenizer_path",
        "torch_dtype": "dtype",
        "workspace": "swanlab_workspace wandb_entity",
    }
)

INSTALLED = ",".join(filter(find_spec, ("tensorboard", "swanlab", "wandb", "trackio")))
SWITCHES = _by_name(  # a key of ours, and what it is set to -> the words of theirs, with their value
    {
        ("base_weights", "int8"): "load_in_8bit:true quantization_bit:8",
        ("base_weights", "nf4"): "load_in_4bit:true quantization_bit:4",
        ("device", "cpu"): "use_cpu:true",
        ("eval_max_samples", "0"): "eval_max_samples:-1",
        ("max_length", "1000000"): "max_length:none",  # for TRL, null means that there is no limit
        ("max_prompt_length", "1000000"): "max_prompt_length:none",
        ("save_total_limit", "0"): "save_total_limit:none",
        ("lora_r", "0"): "finetuning_type:full lora_enabled:false use_lora:false use_peft:false",
        ("max_samples", "0"): "max_samples:-1",
        ("report_to", INSTALLED): "report_to:all",
        ("report_to", "swanlab"): "use_swanlab:true",
        ("scale_rewards", "group"): "scale_rewards:true",
        ("scale_rewards", "none"): "scale_rewards:false",
        ("top_k", "0"): "top_k:-1",
        ("torch_dtype", "bfloat16"): "bf16:true pure_bf16:true",
        ("torch_dtype", "float16"): "fp16:true",
    }
)
OPTIONS = "chat_template_kwargs"  # the key whose own names may stand for it: LLaMA-Factory knows one of them
OPTION = re.compile(rf"(?:.*\.)?(?:{OPTIONS}\.(\w+)|(enable_thinking))")
SWITCH_NAMES = {word.partition(":")[0] for word in SWITCHES}  # other values of them mean nothing

IGNORED = _by_name(  # what happens instead -> names that cannot change the result
    {
        "the built-in sampler generates; sampler_importance_sampling_correction weights what the trainer sees "
        "otherwise": (
            "cache_implementation fast_inference gpu_memory_utilization transformers_continuous_batching_config "
            "use_cache use_transformers_* use_vllm vllm_*"
        ),
        "held-out questions are answered before and after training, greedily, and every eval_steps": (
            "batch_eval_metrics do_eval do_predict eval_accumulation_steps eval_dataset eval_delay "
            "eval_do_concat_batches eval_num_beams eval_on_each_dataset eval_on_start eval_packing eval_steps "
            "eval_strategy eval_use_gather_object evaluation_strategy num_generations_eval per_device_eval_batch_size "
            "prediction_loss_only val_size"
        ),
        "all rows are trained but the last eval_size": "train_split_ratio",
        "processes wait 30 minutes for each other": "ddp_timeout",
        "several GPUs work together under torchrun --nproc-per-node N, without DeepSpeed, FSDP or accelerate": (
            "accelerator_config average_tokens_across_devices ddp_* deepspeed* ds3_* fsdp* local_rank megatron_core "
            "num_gpus parallelism_config ray_* tp_size use_deepspeed"
        ),
        "the variable CUDA_VISIBLE_DEVICES says which GPUs a run sees": "cuda_visible_devices",
        "torch and our own kernels compute, as torch_dtype and gradient_checkpointing say; the optimizer is AdamW": (
            "activation_checkpointing_kwargs activation_offloading adam8bit attn_implementation bf16_full_eval "
            "bnb_4bit_* cast_lm_head_to_fp32 debug disable_gradient_checkpointing enable_liger_kernel flash_attn "
            "fp16_* gradient_checkpointing_* half_precision_backend ignore_bias_buffers liger_kernel_config "
            "model_init_kwargs optim optim_* optimizer past_index torch_compile* unsloth* use_bnb_nested_quant "
            "use_flash_attention_2 use_gradient_checkpointing use_liger* use_mps_device use_reentrant use_unsloth"
        ),
        "all columns are read once; the seed decides the order, and micro-batches are packed as large as memory "
        "allows": (
            "auto_find_batch_size buffer_size correct_answers_field data_seed dataloader_* dataset_dir "
            "dataset_num_proc delimiter generation_batch_size group_by_length ignore_data_skip "
            "ignore_pad_token_for_loss incorrect_answers_field keep_all_fields label_names length_column_name "
            "neat_packing num_workers overwrite_cache packing packing_strategy pad_* padding_* preprocessing_* "
            "random_state remove_unused_columns steps_per_generation tokenized_path torch_empty_cache_steps "
            "train_sampling_strategy truncation_mode"
        ),
        "safetensors are saved every save_steps, metrics.jsonl has every step, and nothing is uploaded": (
            "enable_jit_checkpoint greater_is_better hub_* include_* load_best_model_at_end log_completions_hub_repo "
            "log_level* log_multimodal log_on_each_node log_unique_prompts logging_dir logging_first_step "
            "logging_nan_inf_filter logging_strategy metric_for_best_model push_to_hub* "
            "restore_callback_states_from_checkpoint save_on_each_node save_only_model save_safetensors save_strategy "
            "skip_memory_metrics swanlab_mode trackio_* wandb_log_unique_prompts wandb_mode"
        ),
        "stage 1 always draws loss.png, and report.html shows the curves of both stages": "plot_loss",
        "prompts have the form of the tokenizer's own chat template, or of the file chat_template": "template",
        "the command, lora_r, lora_dropout and the checkpoint's own files decide; no code of a checkpoint is run": (
            "disable_dropout do_train inference_mode lora_task_type max_lora_rank model_code_revision peft_type "
            "peft_version task_type trust_remote_code use_fast_tokenizer"
        ),
        "the cold start trains on the answers alone, in a shuffled order": (
            "assistant_only_loss completion_only_loss shuffle shuffle_dataset"
        ),
        "api_max_concurrency bounds the questions under way, and the doctor counts calls and tokens without their "
        "price": "api_requests_per_minute decomposer_prices judge_prices verdict_cache",
        "keys come from this file, and from the one that `base` names": "grpo_config_file",
        "an advantage is a reward minus the mean of its group, divided as scale_rewards says; no model of values is "
        "trained": "cliprange_value gamma lam use_value_baseline value_* vf_coef whiten_*",
        "the reference is the policy of step 0, and other losses and terms of the loss are not available": (
            "entropy_coef_* entropy_target ref_model_* sapo_temperature_* vespo_*"
        ),
    }
)

REFUSED = _by_name(  # why a key is refused that would change the result -> its names
    {
        "adapters are plain LoRA on projections; for use_rslora, set lora_alpha to alpha x the square root of lora_r": (
            "additional_target alora_invocation_tokens alpha_pattern arrow_config auto_mapping bias corda_config "
            "ensure_weight_tying eva_config exclude_modules fan_in_fan_out init_lora_weights kasa_config "
            "layer_replication layers_pattern loftq_config lora_bias lora_ga_config lora_modules_to_save "
            "lora_target_parameters loraplus_* megatron_config modules_to_save monteclora_config pissa_* "
            "qalora_group_size rank_pattern revision target_parameters trainable_token_indices use_bdlora use_dora "
            "use_qalora use_rslora velora_config"
        ),
        "base_weights holds the frozen weights in few bits: nf4 or int8": (
            "quantization_bit quantization_device_map quantization_method quantization_type"
        ),
        "there are grpo.sft and grpo.train, of all weights or of adapters (lora_r)": "finetuning_type freeze_* stage",
        "tokens are sampled by temperature, top_p and top_k": (
            "do_sample generation_kwargs min_p repetition_penalty "
            "vllm_guided_decoding_regex vllm_structured_outputs_regex"
        ),
        "the loss is on all tokens of every answer, without noise or more terms; see loss_type, beta, entropy_coef": (
            "label_smoothing_factor loss_type mask_history neftune_noise_alpha off_policy_mask_threshold "
            "router_aux_loss_coef top_entropy_quantile train_on_prompt use_adaptive_entropy"
        ),
        "the reference is the policy of step 0": "sync_ref_model",
        "data is read before the first step, by the columns in grpo/README.md; a configuration is owner/name:config": (
            "dataset_config dataset_kwargs dataset_streaming dataset_text_field streaming"
        ),
        "the checkpoint's config.json and chat template decide, and a scheduler has no settings": (
            "eos_token lr_scheduler_kwargs rope_scaling"
        ),
    }
)

NEUTRAL = "none false 0 0.0 [] {}"  # values that change no result, in lower case
HARMLESS = {  # refused name -> the values that change nothing, if they are not those of NEUTRAL
    "dataset_text_field": "none text",
    "do_sample": "none true",
    "finetuning_type": "none lora",
    "init_lora_weights": "none true",
    "loss_type": "none nll chunked_nll",
    "qalora_group_size": "none 16",
    "quantization_method": "none bnb bitsandbytes",
    "quantization_type": "none nf4",
    "repetition_penalty": "none 1 1.0",
    "stage": "none sft grpo rl",
    "top_entropy_quantile": "none 1 1.0",
}

# Names under which files group their keys: `model: {path: x}` and `training: {model: {path: x}}` mean `model_path: x`.
SECTIONS = frozenset(
    "algorithm args arguments config data dataset field_mapping finetuning generation grpo grpo_config "
    "hyperparameters knowledge logging lora loss method model model_args optim optimizer output parameters peft "
    "peft_config reward rewards rl rollout run sampling settings sft system tracking train trainer training "
    "training_args".split()
)


def find_match(table: Iterable[str], name: str) -> str | None:
    """Return the first name or pattern of a table that matches `name`; None if none does."""
    return next((pattern for pattern in table if fnmatchcase(name, pattern)), None)


def readings(name: str) -> Iterator[str]:
    """Yield the keys that a name in sections can stand for, the longest first.

    >>> list(readings("training.model.path"))
    ['training_model_path', 'model_path', 'path']
    """
    parts = name.split(".")
    for start, part in enumerate(parts):
        yield "_".join(parts[start:])
        if part not in SECTIONS:
            return


def is_section(name: str) -> bool:
    """Return whether a mapping under this name holds keys; otherwise it is the value of a key without effect."""
    if name.rpartition(".")[2] == OPTIONS:
        return False
    keys = [*IGNORED, *REFUSED]
    return name.rpartition(".")[2] in SECTIONS or not any(find_match(keys, reading) for reading in readings(name))


# --- what files leave out -----------------------------------------------------------------------------------------

KNOWRLS_MODEL = "gpt-4o-mini"  # in its code
# For all weights, TRL's defaults; for adapters, ten times as much ("LoRA Without Regret", 2025).
RATES: dict[type, tuple[float, float]] = {
    TrainConfig: (1e-6, 1e-5),
    SftConfig: (2e-5, 2e-4),
}
LLAMA_FACTORY = frozenset("finetuning_type lora_rank lora_target cutoff_len template".split())  # no other tool's names
# of 0.9.3 (src/llamafactory/hparams/), and of the TrainingArguments on which it is built
LLAMA_FACTORY_DEFAULTS = {"lora_r": 8, "max_length": 2048, "learning_rate": 5e-5}
OF_TAGS = {"format", "tag_count"}  # rewards that look for <think> and <answer>
NO_BOX = "no prompt asks for \\boxed{}, which the reward math reads; say so in system_prompt or prompt_template"
NO_REWARD = (
    "reward_funcs is not set. KnowRL's files do not set it, but have a knowledge base: set knowledge_base or the "
    "variable FACTSCORE_DB_PATH, and knowrl_v2 is used. The math guide's have reward_correct, and math is used. "
    "Otherwise set reward_funcs, such as reward_funcs=[math]"
)


def supply(values: Values, names: Set[str], kind: type[Stage]) -> Iterator[str]:
    """Set the keys that a configuration leaves out or null, and that its other keys or the environment decide.

    Yields a notice for each. All of them are written to config.resolved.yaml, so that a run means the same in another
    shell. values: without the keys that are null where null is no value. names: the keys in the files.
    """
    if kind is SftConfig and LLAMA_FACTORY & names:
        yield from _supply_llama_factory(values)
    if "learning_rate" not in values:
        of_all_weights, of_adapters = RATES[kind]
        values["learning_rate"] = of_all_weights
        if values.get("lora_r", kind.lora_r):
            values["learning_rate"] = of_adapters
            yield f"learning_rate is not set: {of_adapters:g} is used, ten times TRL's default for all weights"
    if kind is SftConfig:
        return
    if values.get("multi_objective_aggregation") == "normalize_then_sum":
        given = values.get("scale_rewards", "batch")
        values["scale_rewards"] = "batch"
        if given != "batch":
            yield f"scale_rewards: {given} is not used: with normalize_then_sum it is batch"
    yield from _supply_rewards(values)
    yield from _supply_prompt(values)
    yield from _supply_services(values)


def _supply_llama_factory(values: Values) -> Iterator[str]:
    """Set what a file of LLaMA-Factory leaves to its defaults."""
    defaults = LLAMA_FACTORY_DEFAULTS | values
    if defaults["lora_r"]:
        defaults = {"lora_alpha": 2.0 * defaults["lora_r"]} | defaults
    missing = [f"{name} {value:g}" for name, value in defaults.items() if name not in values]
    values.update(defaults)
    if missing:
        yield f"the keys are those of LLaMA-Factory, whose defaults (of 0.9.3) are used: {', '.join(missing)}"


def _supply_rewards(values: Values) -> Iterator[str]:
    """Set the rewards, which KnowRL's files and the math guide's do not name."""
    if values.get("reward_funcs") is not None:
        return
    if environment := values.get("environment"):
        values["reward_funcs"] = (environment,)
        return
    of_math = next((name for name in values if name.startswith("math_reward_")), "")
    if values.get("knowledge_base") or (_variable_of("knowledge_base") and not of_math):
        values["reward_funcs"] = ("knowrl_v2",)
        yield "reward_funcs is not set, but a knowledge base is, as for KnowRL: using knowrl_v2"
    elif of_math:
        values["reward_funcs"] = ("math",)
        yield f"reward_funcs is not set, but {of_math} is, as in the math guide: using math"


def _supply_prompt(values: Values) -> Iterator[str]:
    """Set the prompt that the rewards need.

    KnowRL's files have none, because it is built into its program. Other rewards for knowing when to answer get the
    same prompt, since they grade the same blocks. rlcr needs another one, because it scores a stated confidence; math
    needs one that asks for a box. A toy world's model knows the format already.
    """
    names = values.get("reward_funcs") or ()
    if values.get("toy_world"):
        return
    is_typed = values.get("tool_format") == "template" or values.get("environment")
    own = [values[key] for key in ("system_prompt", "prompt_template") if values.get(key) is not None]
    if own:
        if "math" in names and not any("boxed" in prompt for prompt in own):
            yield NO_BOX
        tools = () if is_typed else values.get("tools") or ()
        tags = [f"<{tag_of(tool)}>" for tool in tools]
        if untold := [tag for tag in tags if not any(tag in prompt for prompt in own)]:
            yield f"no prompt tells the model that {' and '.join(untold)} calls a tool; say so in system_prompt"
        return
    offered = [(name, built_in(name).prompt) for name in sorted(names, key="rlcr".__ne__)]
    if "math" in names:
        offered.append(("math", BOXED if OF_TAGS & set(names) else STEP_BY_STEP))
    source, prompt = next((offer for offer in offered if offer[1]), ("", ""))
    if prompt:
        key = "prompt_template" if "{question}" in prompt else "system_prompt"
        values[key] = prompt
        yield f'{source} supplies the {key.replace("_", " ")}, as no prompt is set (system_prompt: "" for none)'
    if (tools := values.get("tools")) and not is_typed:
        values["system_prompt"] = with_tools(values.get("system_prompt") or "", tools)
        yield "the system prompt tells how to call the tools, as no prompt is set"


def _supply_services(values: Values) -> Iterator[str]:
    """Set what the rewards and the tool search ask: a knowledge base, a judge and a decomposer.

    What the run does not ask stays unset, whatever the environment names.
    """
    chosen = [*(values.get("reward_funcs") or ()), *(values.get("eval_reward_funcs") or ())]
    rewards = [built_in(name) for name in expand(chosen)]
    checks_facts = any(reward.checks_facts for reward in rewards)
    if checks_facts and values.get("judge") == "offline":
        yield from _supply_offline(values)
    reads_documents = checks_facts or SEARCH in values.get("tools", ())
    keys = []
    if reads_documents and values.get("toy_world") not in WITH_KNOWLEDGE:
        keys.append("knowledge_base")
    if any(reward.asks_judge for reward in rewards) and values.get("judge", "api") == "api":
        keys += ["judge_base_url", "judge_model"]
    if checks_facts and values.get("decomposer", "api") == "api":
        keys += ["decomposer_base_url", "decomposer_model"]
    for key in keys:
        yield from _take_from_environment(key, values)


def _take_from_environment(key: str, values: Values) -> Iterator[str]:
    """Set a key that is unset to what its variable names; without one, a model to that of KnowRL's code."""
    if values.get(key) is not None:
        return
    if variable := _variable_of(key):
        values[key] = os.environ[variable].strip()
        yield f"{key} is not set: what the variable {variable} names is used"
    elif key.endswith("_model"):
        values[key] = KNOWRLS_MODEL
        variables = " or ".join(ENVIRONMENT[key])
        yield f"{key} is not set, nor is {variables}: using {KNOWRLS_MODEL}, as KnowRL's code does"


def _variable_of(key: str) -> str:
    """Return the environment variable that a key takes its value from; "" if none is set."""
    return next((name for name in ENVIRONMENT[key] if os.environ.get(name, "").strip()), "")


def _supply_offline(values: Values) -> Iterator[str]:
    """With judge: offline, let facts be checked offline, too, unless something is said of these services."""
    said = {name for name, value in values.items() if value is not None}
    offline = {}
    is_remote = said & {"decomposer", "decomposer_model", "decomposer_base_url"} or _variable_of("decomposer_base_url")
    if not is_remote:
        offline["decomposer"] = "rules"
    if not said & {"verifier", "nli_model"}:
        offline["verifier"] = "lexical"
    values.update(offline)
    if offline:
        listed = ", ".join(f"{name}: {value}" for name, value in offline.items())
        yield f"judge is offline, so facts are checked offline, too: {listed}"

"""Keys of other tools: what those of TRL, transformers, PEFT, LLaMA-Factory, KnowRL and the math guide mean here.

ALIASES    another name of a key
SWITCHES   a key with one of these values sets one of our keys, or adds to our list; its other values mean nothing
IGNORED    a key that cannot change the result, and what happens instead; `*` stands for any ending
REFUSED    a key that would change the result but is not available, and why
HARMLESS   the values of such a key that change nothing, if they are not those of NOTHING
SECTIONS   names under which files group their keys: `model: {path: x}` and `training: {model: {path: x}}` both mean
           `model_path: x`

A key of the stage itself keeps its meaning, whatever these tables say. A file with all keys of TRL, transformers or
PEFT at their own defaults is read without a mistake, whatever is missing here (tests/grpo/test_foreign.py).
"""

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase

_OTHER_NAMES = {
    "answer_field": "best_answer_field",
    "beta": "kl_coef",
    "chat_template": "chat_template_path",
    "dataset_id_or_path": "data_path dataset dataset_name dataset_path",
    "dataset_split": "dataset_splits dataset_train_split",
    "eval_dataset_id_or_path": "eval_dataset",
    "eval_size": "val_size",
    "gradient_accumulation_steps": "gradient_accumulation",
    "gradient_checkpointing": "activation_checkpointing",
    "learning_rate": "lr",
    "lora_r": "lora_rank r",
    "lora_layers_to_transform": "layers_to_transform",
    "lora_target_modules": "lora_target target_modules",
    "lr_scheduler_type": "learning_rate_scheduler",
    "math_reward_correct": "reward_correct",
    "math_reward_no_answer": "reward_no_answer",
    "math_reward_wrong": "reward_wrong",
    "max_completion_length": "max_new_tokens",
    "max_length": "cutoff_len max_seq_length",
    "model_name_or_path": "model_name model_path",
    "num_generations": "num_return_sequences",
    "num_train_epochs": "epochs num_epochs",
    "per_device_train_batch_size": "batch_size",
    "project": "swanlab_project trackio_project wandb_project",
    "run_name": "swanlab_experiment_name wandb_name wandb_run_name",
    "tokenizer_name_or_path": "tokenizer_name tokenizer_path",
    "torch_dtype": "dtype",
}
ALIASES = {theirs: ours for ours, names in _OTHER_NAMES.items() for theirs in names.split()}

SWITCHES = {
    "bf16": {"true": ("torch_dtype", "bfloat16")},
    "finetuning_type": {"full": ("lora_r", "0")},
    "fp16": {"true": ("torch_dtype", "float16")},
    "pure_bf16": {"true": ("torch_dtype", "bfloat16")},
    "use_cpu": {"true": ("device", "cpu")},
    "use_lora": {"false": ("lora_r", "0")},
    "use_peft": {"false": ("lora_r", "0")},
    "use_swanlab": {"true": ("report_to", "swanlab")},
}

_IGNORED = {  # what happens instead -> the keys
    "the cold start trains on the answers alone, in a shuffled order": (
        "assistant_only_loss completion_only_loss shuffle_dataset"
    ),
    "the built-in sampler generates; sampler_importance_sampling_correction weights what the trainer sees otherwise": (
        "cache_implementation fast_inference gpu_memory_utilization transformers_continuous_batching_config use_cache "
        "use_transformers_* use_vllm vllm_*"
    ),
    "held-out questions are answered before and after training, greedily, and every eval_steps (stage 1 has none)": (
        "batch_eval_metrics dataset_test_split do_eval do_predict eval_accumulation_steps eval_dataset eval_delay "
        "eval_do_concat_batches eval_num_beams eval_on_each_dataset eval_on_start eval_packing eval_steps "
        "eval_strategy eval_use_gather_object evaluation_strategy num_generations_eval per_device_eval_batch_size "
        "prediction_loss_only val_size"
    ),
    "several GPUs work together under torchrun --nproc-per-node N, without DeepSpeed, FSDP or accelerate": (
        "accelerator_config average_tokens_across_devices ddp_* deepspeed ds3_* fsdp* local_rank megatron_core "
        "parallelism_config ray_* tp_size"
    ),
    "torch and our own kernels compute, as torch_dtype and gradient_checkpointing say; the optimizer is AdamW": (
        "activation_checkpointing_kwargs activation_offloading adam8bit attn_implementation bf16_full_eval bnb_4bit_* "
        "cast_lm_head_to_fp32 debug disable_gradient_checkpointing enable_liger_kernel flash_attn fp16_* "
        "gradient_checkpointing_* half_precision_backend ignore_bias_buffers liger_kernel_config model_init_kwargs "
        "optim optim_* optimizer past_index torch_compile* unsloth* use_bnb_nested_quant use_flash_attention_2 "
        "use_gradient_checkpointing use_liger* use_mps_device use_reentrant use_unsloth"
    ),
    "all columns are read once; the seed decides the order, and micro-batches are packed as large as memory allows": (
        "auto_find_batch_size buffer_size correct_answers_field data_seed dataloader_* dataset_dir dataset_num_proc "
        "delimiter generation_batch_size group_by_length ignore_data_skip ignore_pad_token_for_loss "
        "incorrect_answers_field keep_all_fields label_names length_column_name neat_packing overwrite_cache packing "
        "packing_strategy pad_* padding_* preprocessing_* random_state remove_unused_columns steps_per_generation "
        "tokenized_path torch_empty_cache_steps train_sampling_strategy truncation_mode"
    ),
    "safetensors are saved every save_steps, metrics.jsonl has every step, and nothing is uploaded": (
        "enable_jit_checkpoint greater_is_better hub_* include_* load_best_model_at_end log_completions_hub_repo "
        "log_level* log_multimodal log_on_each_node log_unique_prompts logging_dir logging_first_step "
        "logging_nan_inf_filter logging_strategy metric_for_best_model plot_loss push_to_hub* "
        "restore_callback_states_from_checkpoint save_on_each_node save_only_model save_safetensors save_strategy "
        "skip_memory_metrics swanlab_mode trackio_* wandb_log_unique_prompts wandb_mode"
    ),
    "the command, lora_r, lora_dropout and the checkpoint's own files decide; no code of a checkpoint is run": (
        "disable_dropout do_train inference_mode lora_task_type max_lora_rank model_code_revision peft_type "
        "peft_version task_type template trust_remote_code use_fast_tokenizer"
    ),
    "api_max_concurrency bounds the questions under way, and the doctor counts calls and tokens without their price": (
        "api_requests_per_minute decomposer_prices judge_prices verdict_cache"
    ),
    "the reference is the policy of step 0, and other losses and terms of the loss are not available": (
        "entropy_coef_* entropy_target ref_model_* sapo_temperature_* vespo_*"
    ),
}
IGNORED = {name: instead for instead, names in _IGNORED.items() for name in names.split()}

NOTHING = ("none", "false", "0", "0.0", "", "[]", "{}")  # values that change no result, in lower case
HARMLESS = {  # those of keys for which they are others
    "dataset_text_field": ("none", "text"),
    "do_sample": ("none", "true"),
    "finetuning_type": ("none", "lora"),
    "init_lora_weights": ("none", "true"),
    "loss_type": ("none", "nll", "chunked_nll"),
    "qalora_group_size": ("none", "16"),
    "repetition_penalty": ("none", "1", "1.0"),
    "stage": ("none", "sft", "grpo", "rl"),
    "top_entropy_quantile": ("none", "1", "1.0"),
}
_REFUSED = {  # reason -> the keys
    "adapters are plain LoRA on projections; for use_rslora, set lora_alpha to alpha x the square root of lora_r": (
        "additional_target alora_invocation_tokens alpha_pattern arrow_config auto_mapping bias corda_config "
        "ensure_weight_tying eva_config exclude_modules fan_in_fan_out init_lora_weights kasa_config layer_replication "
        "layers_pattern loftq_config lora_bias lora_ga_config lora_modules_to_save "
        "lora_target_parameters loraplus_* megatron_config modules_to_save monteclora_config pissa_* qalora_group_size "
        "rank_pattern revision target_parameters trainable_token_indices use_bdlora use_dora use_qalora use_rslora "
        "velora_config"
    ),
    "there are grpo.sft and grpo.train, of all weights or of adapters (lora_r), without quantisation": (
        "finetuning_type freeze_* load_in_4bit load_in_8bit quantization_* stage"
    ),
    "tokens are sampled by temperature, top_p and top_k, and models call no tools": (
        "do_sample generation_kwargs max_tool_calling_iterations min_p repetition_penalty tool_format "
        "vllm_guided_decoding_regex vllm_structured_outputs_regex"
    ),
    "the loss is on all tokens of every answer, without noise or further terms; see loss_type, beta and delta": (
        "entropy_coef label_smoothing_factor loss_type mask_history "
        "neftune_noise_alpha off_policy_mask_threshold router_aux_loss_coef sync_ref_model top_entropy_quantile "
        "train_on_prompt use_adaptive_entropy"
    ),
    "data is read before the first step, from the columns that README names; a configuration is owner/name:config": (
        "dataset_config dataset_kwargs dataset_streaming dataset_text_field streaming"
    ),
    "a service has a project and a run_name here; its own variables, such as WANDB_ENTITY, say the rest": (
        "swanlab_workspace wandb_entity"
    ),
    "the checkpoint's config.json and chat template decide, and a scheduler has no settings": (
        "eos_token lr_scheduler_kwargs rope_scaling"
    ),
}
REFUSED = {name: reason for reason, names in _REFUSED.items() for name in names.split()}

SECTIONS = frozenset(
    "algorithm args arguments config data dataset field_mapping finetuning generation grpo grpo_config "
    "hyperparameters knowledge logging lora loss method model model_args optim optimizer output parameters peft "
    "peft_config reward rewards rl rollout run sampling settings sft tracking train trainer training "
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
    if name == "chat_template_kwargs":
        return False
    keys = [*IGNORED, *REFUSED]
    return name.rpartition(".")[2] in SECTIONS or not any(find_match(keys, reading) for reading in readings(name))

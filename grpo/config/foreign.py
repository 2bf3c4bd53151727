"""Keys of other tools: what those of TRL, transformers, PEFT, LLaMA-Factory, KnowRL and the math guide mean here.

ALIASES    another name of a key
VALUES     a key with one of these values stands for one of our keys, or adds to our list; its other values mean nothing
SPELLINGS  another way to write a value of a key
IGNORED    a key that cannot change the result, and what happens instead; `*` stands for any ending
REFUSED    a key that would change the result but is not available: the values that change nothing, and the reason
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
    "project": "trackio_project",
    "run_name": "swanlab_experiment_name wandb_name wandb_run_name",
    "sampler_importance_sampling_cap": "vllm_importance_sampling_cap vllm_importance_sampling_clip_max",
    "sampler_importance_sampling_correction": "vllm_importance_sampling_correction",
    "tokenizer_name_or_path": "tokenizer_name tokenizer_path",
    "torch_dtype": "dtype",
}
ALIASES = {theirs: ours for ours, names in _OTHER_NAMES.items() for theirs in names.split()}

VALUES = {
    "bf16": {True: ("torch_dtype", "bfloat16")},
    "finetuning_type": {"full": ("lora_r", 0)},
    "fp16": {True: ("torch_dtype", "float16")},
    "pure_bf16": {True: ("torch_dtype", "bfloat16")},
    "use_cpu": {True: ("device", "cpu")},
    "use_lora": {False: ("lora_r", 0)},
    "use_peft": {False: ("lora_r", 0)},
    "use_swanlab": {True: ("report_to", "swanlab")},
    "vllm_importance_sampling_clip_max": {None: ("sampler_importance_sampling_cap", 1e30)},  # null: no bound
}

SPELLINGS = {
    "scale_rewards": {"true": "group", "True": "group", "false": "none", "False": "none"},
    "torch_dtype": {
        **{f"torch.{name}": name for name in ("bfloat16", "float16", "float32", "float64")},
        **dict.fromkeys(("bf16",), "bfloat16"),
        **dict.fromkeys(("fp16", "half"), "float16"),
        **dict.fromkeys(("fp32", "float"), "float32"),
    },
}

_IGNORED = {  # what happens instead -> the keys
    "the built-in sampler generates": "cache_implementation fast_inference gpu_memory_utilization use_cache "
    "transformers_continuous_batching_config use_transformers_* use_vllm vllm_*",
    "held-out questions are answered before and after training, greedily, and every eval_steps (stage 1 has none)": (
        "batch_eval_metrics dataset_test_split do_eval eval_accumulation_steps eval_dataset eval_delay "
        "eval_do_concat_batches eval_num_beams eval_on_each_dataset eval_on_start eval_steps eval_strategy "
        "eval_use_gather_object evaluation_strategy num_generations_eval per_device_eval_batch_size "
        "prediction_loss_only val_size"
    ),
    "several GPUs work together under torchrun --nproc-per-node N, without DeepSpeed, FSDP or accelerate": (
        "accelerator_config average_tokens_across_devices ddp_* deepspeed ds3_* fsdp* local_rank parallelism_config "
        "ray_* tp_size"
    ),
    "torch and our own kernels compute; the fastest attention that works on this machine is chosen": (
        "attn_implementation debug enable_liger_kernel flash_attn half_precision_backend ignore_bias_buffers "
        "liger_kernel_config past_index torch_compile* unsloth* use_flash_attention_2 use_liger* "
        "use_mps_device use_unsloth"
    ),
    "the optimizer is AdamW with float32 states": "adam8bit optim optim_* optimizer",
    "torch_dtype decides, also in evaluation; log-probs are computed in float32": (
        "bf16_full_eval cast_lm_head_to_fp32 fp16_* model_init_kwargs"
    ),
    "weights are not quantised": "bnb_4bit_* use_bnb_nested_quant",
    "one process reads the data, once; seed and shuffle_dataset decide its order": (
        "buffer_size data_seed dataloader_* dataset_dir ignore_data_skip overwrite_cache preprocessing_* random_state "
        "dataset_num_proc tokenized_path train_sampling_strategy"
    ),
    "rewards see all columns": (
        "correct_answers_field incorrect_answers_field keep_all_fields label_names length_column_name "
        "remove_unused_columns"
    ),
    "titles are looked up together, then each by itself": "delimiter",
    "micro-batches are packed without padding, as large as memory allows": (
        "auto_find_batch_size eval_packing group_by_length ignore_pad_token_for_loss neat_packing packing "
        "packing_strategy pad_* padding_* torch_empty_cache_steps truncation_mode"
    ),
    "gradient_checkpointing decides": (
        "activation_checkpointing_kwargs activation_offloading disable_gradient_checkpointing gradient_checkpointing_* "
        "use_gradient_checkpointing use_reentrant"
    ),
    "a step generates per_device_train_batch_size x gradient_accumulation_steps completions": (
        "generation_batch_size steps_per_generation"
    ),
    "checkpoints are saved as safetensors every save_steps; save_total_limit are kept, and final/ is the last policy": (
        "enable_jit_checkpoint greater_is_better load_best_model_at_end metric_for_best_model "
        "restore_callback_states_from_checkpoint save_on_each_node save_only_model save_safetensors save_strategy"
    ),
    "metrics.jsonl has every step; trackers, tb/ and completions/ every logging_steps; stage 1 plots the loss": (
        "include_* log_level* log_multimodal log_on_each_node log_unique_prompts logging_dir logging_first_step "
        "logging_nan_inf_filter logging_strategy plot_loss skip_memory_metrics wandb_log_unique_prompts"
    ),
    "nothing is uploaded": "hub_* log_completions_hub_repo push_to_hub*",
    "the variables SWANLAB_MODE, WANDB_MODE and those of trackio decide": "swanlab_mode trackio_* wandb_mode",
    "no code of a checkpoint is run": "model_code_revision trust_remote_code",
    "the command, lora_r and lora_dropout decide": (
        "disable_dropout do_predict do_train inference_mode lora_task_type max_lora_rank megatron_core peft_type "
        "peft_version task_type"
    ),
    "the tokenizer's chat template is used, and tokenizers are always the fast ones": "template use_fast_tokenizer",
    "the reference is the policy of step 0": "ref_model_*",
    "it belongs to a loss or a term of the loss that is not available": (
        "entropy_coef_* entropy_target sapo_temperature_* vespo_*"
    ),
}
IGNORED = {name: instead for instead, names in _IGNORED.items() for name in names.split()}

NOTHING = (None, False, "", [], {})  # values that never change a result
_REFUSED = {  # reason -> key -> the values that change nothing; None: those of NOTHING
    "adapters are plain LoRA on projections": {
        **dict.fromkeys(
            "additional_target alora_invocation_tokens alpha_pattern arrow_config auto_mapping corda_config "
            "ensure_weight_tying eva_config exclude_modules fan_in_fan_out kasa_config layer_replication "
            "layers_pattern layers_to_transform loftq_config lora_ga_config lora_modules_to_save "
            "lora_target_parameters loraplus_* megatron_config modules_to_save monteclora_config pissa_* rank_pattern "
            "revision target_parameters trainable_token_indices use_bdlora use_dora use_qalora velora_config".split()
        ),
        "bias": ("none", False),
        "init_lora_weights": True,
        "lora_bias": ("none", False),
        "qalora_group_size": 16,
    },
    "set lora_alpha to alpha x the square root of lora_r instead": {"use_rslora": None},
    "all weights are trained, or adapters (lora_r)": {"finetuning_type": ("lora", "full"), "freeze_*": None},
    "there are supervised fine-tuning (grpo.sft) and GRPO (grpo.train)": {"stage": ("sft", "grpo", "rl")},
    "weights are kept as torch_dtype; `python -m grpo.doctor CONFIG` counts the memory": {
        **dict.fromkeys(("load_in_4bit", "load_in_8bit", "quantization_*"))
    },
    "tokens are sampled by temperature, top_p and top_k": {
        **dict.fromkeys(("generation_kwargs", "vllm_guided_decoding_regex", "vllm_structured_outputs_regex")),
        "do_sample": True,
        "min_p": 0,
        "repetition_penalty": 1,
    },
    "the loss is on every answer of a conversation, and on nothing else": {
        **dict.fromkeys(("assistant_only_loss", "completion_only_loss"), (False, True)),
        "label_smoothing_factor": 0,
        "loss_type": ("nll", "chunked_nll"),
        "mask_history": None,
        "train_on_prompt": None,
    },
    "the loss is on all tokens, and has no term for entropy": {
        "entropy_coef": 0,
        "top_entropy_quantile": 1,
        "use_adaptive_entropy": None,
    },
    "embeddings get no noise": {"neftune_noise_alpha": 0},
    "see delta and sampler_importance_sampling_correction": {"off_policy_mask_threshold": None},
    "conversations are read from the columns that README names": {"dataset_kwargs": None, "dataset_text_field": "text"},
    "the chat template says what ends an answer": {"eos_token": None},
    "stage 1 shuffles by the seed": {"shuffle_dataset": (False, True)},
    "positions are those of the checkpoint's config.json": {"rope_scaling": None},
    "the data is read before the first step": {"streaming": None, "dataset_streaming": None},
    "name the configuration in dataset_id_or_path, as owner/name:config": {"dataset_config": None},
    "the reference is the policy of step 0": {"sync_ref_model": None},
    "a scheduler has no further settings": {"lr_scheduler_kwargs": None},
    "models call no tools": {"max_tool_calling_iterations": None, "tool_format": None},
    "models have no experts": {"router_aux_loss_coef": 0},
}
REFUSED = {
    name: (NOTHING if values is None else (None, *(values if isinstance(values, tuple) else (values,))), reason)
    for reason, keys in _REFUSED.items()
    for name, values in keys.items()
}
CORRECTION = {  # keys of TRL's correction for vLLM's log-probs, with which alone they matter: what is available
    "vllm_importance_sampling_mode": (("token_truncate",), "use token_truncate, which is what the correction does"),
    "vllm_importance_sampling_clip_min": ((None,), "weights have an upper bound only"),
}

SECTIONS = frozenset(
    "algorithm args arguments config data dataset field_mapping finetuning generation grpo grpo_config "
    "hyperparameters knowledge logging lora loss method model model_args optim optimizer output parameters peft "
    "peft_config reward rewards rl rollout run sampling settings sft tracking train trainer training "
    "training_args".split()
)


def fits(table: Iterable[str], name: str) -> str | None:
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
    return name.rpartition(".")[2] in SECTIONS or not any(fits(keys, reading) for reading in readings(name))

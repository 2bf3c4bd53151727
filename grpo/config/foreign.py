"""Keys of other tools: what those of TRL, transformers, LLaMA-Factory, KnowRL and the math guide mean here.

ALIASES    another name of a key
VALUES     a key with one of these values stands for one of our keys, or adds to our list; its other values mean nothing
SPELLINGS  another way to write a value of a key
IGNORED    a key without a meaning here, and what happens instead; `*` stands for any ending
REFUSED    a key that would change the result but is not available: the values that change nothing, and the reason
SECTIONS   names under which files group their keys: `model: {path: x}` and `training: {model: {path: x}}` both mean
           `model_path: x`

A key of the stage itself keeps its meaning, whatever these tables say.
"""

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase

from grpo.config.options import MAPPINGS

ALIASES = {
    "activation_checkpointing": "gradient_checkpointing",
    "batch_size": "per_device_train_batch_size",
    "best_answer_field": "answer_field",
    "chat_template_path": "chat_template",
    "cutoff_len": "max_length",
    "data_path": "dataset_id_or_path",
    "dataset": "dataset_id_or_path",
    "dataset_name": "dataset_id_or_path",
    "dataset_path": "dataset_id_or_path",
    "dataset_splits": "dataset_split",
    "dataset_train_split": "dataset_split",
    "dtype": "torch_dtype",
    "epochs": "num_train_epochs",
    "eval_dataset": "eval_dataset_id_or_path",
    "gradient_accumulation": "gradient_accumulation_steps",
    "kl_coef": "beta",
    "learning_rate_scheduler": "lr_scheduler_type",
    "lora_rank": "lora_r",
    "lora_target": "lora_target_modules",
    "lr": "learning_rate",
    "max_new_tokens": "max_completion_length",
    "max_seq_length": "max_length",
    "model_name": "model_name_or_path",
    "model_path": "model_name_or_path",
    "num_epochs": "num_train_epochs",
    "num_return_sequences": "num_generations",
    "r": "lora_r",
    "reward_correct": "math_reward_correct",
    "reward_no_answer": "math_reward_no_answer",
    "reward_wrong": "math_reward_wrong",
    "swanlab_experiment_name": "run_name",
    "target_modules": "lora_target_modules",
    "tokenizer_name": "tokenizer_name_or_path",
    "tokenizer_path": "tokenizer_name_or_path",
    "trackio_project": "project",
    "val_size": "eval_size",
    "vllm_importance_sampling_cap": "sampler_importance_sampling_cap",
    "vllm_importance_sampling_correction": "sampler_importance_sampling_correction",
    "wandb_name": "run_name",
    "wandb_run_name": "run_name",
}

VALUES = {
    "bf16": {True: ("torch_dtype", "bfloat16")},
    "finetuning_type": {"full": ("lora_r", 0)},
    "fp16": {True: ("torch_dtype", "float16")},
    "pure_bf16": {True: ("torch_dtype", "bfloat16")},
    "use_cpu": {True: ("device", "cpu")},
    "use_lora": {False: ("lora_r", 0)},
    "use_peft": {False: ("lora_r", 0)},
    "use_swanlab": {True: ("report_to", "swanlab")},
}

SPELLINGS = {
    "torch_dtype": {
        **{f"torch.{name}": name for name in ("bfloat16", "float16", "float32", "float64")},
        "bf16": "bfloat16",
        "fp16": "float16",
        "half": "float16",
        "fp32": "float32",
        "float": "float32",
    },
}

_ENGINE = "the built-in sampler generates"
_DECIDED = "the command decides"
_ONE_PROCESS = "one process reads the data, once"
_GPUS = "several GPUs work together under torchrun --nproc-per-node N, without DeepSpeed, FSDP or accelerate"
_LIBRARIES = "torch and our own kernels compute"
_LOGGED = "metrics.jsonl has every step; trackers and completions/ every logging_steps"
_SAVED = "checkpoints are saved every save_steps, and save_total_limit of them are kept"
_EVALUATED = "held-out questions are answered before and after training, and every eval_steps"
_COLUMNS = "rewards see all columns"
_LOCAL = "nothing is uploaded"

IGNORED = {
    "accelerator_config": _GPUS,
    "adam8bit": "the optimizer is AdamW with float32 states",
    "attn_implementation": "the fastest attention that works on this machine is chosen",
    "auto_find_batch_size": "micro-batches are as large as memory allows",
    "average_tokens_across_devices": "the weights of tokens count over all devices",
    "batch_eval_metrics": _EVALUATED,
    "bf16_full_eval": "torch_dtype holds for evaluation, too",
    "bnb_4bit_*": "weights are not quantised",
    "cache_implementation": _ENGINE,
    "cast_lm_head_to_fp32": "log-probs are computed in float32",
    "correct_answers_field": _COLUMNS,
    "data_seed": "seed decides the order of the data",
    "dataloader_*": _ONE_PROCESS,
    "dataset_config": "dataset_id_or_path names the data",
    "dataset_dir": "dataset_id_or_path is a path",
    "dataset_test_split": _EVALUATED,
    "ddp_*": "the time limit and the buckets of collectives are fixed",
    "debug": _LIBRARIES,
    "deepspeed": _GPUS,
    "delimiter": "titles are looked up together, then each by itself",
    "disable_dropout": "only adapters have dropout (lora_dropout)",
    "disable_gradient_checkpointing": "gradient_checkpointing decides",
    "do_eval": _EVALUATED,
    "do_predict": _DECIDED,
    "do_train": _DECIDED,
    "ds3_*": _GPUS,
    "enable_jit_checkpoint": _SAVED,
    "enable_liger_kernel": _LIBRARIES,
    "eval_accumulation_steps": _EVALUATED,
    "eval_delay": _EVALUATED,
    "eval_do_concat_batches": _EVALUATED,
    "eval_dataset": "stage 1 answers no held-out questions",
    "eval_num_beams": _EVALUATED,
    "eval_on_each_dataset": _EVALUATED,
    "eval_on_start": _EVALUATED,
    "eval_steps": "stage 1 answers no held-out questions",
    "eval_strategy": _EVALUATED,
    "eval_use_gather_object": _EVALUATED,
    "evaluation_strategy": _EVALUATED,
    "fast_inference": _ENGINE,
    "finetuning_type": "lora_r decides; 0 trains all weights",
    "flash_attn": "the fastest attention that works on this machine is chosen",
    "fp16_*": "torch_dtype decides",
    "fsdp*": _GPUS,
    "generation_batch_size": "a step generates per_device_train_batch_size x gradient_accumulation_steps completions",
    "gpu_memory_utilization": "the cache is sized by free memory",
    "gradient_checkpointing_*": "checkpointing does not need them",
    "activation_checkpointing_kwargs": "checkpointing does not need them",
    "greater_is_better": _SAVED,
    "group_by_length": "micro-batches are packed",
    "half_precision_backend": _LIBRARIES,
    "hub_*": _LOCAL,
    "ignore_data_skip": "a resumed run continues with the next row",
    "ignore_pad_token_for_loss": "there are no pad tokens",
    "include_*": _LOGGED,
    "incorrect_answers_field": _COLUMNS,
    "keep_all_fields": _COLUMNS,
    "label_names": _COLUMNS,
    "length_column_name": _COLUMNS,
    "liger_kernel_config": _LIBRARIES,
    "load_best_model_at_end": "final/ is the last policy; checkpoints are kept as well",
    "local_rank": "torchrun sets it",
    "log_completions_hub_repo": _LOCAL,
    "log_level*": _LOGGED,
    "log_on_each_node": _LOGGED,
    "log_unique_prompts": _LOGGED,
    "logging_dir": "TensorBoard's files are in tb/ of output_dir",
    "logging_first_step": _LOGGED,
    "logging_nan_inf_filter": _LOGGED,
    "logging_strategy": _LOGGED,
    "lora_task_type": _DECIDED,
    "lr_scheduler_kwargs": "a scheduler has no further settings",
    "max_lora_rank": "lora_r decides",
    "metric_for_best_model": _SAVED,
    "model_code_revision": "no code of a checkpoint is run",
    "model_init_kwargs": "torch_dtype and model_revision say how the model is loaded",
    "neat_packing": "answers are always packed, and do not see each other",
    "num_generations_eval": "held-out questions are answered once, greedily",
    "optim": "the optimizer is AdamW with float32 states",
    "optim_*": "the optimizer is AdamW with float32 states",
    "optimizer": "the optimizer is AdamW with float32 states",
    "overwrite_cache": "prepared data is not cached",
    "packing": "answers are always packed, and do not see each other",
    "pad_*": "there is no padding",
    "padding_*": "there is no padding",
    "parallelism_config": _GPUS,
    "past_index": _LIBRARIES,
    "per_device_eval_batch_size": "max_num_seqs, or free memory, decides",
    "plot_loss": "stage 1 always plots the loss",
    "prediction_loss_only": _EVALUATED,
    "preprocessing_*": _ONE_PROCESS,
    "push_to_hub*": _LOCAL,
    "random_state": "seed decides",
    "ray_*": _GPUS,
    "ref_model_*": "the reference is the policy of step 0",
    "remove_unused_columns": _COLUMNS,
    "restore_callback_states_from_checkpoint": "there are no callbacks",
    "sapo_temperature_*": "loss_type sapo is not available",
    "save_on_each_node": _SAVED,
    "save_only_model": _SAVED,
    "save_safetensors": "weights are always saved as safetensors",
    "save_strategy": _SAVED,
    "skip_memory_metrics": "peak_memory_gb is always measured",
    "stage": _DECIDED,
    "steps_per_generation": "a step generates per_device_train_batch_size x gradient_accumulation_steps completions",
    "swanlab_mode": "the variable SWANLAB_MODE decides",
    "task_type": _DECIDED,
    "template": "the tokenizer's chat template is used",
    "tokenized_path": "prepared data is not cached",
    "torch_compile*": _LIBRARIES,
    "torch_empty_cache_steps": "memory is planned before the first step",
    "tp_size": _GPUS,
    "trackio_*": "trackio keeps its data on this machine, unless its own variables say otherwise",
    "train_sampling_strategy": "shuffle_dataset decides",
    "trust_remote_code": "no code of a checkpoint is run",
    "unsloth*": _LIBRARIES,
    "use_bnb_nested_quant": "weights are not quantised",
    "use_cache": _ENGINE,
    "use_fast_tokenizer": "tokenizers are always the fast ones",
    "use_flash_attention_2": "the fastest attention that works on this machine is chosen",
    "use_gradient_checkpointing": "gradient_checkpointing decides",
    "use_liger*": _LIBRARIES,
    "use_mps_device": "device decides",
    "use_reentrant": "checkpointing does not need it",
    "use_transformers_paged": _ENGINE,
    "use_unsloth": _LIBRARIES,
    "use_vllm": _ENGINE,
    "val_size": "stage 1 trains on all rows",
    "vllm_gpu_memory_utilization": "the cache is sized by free memory",
    "vllm_*": _ENGINE,
    "wandb_mode": "the variable WANDB_MODE decides",
}

_NOTHING = (None, False)
_NOT_QUANTISED = "weights are kept as torch_dtype; `python -m grpo.doctor CONFIG` counts the memory"
_ADAPTERS = "adapters are plain LoRA on projections"
_SAMPLING = "tokens are sampled by temperature, top_p and top_k"
_ANSWERS = "the loss is on every answer of a conversation, and on nothing else"

REFUSED = {
    "additional_target": ((None, ""), _ADAPTERS),
    "bias": ((None, False, "none"), _ADAPTERS),
    "do_sample": ((True,), "GRPO needs samples"),
    "finetuning_type": (("lora", "full"), "all weights are trained, or adapters (lora_r)"),
    "freeze_*": (_NOTHING, "all weights are trained, or adapters (lora_r)"),
    "generation_kwargs": ((None, {}), _SAMPLING),
    "label_smoothing_factor": ((0,), _ANSWERS),
    "load_in_4bit": (_NOTHING, _NOT_QUANTISED),
    "load_in_8bit": (_NOTHING, _NOT_QUANTISED),
    "lora_bias": ((None, False, "none"), _ADAPTERS),
    "lora_modules_to_save": ((None, []), _ADAPTERS),
    "loraplus_*": (_NOTHING, _ADAPTERS),
    "mask_history": (_NOTHING, _ANSWERS),
    "min_p": ((None, 0), _SAMPLING),
    "neftune_noise_alpha": ((None, 0), "embeddings get no noise"),
    "off_policy_mask_threshold": ((None,), "see delta and sampler_importance_sampling_correction"),
    "pissa_*": (_NOTHING, _ADAPTERS),
    "quantization_*": (_NOTHING, _NOT_QUANTISED),
    "repetition_penalty": ((None, 1), _SAMPLING),
    "rope_scaling": ((None,), "positions are those of the checkpoint's config.json"),
    "stage": (("sft", "grpo", "rl"), "there are supervised fine-tuning (grpo.sft) and GRPO (grpo.train)"),
    "streaming": (_NOTHING, "the data is read before the first step"),
    "sync_ref_model": (_NOTHING, "the reference is the policy of step 0"),
    "top_entropy_quantile": ((None, 1), "the loss is on all tokens"),
    "train_on_prompt": (_NOTHING, _ANSWERS),
    "use_dora": (_NOTHING, _ADAPTERS),
    "use_rslora": (_NOTHING, "set lora_alpha to alpha x the square root of lora_r instead"),
    "vllm_guided_decoding_regex": ((None,), _SAMPLING),
    "vllm_structured_outputs_regex": ((None,), _SAMPLING),
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
    if name in MAPPINGS:
        return False
    keys = [*IGNORED, *REFUSED]
    return name.rpartition(".")[2] in SECTIONS or not any(fits(keys, reading) for reading in readings(name))

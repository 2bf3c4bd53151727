"""What the words of other tools mean here: TRL, transformers, PEFT, LLaMA-Factory, KnowRL, the math guide, trackers.

TOOLS holds for each tool the keys of its files that are not keys here. The tables below it join those of all tools,
since a file may use the words of several. A key of the stage itself keeps its meaning, whatever these tables say. A
file with all keys of TRL, transformers or PEFT at their own defaults is read without a mistake, whatever is missing
here (tests/grpo/test_foreign.py). supplied.py fills in what these tools have built in.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

# What happens instead of what an unused key asks for.
SAMPLER = (
    "the built-in sampler generates; sampler_importance_sampling_correction weights what the trainer sees otherwise"
)
HELD_OUT = (
    "held-out questions are answered before and after training, greedily, and every eval_steps (stage 1 has none)"
)
TORCHRUN = "several GPUs work together under torchrun --nproc-per-node N, without DeepSpeed, FSDP or accelerate"
WAITING = "processes wait 30 minutes for each other"
COMPUTING = "torch and our own kernels compute, as torch_dtype and gradient_checkpointing say; the optimizer is AdamW"
READING = (
    "all columns are read once; the seed decides the order, and micro-batches are packed as large as memory allows"
)
SAVING = "safetensors are saved every save_steps, metrics.jsonl has every step, and nothing is uploaded"
PLOTTING = "stage 1 always draws loss.png, and report.html shows the curves of both stages"
TEMPLATE = "prompts have the form of the tokenizer's own chat template, unless chat_template names a Jinja file"
FILES_DECIDE = "the command, lora_r, lora_dropout and the checkpoint's own files decide; no code of a checkpoint is run"
ANSWERS = "the cold start trains on the answers alone, in a shuffled order"
CALLS = "api_max_concurrency bounds the questions under way, and the doctor counts calls and tokens without their price"
REFERENCE = "the reference is the policy of step 0, and other losses and terms of the loss are not available"

# Why a key is refused that would change the result.
PLAIN_LORA = (
    "adapters are plain LoRA on projections; for use_rslora, set lora_alpha to alpha x the square root of lora_r"
)
EIGHT_BITS = "base_weights: int8 holds the frozen weights in 8 bits, and there are no other numbers of bits"
STAGES = "there are grpo.sft and grpo.train, of all weights or of adapters (lora_r)"
SAMPLING = "tokens are sampled by temperature, top_p and top_k, and tools are called by text (tools, max_tool_calls)"
LOSS = "the loss is on all tokens of every answer, without noise or further terms; see loss_type, beta and delta"
DATA = "data is read before the first step, by the columns in grpo/README.md; a configuration is owner/name:config"
MODEL = "the checkpoint's config.json and chat template decide, and a scheduler has no settings"

NEUTRAL = ("none", "false", "0", "0.0", "", "[]", "{}")  # values that change no result, in lower case


@dataclass(frozen=True)
class Tool:
    """The words of one tool. Names stand in texts, separated by spaces; `*` in them stands for any ending.

    aliases: our key -> its other names. switches: name -> value -> the key of ours that it sets, and to what; other
    values mean nothing. unused: what happens instead -> names that cannot change the result. refused: why -> names that
    would change it. harmless: the values of such a name that change nothing, if they are not those of NEUTRAL.
    defaults: what its files mean by leaving our key out. words: names that no other tool has.
    """

    aliases: Mapping[str, str] = field(default_factory=dict)
    switches: Mapping[str, Mapping[str, tuple[str, str]]] = field(default_factory=dict)
    unused: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    harmless: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    words: frozenset[str] = frozenset()


TRANSFORMERS = Tool(
    aliases={"gradient_checkpointing": "activation_checkpointing"},
    switches={
        "bf16": {"true": ("torch_dtype", "bfloat16")},
        "fp16": {"true": ("torch_dtype", "float16")},
        "use_cpu": {"true": ("device", "cpu")},
    },
    unused={
        SAMPLER: "use_cache",
        HELD_OUT: (
            "batch_eval_metrics do_eval do_predict eval_accumulation_steps eval_delay eval_do_concat_batches "
            "eval_on_start eval_steps eval_strategy eval_use_gather_object evaluation_strategy "
            "per_device_eval_batch_size prediction_loss_only"
        ),
        WAITING: "ddp_timeout",
        TORCHRUN: (
            "accelerator_config average_tokens_across_devices ddp_* deepspeed fsdp* local_rank parallelism_config "
            "tp_size"
        ),
        COMPUTING: (
            "activation_checkpointing_kwargs adam8bit bf16_full_eval debug fp16_* gradient_checkpointing_* "
            "half_precision_backend liger_kernel_config optim optim_* optimizer past_index torch_compile* use_liger* "
            "use_mps_device use_reentrant"
        ),
        READING: (
            "auto_find_batch_size data_seed dataloader_* group_by_length ignore_data_skip label_names "
            "length_column_name remove_unused_columns torch_empty_cache_steps train_sampling_strategy"
        ),
        SAVING: (
            "enable_jit_checkpoint greater_is_better hub_* include_* load_best_model_at_end log_level* "
            "log_on_each_node logging_dir logging_first_step logging_nan_inf_filter logging_strategy "
            "metric_for_best_model push_to_hub* restore_callback_states_from_checkpoint save_on_each_node "
            "save_only_model save_safetensors save_strategy skip_memory_metrics"
        ),
        FILES_DECIDE: "do_train",
    },
    refused={LOSS: "label_smoothing_factor neftune_noise_alpha", MODEL: "lr_scheduler_kwargs"},
)

TRL = Tool(
    aliases={
        "chat_template": "chat_template_path",
        "dataset_id_or_path": "dataset_name",
        "dataset_split": "dataset_train_split",
        "eval_dataset_split": "dataset_test_split",
        "max_length": "max_seq_length",
        "torch_dtype": "dtype",
    },
    switches={"use_peft": {"false": ("lora_r", "0")}},
    unused={
        ANSWERS: "assistant_only_loss completion_only_loss shuffle_dataset",
        SAMPLER: "cache_implementation transformers_continuous_batching_config use_transformers_* use_vllm vllm_*",
        HELD_OUT: "eval_packing num_generations_eval",
        TORCHRUN: "ds3_*",
        COMPUTING: (
            "activation_offloading attn_implementation bnb_4bit_* cast_lm_head_to_fp32 ignore_bias_buffers "
            "model_init_kwargs use_bnb_nested_quant use_flash_attention_2"
        ),
        READING: (
            "dataset_num_proc generation_batch_size packing packing_strategy pad_* padding_* steps_per_generation "
            "truncation_mode"
        ),
        SAVING: "log_completions_hub_repo log_multimodal log_unique_prompts wandb_log_unique_prompts",
        FILES_DECIDE: "disable_dropout lora_task_type model_code_revision trust_remote_code",
        REFERENCE: "entropy_coef_* entropy_target ref_model_* sapo_temperature_* vespo_*",
    },
    refused={
        PLAIN_LORA: "lora_modules_to_save lora_target_parameters",
        EIGHT_BITS: "load_in_4bit load_in_8bit",
        SAMPLING: (
            "do_sample generation_kwargs max_tool_calling_iterations min_p repetition_penalty "
            "vllm_guided_decoding_regex vllm_structured_outputs_regex"
        ),
        LOSS: (
            "entropy_coef loss_type off_policy_mask_threshold router_aux_loss_coef top_entropy_quantile "
            "use_adaptive_entropy"
        ),
        REFERENCE: "sync_ref_model",
        DATA: "dataset_config dataset_kwargs dataset_streaming dataset_text_field",
        MODEL: "eos_token",
    },
    harmless={
        "dataset_text_field": ("none", "text"),
        "do_sample": ("none", "true"),
        "loss_type": ("none", "nll", "chunked_nll"),
        "repetition_penalty": ("none", "1", "1.0"),
        "top_entropy_quantile": ("none", "1", "1.0"),
    },
)

PEFT = Tool(
    aliases={
        "lora_r": "r",
        "lora_layers_to_transform": "layers_to_transform",
        "lora_target_modules": "target_modules",
    },
    switches={"use_lora": {"false": ("lora_r", "0")}},
    unused={TORCHRUN: "megatron_core", FILES_DECIDE: "inference_mode peft_type peft_version task_type"},
    refused={
        PLAIN_LORA: (
            "alora_invocation_tokens alpha_pattern arrow_config auto_mapping bias corda_config ensure_weight_tying "
            "eva_config exclude_modules fan_in_fan_out init_lora_weights kasa_config layer_replication layers_pattern "
            "loftq_config lora_bias lora_ga_config megatron_config modules_to_save monteclora_config "
            "qalora_group_size rank_pattern revision target_parameters trainable_token_indices use_bdlora use_dora "
            "use_qalora use_rslora velora_config"
        )
    },
    harmless={"init_lora_weights": ("none", "true"), "qalora_group_size": ("none", "16")},
)

LLAMA_FACTORY = Tool(
    aliases={
        "dataset_id_or_path": "dataset",
        "eval_dataset_id_or_path": "eval_dataset",
        "eval_size": "val_size",
        "lora_r": "lora_rank",
        "lora_target_modules": "lora_target",
        "max_length": "cutoff_len",
    },
    switches={
        "finetuning_type": {"full": ("lora_r", "0")},
        "pure_bf16": {"true": ("torch_dtype", "bfloat16")},
        "use_swanlab": {"true": ("report_to", "swanlab")},
    },
    unused={
        HELD_OUT: "eval_dataset eval_num_beams eval_on_each_dataset val_size",
        TORCHRUN: "ray_*",
        COMPUTING: "disable_gradient_checkpointing enable_liger_kernel flash_attn",
        READING: (
            "buffer_size dataset_dir ignore_pad_token_for_loss neat_packing overwrite_cache preprocessing_* "
            "tokenized_path"
        ),
        SAVING: "swanlab_mode",
        PLOTTING: "plot_loss",
        TEMPLATE: "template",
        FILES_DECIDE: "use_fast_tokenizer",
    },
    refused={
        PLAIN_LORA: "additional_target loraplus_* pissa_*",
        EIGHT_BITS: "quantization_*",
        STAGES: "finetuning_type freeze_* stage",
        SAMPLING: "tool_format",
        LOSS: "mask_history train_on_prompt",
        DATA: "streaming",
        MODEL: "rope_scaling",
    },
    harmless={"finetuning_type": ("none", "lora"), "stage": ("none", "sft", "grpo", "rl")},
    # of 0.9.3 (src/llamafactory/hparams/), and of the TrainingArguments on which it is built
    defaults={"lora_r": 8, "max_length": 2048, "learning_rate": 5e-5},
    words=frozenset({"finetuning_type", "lora_rank", "lora_target", "cutoff_len", "template"}),
)

KNOWRL = Tool(  # with Unsloth, on which it is built
    defaults={"reward_funcs": ("knowrl_v2",), "judge_model": "gpt-4o-mini", "decomposer_model": "gpt-4o-mini"},
    unused={
        SAMPLER: "fast_inference gpu_memory_utilization",
        COMPUTING: "unsloth* use_gradient_checkpointing use_unsloth",
        READING: "random_state",
        FILES_DECIDE: "max_lora_rank",
        CALLS: "api_requests_per_minute decomposer_prices judge_prices verdict_cache",
    },
)

MATH_GUIDE = Tool(
    defaults={"reward_funcs": ("math",)},
    aliases={
        "beta": "kl_coef",
        "dataset_id_or_path": "data_path dataset_path",
        "gradient_accumulation_steps": "gradient_accumulation",
        "learning_rate": "lr",
        "lr_scheduler_type": "learning_rate_scheduler",
        "math_reward_correct": "reward_correct",
        "math_reward_no_answer": "reward_no_answer",
        "math_reward_wrong": "reward_wrong",
        "max_completion_length": "max_new_tokens",
        "model_name_or_path": "model_name model_path",
        "num_generations": "num_return_sequences",
        "num_train_epochs": "epochs num_epochs",
        "per_device_train_batch_size": "batch_size",
        "tokenizer_name_or_path": "tokenizer_name tokenizer_path",
    },
)

BENCHMARKS = Tool(
    aliases={"answer_field": "best_answer_field", "dataset_split": "dataset_splits"},
    unused={READING: "correct_answers_field delimiter incorrect_answers_field keep_all_fields"},
)

TRACKERS = Tool(
    aliases={
        "project": "swanlab_project trackio_project wandb_project",
        "run_name": "swanlab_experiment_name wandb_name wandb_run_name",
        "workspace": "swanlab_workspace wandb_entity",
    },
    unused={SAVING: "trackio_* wandb_mode"},
)

TOOLS = (TRANSFORMERS, TRL, PEFT, LLAMA_FACTORY, KNOWRL, MATH_GUIDE, BENCHMARKS, TRACKERS)

ALIASES = {theirs: ours for tool in TOOLS for ours, names in tool.aliases.items() for theirs in names.split()}
SWITCHES = {name: meanings for tool in TOOLS for name, meanings in tool.switches.items()}
IGNORED = {name: instead for tool in TOOLS for instead, names in tool.unused.items() for name in names.split()}
REFUSED = {name: reason for tool in TOOLS for reason, names in tool.refused.items() for name in names.split()}
HARMLESS = {name: values for tool in TOOLS for name, values in tool.harmless.items()}

# Names under which files group their keys: `model: {path: x}` and `training: {model: {path: x}}` mean `model_path: x`.
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

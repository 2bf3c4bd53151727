"""Every configuration key: its name, type, default, meaning and bounds. `config.py` turns a YAML file into a
`TrainConfig`.

Names are TRL's (and KnowRL's, which are the same); see ALIASES for other tools' words. A key means the same in every
class.
"""

from dataclasses import dataclass, field
from typing import Any


def key(
    default: Any,
    doc: str,
    *,
    choices: tuple = (),
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
) -> Any:
    """A configuration key: low <= value <= high, value > above, or one of `choices`."""
    bounds = {"doc": doc, "choices": choices, "low": low, "high": high, "above": above}
    return field(default=default, metadata=bounds)


@dataclass(frozen=True)
class ModelKeys:
    model_name_or_path: str = key(None, "a checkpoint folder in Hugging Face's layout, or a hub id")
    model_revision: str = key("main", "branch, tag or commit of a hub id")
    tokenizer_name_or_path: str | None = key(None, "where the tokenizer is, if not beside the model")
    adapter_name_or_path: str | None = key(
        None, "a LoRA adapter to start from: merged into the weights, so that it is the reference too"
    )
    chat_template: str | None = key(None, "a Jinja file that replaces the tokenizer's chat template")
    torch_dtype: str = key(
        "auto",
        "dtype of the frozen weights and of all products; auto: bfloat16 on a GPU, float32 on a CPU",
        choices=("auto", "bfloat16", "float16", "float32", "float64"),
    )
    device: str = key("auto", "auto: cuda if there is one, else cpu", choices=("auto", "cpu", "cuda"))
    kernels: str = key(
        "auto",
        "fused kernels on a GPU: auto (if they pass their self-test), none (torch's own operations)",
        choices=("auto", "none"),
    )
    tf32: bool = key(False, "let float32 products on a GPU round their inputs to TF32")


@dataclass(frozen=True)
class LoraKeys:
    lora_r: int = key(16, "rank of the adapters; 0 trains all weights instead", low=0)
    lora_alpha: float = key(32, "the adapters' change is scaled by lora_alpha / lora_r", above=0)
    lora_dropout: float = key(0.0, "dropout on the adapters' input while training", low=0, high=0.9)
    lora_target_modules: list[str] | None = key(
        None, "projections with an adapter, such as [q_proj, v_proj]; all seven if unset"
    )


@dataclass(frozen=True)
class OptimKeys:
    per_device_train_batch_size: int = key(
        8, "completions (stage 2) or conversations (stage 1) per device and accumulation step", low=1
    )
    gradient_accumulation_steps: int = key(1, "a step has this many times per_device_train_batch_size", low=1)
    learning_rate: float = key(1e-6, "peak learning rate", low=0)
    lr_scheduler_type: str = key(
        "linear",
        "decay after the warm-up, which constant has not",
        choices=("linear", "cosine", "constant", "constant_with_warmup"),
    )
    warmup_ratio: float = key(0.0, "share of the steps that the warm-up takes", low=0, high=1)
    warmup_steps: int = key(0, "steps of the warm-up; overrides warmup_ratio", low=0)
    num_train_epochs: float = key(3.0, "passes over the data, if max_steps is not set", above=0)
    max_steps: int = key(
        -1,
        "steps, each a generated batch (stage 2) or an update (stage 1); -1: as many as num_train_epochs needs",
        low=-1,
    )
    weight_decay: float = key(0.0, "of AdamW, on matrices", low=0)
    adam_beta1: float = key(0.9, "of AdamW", low=0, high=0.9999999)
    adam_beta2: float = key(0.999, "of AdamW", low=0, high=0.9999999)
    adam_epsilon: float = key(1e-8, "of AdamW", above=0)
    max_grad_norm: float = key(1.0, "gradient norm to clip to; 0: no clipping", low=0)
    gradient_checkpointing: bool | str = key(
        "auto",
        "compute activations again in the backward pass: auto (by memory), true (all), mlp, false",
        choices=("auto", "mlp", True, False),
    )
    max_tokens_per_micro_batch: int = key(
        0, "packed tokens per forward pass; a matter of memory alone; 0: chosen by memory", low=0
    )
    seed: int = key(42, "of everything random")
    full_determinism: bool = key(
        False, "train micro-batches in a fixed order even if their rewards come late; deterministic kernels"
    )


@dataclass(frozen=True)
class RunKeys:
    output_dir: str = key(None, "where the run writes; one directory per run")
    overwrite_output_dir: bool = key(False, "start anew in a directory that holds a run (its files are removed)")
    resume_from_checkpoint: bool | str = key(False, "true: go on from the newest valid checkpoint; or the path of one")
    logging_steps: int = key(1, "steps between two lines of metrics.jsonl", low=1)
    save_steps: int = key(50, "steps between two checkpoints; 0: only the last", low=0)
    save_total_limit: int = key(3, "checkpoints kept; 0: all", low=0)
    report_to: list[str] = key(
        ("tensorboard",), "where metrics go besides metrics.jsonl: tensorboard, swanlab, wandb, none"
    )
    run_name: str | None = key(None, "the run's name for swanlab and wandb")
    disable_tqdm: bool = key(False, "no progress bar")
    toy_world: str | None = key(
        None,
        "make this toy world's model, tokenizer and data first, and use what is not set otherwise",
        choices=(None, "arithmetic", "encyclopedia"),
    )
    toy_dir: str | None = key(None, "where the toy world lies; output_dir/world if unset")


@dataclass(frozen=True)
class DataKeys:
    dataset_id_or_path: str = key(None, "questions: a JSON, JSONL or CSV file, or a hub id")
    dataset_split: str = key("train", "which file of a hub data set: the one whose name holds this word")
    question_field: str | None = key(None, "column of the question; else question, problem or prompt")
    answer_field: str | None = key(
        None, "column of the answer; else answer, answers, ground_truth, best_answer or solution"
    )
    title_field: str | None = key(None, "column of the knowledge base's title; else title")
    system_prompt: str | None = key(None, "system message of every prompt")
    prompt_template: str = key("{question}", "user message; {question} stands for the question")
    max_samples: int = key(0, "use only the first rows; 0: all", low=0)
    max_prompt_length: int = key(512, "longer prompts (tokens) are left out and counted", low=1)
    shuffle_dataset: bool = key(True, "a new order in each epoch, from the seed")
    eval_dataset_id_or_path: str | None = key(
        None, "held-out questions: accuracy before and after training, and every eval_steps"
    )
    eval_steps: int = key(0, "steps between two evaluations; 0: only before and after", low=0)
    eval_max_samples: int = key(0, "held-out questions used; 0: all", low=0)
    eval_group_field: str | None = key(None, "column by whose values the comparison before and after is split")
    cold_start: str | None = key(
        None, "a config of stage 1; it runs first if its output is missing, and its result is the start"
    )


@dataclass(frozen=True)
class SamplingKeys:
    num_generations: int = key(8, "completions per prompt: the group size G", low=2)
    max_completion_length: int = key(256, "tokens a completion may have, the end token included", low=1)
    temperature: float = key(1.0, "of sampling and of scoring alike", above=0)
    top_p: float = key(1.0, "nucleus sampling; scored as sampled", above=0, high=1)
    top_k: int = key(0, "keep the k likeliest tokens; 0: all; scored as sampled", low=0)
    max_num_seqs: int = key(0, "sequences decoded together; 0: chosen by memory", low=0)


@dataclass(frozen=True)
class LossKeys:
    loss_type: str = key("dapo", "what a token weighs", choices=("grpo", "dapo", "dr_grpo", "bnpo"))
    beta: float = key(0.0, "weight of the KL term to the policy at step 0; 0: no reference pass", low=0)
    epsilon: float = key(0.2, "the ratio is clipped below at 1 - epsilon", above=0)
    epsilon_high: float | None = key(None, "and above at 1 + epsilon_high; epsilon if unset", above=0)
    delta: float | None = key(None, "upper bound of the ratio for negative advantages (two-sided clipping)", above=1)
    use_bias_correction_kl: bool = key(
        False, "multiply the KL estimate by the ratio, so that its gradient is the KL's (TRL)"
    )
    importance_sampling_level: str = key("token", "sequence gives GSPO", choices=("token", "sequence"))
    sampler_importance_sampling_correction: bool = key(
        False, "weigh each token by min(trainer / sampler probability, cap)"
    )
    sampler_importance_sampling_cap: float = key(2.0, "the cap of that weight", above=0)
    scale_rewards: bool | str = key(
        "group",
        "divide advantages by the standard deviation of: group, batch, none (true and false: group and none)",
        choices=("group", "batch", "none", True, False),
    )
    num_iterations: int = key(1, "updates per generated batch; TRL counts each of them as a step", low=1)
    mask_truncated_completions: bool = key(False, "leave completions that hit max_completion_length out of the loss")
    dynamic_sampling: bool = key(
        False,
        "replace groups that are all right or all wrong (or rewarded alike, if no reward tells) by new ones (DAPO)",
    )
    dynamic_sampling_max_rollouts: int = key(
        3, "batches generated per step at most, then the step takes what there is", low=1
    )


@dataclass(frozen=True)
class RewardKeys:
    reward_funcs: list[str] = key(
        None, "built-in names or package.module:function; presets: knowrl, knowrl_v1, knowrl_v2 (rewards/registry.py)"
    )
    reward_weights: list[float] | None = key(None, "one per reward; all 1 if unset")
    math_reward_correct: float = key(1.0, "of the reward math: the last boxed answer equals the truth")
    math_reward_wrong: float = key(-1.0, "it does not")
    math_reward_no_answer: float = key(-0.5, "nothing is boxed")
    soft_punish_cache: int = key(
        0, "of the reward soft_overlong_punishment: tokens before the limit where the penalty starts", low=0
    )
    eval_reward_funcs: list[str] | None = key(None, "rewards that grade the held-out questions; reward_funcs if unset")


@dataclass(frozen=True)
class KnowledgeKeys:
    knowledge_base: str | None = key(
        None, "database of python -m knowledge.build, or KnowRL's or FActScore's; else FACTSCORE_DB_PATH"
    )
    missing_title_policy: str = key(
        "zero",
        "a completion whose title is not in the base: factuality zero; by full-text search; or unscored, which "
        "takes only a prompt's wrong answers out of its group, so that refusing looks worst there",
        choices=("zero", "unscored", "search"),
    )
    decomposer: str = key(
        "api",
        "who takes reasoning apart into facts: a model (decomposer_*), or rules (offline)",
        choices=("api", "rules"),
    )
    verifier: str = key(
        "nli",
        "who holds a fact against the base: an entailment model, or lexical (offline)",
        choices=("nli", "lexical"),
    )
    nli_model: str = key("MoritzLaurer/DeBERTa-v3-base-mnli-fever-anli", "entailment model: a folder or hub id")
    entailment_threshold: float = key(
        0.3, "probability of entailment from which a fact counts as supported", above=0, high=1
    )
    verdict_cache: str | None = key(None, "SQLite file that keeps verdicts; none if unset")


@dataclass(frozen=True)
class ApiKeys:
    judge: str = key(
        "api", "who compares an answer with the truth: a model (judge_*), or offline rules", choices=("api", "offline")
    )
    judge_model: str | None = key(None, "else LLM_EVAL_MODEL or REWARD_MODEL_NAME")
    judge_base_url: str | None = key(None, "else OPENAI_API_BASE_JUDGE")
    judge_api_key_env: str = key("OPENAI_API_KEY_JUDGE", "name of the environment variable that holds the key")
    judge_prices: list[float] | None = key(
        None, "dollars per million prompt and completion tokens, for the metric judge/cost"
    )
    decomposer_model: str | None = key(None, "else FACTSCORE_MODEL or REWARD_MODEL_NAME")
    decomposer_base_url: str | None = key(None, "else OPENAI_BASE_URL_FACTSCORE")
    decomposer_api_key_env: str = key("OPENAI_API_KEY_FACTSCORE", "name of the environment variable that holds the key")
    decomposer_prices: list[float] | None = key(
        None, "dollars per million prompt and completion tokens, for the metric decomposer/cost"
    )
    api_max_concurrency: int = key(128, "requests under way at once, per endpoint", low=1)
    api_deadline_s: float = key(120.0, "seconds for one item with all its tries; then it is unscorable", above=0)
    api_requests_per_minute: int = key(0, "per endpoint; 0: no limit", low=0)
    api_tokens_per_minute: int = key(0, "per endpoint; 0: no limit", low=0)
    api_cache: str | None = key(None, "SQLite file that keeps replies; none if unset")
    max_unscored: float = key(
        0.2, "share of unscorable completions above which, for 3 steps, the run saves and stops", above=0, high=1
    )
    judge_max_tokens: int = key(2048, "tokens of a judge's reply, a reasoning model's thoughts included", low=1)
    decomposer_max_tokens: int = key(4096, "tokens of a decomposer's reply, thoughts included", low=1)
    api_plain_http: bool = key(
        False,
        "allow http without encryption to private addresses (10.*, 172.16-31.*, 192.168.*, 100.64-127.*, fc00::/7): "
        "prompts, answers and keys are readable on the way",
    )


@dataclass(frozen=True)
class LogKeys:
    log_completions: bool = key(True, "write completions with every reward and its reason to completions/")
    num_completions_to_print: int = key(0, "completions shown on the terminal at each logged step", low=0)


@dataclass(frozen=True)
class TrainConfig(
    ModelKeys,
    LoraKeys,
    DataKeys,
    SamplingKeys,
    LossKeys,
    RewardKeys,
    KnowledgeKeys,
    ApiKeys,
    OptimKeys,
    RunKeys,
    LogKeys,
):
    """Stage 2: GRPO."""


@dataclass(frozen=True)
class SftKeys:
    dataset_id_or_path: str = key(None, "conversations: ShareGPT, Alpaca or messages, as JSON or JSONL, or a hub id")
    dataset_split: str = key("train", "which file of a hub data set: the one whose name holds this word")
    max_samples: int = key(0, "use only the first rows; 0: all", low=0)
    max_length: int = key(3072, "longer conversations (tokens) are cut at the end", low=2)
    system_prompt: str | None = key(None, "system message where a conversation has none")


@dataclass(frozen=True)
class SftConfig(ModelKeys, LoraKeys, SftKeys, OptimKeys, RunKeys):
    """Stage 1: supervised fine-tuning."""


REQUIRED = ("model_name_or_path", "output_dir", "dataset_id_or_path", "reward_funcs")
MADE_BY_TOY_WORLD = ("model_name_or_path", "dataset_id_or_path")
UNREPEATABLE = ("resume_from_checkpoint", "overwrite_output_dir")  # of one invocation, not of the run

ALIASES = {  # other tools' words: LLaMA-Factory, the math guide, TRL's past and present
    "lora_rank": "lora_r",
    "lora_target": "lora_target_modules",
    "cutoff_len": "max_length",
    "dtype": "torch_dtype",
    "kl_coef": "beta",
    "num_return_sequences": "num_generations",
    "max_new_tokens": "max_completion_length",
    "num_epochs": "num_train_epochs",
    "dataset_splits": "dataset_split",
    "data_path": "dataset_id_or_path",
    "dataset": "dataset_id_or_path",
    "vllm_importance_sampling_correction": "sampler_importance_sampling_correction",
    "vllm_importance_sampling_cap": "sampler_importance_sampling_cap",
    "swanlab_experiment_name": "run_name",
    "best_answer_field": "answer_field",
    "model_name": "model_name_or_path",
    "batch_size": "per_device_train_batch_size",
    "max_seq_length": "max_length",
    "target_modules": "lora_target_modules",
}

IGNORED = {  # keys of engines that are not used here -> what happens instead
    "attn_implementation": "attention is chosen by what the machine has",
    "optim": "AdamW with float32 states is used",
    "gradient_checkpointing_kwargs": "checkpointing never needs them",
    "use_vllm": "the built-in sampler generates",
    "vllm_mode": "the built-in sampler generates",
    "vllm_gpu_memory_utilization": "the cache is sized by what is free",
    "vllm_model_impl": "the built-in sampler generates",
    "logging_strategy": "metrics are logged every logging_steps",
    "save_strategy": "checkpoints are saved every save_steps",
    "swanlab_project": "runs are filed under the name of output_dir",
    "do_train": "the command says what is done",
    "stage": "the command says what is done",
    "template": "the tokenizer's chat template is used",
    "finetuning_type": "lora_r decides: 0 trains all weights",
    "plot_loss": "the loss is always plotted",
    "overwrite_cache": "nothing is cached",
    "preprocessing_num_workers": "one process reads the data",
    "ddp_timeout": "a fixed time limit guards collectives",
    "remove_unused_columns": "rewards see all columns",
    "dataset_dir": "dataset_id_or_path is a path",
}

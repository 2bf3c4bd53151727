"""Every configuration key: its name, type, default, meaning and bounds.

`load.py` turns a YAML file and a command line into a `TrainConfig` or an `SftConfig`. The names are those of TRL,
which KnowRL uses too; foreign.py lists the names that other tools use. A key means the same in both stages.
"""

import textwrap
from dataclasses import Field, dataclass, field, fields
from typing import Any

import yaml

from grpo.config.values import describe_limits

ALMANAC = "almanac"  # the toy world of a real model
WITH_KNOWLEDGE = ("encyclopedia", "neutral", "atlas", ALMANAC)  # toy worlds that have a knowledge base
HELP_COLUMN, HELP_WIDTH = 42, 120  # where meanings begin and end
INPUTS = ("dataset", "base_weights", "tokenizer", "chat_template")  # a checkpoint holds fingerprints of their contents
FACTS = {  # what else is known of keys
    "required": "it has no default",
    "toy": "a toy world sets it",
    "first": "-h shows it before the others",
    "once": "it concerns one invocation, not the run, and is not written to config.resolved.yaml",
    "model": "it says which model a run starts from",
    "local": "it may differ between the machines of a run: a path, whose content is compared where that matters",
    "free": "a resumed run may change it",
    "warned": "a resumed run may change it, and says so",
}


def key(
    default: Any,
    doc: str,
    facts: str = "",
    *,
    choices: tuple = (),
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
) -> Any:
    """Declare a key. Its value is one of `choices`, or low <= value <= high and value > above. facts: see FACTS."""
    about = {"doc": doc, "facts": frozenset(facts.split()), "choices": choices}
    return field(default=default, metadata=about | {"low": low, "high": high, "above": above})


@dataclass(frozen=True)
class ModelKeys:
    model_name_or_path: str = key(
        None,
        "Model to start from: a folder in Hugging Face's layout, a hub id, or a GGUF file (FILE.gguf, or "
        "PACKAGE:FILE.gguf for one inside an installed package).",
        "required toy first model local",
    )
    model_revision: str = key("main", "Branch, tag or commit, if the model is a hub id.", "model")
    tokenizer_name_or_path: str | None = key(
        None, "Folder or hub id of the tokenizer. Unset: that of the model.", "model local"
    )
    adapter_name_or_path: str | None = key(
        None,
        "LoRA adapter to start from. It is merged into the weights, so the reference policy includes it.",
        "model local",
    )
    chat_template: str | None = key(None, "Jinja file that replaces the tokenizer's chat template.", "model local")
    chat_template_kwargs: dict | None = key(
        None,
        "Values for variables of the chat template, such as {enable_thinking: false} for Qwen3. The template that the "
        "run saves contains them.",
        "model",
    )
    torch_dtype: str = key(
        "auto",
        "Data type of the frozen weights and of all matrix products: bfloat16, float16, float32 or float64. "
        "auto: bfloat16 on a GPU, float32 on a CPU.",
        choices=("auto", "bfloat16", "float16", "float32", "float64"),
    )
    device: str = key(
        "auto",
        "cuda, cpu, or mps (Apple's GPUs; untried). auto: cuda if there is such a GPU, else cpu.",
        "free",
        choices=("auto", "cpu", "cuda", "mps"),
    )
    kernels: str = key(
        "auto",
        "Fused kernels on a GPU. auto: use those that pass their self-test. none: use torch's own operations.",
        "warned",
        choices=("auto", "none"),
    )
    tf32: bool = key(False, "Allow a GPU to round the inputs of float32 products to TF32.", "warned")


@dataclass(frozen=True)
class LoraKeys:
    lora_r: int = key(16, "Rank of the LoRA adapters. 0: train all weights instead.", "first", low=0)
    lora_alpha: float = key(32, "The output of the adapters is scaled by lora_alpha / lora_r.", above=0)
    lora_dropout: float = key(0.0, "Dropout on the input of the adapters during training.", low=0, high=0.9)
    lora_target_modules: list[str] | None = key(
        None, "Projections that get an adapter, such as [q_proj, v_proj]. Unset: all seven."
    )


@dataclass(frozen=True)
class OptimKeys:
    per_device_train_batch_size: int = key(
        8, "Completions (stage 2) or answers (stage 1) per device and accumulation step.", "first", low=1
    )
    gradient_accumulation_steps: int = key(
        1, "Multiplies per_device_train_batch_size. The size of micro-batches depends only on memory.", "first", low=1
    )
    learning_rate: float = key(1e-6, "Peak learning rate.", "first warned", low=0, high=1000)
    lr_scheduler_type: str = key(
        "linear",
        "Learning rate after the warm-up: linear or cosine decay to 0, or constant_with_warmup. "
        "constant: no warm-up and no decay.",
        "warned",
        choices=("linear", "cosine", "constant", "constant_with_warmup"),
    )
    warmup_ratio: float = key(0.0, "Share of the steps that the warm-up takes.", "warned", low=0, high=1)
    warmup_steps: int = key(0, "Steps that the warm-up takes. Overrides warmup_ratio.", "warned", low=0)
    num_train_epochs: float = key(3.0, "Passes over the data, if max_steps is -1.", "first free", above=0)
    max_steps: int = key(
        -1,
        "Steps of the run. A step generates answers and trains on them (stage 2), or is one update (stage 1). "
        "-1: as many as num_train_epochs needs.",
        "first free",
        low=-1,
    )
    weight_decay: float = key(0.0, "Weight decay of AdamW. It applies to matrices only.", "warned", low=0)
    adam_beta1: float = key(0.9, "AdamW's beta 1.", low=0, high=0.9999999)
    adam_beta2: float = key(0.999, "AdamW's beta 2.", low=0, high=0.9999999)
    adam_epsilon: float = key(1e-8, "AdamW's epsilon.", above=0)
    max_grad_norm: float = key(1.0, "Clip the gradient to this norm. 0: no clipping.", "warned", low=0)
    gradient_checkpointing: bool | str = key(
        "auto",
        "Activations to recompute in the backward pass: true (all), mlp (those of the MLPs) or false (none). "
        "auto: as few as memory allows.",
        "free",
        choices=("auto", "mlp", True, False),
    )
    max_tokens_per_micro_batch: int = key(
        0,
        "Packed tokens per forward pass. It changes memory and speed, never the gradient. 0: chosen by free memory.",
        "free",
        low=0,
    )
    seed: int = key(42, "Seed of everything random.")
    full_determinism: bool = key(
        False,
        "Use deterministic kernels, and train micro-batches in a fixed order even if their rewards arrive late.",
        "warned",
    )


@dataclass(frozen=True)
class RunKeys:
    output_dir: str = key(
        None, "Directory that the run writes to. Each run needs its own.", "required first local free"
    )
    overwrite_output_dir: bool = key(
        False, "Start anew in a directory that holds a run, and remove the files of that run.", "once free"
    )
    resume_from_checkpoint: bool | str | None = key(
        False,
        "Resume. true: from the newest valid checkpoint in output_dir. A path: from that checkpoint.",
        "first once free",
    )
    allow_changes: list[str] = key(
        (),
        "Resume although these have changed since the checkpoint: names of keys, or dataset, base_weights, tokenizer "
        "and chat_template for their contents.",
        "once",
    )
    logging_steps: int = key(
        1,
        "Show the means of this many steps in trackers and on the terminal. metrics.jsonl has every step.",
        "free",
        low=1,
    )
    save_steps: int = key(50, "Steps between checkpoints. 0: save only at the end.", "first free", low=0)
    save_total_limit: int = key(
        3, "Checkpoints to keep, and as many of those that were set aside. 0: all.", "free", low=0
    )
    report_to: list[str] = key(
        ("tensorboard",),
        "Trackers that get the metrics as well as metrics.jsonl: tensorboard, swanlab, wandb, trackio or none.",
        "free",
    )
    run_name: str | None = key(
        None,
        "Name of the run in swanlab, wandb and trackio: letters, digits, dots, dashes, underscores. Unset: output_dir.",
        "free",
    )
    project: str = key("grpo", "Project in swanlab, wandb and trackio.", "free")
    swanlab_project: str | None = key(
        None, "Project in swanlab. Unset: the variable SWANLAB_PROJ_NAME, or project.", "free"
    )
    swanlab_workspace: str | None = key(None, "Organisation in swanlab. Unset: your own account.", "free")
    wandb_project: str | None = key(None, "Project in wandb. Unset: the variable WANDB_PROJECT, or project.", "free")
    wandb_entity: str | None = key(None, "Team in wandb. Unset: your own account.", "free")
    disable_tqdm: bool = key(False, "Hide the progress bar.", "free")
    toy_world: str | None = key(
        None,
        "Make a model, a tokenizer and data from scratch, and use them where a path is unset: arithmetic, "
        "encyclopedia, neutral or atlas. almanac: real facts for the model that model_name_or_path names, which writes "
        "its own cold start.",
        choices=(None, "arithmetic", *WITH_KNOWLEDGE),
    )
    toy_dir: str | None = key(None, "Directory of the toy world. Unset: output_dir/world.", "local")


@dataclass(frozen=True)
class DataKeys:
    dataset_split: str = key("train", "File of a hub data set to use: the one whose name contains this word.")
    max_samples: int = key(0, "Use only this many rows of a data set, from the first. 0: all.", low=0)


@dataclass(frozen=True)
class QuestionKeys:
    dataset_id_or_path: str = key(
        None,
        "Questions: a JSON, JSONL, CSV or Parquet file (also gzipped), a folder, or a hub id (owner/name:config). "
        "A question is a text, or a list of messages that ends with the user's.",
        "required toy first local",
    )
    question_field: str | None = key(None, "Column of the question. Unset: question, problem or prompt.")
    answer_field: str | None = key(
        None, "Column of the answer. Unset: answer, answers, ground_truth, best_answer or solution."
    )
    title_field: str | None = key(None, "Column of the title to look up in the knowledge base. Unset: title.")
    system_prompt: str | None = key(None, "System message of every prompt.")
    prompt_template: str = key("{question}", "User message of every prompt. {question} stands for the question.")
    max_prompt_length: int = key(512, "Leave out prompts of more tokens. The log says how many.", "first", low=1)
    shuffle_dataset: bool = key(True, "Shuffle the data in each epoch, by the seed.")
    eval_dataset_id_or_path: str | None = key(
        None, "Held-out questions, which are answered before and after training, and every eval_steps.", "first free"
    )
    eval_size: int = key(
        0,
        "Rows at the end of dataset_id_or_path that are held out for evaluation, and never trained on. 0: none.",
        low=0,
    )
    eval_steps: int = key(
        0, "Steps between evaluations. 0: evaluate only before and after training.", "first free", low=0
    )
    keep_best: str | None = key(
        None,
        "Keep the policy of the evaluation that is best by this measure in best/: eval/accuracy, eval/reward or "
        "eval/supported_frac, the higher the better; eval/incorrect, eval/incorrect_given_attempted or "
        "eval/not_attempted, the lower the better.",
        "free",
        choices=(
            None,
            *("eval/accuracy", "eval/reward", "eval/supported_frac"),
            *("eval/incorrect", "eval/incorrect_given_attempted", "eval/not_attempted"),
        ),
    )
    eval_max_samples: int = key(0, "Use only this many held-out questions, from the first. 0: all.", "free", low=0)
    eval_group_field: str | None = key(
        None, "Column that splits the held-out questions: each of its values gets its own lines in the final table."
    )
    cold_start: str | None = key(
        None,
        "Config of stage 1, a path from the working directory. It runs first, unless its output is there and was made "
        "with the same config, data and base; stage 2 starts from its result. model_name_or_path, if set, is the base "
        "that stage 1 starts from. "
        "null: start directly from model_name_or_path, such as your own fine-tuned checkpoint or adapter.",
        "local free",
    )


@dataclass(frozen=True)
class SamplingKeys:
    num_generations: int = key(8, "Completions per prompt: the group size G.", "first", low=2)
    questions_per_step: int | None = key(
        None,
        "Questions per step, over all processes. It replaces per_device_train_batch_size and "
        "gradient_accumulation_steps.",
        low=1,
    )
    max_completion_length: int = key(256, "Maximum tokens of a completion, including the end token.", "first", low=1)
    temperature: float = key(1.0, "Temperature of sampling and of the trained log-probs.", "first", above=0)
    top_p: float = key(
        1.0, "Nucleus sampling: keep the likeliest tokens up to this probability. 1: off.", above=0, high=1
    )
    top_k: int = key(0, "Keep only the k likeliest tokens. 0: off.", low=0)
    max_num_seqs: int = key(0, "Sequences decoded together. 0: chosen by free memory.", "free", low=0)


@dataclass(frozen=True)
class LossKeys:
    loss_type: str = key(
        "dapo",
        "Weight of a token in the loss: grpo, dapo, dr_grpo or bnpo. See Eq. 8 in grpo/MATH.md.",
        "first",
        choices=("grpo", "dapo", "dr_grpo", "bnpo"),
    )
    beta: float = key(
        0.0, "Weight of the KL penalty towards the policy of step 0. 0: no reference pass.", "first warned", low=0
    )
    epsilon: float = key(0.2, "Clip the ratio below at 1 - epsilon.", "warned", above=0)
    epsilon_high: float | None = key(
        None, "Clip the ratio above at 1 + epsilon_high. Unset: epsilon.", "warned", above=0
    )
    delta: float | None = key(
        None,
        "Upper bound of the ratio if the advantage is negative (two-sided clipping). Unset: none.",
        "warned",
        above=1,
    )
    use_bias_correction_kl: bool = key(
        False,
        "Multiply the KL estimate by the ratio, so that its gradient is that of the KL divergence. false: the formula "
        "of DeepSeekMath, with which KnowRL trained. TRL 1.16 has true by default.",
    )
    importance_sampling_level: str = key(
        "token", "Compute the ratio per token, or per sequence (GSPO).", choices=("token", "sequence")
    )
    sampler_importance_sampling_correction: bool = key(
        False, "Weight each token by its probability in training divided by that in sampling, at most by the cap below."
    )
    sampler_importance_sampling_cap: float = key(2.0, "Cap of that weight.", above=0)
    scale_rewards: str = key(
        "group",
        "Divide advantages by the standard deviation of the rewards. group (or true): of the group. batch: of the "
        "step. none (or false): do not divide.",
        choices=("group", "batch", "none"),
    )
    multi_objective_aggregation: str = key(
        "sum_then_normalize",
        "How several rewards make one advantage. normalize_then_sum (GDPO): normalize each within its group, add them "
        "up, and divide by the deviation over the step, whatever scale_rewards says.",
        choices=("sum_then_normalize", "normalize_then_sum"),
    )
    credit: str = key(
        "completion",
        "Unit that gets an advantage. completion: all tokens of a completion have the same. sentence (FSPO): the "
        "advantage of a sentence's tokens is positive if the knowledge base supports the sentence, and negative if it "
        "refutes it. It needs the reward factuality or binary_rar, at least with weight 0. answer: only the tokens of "
        "the answer block are trained; thinking gets the advantage 0.",
        choices=("completion", "sentence", "answer"),
    )
    num_iterations: int = key(1, "Updates per step, on the same answers. TRL counts each of them as a step.", low=1)
    mask_truncated_completions: bool = key(False, "Leave completions that hit max_completion_length out of the loss.")
    dynamic_sampling: bool = key(
        False,
        "Replace groups whose answers are all right or all wrong by new ones (DAPO). "
        "If no reward knows the outcome, replace groups whose rewards are all equal.",
    )
    dynamic_sampling_max_rollouts: int = key(
        3, "Maximum rounds of generation per step. After them, it trains on the groups it has.", low=1
    )


@dataclass(frozen=True)
class RewardKeys:
    reward_funcs: list[str] = key(
        None,
        "Rewards: built-in names, package.module:function, path/file.py:function, or the presets knowrl, knowrl_v1 "
        "and knowrl_v2. rewards/registry.py lists them.",
        "required first",
    )
    reward_weights: list[float] | None = key(
        None, "One weight per reward. Unset: all 1. A reward of weight 0 is logged and not paid."
    )
    math_reward_correct: float = key(1.0, "Value of the reward math if the last boxed answer is right.")
    math_reward_wrong: float = key(-1.0, "Value of the reward math if it is wrong.")
    math_reward_no_answer: float = key(-0.5, "Value of the reward math if nothing is boxed.")
    abstention_threshold: float = key(
        0.5,
        "For the reward abstention: above this probability of being right, answering pays more than declining.",
        low=0,
        high=0.99,
    )
    tiar_lambda: float = key(1.0, "For the reward tiar: weight of what is added to the advantage of a refusal.", low=0)
    soft_punish_cache: int = key(
        0, "For the reward soft_overlong_punishment: tokens before the length limit at which the penalty starts.", low=0
    )
    reward_timeout_s: float = key(
        120.0,
        "Seconds that a call of your own reward may take. After that its completions are unscorable. Code that never "
        "lets Python's other threads run, such as an endless regular expression, cannot be interrupted.",
        "free",
        above=0,
    )
    eval_reward_funcs: list[str] | None = key(None, "Rewards that grade the held-out questions. Unset: reward_funcs.")


@dataclass(frozen=True)
class KnowledgeKeys:
    knowledge_base: str | None = key(
        None,
        "Database made by python -m knowledge.build, or the one of KnowRL or FActScore. "
        "Unset: the environment variable FACTSCORE_DB_PATH.",
    )
    missing_title_policy: str = key(
        "zero",
        "Factuality of a completion whose title is not in the knowledge base. zero: 0. search: use what full-text "
        "search finds. unscored: leave the completion out of its group. That happens only to wrong answers, since only "
        "they need factuality; a refusal may then be the worst answer that counts.",
        choices=("zero", "unscored", "search"),
    )
    decomposer: str = key(
        "api",
        "Splits the reasoning into facts. api: a language model (decomposer_*). rules: offline rules.",
        choices=("api", "rules"),
    )
    verifier: str = key(
        "nli",
        "Checks a fact against the knowledge base. nli: an entailment model. lexical: offline comparison of sentences.",
        choices=("nli", "lexical"),
    )
    nli_model: str = key("MoritzLaurer/DeBERTa-v3-base-mnli-fever-anli", "Entailment model: a folder or a hub id.")
    entailment_threshold: float = key(
        0.3, "A fact counts as supported from this probability of entailment on.", above=0, high=1
    )
    verdict_cache: str | None = key(
        None, "SQLite file that caches verdicts about facts. Unset: no cache.", "local free"
    )


@dataclass(frozen=True)
class ApiKeys:
    judge: str = key(
        "api",
        "Compares an answer with the true one. api: a language model (judge_*). offline: rules; decomposer and "
        "verifier then work offline, too, unless they are set.",
        choices=("api", "offline"),
    )
    judge_model: str | None = key(
        None,
        "Model of the judge. Unset: the environment variable LLM_EVAL_MODEL or REWARD_MODEL_NAME, else gpt-4o-mini.",
    )
    judge_base_url: str | None = key(
        None, "URL of the judge. Unset: the environment variable OPENAI_API_BASE_JUDGE.", "free"
    )
    judge_api_key_env: str = key(
        "OPENAI_API_KEY_JUDGE", "Name of the environment variable that holds the judge's API key.", "free"
    )
    judge_prices: list[float] | None = key(
        None,
        "US dollars per million prompt tokens and per million completion tokens, for the metric judge/cost.",
        "free",
    )
    decomposer_model: str | None = key(
        None,
        "Model of the decomposer. Unset: the environment variable FACTSCORE_MODEL or REWARD_MODEL_NAME, else "
        "gpt-4o-mini.",
    )
    decomposer_base_url: str | None = key(
        None, "URL of the decomposer. Unset: the environment variable OPENAI_BASE_URL_FACTSCORE.", "free"
    )
    decomposer_api_key_env: str = key(
        "OPENAI_API_KEY_FACTSCORE", "Name of the environment variable that holds the decomposer's API key.", "free"
    )
    decomposer_prices: list[float] | None = key(
        None,
        "US dollars per million prompt tokens and per million completion tokens, for the metric decomposer/cost.",
        "free",
    )
    api_max_concurrency: int = key(128, "Maximum concurrent requests, per endpoint.", "free", low=1)
    api_deadline_s: float = key(
        120.0, "Seconds for one item, including all retries. After that the item is unscorable.", "free", above=0
    )
    api_requests_per_minute: int = key(0, "Maximum requests per minute, per endpoint. 0: no limit.", "free", low=0)
    api_tokens_per_minute: int = key(0, "Maximum tokens per minute, per endpoint. 0: no limit.", "free", low=0)
    api_cache: str | None = key(None, "SQLite file that caches replies. Unset: no cache.", "local free")
    max_unscored: float = key(
        0.2,
        "Stop the run, after saving it, if a larger share of completions is unscorable in 3 steps in a row.",
        "free",
        above=0,
        high=1,
    )
    judge_max_tokens: int = key(2048, "Maximum tokens of a judge's reply, including thoughts.", "free", low=1)
    decomposer_max_tokens: int = key(4096, "Maximum tokens of a decomposer's reply, including thoughts.", "free", low=1)
    api_plain_http: bool = key(
        False,
        "Allow http without encryption to private addresses (10.*, 172.16-31.*, 192.168.*, 100.64-127.*, fc00::/7) "
        "and to host names that resolve only to such addresses. "
        "Prompts, answers and keys are readable on the way.",
        "free",
    )


@dataclass(frozen=True)
class LogKeys:
    log_completions: bool = key(
        True,
        "Write completions/: all answers of the first step, the last one and every logging_steps-th, with every reward "
        "and its reason.",
        "free",
    )
    num_completions_to_print: int = key(
        0, "Completions to print at each logged step. Needs log_completions.", "free", low=0
    )


@dataclass(frozen=True)
class TrainConfig(
    ModelKeys,
    LoraKeys,
    DataKeys,
    QuestionKeys,
    SamplingKeys,
    LossKeys,
    RewardKeys,
    KnowledgeKeys,
    ApiKeys,
    OptimKeys,
    RunKeys,
    LogKeys,
):
    """The configuration of stage 2: GRPO."""


@dataclass(frozen=True)
class ConversationKeys:
    dataset_id_or_path: str = key(
        None,
        "Conversations in the format ShareGPT, Alpaca or messages: a JSON or JSONL file, or a hub id.",
        "required toy first local",
    )
    dataset_dir: str | None = key(
        None,
        "Folder of LLaMA-Factory's dataset_info.json. dataset_id_or_path may then hold names that are registered "
        "there, separated by commas. Unset: data, if that holds one.",
    )
    max_length: int = key(3072, "Cut answers so that prompt and answer fit; leave out longer prompts.", "first", low=2)
    system_prompt: str | None = key(None, "System message of conversations that have none.")


@dataclass(frozen=True)
class SftConfig(ModelKeys, LoraKeys, DataKeys, ConversationKeys, OptimKeys, RunKeys):
    """The configuration of stage 1: supervised fine-tuning."""


AnyConfig = TrainConfig | SftConfig


def keys_that(fact: str, kind: type | None = None) -> list[str]:
    """Return the keys of a stage (None: of both) of which a fact is known, in the order of their declaration."""
    groups = [group for stage in ([kind] if kind else [TrainConfig, SftConfig]) for group in stage.__mro__[1:-1]]
    entries = [entry for group in groups for entry in fields(group)]
    return list(dict.fromkeys(entry.name for entry in entries if fact in entry.metadata["facts"]))


def describe_keys(kind: type) -> str:
    """Return a text with every key, its default, meaning and bounds: those to know first, then the groups above."""
    groups = {group.__name__.removesuffix("Keys").lower(): fields(group) for group in kind.__mro__[1:-1]}
    entries = {entry.name: entry for entry in fields(kind)}
    first = keys_that("first", kind)
    lines = ["\nthe keys to know first:", *(line for name in first for line in _describe_key(entries[name]))]
    for name, group in groups.items():
        lines += [f"\n{name}:", *(line for entry in group if entry.name not in first for line in _describe_key(entry))]
    return "\n".join(lines)


def _describe_key(entry: Field) -> list[str]:
    """Lay out one key like argparse: name and default on the left, the meaning wrapped on the right."""
    default = "required" if "required" in entry.metadata["facts"] else as_yaml(entry.default)
    name = f"  {entry.name}: {default}"
    doc = textwrap.wrap(entry.metadata["doc"] + _bounds(entry), HELP_WIDTH - HELP_COLUMN)
    lines = [" " * HELP_COLUMN + line for line in doc]
    if len(name) + 2 > HELP_COLUMN:
        return [name, *lines]
    return [name.ljust(HELP_COLUMN) + doc[0], *lines[1:]]


def _bounds(entry: Field) -> str:
    """Return a sentence about the values that a key may have; "" if all of its type."""
    choices, limits = entry.metadata["choices"], describe_limits(entry.metadata)
    if choices:
        return f" One of: {', '.join(map(as_yaml, choices))}."
    return f" {limits.capitalize()}." if limits else ""


def as_yaml(value: Any) -> str:
    """Return a value as YAML, on one line."""
    value = list(value) if isinstance(value, tuple) else value
    return yaml.safe_dump(value, default_flow_style=True).removesuffix("...\n").strip()

"""Every configuration key: its name, type, default, meaning and bounds.

`load.py` turns a YAML file and a command line into a `TrainConfig` or an `SftConfig`. The names are those of TRL,
which KnowRL uses too; other_words.py lists the names that other tools use. A key means the same in both stages.
"""

from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, TypedDict, TypeVar, Unpack

ALMANAC, ATLAS, SUMS = "almanac", "atlas", "sums"  # toy worlds of a real model
OF_FACTS = (ALMANAC, ATLAS)  # it writes its own cold start
SEARCH = "search"  # the tool that is built in
FORM = "form"  # the cold start that a model writes itself
SHOP = "shop"  # the toy world with an environment
LIBRARY = "library"  # the encyclopedia, to be searched
PEOPLE = ("encyclopedia", LIBRARY)  # toy worlds of people who do not exist
WITH_KNOWLEDGE = (*PEOPLE, *OF_FACTS)  # toy worlds that have a knowledge base
MAX_PER_STEP = 1_000_000  # of anything that is counted per step; more is a slip, and would fill the memory
MAX_WAIT_S = 1799  # for a reward or a service; other processes wait 30 minutes for this one (device/distributed.py)
HIGHER_IS_BETTER = ("eval/accuracy", "eval/reward", "eval/supported_frac")
LOWER_IS_BETTER = ("eval/incorrect", "eval/incorrect_given_attempted", "eval/not_attempted")
INPUTS = ("dataset", "base_weights", "tokenizer", "chat_template")  # a checkpoint holds fingerprints of their contents
ENVIRONMENT = {  # KnowRL's variables: a key that a run needs and that is unset takes the first one that is set
    "knowledge_base": ("FACTSCORE_DB_PATH",),
    "judge_base_url": ("OPENAI_API_BASE_JUDGE",),
    "judge_model": ("LLM_EVAL_MODEL", "REWARD_MODEL_NAME"),
    "decomposer_base_url": ("OPENAI_BASE_URL_FACTSCORE",),
    "decomposer_model": ("FACTSCORE_MODEL", "REWARD_MODEL_NAME"),
}
FACTS = {  # what else is known of keys
    "required": "it has no default",
    "toy": "a toy world sets it",
    "supplied": "its default follows from other keys (other_words.py), so -h shows none",
    "first": "-h shows it before the others",
    "once": "it concerns one invocation, not the run, and is not written to config.resolved.yaml",
    "model": "it says which model a run starts from",
    "local": "it says where something lies, so machines may differ in it; if its content matters, that is compared",
    "free": "a resumed run may change it",
    "warned": "a resumed run may change it, and says so",
}


class Bounds(TypedDict, total=False):
    """What a key may be set to, or each entry of its list: one of `choices`; low <= it <= high, and it > above."""

    choices: tuple
    low: float
    high: float
    above: float


def key(default: object, facts: str = "", **bounds: Unpack[Bounds]) -> Any:
    """Declare a key. facts: see FACTS."""
    return field(default=default, metadata={"facts": frozenset(facts.split()), "bounds": bounds})


@dataclass(frozen=True)
class ModelKeys:
    model_name_or_path: str = key(None, "required toy first model local")
    """Model to start from: a folder, a hub id, or a GGUF file (PACKAGE:FILE.gguf for one in an installed package)."""
    model_revision: str = key("main", "model local")
    """Branch, tag or commit, if the model is a hub id."""
    tokenizer_name_or_path: str | None = key(None, "model local")
    """Folder or hub id of the tokenizer. Unset: that of the model."""
    adapter_name_or_path: str | None = key(None, "model local")
    """LoRA adapter to start from. It is merged into the weights, so the reference policy includes it."""
    chat_template: str | None = key(None, "model local")
    """Jinja file that replaces the tokenizer's chat template."""
    chat_template_kwargs: dict | None = key(None, "model")
    """Values for variables of the chat template, such as {enable_thinking: false} for Qwen3. They are saved with it."""
    torch_dtype: str = key("auto", choices=("auto", "bfloat16", "float16", "float32", "float64"))
    """Data type of the frozen weights and of all matrix products. auto: bfloat16 on a GPU, float32 on a CPU."""
    model_backend: str = key("auto", choices=("auto", "transformers"))
    """What computes the model. auto: own layers for Qwen2, Qwen3, Llama and Mistral, and for other families the modules
    of transformers with our attention, cache and adapters. transformers: these for any."""
    device: str = key("auto", "free", choices=("auto", "cpu", "cuda", "mps"))
    """Where to compute. auto: cuda if there is such a GPU, else cpu. mps: Apple's GPUs; untried."""
    kernels: str = key("auto", "warned", choices=("auto", "none"))
    """Own kernels (kernels/README.md). auto: use them if they pass a self-test. none: use torch's own operations."""
    tensor_parallel_size: int = key(1, "free", low=1)
    """Processes that share one copy of the model: torchrun --nproc-per-node N with a multiple of it. It divides the
    model's heads and key-value heads."""
    tf32: bool = key(False, "warned")
    """Allow a GPU to round the inputs of float32 products to TF32."""


@dataclass(frozen=True)
class LoraKeys:
    lora_r: int = key(16, "first", low=0)
    """Rank of the LoRA adapters. 0: train all weights instead."""
    lora_alpha: float = key(32, above=0)
    """The output of the adapters is scaled by lora_alpha / lora_r."""
    lora_dropout: float = key(0.0, low=0, high=0.9)
    """Dropout on the input of the adapters during training."""
    lora_layers_to_transform: tuple[int, ...] | None = key(None)
    """Numbers of the layers that have adapters, from 0. Unset: all."""
    base_weights: str | None = key(None, "first", choices=(None, "int8", "nf4"))
    """How the frozen weights of the projections are held. Unset: in torch_dtype, or in the few bits of bitsandbytes if
    the file has them so. int8: in 8 bits, with a scale per row, half the memory of bfloat16. nf4: in 4 bits (QLoRA),
    with a scale per 64 numbers, 28 % of it. What the run saves belongs to the weights of the file."""
    lora_target_modules: tuple[str, ...] | None = key(None)
    """Projections that get an adapter, such as [q_proj, v_proj]. Unset: all."""


@dataclass(frozen=True)
class OptimKeys:
    per_device_train_batch_size: int = key(8, "first", low=1, high=MAX_PER_STEP)
    """Completions (stage 2) or answers (stage 1) per device and accumulation step."""
    gradient_accumulation_steps: int = key(1, "first", low=1, high=MAX_PER_STEP)
    """Multiplies per_device_train_batch_size. The size of micro-batches depends only on memory."""
    learning_rate: float = key(1e-6, "first warned supplied", low=0, high=1000)
    """Peak learning rate. Unset: TRL's default, 1e-6 in stage 2 and 2e-5 in stage 1, for all weights (lora_r: 0), and
    ten times that for adapters."""
    lr_scheduler_type: str = key("linear", "warned", choices=("linear", "cosine", "constant", "constant_with_warmup"))
    """Learning rate after the warm-up: linear and cosine decay to 0. constant: no warm-up either."""
    warmup_ratio: float = key(0.0, "warned", low=0, high=1)
    """Share of the steps that the warm-up takes."""
    warmup_steps: int = key(0, "warned", low=0)
    """Steps that the warm-up takes. Overrides warmup_ratio."""
    num_train_epochs: float = key(3.0, "first free", above=0)
    """Passes over the data, if max_steps is -1."""
    max_steps: int = key(-1, "first free", low=-1)
    """Steps of the run. -1: as many as num_train_epochs needs."""
    weight_decay: float = key(0.0, "warned", low=0)
    """Weight decay of AdamW, of matrices only."""
    adam_beta1: float = key(0.9, low=0, high=0.9999999)
    """AdamW's beta 1."""
    adam_beta2: float = key(0.999, low=0, high=0.9999999)
    """AdamW's beta 2."""
    adam_epsilon: float = key(1e-8, low=1.2e-38)
    """AdamW's epsilon. AdamW divides by it in float32, where a smaller one is 0."""
    max_grad_norm: float = key(1.0, "warned", low=0)
    """Clip the gradient to this norm. 0: no clipping."""
    gradient_checkpointing: bool | str = key("auto", "free", choices=("auto", "mlp", True, False))
    """Activations to recompute in the backward pass: true (all), mlp (those of the MLPs) or false (none). auto: as few
    as memory allows."""
    max_tokens_per_micro_batch: int = key(0, "free", low=0)
    """Packed tokens per forward pass. It changes memory and speed, and the gradient only with lora_dropout, whose masks
    depend on it. 0: chosen by free memory."""
    seed: int = key(42)
    """Seed of everything random."""
    full_determinism: bool = key(False, "warned")
    """Use deterministic operations of torch, and choose attention in a fixed order instead of by speed."""

    @property
    def completions_per_replica(self) -> int:
        """Return how many completions of stage 2, or examples of stage 1, each replica trains on in a step."""
        return self.per_device_train_batch_size * self.gradient_accumulation_steps


@dataclass(frozen=True)
class RunKeys:
    output_dir: str = key(None, "required first local free")
    """Directory that the run writes to. Each run needs its own."""
    overwrite_output_dir: bool = key(False, "once free")
    """Start anew in a directory that holds a run. Its files are in old-run/ until the new run has made a step."""
    resume_from_checkpoint: bool | str = key(False, "first once free")
    """true: resume from the newest valid checkpoint in output_dir. A path: from that checkpoint; from one of another
    run, or from an older one, in an output_dir of its own."""
    allow_changes: tuple[str, ...] = key((), "once")
    """Resume although these have changed: keys, or the contents of dataset, base_weights, tokenizer, chat_template, or
    of the files of reward_funcs."""
    logging_steps: int = key(1, "free", low=1)
    """Show the means of this many steps in trackers and on the terminal. metrics.jsonl has every step."""
    save_steps: int = key(50, "first free", low=0)
    """Steps between checkpoints. 0: save only at the end."""
    save_total_limit: int = key(3, "free", low=0)
    """Checkpoints to keep. 0: all."""
    report_to: tuple[str, ...] = key(
        ("tensorboard",), "free", choices=("tensorboard", "swanlab", "wandb", "trackio", "none")
    )
    """Trackers that get the metrics as well as metrics.jsonl."""
    run_name: str | None = key(None, "free")
    """Name of the run in swanlab, wandb and trackio: letters, digits, dots, dashes, underscores. Unset: output_dir."""
    project: str | None = key(None, "free")
    """Project in swanlab, wandb and trackio. Unset: the variable SWANLAB_PROJ_NAME or WANDB_PROJECT, else grpo."""
    workspace: str | None = key(None, "free")
    """Team or user whose project it is, in swanlab (workspace) and wandb (entity). Unset: yours."""
    disable_tqdm: bool = key(False, "free")
    """Hide the progress bar."""
    toy_world: str | None = key(None, choices=(None, "arithmetic", SHOP, SUMS, *WITH_KNOWLEDGE))
    """Make a model, a tokenizer and data, and use them where a path is unset. library is for tools: [search]. almanac
    and atlas (real facts; with tools, to be searched) and sums are data only, for the model of model_name_or_path."""
    toy_dir: str | None = key(None, "local")
    """Directory of the toy world. Unset: output_dir/world."""


@dataclass(frozen=True)
class DataKeys:
    dataset_split: str = key("train", "local")
    """File of a hub data set to use: the one whose name contains this word."""
    max_samples: int = key(0, low=0)
    """Use only this many rows of a data set, from the first. 0 (or -1): all."""
    skip_bad_rows: bool = key(False)
    """Leave out rows that cannot be used, and count them, instead of stopping before the start."""


@dataclass(frozen=True)
class QuestionKeys:
    dataset_id_or_path: str = key(None, "required toy first local")
    """Questions: a JSON, JSONL, CSV or Parquet file (also gzipped), a folder, or a hub id (owner/name:config)."""
    question_field: str | None = key(None)
    """Column of the question. Unset: question, problem or prompt."""
    answer_field: str | None = key(None)
    """Column of the answer. Unset: answer, answers, ground_truth, final_answer, expected_answer, best_answer or
    solution."""
    title_field: str | None = key(None)
    """Column of the title to look up in the knowledge base. Unset: title."""
    system_prompt: str | None = key(None)
    """System message of every prompt."""
    prompt_template: str = key("{question}")
    """User message of every prompt. {question} stands for the question."""
    max_prompt_length: int = key(512, "first", low=1)
    """Leave out prompts of more tokens. The log says how many."""
    shuffle_dataset: bool = key(True)
    """Shuffle the data in each epoch, by the seed."""
    eval_dataset_id_or_path: str | None = key(None, "first free")
    """Held-out questions, answered before and after training, and every eval_steps."""
    eval_dataset_split: str | None = key(None, "local")
    """The same as dataset_split, of eval_dataset_id_or_path. Unset: dataset_split."""
    eval_size: int = key(0, low=0)
    """Rows at the end of dataset_id_or_path that are held out, and never trained on. 0: none."""
    eval_steps: int = key(0, "first free", low=0)
    """Steps between evaluations. 0: evaluate only before and after training."""
    keep_best: str | None = key(None, "free", choices=(None, *HIGHER_IS_BETTER, *LOWER_IS_BETTER))
    """Keep the policy of the best evaluation in best/, by this measure."""
    eval_max_samples: int = key(0, "free", low=0)
    """Use only this many held-out questions, from the first. 0: all."""
    eval_group_field: str | None = key(None)
    """Column that splits the held-out questions: each of its values gets its own lines in the final table."""
    cold_start: str | None = key(None, "local free")
    """Config of stage 1. It runs first, unless its result is there and was made with the same config, data and base;
    model_name_or_path, if set, is its base. A relative path counts from the current folder, or else from that of the
    config or one above. form: a short stage 1 whose data the model writes itself, by answering the questions; it
    teaches the tags or the box that the rewards read, and no fact. null: stage 2 starts from model_name_or_path."""


@dataclass(frozen=True)
class SamplingKeys:
    num_generations: int = key(8, "first", low=2, high=MAX_PER_STEP)
    """Completions per prompt: the group size G."""
    questions_per_step: int | None = key(None, low=1, high=MAX_PER_STEP)
    """Questions per step, over all processes: instead of per_device_train_batch_size."""
    max_completion_length: int = key(512, "first", low=1)
    """Maximum tokens of a completion, including the end token."""
    temperature: float = key(1.0, "first", above=0)
    """Temperature of sampling and of the trained log-probs."""
    top_p: float = key(1.0, above=0, high=1)
    """Nucleus sampling: keep the likeliest tokens up to this probability. 1: off."""
    top_k: int = key(0, low=0)
    """Keep only the k likeliest tokens. 0: off."""
    max_num_seqs: int = key(0, "free", low=0)
    """Sequences decoded together. 0: chosen by free memory."""


@dataclass(frozen=True)
class LossKeys:
    loss_type: str = key("dapo", "first", choices=("grpo", "dapo", "dr_grpo", "bnpo", "cispo"))
    """Weight of a token in the loss: Eq. 8 in grpo/algorithm/MATH.md. cispo: that of dapo, and the ratio, capped at
    epsilon_high, weighs the log-prob."""
    beta: float = key(0.0, "first warned", low=0)
    """Weight of the KL penalty towards the policy of step 0. 0: no reference pass."""
    epsilon: float = key(0.2, "warned", above=0)
    """Clip the ratio below at 1 - epsilon."""
    epsilon_high: float | None = key(None, "warned", above=0)
    """Clip the ratio above at 1 + epsilon_high. Unset: epsilon. With loss_type: cispo it is the cap of the ratio, such
    as 5."""
    delta: float | None = key(None, "warned", above=1)
    """Upper bound of the ratio if the advantage is negative (two-sided clipping). Unset: none."""
    use_bias_correction_kl: bool = key(False)
    """Multiply the KL estimate by the ratio, so that its gradient is that of the KL divergence (TRL 1.16's default)."""
    entropy_coef: float = key(0.0, "warned", low=0)
    """Weight of the mean entropy of all tokens, which is maximised, too, so that sampling keeps exploring."""
    importance_sampling_level: str = key("token", choices=("token", "sequence"))
    """Compute the ratio per token, or per sequence (GSPO)."""
    sampler_importance_sampling_correction: bool = key(False)
    """Weight each token by its probability in training divided by that in sampling, at most by the cap below."""
    sampler_importance_sampling_cap: float = key(2.0, above=0)
    """Cap of that weight."""
    scale_rewards: str = key("group", choices=("group", "batch", "none"))
    """Divide advantages by the standard deviation of the rewards. group (or true): of the group. batch: of the step.
    none (or false): do not divide."""
    multi_objective_aggregation: str = key("sum_then_normalize", choices=("sum_then_normalize", "normalize_then_sum"))
    """How several rewards make one advantage. normalize_then_sum (GDPO): each is normalized within its group, and
    scale_rewards is batch."""
    credit: str = key("completion", choices=("completion", "sentence", "answer"))
    """Unit that gets an advantage. completion: all its tokens have the same. sentence (FSPO): positive if the knowledge
    base supports the sentence, said for the first time, negative if it refutes it; it needs the reward factuality or
    binary_rar, whose weight may be 0. answer: tokens before the answer block have 0; with tools, those before the first
    call or the end of the thoughts."""
    num_iterations: int = key(1, low=1)
    """Updates per step, on the same answers. TRL counts each of them as a step."""
    mask_truncated_completions: bool = key(False)
    """Leave completions that hit max_completion_length out of the loss."""
    dynamic_sampling: bool = key(False)
    """Replace groups whose answers are all right or all wrong by new ones (DAPO). If no reward knows the outcome:
    groups whose rewards are all equal."""
    dynamic_sampling_max_rollouts: int = key(3, low=1)
    """Maximum rounds of generation per step."""


@dataclass(frozen=True)
class RewardKeys:
    reward_funcs: tuple[str, ...] = key(None, "required first")
    """Rewards: built-in names, package.module:function, path/file.py:function. rewards/registry.py lists
    the built-in ones."""
    reward_weights: tuple[float, ...] | None = key(None)
    """One weight per reward. Unset: all 1. A reward of weight 0 is logged and not paid."""
    math_reward_correct: float = key(1.0)
    """Value of the reward math if the last boxed answer is right."""
    math_reward_wrong: float = key(-1.0)
    """Value of the reward math if it is wrong."""
    math_reward_no_answer: float = key(-0.5)
    """Value of the reward math if nothing is boxed."""
    abstention_threshold: float = key(0.5, low=0, high=0.99)
    """For the reward abstention: above this probability of being right, answering pays more than declining."""
    refusal_target: float | None = key(None, low=0.01, high=0.99)
    """Share of the answers that should decline or call a tool: what they earn follows the others of the step (Eq. 14).
    Unset: what the rewards say."""
    soft_punish_cache: int = key(0, low=0)
    """For the reward soft_overlong_punishment: tokens before the length limit at which the penalty starts."""
    reward_timeout_s: float = key(120.0, "free", above=0, high=MAX_WAIT_S)
    """Seconds that a call of your own reward may take. After that its completions are unscorable. The call is ended,
    unless it is one long operation in C, or on Windows, or in another thread than the main one: then it is waited for.
    """
    eval_reward_funcs: tuple[str, ...] | None = key(None)
    """Rewards that grade the held-out questions. Unset: reward_funcs."""


@dataclass(frozen=True)
class KnowledgeKeys:
    knowledge_base: str | None = key(None, "local")
    """Database made by python -m knowledge.build, or of KnowRL or FActScore. Unset: the variable FACTSCORE_DB_PATH."""
    missing_title_policy: str = key("zero", choices=("zero", "unscored", "search"))
    """Factuality of a completion whose title is not in the knowledge base. zero: 0. search: of what full-text search
    finds. unscored: the completion is left out of its group."""
    decomposer: str = key("api", choices=("api", "rules"))
    """Splits the reasoning into facts. api: a language model (decomposer_*). rules: offline rules."""
    verifier: str = key("nli", choices=("nli", "lexical"))
    """Checks a fact against the knowledge base. nli: an entailment model. lexical: offline comparison of sentences."""
    nli_model: str = key("MoritzLaurer/DeBERTa-v3-base-mnli-fever-anli")
    """Entailment model: a folder or a hub id."""
    entailment_threshold: float = key(0.3, above=0, high=1)
    """A fact counts as supported from this probability of entailment on, if that of contradiction is lower; knowrl_v1
    and knowrl_v2 do not look at contradiction."""


@dataclass(frozen=True)
class ToolKeys:
    tools: tuple[str, ...] = key((), "first")
    """Functions that a completion may call: search (in knowledge_base), package.module:function, path/file.py:function.
    By tags, <search>text</search> calls one, and <result>what it gives</result> follows. Stage 1 trains no results of
    theirs."""
    tool_format: str | None = key(None, choices=("tags", "template"))
    """How tools are called. template: by the chat template, with typed arguments. tags: by tags around one text. Unset:
    by the template if each tool has type hints and a docstring with `Args:`, and the template writes calls."""


@dataclass(frozen=True)
class CallKeys:
    environment: str | None = key(None)
    """A class of yours, path/file.py:CLASS: each completion has an object, whose public methods are tools. `reset`
    begins it, `step` answers turns without a call. `get_reward` is a reward if reward_funcs names it, or is unset."""
    max_tool_calls: int = key(4, low=1)
    """Calls per completion; with the chat template, turns that are answered. Further ones are not made."""
    max_tool_result_tokens: int = key(128, low=1)
    """Tokens of a result; the rest is cut off. They count against max_completion_length, and are never trained."""
    tool_timeout_s: float = key(10.0, "free", above=0, high=MAX_WAIT_S)
    """Seconds that a call may take, or a method of an environment. After that its completion is unscorable."""


@dataclass(frozen=True)
class ApiKeys:
    judge: str = key("api", choices=("api", "offline"))
    """Compares an answer with the true one. api: a language model (judge_*). offline: rules, which then also serve as
    decomposer and verifier, unless these are set."""
    judge_model: str | None = key(None)
    """Model of the judge. Unset: the variable LLM_EVAL_MODEL or REWARD_MODEL_NAME, else gpt-4o-mini."""
    judge_base_url: str | None = key(None, "free")
    """URL of the judge. Unset: the variable OPENAI_API_BASE_JUDGE."""
    judge_api_key_env: str = key("OPENAI_API_KEY_JUDGE", "free")
    """Name of the variable that holds the judge's API key."""
    decomposer_model: str | None = key(None)
    """Model of the decomposer. Unset: the variable FACTSCORE_MODEL or REWARD_MODEL_NAME, else gpt-4o-mini."""
    decomposer_base_url: str | None = key(None, "free")
    """URL of the decomposer. Unset: the variable OPENAI_BASE_URL_FACTSCORE."""
    decomposer_api_key_env: str = key("OPENAI_API_KEY_FACTSCORE", "free")
    """Name of the variable that holds the decomposer's API key."""
    api_max_concurrency: int = key(128, "free", low=1)
    """Maximum concurrent questions, per endpoint. With a quota per minute, set a small number: a question whose
    requests are refused waits and tries again, and the others wait for it."""
    api_deadline_s: float = key(120.0, "free", above=0, high=MAX_WAIT_S)
    """Seconds for one item, including all retries. After that the item is unscorable."""
    api_cache: str | None = key(None, "local free")
    """SQLite file that caches replies. Unset: no cache."""
    max_unscored: float = key(0.2, "free", above=0, high=1)
    """Stop the run, after saving it, if a larger share of completions is unscorable in 3 steps in a row."""
    judge_max_tokens: int = key(2048, "free", low=1)
    """Maximum tokens of a judge's reply, including thoughts."""
    decomposer_max_tokens: int = key(4096, "free", low=1)
    """Maximum tokens of a decomposer's reply, including thoughts."""
    api_plain_http: bool = key(False, "free")
    """Allow plain http to addresses that are not public. Prompts, answers and keys are readable on the way."""


@dataclass(frozen=True)
class LogKeys:
    log_completions: bool = key(True, "free")
    """Write completions/: all answers of the first step, the last and every logging_steps-th, with their rewards."""
    num_completions_to_print: int = key(0, "free", low=0)
    """Completions to print at each logged step. Needs log_completions."""


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
    ToolKeys,
    CallKeys,
    ApiKeys,
    OptimKeys,
    RunKeys,
    LogKeys,
):
    """The configuration of stage 2: GRPO."""


@dataclass(frozen=True)
class ConversationKeys:
    dataset_id_or_path: str = key(None, "required toy first local")
    """Conversations as ShareGPT, Alpaca, messages, or prompt and completion: a JSON or JSONL file, or a hub id."""
    dataset_dir: str | None = key(None, "local")
    """Folder of LLaMA-Factory's dataset_info.json: dataset_id_or_path may hold names that are registered there. Unset:
    data, if that holds one."""
    max_length: int = key(3072, "first", low=2)
    """Cut answers so that prompt and answer fit; leave out longer prompts."""
    system_prompt: str | None = key(None)
    """System message of conversations that have none."""
    credit: str = key("completion", choices=("completion", "answer"))
    """Tokens of an answer to train. answer: only those of its answer block, as in stage 2."""


@dataclass(frozen=True)
class SftConfig(ModelKeys, LoraKeys, DataKeys, ConversationKeys, ToolKeys, OptimKeys, RunKeys):
    """The configuration of stage 1: supervised fine-tuning. It samples nothing, and asks nobody.

    So what the code of both stages reads beside its keys has one value each.
    """

    num_generations: ClassVar[int] = 0
    max_num_seqs: ClassVar[int] = 0
    dynamic_sampling: ClassVar[bool] = False
    knowledge_base: ClassVar[None] = None
    max_unscored: ClassVar[float] = 1.0
    log_completions: ClassVar[bool] = False
    num_completions_to_print: ClassVar[int] = 0


AnyConfig = TrainConfig | SftConfig
Stage = TypeVar("Stage", bound=AnyConfig)  # of a run: its configuration says which


def keys_that(fact: str, kind: type | None = None) -> list[str]:
    """Return the keys of a stage (None: of both) of which a fact is known, in the order of their declaration."""
    stages = [kind] if kind else [TrainConfig, SftConfig]
    entries = [entry for stage in stages for group in stage.__mro__[1:-1] for entry in fields(group)]
    return list(dict.fromkeys(entry.name for entry in entries if fact in entry.metadata["facts"]))

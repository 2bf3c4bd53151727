"""Files of other tools: what their keys mean here, what is said of keys without a meaning, and what is refused."""

import dataclasses
import json
from dataclasses import asdict

import pytest
from making import refused, unused
from transformers import TrainingArguments

from grpo.config.foreign import ALIASES, IGNORED, REFUSED, VALUES, fits, readings
from grpo.config.load import keys_of, load_config, parse_arguments
from grpo.config.options import SftConfig, TrainConfig
from rewards.registry import build_rewards

PATHS = {"model_name_or_path": "m", "dataset_id_or_path": "d", "output_dir": "o"}
KINDS = {TrainConfig: {**PATHS, "reward_funcs": "exact"}, SftConfig: PATHS}
LLAMA_FACTORY = (
    "stage do_train finetuning_type lora_target lora_rank lora_dropout additional_target use_rslora use_dora "
    "pure_bf16 freeze_trainable_layers quantization_bit quantization_method flash_attn rope_scaling "
    "enable_liger_kernel use_unsloth template dataset dataset_dir cutoff_len train_on_prompt mask_history streaming "
    "overwrite_cache preprocessing_num_workers preprocessing_batch_size max_samples val_size packing neat_packing "
    "tokenized_path plot_loss save_only_model ddp_timeout deepspeed ray_run_name per_device_eval_batch_size "
    "eval_strategy eval_steps eval_dataset dataloader_num_workers include_num_input_tokens_seen neftune_noise_alpha"
).split()


def load(tmp_path, text, *overrides, kind=TrainConfig, **keys):
    path = tmp_path / "c.yaml"
    lines = [f"{name}: {value}\n" for name, value in (KINDS[kind] | keys).items() if value is not None]
    path.write_text("".join(lines) + text, encoding="utf-8")
    return load_config(path, overrides, kind)


def why(tmp_path, text, *overrides, **keys):
    return refused(lambda: load(tmp_path, text, *overrides, **keys), exit_code=2).why


# --- the tables ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [TrainConfig, SftConfig])
def test_every_key_of_transformers_and_of_llama_factorys_sft_is_known(kind):
    """As a key, as another name of one, or with a sentence on what happens instead."""
    keys = kind.__dataclass_fields__
    names = [field.name for field in dataclasses.fields(TrainingArguments)]
    for name in names + LLAMA_FACTORY * (kind is SftConfig):
        is_ours = name in keys or ALIASES.get(name) in keys or name in VALUES
        assert is_ours or fits([*REFUSED, *IGNORED], name) is not None, name


def defaults_of(kind) -> dict:
    """Return the keys of another tool's dataclass with their defaults, as far as they can be written down."""
    found = {}
    for field in dataclasses.fields(kind):
        has_factory = field.default_factory is not dataclasses.MISSING
        found[field.name] = field.default_factory() if has_factory else field.default
    plain = (str, int, float, list, dict, type(None))
    return {name: value for name, value in found.items() if isinstance(value, plain)}


def dump(tmp_path, defaults, kind):
    """Load a file with all these keys. Keys that have another meaning here are left to us."""
    lines = [f"{name}: {json.dumps(value)}\n" for name, value in defaults.items() if name not in KINDS[kind]]
    return load(tmp_path, "".join(lines), kind=kind)


@pytest.mark.parametrize("names", [("GRPOConfig",), ("SFTConfig",), ("ModelConfig", "ScriptArguments")], ids=str)
def test_a_file_with_all_keys_of_trl_at_their_defaults_is_read(tmp_path, names):
    trl = pytest.importorskip("trl")
    kind = SftConfig if "SFTConfig" in names else TrainConfig
    for name in names:
        config, _ = dump(tmp_path, defaults_of(getattr(trl, name)), kind)
        if name == "GRPOConfig":
            assert not config.sampler_importance_sampling_correction  # use_vllm is false
            cap = defaults_of(trl.GRPOConfig)["vllm_importance_sampling_clip_max"]
            assert config.sampler_importance_sampling_cap == cap


def test_all_keys_of_peft_at_their_defaults_are_read(tmp_path):
    peft = pytest.importorskip("peft")
    lines = [f"  {name}: {json.dumps(value)}\n" for name, value in defaults_of(peft.LoraConfig).items()]
    config, _ = load(tmp_path, "peft_config:\n" + "".join(line for line in lines if "model_name" not in line))
    assert (config.lora_r, config.lora_alpha) == (8, 8)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", {"lora_r": 16, "lora_alpha": 32, "max_length": 3072, "learning_rate": 1e-6}),
        ("finetuning_type: lora", {"lora_r": 8, "lora_alpha": 16, "max_length": 2048, "learning_rate": 5e-5}),
        ("lora_rank: 64", {"lora_r": 64, "lora_alpha": 128}),
        ("lora_rank: 64\nlora_alpha: 16\ncutoff_len: 99\nlearning_rate: 1", {"lora_alpha": 16, "max_length": 99}),
        ("finetuning_type: full", {"lora_r": 0, "lora_alpha": 32, "learning_rate": 5e-5}),
        ("lora_rank: 8\nlora_alpha: null", {"lora_r": 8, "lora_alpha": 16}),
        (
            "lora_rank: null\nlearning_rate: null\ncutoff_len: null",
            {"lora_r": 8, "learning_rate": 5e-5, "max_length": 2048},
        ),
    ],
)
def test_a_file_of_llama_factory_has_its_defaults(tmp_path, text, wanted):
    """hiyouga/LLaMA-Factory 0.9.3, src/llamafactory/hparams/finetuning_args.py: lora_alpha is lora_rank * 2."""
    config, notices = load(tmp_path, text, kind=SftConfig)
    assert {name: getattr(config, name) for name in wanted} == wanted
    assert any("LLaMA-Factory, whose defaults (of 0.9.3)" in n for n in notices) == (bool(text) and "99" not in text)


@pytest.mark.parametrize(
    ("text", "cap", "problem"),
    [
        ("vllm_importance_sampling_correction: true\nvllm_importance_sampling_clip_max: 3.0", 3.0, ""),
        ("vllm_importance_sampling_correction: true\nvllm_importance_sampling_clip_max: null", 1e30, ""),
        ("vllm_importance_sampling_correction: true\nvllm_importance_sampling_mode: token_truncate", 2.0, ""),
        ("vllm_importance_sampling_correction: true\nvllm_importance_sampling_mode: sequence_mask", 0, "_truncate"),
        ("vllm_importance_sampling_correction: true\nvllm_importance_sampling_clip_min: 0.5", 0, "upper bound only"),
        ("vllm_importance_sampling_correction: false\nvllm_importance_sampling_mode: sequence_mask", 2.0, ""),
        ("sampler_importance_sampling_correction: true\nuse_vllm: false", 2.0, ""),
    ],
)
def test_trls_correction_for_the_sampler_is_this_one_or_refused(tmp_path, text, cap, problem):
    if problem:
        assert problem in why(tmp_path, text)
    else:
        config, _ = load(tmp_path, text)
        assert config.sampler_importance_sampling_cap == cap
        assert config.sampler_importance_sampling_correction is ("correction: true" in text)


def test_every_alias_and_every_value_stands_for_a_key():
    keys = {*TrainConfig.__dataclass_fields__, *SftConfig.__dataclass_fields__}
    assert set(ALIASES.values()) <= keys and not set(ALIASES) & keys
    assert {key for meanings in VALUES.values() for key, _ in meanings.values()} <= keys


def test_no_pattern_hides_a_key_of_ours():
    """A misspelt key of ours is not silently taken for one of another tool."""
    for name in (*TrainConfig.__dataclass_fields__, *SftConfig.__dataclass_fields__):
        for wrong in (name + "x", name[:-1], name.replace("_", "", 1)):
            if not wrong.startswith("vllm") and wrong not in IGNORED:
                assert fits([*REFUSED, *IGNORED], wrong) is None, wrong


# --- keys ----------------------------------------------------------------------------------------------------------


def test_each_key_without_a_meaning_is_named_once_with_what_happens_instead(tmp_path):
    (tmp_path / "base.yaml").write_text("optim: adamw_8bit\n")
    text = "base: base.yaml\noptim: sgd\ndataloader_num_workers: 4\ndeepspeed: ds.json\npush_to_hub: true\n"
    text += "ray_init: 1\n"
    _, notices = load(tmp_path, text)
    assert sorted(unused(notices)) == ["dataloader_num_workers", "deepspeed", "optim", "push_to_hub", "ray_init"]
    assert any("base.yaml:1: optim is not used" in notice and "AdamW" in notice for notice in notices)
    assert any("c.yaml:8: deepspeed, ray_init are not used: several GPUs work" in notice for notice in notices)


READ = [  # lines of a file of another tool, and values that they give
    ("bf16: true", {"torch_dtype": "bfloat16"}),
    ("bf16: false", {"torch_dtype": "auto"}),
    ("finetuning_type: full", {"lora_r": 0}),
    ("finetuning_type: lora\nlora_rank: 8", {"lora_r": 8}),
    ("use_peft: false", {"lora_r": 0}),
    ("use_swanlab: true", {"report_to": ("swanlab",)}),
    ("use_swanlab: false", {"report_to": ("tensorboard",)}),
    ("report_to: none\nuse_swanlab: true", {"report_to": ("swanlab",)}),
    ("use_swanlab: true\nreport_to: [tensorboard]", {"report_to": ("swanlab", "tensorboard")}),
    ("torch_dtype: torch.bfloat16", {"torch_dtype": "bfloat16"}),
    ("dtype: fp16", {"torch_dtype": "float16"}),
    ("torch_dtype: auto\nbf16: true", {"torch_dtype": "bfloat16"}),
    ("bf16: true\ntorch_dtype: auto", {"torch_dtype": "bfloat16"}),
    ("bf16: true\ntorch_dtype: torch.bfloat16", {"torch_dtype": "bfloat16"}),
    ("run_name: None\nmax_grad_norm: None\nrope_scaling: None", {"run_name": None, "max_grad_norm": 1.0}),
    ("eval_reward_funcs: None\nadapter_name_or_path: None", {"adapter_name_or_path": None}),
    ("training:\n  # learning_rate: 1\nlogging: {}", {"learning_rate": 1e-6}),
    ("lora.r: 3", {"lora_r": 3}),
    ("kl_coef: 0.05\nnum_return_sequences: 2", {"beta": 0.05, "num_generations": 2}),
    ("lora_target: q_proj,v_proj", {"lora_target_modules": ("q_proj", "v_proj")}),
    ("swanlab_experiment_name :: e", {"run_name": "e"}),
    ("resume_from_checkpoint: null", {"resume_from_checkpoint": False}),
    ("training:\n  lora: {r: 4, alpha: 8, target_modules: [q_proj]}", {"lora_r": 4, "lora_alpha": 8}),
    ("training:\n  optimizer:\n    lr: 5e-6\n  num_epochs: 2", {"learning_rate": 5e-6, "num_train_epochs": 2}),
    ("generation: {max_new_tokens: 64}\ndata: {max_samples: 10}", {"max_completion_length": 64, "max_samples": 10}),
    ("reward: {correct: 2.0, weights: [0.5]}", {"math_reward_correct": 2.0, "reward_weights": (0.5,)}),
    ("eval: {steps: 7}\nlogging: {steps: 3}", {"eval_steps": 7, "logging_steps": 3}),
    ("judge: {model: gpt}\nwandb: {project: p}", {"judge_model": "gpt", "wandb_project": "p"}),
    ("config:\n  training: {epochs: 3, gradient_accumulation: 4}", {"gradient_accumulation_steps": 4}),
    ("config:\n  peft_config: {r: 6, lora_alpha: 32, bias: none}", {"lora_r": 6, "lora_alpha": 32}),
    *((f"system_prompt: {text}", {"system_prompt": text}) for text in ("0123", "1e5", "1_000", "no", "12:30")),
    ("top_k: 5\nseed: 2024", {"top_k": 5, "seed": 2024}),
    *((text, {}) for text in ("load_in_4bit: false", "repetition_penalty: 1.0", "stage: sft", "min_p: null")),
]
NOT_HERE = [  # lines that are refused, and words of what is said of them
    ("load_in_4bit: true", "load_in_4bit: true is not available here"),
    ("repetition_penalty: 1.1", "repetition_penalty: 1.1 is not available"),
    ("stage: dpo", "stage: dpo is not available"),
    ("finetuning_type: freeze", "finetuning_type: freeze is not available"),
    ("quantization_bit: 4", "quantization_bit: 4 is not available"),
    ("use_dora: true", "use_dora: true is not available"),
    ("do_sample: false", "do_sample: false is not available"),
    ("generation_kwargs: {min_p: 0.1}", "generation_kwargs: {'min_p': 0.1} is not available"),
    ("torch_dtype: float32\nbf16: true", "bf16 was set at"),
    ("torch_dtype: auto\ntorch_dtype: float32", "torch_dtype was set at"),
    ("trainig:", "unknown key trainig"),
    ("modle: {path: x}", "c.yaml:5: unknown key modle.path"),
    ("training:\n  learnig_rate: 1", "c.yaml:6: unknown key training.learnig_rate; did you mean learning_rate?"),
    ("reference:\n  model_name_or_path: x", "unknown key reference.model_name_or_path"),
    ("teacher: {temperature: 0.1}", "unknown key teacher.temperature"),
    ("model: {path: x}", "model.path was set at"),
    ("lora: {r: 1}\nlora_rank: 2", "lora_rank was set at"),
    ("peft_config: {bias: all}", "bias: all is not available"),
    ("lora:\n  r: many", "c.yaml:6: lora.r: wants a whole number"),
    ("cutoff_len: 5", "unknown key cutoff_len: it belongs to stage 1 (python -m grpo.sft)"),
]


@pytest.mark.parametrize(("text", "values"), READ)
def test_what_other_tools_write_is_read(tmp_path, text, values):
    config, _ = load(tmp_path, text)
    assert {name: getattr(config, name) for name in values} == values


@pytest.mark.parametrize(("text", "part"), NOT_HERE)
def test_what_would_change_the_result_is_refused(tmp_path, text, part):
    assert part in why(tmp_path, text)


def test_the_same_holds_on_the_command_line_and_in_stage_1(tmp_path):
    assert load(tmp_path, "run_name: x", "run_name=None")[0].run_name is None
    assert load(tmp_path, "run_name: x", "run_name=null")[0].run_name is None
    config, _ = load(tmp_path, "", "bf16=true", "lora.r=3", "model.path=x", model_name_or_path=None)
    assert (config.lora_r, config.model_name_or_path) == (3, "x")
    config, _ = load(tmp_path, "", "lora_target_modules=[q_proj, v_proj]", "gradient_checkpointing=true")
    assert (config.lora_target_modules, config.gradient_checkpointing) == (("q_proj", "v_proj"), True)
    assert "it belongs to stage 2 (python -m grpo.train)" in why(tmp_path, "beta: 1", kind=SftConfig)
    assert list(readings("training.lora.rank")) == ["training_lora_rank", "lora_rank", "rank"]
    assert list(readings("eval.steps")) == ["eval_steps"]


def test_rewards_of_the_math_guide_set_the_values_of_the_reward(tmp_path):
    config, notices = load(tmp_path, "reward_correct: 3\nreward_wrong: -2\nreward_no_answer: 0.25", reward_funcs=None)
    assert config.reward_funcs == ("math",) and any("using math" in notice for notice in notices)
    (reward,) = build_rewards(config.reward_funcs, asdict(config))
    answers = [r"\boxed{7}", r"\boxed{8}", "7"]
    assert [reward.grade(text, {"answer": "7"}).value for text in answers] == [3, -2, 0.25]


def test_a_shell_that_is_set_up_for_knowrl_does_not_change_the_rewards_of_the_math_guide(tmp_path, monkeypatch):
    monkeypatch.setenv("FACTSCORE_DB_PATH", "knowledge.db")
    assert load(tmp_path, "reward_correct: 1", reward_funcs=None)[0].reward_funcs == ("math",)
    assert load(tmp_path, "beta: 0.1", reward_funcs=None)[0].reward_funcs == ("knowrl_v2",)


def test_the_home_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    assert load(tmp_path, "", "output_dir=~/runs/a", output_dir=None)[0].output_dir == "/home/someone/runs/a"


def test_null_is_the_default_and_says_so(tmp_path):
    (tmp_path / "base.yaml").write_text("save_total_limit: 9\n")
    config, notices = load(tmp_path, "base: base.yaml\nsave_total_limit: null\nreward_weights: null\nreport_to: ~\n")
    assert (config.save_total_limit, config.reward_weights, config.report_to) == (3, None, ("tensorboard",))
    assert sum("save_total_limit is null: its default 3 is used" in notice for notice in notices) == 1
    assert "output_dir is not set" in why(tmp_path, "", "output_dir=null")


def test_paths_and_keys_without_a_meaning_in_sections(tmp_path):
    text = "model: {path: somewhere}\ndata: {path: rows.jsonl}\npeft_config: {task_type: CAUSAL_LM}\n"
    text += "training: {group_by_length: true}\ngradient_checkpointing_kwargs: {use_reentrant: false}\n"
    config, notices = load(tmp_path, text, model_name_or_path=None, dataset_id_or_path=None)
    assert (config.model_name_or_path, config.dataset_id_or_path) == ("somewhere", "rows.jsonl")
    assert set(unused(notices)) == {"task_type", "group_by_length", "gradient_checkpointing_kwargs"}


def test_a_mapping_under_a_key_without_a_meaning_holds_no_keys(tmp_path):
    """Also inside a section."""
    for text in ("fsdp_config: {beta: 0.5}\n", "training:\n  fsdp_config: {beta: 0.5}\n  epochs: 2\n"):
        config, notices = load(tmp_path, text)
        assert config.beta == TrainConfig.beta and ["fsdp_config is not used" in notice for notice in notices] == [True]


def test_the_keys_that_arguments_set_are_known_whatever_their_names():
    typed = ["kl_coef=0.1", "--max_samples", "3", "lora.rank=2", "bf16=true", "optim=x"]
    assert keys_of(typed) == {"beta", "max_samples", "lora_r", "torch_dtype"}


# --- the command line ----------------------------------------------------------------------------------------------


def test_flags_may_stand_apart_from_their_values(tmp_path):
    config, _ = load(tmp_path, "", "--max_samples", "10", "--max-steps", "-1", "--bf16", "--run_name=x", "beta=0.5")
    assert (config.max_samples, config.max_steps, config.torch_dtype, config.run_name) == (10, -1, "bfloat16", "x")
    assert load(tmp_path, "", "--overwrite_output_dir", "--beta", "0.1")[0].overwrite_output_dir is True


@pytest.mark.parametrize("arguments", [["--config", "{}"], ["--config={}"], ["beta=0.5", "--config", "{}"], ["{}"]])
def test_a_config_may_be_named_by_a_flag(tmp_path, arguments):
    load(tmp_path, "seed: 7\n")
    arguments = [argument.format(tmp_path / "c.yaml") for argument in arguments]
    config, _ = parse_arguments([*arguments, "--lora_r", "3"], TrainConfig, "doc")
    assert (config.seed, config.lora_r) == (7, 3)


@pytest.mark.parametrize(
    "text",
    ["0123", "1e5", "1_000", "2024-01-01", "true", "no", "12:30", "0x1F", "a: b", "{x}", "[y", "#1", "x # y", ""],
)
def test_text_on_the_command_line_stays_text(tmp_path, text):
    assert load(tmp_path, "", f"system_prompt={text}")[0].system_prompt == text
    assert load(tmp_path, "", "--system_prompt", text or "x")[0].system_prompt == (text or "x")

"""The configuration: strict, complete in its complaints, and readable for files of other tools."""

import re
import shlex
from dataclasses import fields
from pathlib import Path

import pytest
from making import refused, unused

from grpo.base.errors import UserError
from grpo.base.storage import read_mapping
from grpo.config.help import meanings
from grpo.config.load import coerce, keys_of, load_config, parse_arguments, split_arguments, to_yaml
from grpo.config.options import FACTS, OF_FACTS, SftConfig, TrainConfig, keys_that
from grpo.data.toy import locate
from rewards import format
from rewards.mathematics.boxes import verdict
from rewards.outcome.refusal import is_refusal
from rewards.prompts import BLOCKS, BLOCKS_AND_CONFIDENCE, BOXED

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
PATHS = {"model_name_or_path": "m", "dataset_id_or_path": "d", "output_dir": "o"}
NEEDED = {TrainConfig: {**PATHS, "reward_funcs": "exact"}, SftConfig: PATHS}
MINIMAL = "".join(f"{name}: {value}\n" for name, value in NEEDED[TrainConfig].items())
PENALTY = "max_completion_length: 10\neval_reward_funcs: [soft_overlong_punishment]"
PUNISHED = f"{PENALTY}\nsoft_punish_cache: "


def load(tmp_path, text, *overrides, kind=TrainConfig, **keys):
    """Load a file that holds what is needed (with `keys`; None: left out), and below, from line 5, this text."""
    path = tmp_path / "c.yaml"
    lines = [f"{name}: {value}\n" for name, value in (NEEDED[kind] | keys).items() if value is not None]
    path.write_text("".join(lines) + text, encoding="utf-8")
    return load_config(*split_arguments([str(path), *overrides]), kind)


def why(tmp_path, text, *overrides, **keys):
    return refused(lambda: load(tmp_path, text, *overrides, **keys), exit_code=2).why


READ = [  # lines of a config, and values that they give
    *((f"learning_rate: {text}", {"learning_rate": 5e-6}) for text in ("5e-6", "5E-6", "'5e-6'", "5.0e-6")),
    ("gradient_checkpointing: true", {"gradient_checkpointing": True}),
    ("seed: 9223372036854775807", {"seed": 2**63 - 1}),
    ("per_device_train_batch_size: 8\ngradient_accumulation_steps: 3\nnum_generations: 6", {"num_generations": 6}),
    ("reward_weights: [0.5]", {"reward_weights": (0.5,)}),
    ("top_k: 5\ntop_p: 0.9", {"top_k": 5, "top_p": 0.9}),
    ("num_iterations: 2", {"num_iterations": 2}),
    ("multi_objective_aggregation: normalize_then_sum\nscale_rewards: none", {"scale_rewards": "batch"}),
    ("lora_r: 0\nadapter_name_or_path: a", {"lora_r": 0}),
    ("report_to: [tensorboard, none]", {"report_to": ("tensorboard", "none")}),
    ("eval_size: 2\neval_reward_funcs: [factuality]\nknowledge_base: kb.db", {"eval_size": 2}),
    ("run_name: a.B_9-", {"run_name": "a.B_9-"}),
    ("lora_target_modules: ['${PART}_proj', v_proj]", {"lora_target_modules": ("q_proj", "v_proj")}),
    ("run_name: ${PART}${PART}${NONE:-}x", {"run_name": "qqx"}),
    ("nli_model: ${PART}-x\nlearning_rate: ${NO_SUCH:-1e-5}", {"nli_model": "q-x", "learning_rate": 1e-5}),
    ("toy_dir: ~/runs", {"toy_dir": "/home/someone/runs"}),
    ("chat_template_kwargs: {a: false, b: high}", {"chat_template_kwargs": {"a": False, "b": "high"}}),
    *((PUNISHED + cache, {"soft_punish_cache": int(cache)}) for cache in ("1", "10")),
    *((f"system_prompt: {text}", {"system_prompt": text}) for text in ("0123", "1e5", "1_000", "no", "12:30")),
    # what other tools write
    ("bf16: true", {"torch_dtype": "bfloat16"}),
    ("bf16: false", {"torch_dtype": "auto"}),
    ("finetuning_type: full", {"lora_r": 0}),
    ("finetuning_type: lora\nlora_rank: 8", {"lora_r": 8}),
    ("use_peft: false\nlora_rank: 8", {"lora_r": 0}),
    ("use_swanlab: true", {"report_to": ("swanlab",)}),
    ("use_swanlab: false", {"report_to": ("tensorboard",)}),
    ("report_to: none\nuse_swanlab: true", {"report_to": ("swanlab",)}),
    ("use_swanlab: true\nreport_to: [tensorboard]", {"report_to": ("swanlab", "tensorboard")}),
    ("fp16: yes", {"torch_dtype": "float16"}),
    ("torch_dtype: auto\nbf16: true", {"torch_dtype": "bfloat16"}),
    ("bf16: true\ntorch_dtype: auto", {"torch_dtype": "bfloat16"}),
    ("bf16: true\ntorch_dtype: bfloat16", {"torch_dtype": "bfloat16"}),
    ("scale_rewards: false", {"scale_rewards": "none"}),
    ("run_name: None\nmax_grad_norm: None\nrope_scaling: None", {"run_name": None, "max_grad_norm": 1.0}),
    ("training:\n  # learning_rate: 1\nlogging: {}", {"learning_rate": 1e-5}),
    ("kl_coef: 0.05\nnum_return_sequences: 2", {"beta": 0.05, "num_generations": 2}),
    ("lora_target: q_proj,v_proj", {"lora_target_modules": ("q_proj", "v_proj")}),
    ("swanlab_experiment_name :: e", {"run_name": "e"}),
    ("resume_from_checkpoint: null", {"resume_from_checkpoint": False}),
    ("training:\n  lora: {r: 4, alpha: 8, target_modules: [q_proj]}", {"lora_r": 4, "lora_alpha": 8}),
    ("training:\n  optimizer:\n    lr: 5e-6\n  num_epochs: 2", {"learning_rate": 5e-6, "num_train_epochs": 2}),
    ("generation: {max_new_tokens: 64}\ndata: {max_samples: 10}", {"max_completion_length": 64, "max_samples": 10}),
    ("reward: {correct: 2.0, weights: [0.5]}", {"math_reward_correct": 2.0, "reward_weights": (0.5,)}),
    ("eval: {steps: 7}\nlogging: {steps: 3}", {"eval_steps": 7, "logging_steps": 3}),
    ("judge: {model: gpt}\nwandb: {project: p}", {"judge_model": "gpt", "project": "p"}),
    ("config:\n  training: {epochs: 3, gradient_accumulation: 4}", {"gradient_accumulation_steps": 4}),
    ("config:\n  peft_config: {r: 6, lora_alpha: 32, bias: none}", {"lora_r": 6, "lora_alpha": 32}),
    ("fsdp_config: {beta: 0.5}", {"beta": TrainConfig.beta}),
    ("training:\n  accelerator_config: {beta: 0.5}\n  epochs: 2", {"beta": TrainConfig.beta, "num_train_epochs": 2}),
    *((text, {}) for text in ("load_in_4bit: no", "repetition_penalty: 1.0", "stage: sft", "min_p: null")),
]
TYPED = [  # arguments of a command, and values that they give; the file sets beta, run_name and output_dir
    ("beta=0.2 --lora_r=4 lora_target_modules=q_proj,v_proj", {"beta": 0.2, "lora_r": 4}),
    ("lora_target_modules=[q_proj,v_proj]", {"lora_target_modules": ("q_proj", "v_proj")}),
    ("run_name=None", {"run_name": None}),
    ("run_name=null", {"run_name": None}),
    ("bf16=true lora.r=3", {"torch_dtype": "bfloat16", "lora_r": 3}),
    ("--max_samples 10 --max-steps -1 --bf16", {"max_samples": 10, "max_steps": -1, "torch_dtype": "bfloat16"}),
    ("--overwrite_output_dir --beta 0.1", {"overwrite_output_dir": True, "beta": 0.1}),
    ("output_dir=~/runs/a", {"output_dir": "/home/someone/runs/a"}),
    ("chat_template_kwargs='{a: false, b: high}'", {"chat_template_kwargs": {"a": False, "b": "high"}}),
]
REFUSED = [  # lines of a config, and words of what is said of them
    ("top_p: 1.0001", "top_p"),
    (f"per_device_train_batch_size: {2**62}", "per_device_train_batch_size"),
    ("reward_funcs_weights: 1", "reward_funcs_weights"),
    ("gradient_checkpointing: 1", "gradient_checkpointing"),
    ("gradient_checkpointing: maybe", "must be one of"),
    ("beta: 1e39", "beta"),
    ("reward_weights: [1e-50]", "reward_weights"),
    ("refusal_target: 0.3", "add abstention to reward_funcs"),
    (
        "refusal_target: 0.3\nreward_funcs: [format, truthrl]\nmulti_objective_aggregation: normalize_then_sum",
        "set multi_objective_aggregation: sum_then_normalize",
    ),
    ("credit: sentence", "add factuality to reward_funcs"),
    ("credit: sentence\nimportance_sampling_level: sequence", "importance_sampling_level: token"),
    ("credit: token", "must be one of completion, sentence, answer"),
    ("num_generations: 8\nper_device_train_batch_size: 12", "cannot be split into groups"),
    ("reward_weights: [1, 2]", "reward_weights has 2 entries"),
    ("reward_weights: [0]", "nothing is paid"),
    ("eval_reward_funcs: [exat]", "unknown reward exat; did you mean exact?"),
    ("eval_reward_funcs: [mine.py]", "mine.py:FUNCTION"),
    ("top_p: 0.9\nnum_iterations: 2", "top_p and top_k need num_iterations: 1"),
    ("eval_size: 2\neval_reward_funcs: [factuality]\njudge: offline", "factuality needs a knowledge base"),
    ("prompt_template: hello", "prompt_template"),
    ("report_to: [tensorbord]", "did you mean tensorboard?"),
    ("max_steps: 0", "max_steps"),
    ("temperature: 0", "must be above 0"),
    ("allow_changes: [temprature, dataset]", "neither a key nor one of dataset"),
    ("reward_funcs: [exact, exact]", "reward_funcs was set at"),
    ("beta: 0.1\nbeta: 0.1", "beta was set at"),
    ("beta: 0.1\nkl_coef: 0.2", "kl_coef was set at"),
    *((f"run_name: '{name}'", "run_name") for name in ("a b", "a/b", "")),
    *((PUNISHED + cache, "soft_punish_cache") for cache in ("11", "0")),
    *((f"chat_template_kwargs: {wrong}", "wants a mapping") for wrong in ("3", "[a]", "{a b: 1}", "{1: 2}")),
    ("run_name: ${NO_SUCH}", "NO_SUCH is not set"),
    ("run_name: !!python/object/apply:os.system ['touch pwned']", "not valid YAML"),
    ("run_name: &a hello\nsystem_prompt: *a", "aliases"),  # nine lines of them are a billion values
    *((text, "not valid YAML") for text in ("a: [1, 2", "- just\n- a list", "a: b: c", "\tx: 1")),
    ("learnig_rate: 1", "c.yaml:5: unknown key learnig_rate; did you mean learning_rate?"),
    ("seed: 1\nbeta:\n\n  high", "c.yaml:6: beta: wants a number, got 'high'"),  # its value stands below
    ("num_generations: 1", "c.yaml:5: num_generations: must be at least 2 and at most 1000000; got 1"),
    ("loss_type: grop", "must be one of grpo, dapo, dr_grpo, bnpo; got 'grop'; did you mean grpo?"),
    ("base: none.yaml", "c.yaml:5: base: there is no file"),
    ("base: [a.yaml]", "c.yaml:5: base: wants text"),
    ("base: c.yaml", "c.yaml:5: base: a file cannot be based on itself"),
    ("base: ${NO_SUCH}", "c.yaml:5: base: the environment variable NO_SUCH is not set"),
    # what other tools write, and would change the result
    ("load_in_4bit: true", "load_in_4bit: true is not available here: base_weights: int8"),
    ("load_in_8bit: true", "base_weights: int8"),
    ("quantization_bit: 4", "base_weights: int8"),
    ("stage: dpo", "stage: dpo is not available"),
    ("finetuning_type: freeze", "finetuning_type: freeze is not available"),
    ("do_sample: false", "do_sample: false is not available"),
    ("generation_kwargs: {min_p: 0.1}", "generation_kwargs: {'min_p': 0.1} is not available"),
    ("peft_config: {bias: all}", "bias: all is not available"),
    ("torch_dtype: float32\nbf16: true", "bf16 was set at"),
    ("trainig:", "unknown key trainig"),
    ("training:\n  learnig_rate: 1", "c.yaml:6: unknown key training.learnig_rate; did you mean learning_rate?"),
    ("reference:\n  model_name_or_path: x", "unknown key reference.model_name_or_path"),
    ("teacher: {temperature: 0.1}", "unknown key teacher.temperature"),
    ("model: {path: x}", "model.path was set at"),
    ("lora: {r: 1}\nlora_rank: 2", "lora_rank was set at"),
    ("lora:\n  r: many", "c.yaml:6: lora.r: wants a whole number"),
    ("lora_layers_to_transform: [first]", "wants a list of whole numbers or null, got ['first']"),
    ("cutoff_len: 5", "unknown key cutoff_len: it belongs to stage 1 (python -m grpo.sft)"),
]


@pytest.fixture(autouse=True)
def shell(monkeypatch):
    """The variables of these tests, and none of the services that a user may have set up."""
    services = ("LLM_EVAL_MODEL", "FACTSCORE_MODEL", "REWARD_MODEL_NAME", "OPENAI_BASE_URL_FACTSCORE")
    for name in (*services, "FACTSCORE_DB_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PART", "q")
    monkeypatch.setenv("HOME", "/home/someone")


def values_of(config, like):
    return {name: getattr(config, name) for name in like}


@pytest.mark.parametrize(("text", "values"), READ)
def test_values_that_are_read(tmp_path, text, values):
    assert values_of(load(tmp_path, text)[0], values) == values


@pytest.mark.parametrize(("typed", "values"), TYPED)
def test_the_command_line_wins(tmp_path, typed, values):
    config, _ = load(tmp_path, "beta: 0.5\nrun_name: x\n", *shlex.split(typed))
    assert values_of(config, values) == values
    assert load_config(tmp_path / "c.yaml", shlex.split(typed))[0] == config  # as from a script


@pytest.mark.parametrize(("text", "part"), REFUSED)
def test_values_and_combinations_that_are_refused(tmp_path, monkeypatch, text, part):
    monkeypatch.chdir(tmp_path)
    assert part in why(tmp_path, text)
    assert not Path("pwned").exists()


@pytest.mark.parametrize(
    "text",
    ["0123", "1e5", "1_000", "2024-01-01", "true", "no", "12:30", "0x1F", "a: b", "{x}", "[y", "#1", "x # y", ""],
)
def test_text_on_the_command_line_stays_text(tmp_path, text):
    assert load(tmp_path, "", f"system_prompt={text}")[0].system_prompt == text
    assert load(tmp_path, "", "--system_prompt", text or "x")[0].system_prompt == (text or "x")


@pytest.mark.parametrize("arguments", [["--config", "{}"], ["--config={}"], ["beta=0.5", "--config", "{}"], ["{}"]])
def test_a_config_may_be_named_by_a_flag(tmp_path, arguments):
    load(tmp_path, "seed: 7\n")
    arguments = [argument.format(tmp_path / "c.yaml") for argument in arguments]
    config, _ = parse_arguments([*arguments, "--lora_r", "3"], TrainConfig, "doc")
    assert (config.seed, config.lora_r) == (7, 3)


@pytest.mark.parametrize(
    ("kind", "text", "rate", "is_said"),
    [
        (TrainConfig, "", 1e-5, True),
        (TrainConfig, "lora_r: 0", 1e-6, False),
        (TrainConfig, "use_peft: false", 1e-6, False),
        (TrainConfig, "learning_rate: 1e-6", 1e-6, False),
        (TrainConfig, "lr: 1e-6", 1e-6, False),
        (TrainConfig, "learning_rate: null", 1e-5, True),
        (SftConfig, "", 2e-4, True),
        (SftConfig, "lora_r: 0", 2e-5, False),
        (SftConfig, "template: qwen", 5e-5, False),
    ],
)
def test_a_rate_that_is_not_named_is_that_of_what_is_trained(tmp_path, kind, text, rate, is_said):
    config, notices = load(tmp_path, text, kind=kind)
    assert config.learning_rate == rate and any("ten times too low" in notice for notice in notices) == is_said


def test_a_cold_start_is_found_beside_its_config_from_any_folder(tmp_path, monkeypatch):
    """As a base is; configs name it from the folder above, too. What is in the current folder goes first."""
    (tmp_path / "configs").mkdir()
    (tmp_path / "elsewhere" / "configs").mkdir(parents=True)
    stage1 = tmp_path / "configs" / "one.yaml"
    stage1.write_text("")
    monkeypatch.chdir(tmp_path / "elsewhere")
    for name in ("one.yaml", "configs/one.yaml", "../configs/one.yaml"):
        (tmp_path / "configs" / "two.yaml").write_text(MINIMAL + f"cold_start: {name}\n")
        found = load_config(tmp_path / "configs" / "two.yaml")[0].cold_start
        assert Path(found).resolve() == stage1, name
        (tmp_path / "configs" / "three.yaml").write_text("base: two.yaml\n")
        assert load_config(tmp_path / "configs" / "three.yaml")[0].cold_start == found
    assert load_config(tmp_path / "configs" / "two.yaml", ["cold_start=one.yaml"])[0].cold_start == "one.yaml"
    own = tmp_path / "elsewhere" / "configs" / "one.yaml"
    own.write_text("")
    (tmp_path / "configs" / "two.yaml").write_text(MINIMAL + "cold_start: configs/one.yaml\n")
    assert load_config(tmp_path / "configs" / "two.yaml")[0].cold_start == "configs/one.yaml"


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("template: qwen", "the tokenizer's own chat template"),
        ("ddp_timeout: 180000000", "30 minutes"),
        ("plot_loss: true", "always draws loss.png"),
        ("ddp_backend: nccl", "torchrun"),
        ("deepspeed: z3.json", "torchrun"),
    ],
)
def test_a_notice_says_what_is_true_of_its_key(tmp_path, key, said):
    _, notices = load(tmp_path, key, kind=SftConfig)
    (notice,) = [notice for notice in notices if f"{key.partition(':')[0]} is not used" in notice]
    assert said in notice


def test_the_owner_of_a_project_has_the_trackers_names(tmp_path):
    for name in ("wandb_entity", "swanlab_workspace", "workspace"):
        assert load(tmp_path, f"{name}: team")[0].workspace == "team"


def test_the_keys_that_arguments_set_are_known_whatever_their_names():
    typed = ["kl_coef=0.1", "max_samples=3", "lora.rank=2", "bf16=true", "optim=x"]
    assert keys_of(typed) == {"beta", "max_samples", "lora_r", "torch_dtype"}


def test_all_problems_at_once_with_their_lines(tmp_path):
    """Keys that are wrong, misspelled or not read are neither missing nor part of a combination."""
    found = why(tmp_path, "learnig_rate: 1\nbeta:\n\n  high\nmax_steps: 1.5\n", "loss_type=grop")
    path = tmp_path / "c.yaml"
    assert re.findall(r"\S*(?:yaml:\d+|line): \w+(?: key)?", found) == [
        f"{path}:5: unknown key",
        f"{path}:6: beta",
        f"{path}:9: max_steps",
        "line: loss_type",
    ]
    others = "dataset_id_or_path: d\noutput_dir: o\nreward_funcs: [math]\n"
    for text, number in (
        ("model_name_or_path: [a", 1),
        (f"model_name_or_path: [m]\n{others}", 1),
        (f"model_name_or_pat: m\n{others}", 1),
        (f"model_name_or_path: m\n{others}num_generation: 7\n", 1),
        ("", 4),
        ("learning_rat: 1\ntop_k: 5\nnum_iterations: 2\nprompt_template: x\n", 7),
    ):
        path.write_text(text)
        refused(lambda: load_config(path), f"{number} problem", exit_code=2)
    refused(lambda: load_config(tmp_path / "none.yaml"), "cannot read the config", exit_code=2)
    assert "it belongs to stage 2 (python -m grpo.train)" in why(tmp_path, "beta: 1", kind=SftConfig)


def test_null_is_the_default_and_says_so(tmp_path):
    (tmp_path / "base.yaml").write_text("save_total_limit: 9\n")
    config, notices = load(tmp_path, "base: base.yaml\nsave_total_limit: null\nreward_weights: null\nreport_to: ~\n")
    assert (config.save_total_limit, config.reward_weights, config.report_to) == (3, None, ("tensorboard",))
    assert sum("save_total_limit is null: its default 3 is used" in notice for notice in notices) == 1
    assert "output_dir is not set" in why(tmp_path, "", "output_dir=null")


def test_each_key_without_a_meaning_is_named_once_with_what_happens_instead(tmp_path):
    (tmp_path / "base.yaml").write_text("optim: adamw_8bit\n")
    text = "base: base.yaml\noptim: sgd\ndataloader_num_workers: 4\ndeepspeed: ds.json\nray_init: 1\n"
    text += "peft_config: {task_type: CAUSAL_LM}\ngradient_checkpointing_kwargs: {use_reentrant: false}\n"
    _, notices = load(tmp_path, text)
    ignored = {"optim", "dataloader_num_workers", "deepspeed", "ray_init", "task_type", "gradient_checkpointing_kwargs"}
    assert set(unused(notices)) == ignored and len(unused(notices)) == len(ignored)
    assert any("base.yaml:1: optim, " in notice and "AdamW" in notice for notice in notices)
    assert any("c.yaml:8: deepspeed, ray_init are not used: several GPUs work" in notice for notice in notices)


PROMPTS = [  # rewards and other keys, and the system prompt that they bring; None: none, or what the keys say
    *((names, BLOCKS) for names in ("knowrl", "[knowrl_v2,exact]", "[format,truthrl]", "[format,math,abstention]")),
    ("[binary_rar]", BLOCKS),
    *((names, BLOCKS_AND_CONFIDENCE) for names in ("rlcr", "[format,rlcr]", "[knowrl,rlcr]")),
    ("[format,math]", BOXED),
    ("[tag_count,math]", BOXED),
    *((names, None) for names in ("format", "tag_count", "[simpleqa,math]", "[math]")),
    ("knowrl prompt_template=Answer:{question}", None),
    ("knowrl toy_world=encyclopedia", None),
    ("[format,math] toy_world=arithmetic", None),
    *((f"{names} system_prompt=", "") for names in ("knowrl", "[format,abstention]", "[math,format]")),
    ("knowrl system_prompt=mine", "mine"),
]
OFFLINE = [  # keys, and what splits the reasoning and checks its facts
    ("", ("api", "nli")),
    ("judge=offline", ("rules", "lexical")),
    ("judge=offline decomposer=api", ("api", "lexical")),
    ("judge=offline decomposer_model=m", ("api", "lexical")),
    ("judge=offline nli_model=m", ("rules", "nli")),
    ("judge=offline verifier=nli", ("rules", "nli")),
]


@pytest.mark.parametrize(("keys", "prompt"), PROMPTS)
def test_rewards_bring_the_prompt_that_they_need_unless_there_is_one(tmp_path, keys, prompt):
    config, notices = load(tmp_path, "knowledge_base: k.db\n", *f"reward_funcs={keys}".split())
    assert config.system_prompt == prompt
    is_supplied = prompt in (BLOCKS, BLOCKS_AND_CONFIDENCE, BOXED)
    assert any("supplies the system prompt" in notice for notice in notices) is is_supplied


@pytest.mark.parametrize(
    ("keys", "is_asked", "is_noted"),
    [
        ((), True, False),
        (("prompt_template=Box it in \\boxed{}: {question}",), True, False),
        (("prompt_template={question}",), False, True),
        (("system_prompt=",), False, True),
        (("system_prompt=Answer in \\boxed{}.",), True, False),
        (("toy_world=arithmetic",), False, False),
    ],
)
def test_math_asks_for_a_box_or_says_that_no_prompt_does(tmp_path, keys, is_asked, is_noted):
    config, notices = load(tmp_path, "", "reward_funcs=math", *keys)
    assert ("boxed" in f"{config.system_prompt} {config.prompt_template}") == is_asked
    assert any("no prompt asks for" in notice for notice in notices) == is_noted
    written = tmp_path / "config.resolved.yaml"
    written.write_text(to_yaml(config))
    assert load_config(written)[0] == config  # what a run wrote means the same when it is read again


def test_the_examples_of_the_prompts_have_the_format_that_they_ask_for():
    """Of two blocks: an answer, and a refusal. Of a box: the right one."""
    parsed = [format.parse(text) for text in re.findall(r"^<think>.*?</answer>$", BLOCKS, re.DOTALL | re.MULTILINE)]
    assert [(blocks.problem, is_refusal(blocks.answer)) for blocks in parsed] == [("", False), ("", True)]
    examples = re.findall(r"^<think>.*?</confidence>$", BLOCKS_AND_CONFIDENCE, re.DOTALL | re.MULTILINE)
    boxed = BOXED.partition("example:\n")[2]
    assert len(examples) == 2 and not any(format.parse(example).problem for example in (*examples, boxed))
    assert verdict(boxed, "12")[0] == "correct"


@pytest.mark.parametrize(("keys", "services"), OFFLINE)
def test_one_key_takes_knowrl_offline(tmp_path, monkeypatch, keys, services):
    config, notices = load(tmp_path, "knowledge_base: k.db\n", "reward_funcs=knowrl", *keys.split())
    assert (config.decomposer, config.verifier) == services
    assert any("facts are checked offline, too" in notice for notice in notices) == ("judge=offline" in keys)
    assert load(tmp_path, "", "judge=offline")[0].verifier == "nli"  # no reward checks facts
    monkeypatch.setenv("OPENAI_BASE_URL_FACTSCORE", "https://example.org")
    assert load(tmp_path, "knowledge_base: k.db\n", "reward_funcs=knowrl", "judge=offline")[0].decomposer == "api"


def test_the_models_of_judge_and_decomposer(tmp_path, monkeypatch):
    """The config goes before the variables, and these before KnowRL's default; nothing is set that nobody asks."""

    def models(*keys):
        config, _ = load(tmp_path, "knowledge_base: k.db\n", *keys)
        return config.judge_model, config.decomposer_model

    assert models("reward_funcs=exact") == (None, None)
    assert models("reward_funcs=correctness") == ("gpt-4o-mini", None)
    assert models("reward_funcs=exact", "eval_reward_funcs=correctness") == ("gpt-4o-mini", None)
    assert models("reward_funcs=knowrl", "judge=offline", "decomposer=rules") == (None, None)
    assert models("reward_funcs=knowrl", "judge_model=a") == ("a", "gpt-4o-mini")
    monkeypatch.setenv("REWARD_MODEL_NAME", "both")
    monkeypatch.setenv("FACTSCORE_MODEL", "facts")
    assert models("reward_funcs=knowrl") == ("both", "facts")


def test_the_variable_of_the_knowledge_base_beats_the_configs_placeholder(monkeypatch):
    for value, path in ((None, "knowledge.db"), ("mine.db", "mine.db"), ("", "knowledge.db")):
        if value is not None:
            monkeypatch.setenv("FACTSCORE_DB_PATH", value)
        assert load_config(CONFIGS / "a800.yaml")[0].knowledge_base == path
        assert load_config(CONFIGS / "a800.yaml", ["knowledge_base=other.db"])[0].knowledge_base == "other.db"


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda p: p.stem)
def test_every_config_of_the_project_loads_and_survives_a_round_trip(path, tmp_path):
    kind = SftConfig if path.stem.endswith("_sft") else TrainConfig
    config, _ = load_config(path, kind=kind)
    text = to_yaml(config)
    (tmp_path / "resolved.yaml").write_text(text)
    assert "overwrite_output_dir" not in text and ": null" not in text
    again, notices = load_config(
        tmp_path / "resolved.yaml", [f"overwrite_output_dir={config.overwrite_output_dir}"], kind
    )
    assert again == config and not notices


def test_variables_stay_in_the_configuration_that_is_written(tmp_path, monkeypatch):
    """Their values are secrets. Numbers and lists, too; what is read again is equal."""
    for name, value in {"WORDS": " first words ", "NUMBER": "1234567", "PART": "q_proj"}.items():
        monkeypatch.setenv(name, value)
    text = "system_prompt: a${WORDS}b\nseed: ${NUMBER}\nlora_target_modules: [v_proj, '${PART}']\nprompt_template: "
    config, _ = load(tmp_path, text + "'{question} first words 1234567'\n")
    assert (config.system_prompt, config.seed) == ("a first words b", 1234567)
    written = to_yaml(config)
    assert "first words " not in written.replace("{question} first words", "")
    for line in ("system_prompt: a${WORDS}b", "seed: ${NUMBER}", "- ${PART}"):
        assert line in written
    (tmp_path / "again.yaml").write_text(written)
    assert load_config(tmp_path / "again.yaml")[0] == config
    assert read_mapping(tmp_path / "again.yaml")["reward_funcs"] == ["exact"]
    (tmp_path / "again.yaml").write_text("run_name: &a hello\nsystem_prompt: *a\n")
    assert read_mapping(tmp_path / "again.yaml") == {}


def test_values_take_the_type_of_their_key():
    assert coerce("3", int) == 3 and coerce("-3", int) == -3 and coerce("0123", int) == 123
    assert coerce("a, b,c", tuple[str, ...]) == coerce("[a, b, c]", tuple[str, ...]) == ("a", "b", "c")
    assert coerce("x", tuple[str, ...]) == ("x",) and coerce(["1", "2.5"], tuple[float, ...]) == (1.0, 2.5)
    assert coerce("FALSE", bool) is False and coerce("path", bool | str) == "path"
    assert coerce("true", bool | str) is coerce("yes", bool) is True
    wrong = [("inf", float), ("nan", float), ("1e999", float), ("true", float), ("1.5", int), ([["1"]], str)]
    wrong += [
        ("true", int),
        (["1"], int),
        ("1_000x", int),
        ("1", bool),
        ("y", bool),
        ({}, str),
        ("[a", tuple[str, ...]),
    ]
    for value, hint in wrong:
        with pytest.raises(ValueError, match="wants"):
            coerce(value, hint)


def test_a_config_sets_only_what_differs_from_its_base(tmp_path):
    """The last one wins: base of the base, base, file, command line. The path is relative to the file that names it."""
    (tmp_path / "shared").mkdir()
    for name, text in {
        "shared/first": MINIMAL + "beta: 0.1\nlora_r: 2\nseed: 1\nepsilon: 0.1\noptim: adamw_8bit\n",
        "shared/second": "base: first.yaml\nlora_r: 4\nseed: 2\nepsilon: 0.2\n",
        "third": "seed: 3\nepsilon: 0.3\nbase: shared/second.yaml\noutput_dir: mine\n",
    }.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    config, (notice,) = load_config(tmp_path / "third.yaml", ["epsilon=0.4", "learning_rate=1e-5"])
    assert (config.beta, config.lora_r, config.seed, config.epsilon) == (0.1, 4, 3, 0.4)
    assert (config.output_dir, config.dataset_id_or_path) == ("mine", "d") and "\nbase:" not in to_yaml(config)
    assert notice.startswith(f"{tmp_path}/shared/first.yaml:9: optim is not used")


@pytest.mark.parametrize(
    ("a", "b", "part"),
    [
        (MINIMAL + "learnig_rate: 1\n", "base: a.yaml\n", "a.yaml:5: unknown key learnig_rate"),
        (MINIMAL, "base: a.yaml\nbeta: high\n", "b.yaml:2: beta: wants a number"),
        (MINIMAL, "base: a.yaml\nbeta: 0.1\nbeta: 0.1\n", "b.yaml:3: beta was set at"),
        (MINIMAL, "base: a.yaml\nbase: a.yaml\n", "b.yaml:2: base: it was set at"),
        ("base: b.yaml\n", "base: a.yaml\n", "a.yaml:1: base: a file cannot be based on itself: "),
    ],
)
def test_mistakes_in_bases_name_the_file_that_holds_them(tmp_path, a, b, part):
    (tmp_path / "a.yaml").write_text(a)
    (tmp_path / "b.yaml").write_text(b)
    assert f"{tmp_path}/{part}" in refused(lambda: load_config(tmp_path / "b.yaml"), exit_code=2).why


@pytest.mark.parametrize(
    "arguments", [["-h"], ["c.yaml", "-h"], ["c.yaml", "beta=0.1", "--help", "--lr", "1"]], ids=str
)
@pytest.mark.parametrize("kind", [TrainConfig, SftConfig])
def test_help_shows_every_key_with_its_default_and_its_meaning_wherever_it_is_asked_for(kind, arguments, capsys):
    with pytest.raises(SystemExit) as end:
        parse_arguments(arguments, kind, "What the command does.\n\nMore for readers of the code.")
    text = capsys.readouterr().out
    assert end.value.code == 0 and text.startswith("What the command does.\n") and "readers" not in text
    assert max(map(len, text.splitlines())) <= 120
    words = " ".join(text.split())
    docs = meanings(kind)
    for name in kind.__dataclass_fields__:
        assert f"  {name}: " in text and docs[name] in words and docs[name].endswith("."), name
    for line in (
        "output_dir: required",
        "lora_r: 16",
        "report_to: [tensorboard]",
        "learning_rate: null",
        "adam_epsilon: 1e-8",
    ):
        assert f"  {line} " in text
    names = re.findall(r"^  (\w+): ", text, re.MULTILINE)
    assert sorted(names) == sorted(docs) and names[: len(keys_that("first", kind))] == keys_that("first", kind)
    assert all(field.metadata["facts"] <= set(FACTS) for field in fields(kind))
    for bound in ("at least 0 and at most 0.9.", "Must be above 0.", "One of: linear, cosine, constant, "):
        assert bound in words


def test_without_arguments_a_command_says_what_it_needs(capsys):
    with pytest.raises(SystemExit) as end:
        parse_arguments([], TrainConfig, "What it does.")
    text = capsys.readouterr().out
    assert end.value.code == 2 and len(text.splitlines()) <= 10 and "model_name_or_path, dataset_id_or_path, " in text


@pytest.mark.parametrize(("processes", "batch"), [("1", 24), ("2", 12), ("3", 8), ("4", None)])
def test_questions_per_step_are_another_way_to_say_the_batch(tmp_path, monkeypatch, processes, batch):
    monkeypatch.setenv("WORLD_SIZE", processes)
    text = "questions_per_step: 6\nper_device_train_batch_size: 100\ngradient_accumulation_steps: 7\n"
    text += "num_generations: 4\n"
    if batch is None:
        assert "questions_per_step" in why(tmp_path, text)
        return
    config, _ = load(tmp_path, text)
    assert (config.per_device_train_batch_size, config.gradient_accumulation_steps) == (batch, 1)
    assert "questions_per_step" not in to_yaml(config)


@pytest.mark.parametrize("size", [0, 4])
def test_the_resolved_config_of_a_toy_world_can_be_read_again(tmp_path, size):
    config, _ = load(tmp_path, "toy_world: arithmetic\n", f"eval_size={size}")
    written = tmp_path / "config.resolved.yaml"
    written.write_text(to_yaml(locate(config)))
    again, _ = load_config(written)
    assert (again.eval_size, bool(again.eval_dataset_id_or_path)) == (size, not size)


@pytest.mark.parametrize("world", OF_FACTS)
def test_a_world_of_real_facts_brings_data_and_no_model(world):
    keys = [f"toy_world={world}", "output_dir=x", "reward_funcs=knowrl", "judge=offline"]
    with pytest.raises(UserError, match="model_name_or_path"):
        load_config(None, keys)
    assert load_config(None, [*keys, "model_name_or_path=x"])[0].toy_world == world


@pytest.mark.parametrize("kind", [TrainConfig, SftConfig])
def test_a_misspelt_tool_is_refused_in_both_stages(kind):
    """In stage 1 the results that follow its calls would be trained."""
    keys = ["model_name_or_path=x", "dataset_id_or_path=d", "output_dir=o", "tools=serach"]
    with pytest.raises(UserError, match="unknown tool serach"):
        load_config(None, keys, kind)

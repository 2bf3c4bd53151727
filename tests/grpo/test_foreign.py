"""The tables of other tools' keys: every key of theirs is known, and their files mean what they mean there.

peers.yaml holds the defaults that stand in TRL 0.23 and 1.16, and in LLaMA-Factory 0.9.3. transformers, on which all
are built, is the one installed.
"""

import ast
import dataclasses
import json
import re
from dataclasses import asdict
from pathlib import Path

import pytest
import yaml
from commands import ROOT
from making import cases
from test_config import NEEDED, PATHS, check_values, load
from transformers import TrainingArguments

from bench import peers
from grpo.config.options import LossKeys, SamplingKeys, SftConfig, TrainConfig
from grpo.config.other_words import ALIASES, IGNORED, REFUSED, SWITCH_NAMES, SWITCHES, find_match
from rewards.registry import build_rewards

LLAMA_FACTORY = (
    "stage do_train finetuning_type lora_target lora_rank lora_dropout additional_target use_rslora use_dora "
    "pure_bf16 freeze_trainable_layers quantization_bit quantization_method flash_attn rope_scaling "
    "enable_liger_kernel use_unsloth template dataset dataset_dir cutoff_len train_on_prompt mask_history streaming "
    "overwrite_cache preprocessing_num_workers preprocessing_batch_size max_samples val_size packing neat_packing "
    "tokenized_path plot_loss save_only_model ddp_timeout deepspeed ray_run_name per_device_eval_batch_size "
    "eval_strategy eval_steps eval_dataset dataloader_num_workers include_num_input_tokens_seen neftune_noise_alpha"
).split()
PEERS = yaml.safe_load(Path(__file__).with_name("peers.yaml").read_text(encoding="utf-8"))  # defaults in their programs


@pytest.mark.parametrize("kind", [TrainConfig, SftConfig])
def test_every_key_of_transformers_and_of_llama_factorys_sft_is_known(kind):
    """As a key, as another name of one, or with a sentence on what happens instead."""
    keys = kind.__dataclass_fields__
    names = [field.name for field in dataclasses.fields(TrainingArguments)]
    for name in names + LLAMA_FACTORY * (kind is SftConfig):
        is_ours = name in keys or ALIASES.get(name) in keys or name in SWITCH_NAMES
        assert is_ours or find_match([*REFUSED, *IGNORED], name) is not None, name


def defaults_of(kind):
    """Return the keys of another tool's dataclass with their defaults, as far as they can be written down."""
    found = {}
    for field in dataclasses.fields(kind):
        has_factory = field.default_factory is not dataclasses.MISSING
        found[field.name] = field.default_factory() if has_factory else field.default
    plain = (str, int, float, list, dict, type(None))
    return {name: value for name, value in found.items() if isinstance(value, plain)}


@pytest.mark.parametrize("names", [("GRPOConfig",), ("SFTConfig",), ("ModelConfig", "ScriptArguments")], ids=str)
def test_a_file_with_all_keys_of_trl_at_their_defaults_is_read(tmp_path, names):
    """Keys that have another meaning here are left to us."""
    trl = pytest.importorskip("trl")
    kind = SftConfig if "SFTConfig" in names else TrainConfig
    for name in names:
        defaults = defaults_of(getattr(trl, name)).items()
        lines = [f"{key}: {json.dumps(value)}\n" for key, value in defaults if key not in NEEDED[kind]]
        load(tmp_path, "".join(lines), kind=kind)


def test_all_keys_of_peft_at_their_defaults_are_read(tmp_path):
    peft = pytest.importorskip("peft")
    lines = [f"  {name}: {json.dumps(value)}\n" for name, value in defaults_of(peft.LoraConfig).items()]
    config, _ = load(tmp_path, "peft_config:\n" + "".join(line for line in lines if "model_name" not in line))
    assert (config.lora_r, config.lora_alpha) == (8, 8)


@pytest.mark.parametrize("text, values, is_said", cases(__file__, "llama factory"))
def test_a_file_of_llama_factory_has_its_defaults(tmp_path, text, values, is_said):
    """hiyouga/LLaMA-Factory 0.9.3, src/llamafactory/hparams/finetuning_args.py: lora_alpha is lora_rank * 2."""
    config, notices = load(tmp_path, text, kind=SftConfig)
    check_values(config, values)
    assert ("LLaMA-Factory, whose defaults (of 0.9.3)" in notices) == (is_said == "said")


def test_every_alias_and_every_value_stands_for_a_key():
    keys = {*TrainConfig.__dataclass_fields__, *SftConfig.__dataclass_fields__}
    assert set(ALIASES.values()) <= keys and not set(ALIASES) & keys
    assert {key for key, _ in SWITCHES.values()} <= keys


def test_no_pattern_hides_a_key_of_ours():
    """A misspelt key of ours is not silently taken for one of another tool."""
    for name in (*TrainConfig.__dataclass_fields__, *SftConfig.__dataclass_fields__):
        for wrong in (name + "x", name[:-1], name.replace("_", "", 1)):
            if not wrong.startswith("vllm") and wrong not in IGNORED:
                assert find_match([*REFUSED, *IGNORED], wrong) is None, wrong


def test_rewards_of_the_math_guide_set_the_values_of_the_reward(tmp_path):
    config, notices = load(tmp_path, "reward_correct: 3\nreward_wrong: -2\nreward_no_answer: 0.25", reward_funcs=None)
    assert config.reward_funcs == ("math",) and "using math" in notices
    (reward,) = build_rewards(config.reward_funcs, asdict(config))
    answers = [r"\boxed{7}", r"\boxed{8}", "7"]
    assert [reward.grade(text, {"answer": "7"}).value for text in answers] == [3, -2, 0.25]


def test_a_shell_that_is_set_up_for_knowrl_does_not_change_the_rewards_of_the_math_guide(tmp_path, monkeypatch):
    monkeypatch.setenv("FACTSCORE_DB_PATH", "knowledge.db")
    assert load(tmp_path, "reward_correct: 1", reward_funcs=None)[0].reward_funcs == ("math",)
    assert load(tmp_path, "beta: 0.1", reward_funcs=None)[0].reward_funcs == ("knowrl_v2",)


# --- keys that are left out ---------------------------------------------------------------------------------------

FILES = {  # of each peer: the stage that reads them, and the line that tells its files from others
    "trl": (TrainConfig, ""),
    "trl 1.16": (TrainConfig, ""),
    "llamafactory": (SftConfig, "template: qwen\n"),
}
DEPARTURES = {  # what files of a peer get here without a key, where that is not the peer's default; and why
    (peer, key): ast.literal_eval(ours) for peer, key, ours, _ in cases(__file__, "departures")
}
EMPTY = (None, 0, False, "", ())  # what null may mean here


def defaults():
    """Peer, key and default of every key that is also one here, whatever its name. Those of PATHS must be set."""
    found = [(peer, *item) for peer in FILES for table in PEERS[peer]["files"].values() for item in table.items()]
    found += [("transformers", *item) for item in defaults_of(TrainingArguments).items()]
    keys = {peer: FILES[peer][0].__dataclass_fields__ for peer in FILES}
    keys["transformers"] = keys["llamafactory"]
    return [
        (peer, key, value)
        for peer, key, value in found
        if (ALIASES.get(key, key) in keys[peer] or key in SWITCH_NAMES) and ALIASES.get(key, key) not in PATHS
    ]


def test_every_departure_is_from_a_default_of_a_peer():
    assert {(peer, key) for peer, key, _ in defaults()} > set(DEPARTURES)


def test_the_manual_names_every_default_of_trl_that_differs_and_benchmarks_set_both_sides_alike():
    of_trl = {(peer, key): value for peer, key, value in defaults()}
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (.+?) \|", (ROOT / "grpo/README.md").read_text(), re.MULTILINE)
    told = {key: (theirs, re.match(r"[\w.-]+", ours)[0]) for key, theirs, ours in rows}
    for (peer, key), ours in DEPARTURES.items():
        if peer == "trl 1.16":
            assert told[key] == tuple(json.dumps(value).strip('"') for value in (of_trl[peer, key], ours))
    shared = {key for group in (LossKeys, SamplingKeys) for key in group.__dataclass_fields__}
    assert {key for key in shared if ("trl 1.16", key) in of_trl} - {"top_k"} <= set(peers.SHARED.split())


@pytest.mark.parametrize("peer, key, value", defaults())
def test_a_key_left_out_means_its_default_there(tmp_path, peer, key, value):
    """A file with the default written out gives the same configuration as one without the key."""
    kind, mark = FILES.get(peer, FILES["llamafactory"])
    written = asdict(load(tmp_path, f"{mark}{key}: {json.dumps(value)}\n", kind=kind)[0])
    left_out = asdict(load(tmp_path, mark, kind=kind)[0])
    ours = ALIASES.get(key, key)
    if (peer, key) in DEPARTURES:
        assert left_out[ours] == DEPARTURES[peer, key]
        is_default = value is None and key != "save_total_limit"  # whose null keeps all
        assert (written == left_out) == is_default  # null means the default there; else it need not be named
    else:
        assert written == left_out and (value is not None or left_out.get(ours) in EMPTY)

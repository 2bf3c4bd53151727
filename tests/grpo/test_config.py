"""The configuration: strict, complete in its complaints, and readable for files of other tools."""

import re
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from grpo.base.errors import UserError
from grpo.base.storage import read_mapping
from grpo.config.load import coerce, load_config, parse_arguments, to_yaml
from grpo.config.options import FACTS, SftConfig, TrainConfig, describe_keys, keys_that, meanings
from rewards import format
from rewards.boxed import verdict
from rewards.prompts import BLOCKS, BLOCKS_AND_CONFIDENCE, BOXED

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
MINIMAL = "model_name_or_path: m\ndataset_id_or_path: d\noutput_dir: o\nreward_funcs: [exact]\n"


def load(tmp_path, text, *overrides, kind=TrainConfig):
    path = tmp_path / "c.yaml"
    path.write_text(MINIMAL + text, encoding="utf-8")
    return load_config(path, overrides, kind)


def why(tmp_path, text, *overrides):
    with pytest.raises(UserError) as error:
        load(tmp_path, text, *overrides)
    assert error.value.exit_code == 2
    return error.value.why


@pytest.mark.parametrize("text", ["5e-6", "5E-6", "0.000005", "'5e-6'", "5.0e-6"])
def test_exponents_are_numbers(tmp_path, text):
    """YAML 1.1 reads 5e-6 as text."""
    assert load(tmp_path, f"learning_rate: {text}")[0].learning_rate == 5e-6


def test_all_problems_at_once_with_their_lines(tmp_path):
    text = why(
        tmp_path, "learnig_rate: 1\nbeta: high\nnum_generations: 1\ntop_p: 2\nmax_steps: 1.5\n", "loss_type=grop"
    )
    for part in (
        "c.yaml:5: unknown key learnig_rate; did you mean learning_rate?",
        "c.yaml:6: beta: wants a number, got 'high'",
        "c.yaml:7: num_generations: must be at least 2; got 1",
        "c.yaml:8: top_p: must be above 0 and at most 1; got 2",
        "c.yaml:9: max_steps: wants a whole number",
        "command line: loss_type: must be one of grpo, dapo, dr_grpo, bnpo; got 'grop'; did you mean grpo?",
    ):
        assert part in text
    assert "c.yaml:6: beta: wants a number" in why(tmp_path, "seed: 1\nbeta:\n\n  high\n")  # its value stands below


def test_duplicate_keys_and_aliases_of_the_same_key(tmp_path):
    assert "beta was set at" in why(tmp_path, "beta: 0.1\nbeta: 0.1\n")
    assert "kl_coef was set at" in why(tmp_path, "beta: 0.1\nkl_coef: 0.2\n")
    assert load(tmp_path, "bf16: true\ntorch_dtype: bfloat16\n")[0].torch_dtype == "bfloat16"


def test_the_command_line_wins(tmp_path):
    config, _ = load(
        tmp_path,
        "beta: 0.1\nlora_target_modules: [q_proj]\n",
        "beta=0.2",
        "--lora_r=4",
        "lora_target_modules=q_proj,v_proj",
    )
    assert (config.beta, config.lora_r, config.lora_target_modules) == (0.2, 4, ("q_proj", "v_proj"))


def test_environment_variables(tmp_path, monkeypatch):
    monkeypatch.setenv("SOME_MODEL", "path/to/model")
    config, _ = load(tmp_path, "nli_model: ${SOME_MODEL}-x\nlearning_rate: ${NO_SUCH:-1e-5}\n")
    assert (config.nli_model, config.learning_rate) == ("path/to/model-x", 1e-5)
    assert "NO_SUCH is not set" in why(tmp_path, "run_name: ${NO_SUCH}\n")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("num_generations: 8\nper_device_train_batch_size: 12\n", "cannot be split into groups"),
        ("reward_weights: [1, 2]\n", "reward_weights has 2 entries"),
        ("reward_weights: [0]\n", "nothing is paid"),
        ("eval_reward_funcs: [exat]\n", "unknown reward exat; did you mean exact?"),
        ("eval_reward_funcs: [mine.py]\n", "name the function in it, too: mine.py:FUNCTION"),
        ("top_p: 0.9\nnum_iterations: 2\n", "top_p and top_k need num_iterations: 1"),
        ("prompt_template: hello\n", "does not contain {question}"),
        ("report_to: [tensorbord]\n", "unknown tensorbord"),
        ("max_steps: 0\n", "nothing to do"),
        ("gradient_checkpointing: maybe\n", "must be one of"),
        ("temperature: 0\n", "must be above 0"),
        ("beta: .nan\n", "wants a number"),
        ("reward_funcs: [exact, exact]\n", "reward_funcs was set at"),
        ("learnig: 1\n", "unknown key learnig; "),
    ],
)
def test_impossible_values_and_combinations(tmp_path, text, part):
    assert part in why(tmp_path, text)


@pytest.mark.parametrize("text", ["a: [1, 2", "- just\n- a list\n", "a: b: c\n", "\tx: 1\n"])
def test_broken_yaml_names_the_place(tmp_path, text):
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(UserError) as error:
        load_config(tmp_path / "c.yaml")
    assert "not valid YAML" in error.value.why and "c.yaml" in error.value.why


def test_a_missing_file_and_missing_keys(tmp_path):
    with pytest.raises(UserError, match="cannot read the config"):
        load_config(tmp_path / "none.yaml")
    (tmp_path / "c.yaml").write_text("")
    with pytest.raises(UserError) as error:
        load_config(tmp_path / "c.yaml")
    assert "model_name_or_path is not set" in error.value.why and "reward_funcs is not set" in error.value.why


def test_nothing_in_a_config_is_run(tmp_path):
    (tmp_path / "c.yaml").write_text(MINIMAL + "run_name: !!python/object/apply:os.system ['touch pwned']\n")
    with pytest.raises(UserError):
        load_config(tmp_path / "c.yaml")
    assert not Path("pwned").exists()


@pytest.mark.parametrize(
    ("keys", "supplied"),
    [
        (["reward_funcs=knowrl"], True),
        (["reward_funcs=[knowrl_v1, exact]"], True),
        (["reward_funcs=knowrl", "system_prompt=mine"], False),
        (["reward_funcs=knowrl", "system_prompt="], False),
        (["reward_funcs=knowrl", "prompt_template=Answer {question}"], False),
        (["reward_funcs=knowrl", "toy_world=encyclopedia"], False),
        (["reward_funcs=[format, truthrl]"], True),
        (["reward_funcs=[format, math, karl]"], True),
        (["reward_funcs=[format, abstention]", "system_prompt="], False),
        (["reward_funcs=[format, tiar]", "toy_world=encyclopedia"], False),
        (["reward_funcs=[binary_rar]"], True),
        (["reward_funcs=format"], False),
        (["reward_funcs=[simpleqa, math]"], False),
    ],
)
def test_rewards_that_read_knowrls_format_bring_its_prompt_unless_there_is_one(tmp_path, keys, supplied):
    config, notices = load(tmp_path, "knowledge_base: k.db\n", *keys)
    assert (config.system_prompt == BLOCKS) is supplied
    assert any("system prompt" in notice for notice in notices) is supplied


@pytest.mark.parametrize("names", ["rlcr", "[format, rlcr]", "[knowrl, rlcr]"])
def test_rlcr_brings_a_prompt_that_asks_for_a_confidence(tmp_path, names):
    config, notices = load(tmp_path, "knowledge_base: k.db\n", f"reward_funcs={names}")
    assert config.system_prompt == BLOCKS_AND_CONFIDENCE and any(
        "rlcr supplies the system prompt" in n for n in notices
    )
    first, second = re.findall(r"^<think>.*?</confidence>$", BLOCKS_AND_CONFIDENCE, re.DOTALL | re.MULTILINE)
    assert format.parse(first).problem == format.parse(second).problem == ""


@pytest.mark.parametrize(
    ("keys", "supplied"),
    [
        (["reward_funcs=[format, math]"], True),
        (["reward_funcs=[math, format]", "system_prompt="], False),
        (["reward_funcs=[format, math]", "toy_world=arithmetic"], False),
        (["reward_funcs=[format, math, karl]"], False),
        (["reward_funcs=[math]"], False),
    ],
)
def test_format_beside_math_brings_a_prompt_that_asks_for_a_box_in_the_answer(tmp_path, keys, supplied):
    config, notices = load(tmp_path, "", *keys)
    assert (config.system_prompt == BOXED) is supplied
    assert any("format supplies the system prompt" in notice for notice in notices) is supplied
    example = BOXED.partition("example:\n")[2]
    assert not format.parse(example).problem and verdict(example, "12")[0] == "correct"


@pytest.mark.parametrize(
    ("keys", "services"),
    [
        ((), ("api", "nli")),
        (("judge=offline",), ("rules", "lexical")),
        (("judge=offline", "decomposer=api"), ("api", "lexical")),
        (("judge=offline", "decomposer_model=m"), ("api", "lexical")),
        (("judge=offline", "nli_model=m"), ("rules", "nli")),
        (("judge=offline", "verifier=nli"), ("rules", "nli")),
    ],
)
def test_one_key_takes_knowrl_offline(tmp_path, monkeypatch, keys, services):
    monkeypatch.delenv("OPENAI_BASE_URL_FACTSCORE", raising=False)
    config, notices = load(tmp_path, "knowledge_base: k.db\n", "reward_funcs=knowrl", *keys)
    assert (config.decomposer, config.verifier) == services
    assert any("facts are checked offline, too" in notice for notice in notices) == ("judge=offline" in keys)
    assert load(tmp_path, "", "judge=offline")[0].verifier == "nli"  # no reward checks facts
    monkeypatch.setenv("OPENAI_BASE_URL_FACTSCORE", "https://example.org")
    assert load(tmp_path, "knowledge_base: k.db\n", "reward_funcs=knowrl", "judge=offline")[0].decomposer == "api"


def test_without_arguments_a_command_says_what_it_needs(capsys):
    with pytest.raises(SystemExit) as end:
        parse_arguments([], TrainConfig, "What it does.")
    text = capsys.readouterr().out
    assert end.value.code == 2 and len(text.splitlines()) <= 10 and "model_name_or_path, dataset_id_or_path, " in text


def test_the_models_of_judge_and_decomposer(tmp_path, monkeypatch):
    """The config goes before the variables, and these before KnowRL's default; nothing is set that nobody asks."""
    for variable in ("LLM_EVAL_MODEL", "FACTSCORE_MODEL", "REWARD_MODEL_NAME"):
        monkeypatch.delenv(variable, raising=False)

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
    for value, path in (("mine.db", "mine.db"), ("", "knowledge.db"), (None, "knowledge.db")):
        if value is None:
            monkeypatch.delenv("FACTSCORE_DB_PATH", raising=False)
        else:
            monkeypatch.setenv("FACTSCORE_DB_PATH", value)
        assert load_config(CONFIGS / "a800.yaml")[0].knowledge_base == path
        assert load_config(CONFIGS / "a800.yaml", ["knowledge_base=other.db"])[0].knowledge_base == "other.db"


def test_the_prompt_of_the_preset_is_that_of_the_config():
    assert load_config(CONFIGS / "a800.yaml")[0].system_prompt == BLOCKS
    assert load_config(CONFIGS / "a800_sft.yaml", kind=SftConfig)[0].system_prompt == BLOCKS


def test_the_guides_words_are_understood(tmp_path):
    config, _ = load(
        tmp_path,
        "kl_coef: 0.05\nnum_return_sequences: 2\nmax_new_tokens: 2048\nnum_epochs: 3\n"
        "lora_rank: 16\nlora_target: q_proj,v_proj\n",
    )
    assert (
        config.beta,
        config.num_generations,
        config.max_completion_length,
        config.num_train_epochs,
        config.lora_r,
    ) == (0.05, 2, 2048, 3, 16)
    assert config.lora_target_modules == ("q_proj", "v_proj")
    config, _ = load_config(None, ["model_name_or_path=m", "output_dir=o", "dataset=d", "cutoff_len=3072"], SftConfig)
    assert config.max_length == 3072


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda p: p.stem)
def test_every_config_of_the_project_loads_and_survives_a_round_trip(path, tmp_path):
    kind = SftConfig if path.stem.endswith("_sft") else TrainConfig
    config, _ = load_config(path, kind=kind)
    (tmp_path / "resolved.yaml").write_text(to_yaml(config))
    again, notices = load_config(
        tmp_path / "resolved.yaml", [f"overwrite_output_dir={config.overwrite_output_dir}"], kind
    )
    assert again == config and not notices


@pytest.mark.parametrize(
    ("text", "is_right"),
    [
        ("top_p: 1", True),
        ("top_p: 1.0001", False),
        ("top_p: 0", False),
        ("temperature: 1e-9", True),
        ("learning_rate: 0", True),
        ("learning_rate: -1e-9", False),
        ("num_generations: 2\nper_device_train_batch_size: 2", True),
        ("num_generations: 1", False),
        ("warmup_ratio: 1", True),
        ("warmup_ratio: 1.01", False),
        ("max_steps: -1", True),
        ("max_steps: -2", False),
        ("reward_funcs_weights: 1", False),
        ("gradient_checkpointing: true", True),
        ("gradient_checkpointing: 1", False),
        ("adam_epsilon: 1e-30", True),
        ("adam_epsilon: 1e-46", False),
        ("learning_rate: 1e4", False),
        ("beta: 1e39", False),
        ("reward_weights: [1e-50]", False),
        ("seed: 123456789012345678901234567890", True),
    ],
)
def test_bounds_hold_at_their_edges(tmp_path, text, is_right):
    if is_right:
        assert load(tmp_path, text)
    else:
        assert text.partition(":")[0] in why(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("per_device_train_batch_size: 4\ngradient_accumulation_steps: 2\nnum_generations: 8", ""),
        ("per_device_train_batch_size: 8\ngradient_accumulation_steps: 3\nnum_generations: 6", ""),
        ("per_device_train_batch_size: 4\nnum_generations: 8", "= 4 completions cannot be split into groups"),
        ("reward_weights: [0.5]", ""),
        ("top_k: 5\nnum_iterations: 2", "need num_iterations: 1"),
        ("top_k: 5\ntop_p: 0.9", ""),
        ("num_iterations: 2", ""),
        ("lora_r: 0\nlora_dropout: 0.1\nadapter_name_or_path: a", "lora_dropout without an adapter"),
        ("lora_r: 0\nadapter_name_or_path: a", ""),
        ("lora_r: 2\nlora_dropout: 0.1\nadapter_name_or_path: a", ""),
        ("report_to: [tensorboard, none]", ""),
        ("eval_size: 2\neval_reward_funcs: [factuality]\njudge: offline", "factuality needs a knowledge base"),
        ("eval_size: 2\neval_reward_funcs: [factuality]\nknowledge_base: kb.db", ""),
    ],
)
def test_combinations_that_work_and_do_not(tmp_path, monkeypatch, text, part):
    monkeypatch.delenv("FACTSCORE_DB_PATH", raising=False)
    if part:
        assert part in why(tmp_path, text)
    else:
        assert load(tmp_path, text)


@pytest.mark.parametrize(
    ("cache", "length", "is_right"), [(1, 10, True), (10, 10, True), (11, 10, False), (0, 10, False)]
)
def test_the_soft_punishment_must_fit_into_a_completion(tmp_path, cache, length, is_right):
    text = MINIMAL.replace("[exact]", "[exact, soft_overlong_punishment]")
    (tmp_path / "c.yaml").write_text(text + f"soft_punish_cache: {cache}\nmax_completion_length: {length}\n")
    if is_right:
        assert load_config(tmp_path / "c.yaml")
    else:
        with pytest.raises(UserError) as error:
            load_config(tmp_path / "c.yaml")
        assert "soft_p" in error.value.why


def test_secrets_are_not_taken_into_a_config(tmp_path, monkeypatch):
    """It would be written to config.resolved.yaml."""
    monkeypatch.setenv("OPENAI_API_KEY_JUDGE", "sk-very-secret")
    text = why(tmp_path, "run_name: ${OPENAI_API_KEY_JUDGE}\n")
    assert "holds a secret" in text and "sk-very" not in text


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


@pytest.mark.parametrize(("name", "is_right"), [("a.B_9-", True), ("a b", False), ("a/b", False), ("", False)])
def test_run_names(tmp_path, name, is_right):
    if is_right:
        assert load(tmp_path, f"run_name: '{name}'\n")[0].run_name == name
    else:
        assert "run_name may hold letters" in why(tmp_path, f"run_name: '{name}'\n")


def test_variables_are_filled_in_lists_and_more_than_once(tmp_path, monkeypatch):
    monkeypatch.setenv("PART", "q")
    config, _ = load(tmp_path, "lora_target_modules: ['${PART}_proj', v_proj]\nrun_name: ${PART}${PART}${NONE:-}x\n")
    assert config.lora_target_modules == ("q_proj", "v_proj") and config.run_name == "qqx"


def test_aliases_are_refused_since_nine_lines_of_them_are_a_billion_values(tmp_path):
    (tmp_path / "c.yaml").write_text(MINIMAL + "run_name: &a hello\nsystem_prompt: *a\n")
    with pytest.raises(UserError) as error:
        load_config(tmp_path / "c.yaml")
    assert "aliases" in error.value.why and read_mapping(tmp_path / "c.yaml") == {}


def test_the_resolved_config_leaves_out_what_a_resumed_run_must_not_repeat(tmp_path):
    config, _ = load(tmp_path, "overwrite_output_dir: true\nsystem_prompt: ä\n")
    text = to_yaml(config)
    assert "overwrite_output_dir" not in text and "system_prompt: ä" in text and "null" not in text
    assert yaml.safe_load(text)["reward_funcs"] == ["exact"]


def test_values_take_the_type_of_their_key():
    assert coerce("3", int) == coerce(" 3"[1:], int) == coerce(3, int) == 3 and coerce("-3", int) == -3
    assert coerce("a, b,c", list[str]) == ("a", "b", "c") and coerce("x", list[str]) == ("x",)
    assert coerce([1, "2.5"], list[float]) == (1.0, 2.5) and coerce(2, list[float]) == (2.0,)
    assert coerce(7, str) == "7" and coerce("FALSE", bool) is False and coerce("path", bool | str) == "path"
    assert coerce(True, bool | str) is True and coerce("true", bool | str) is True
    wrong = [(float("inf"), float), ("nan", float), ("1e999", float), (True, float), (1.5, int), (None, int)]
    wrong += [(True, int), ([1], int), ("1_000x", int), (1, bool), ("yes", bool), ({}, str), ([[1]], str)]
    for value, hint in wrong:
        with pytest.raises(ValueError, match="wants"):
            coerce(value, hint)


# --- base ----------------------------------------------------------------------------------------------------------


def write_chain(tmp_path, **texts):
    """Write NAME.yaml for each text, into a folder of its own where the name has one (`folder__name`)."""
    for name, text in texts.items():
        path = tmp_path / f"{name.replace('__', '/')}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


def why_not(path):
    with pytest.raises(UserError) as error:
        load_config(path)
    assert error.value.exit_code == 2
    return error.value.why


def test_a_config_sets_only_what_differs_from_its_base(tmp_path):
    """The last one wins: base of the base, base, file, command line. The path is relative to the file that names it."""
    write_chain(
        tmp_path,
        shared__first=MINIMAL + "beta: 0.1\nlora_r: 2\nseed: 1\nepsilon: 0.1\n",
        shared__second="base: first.yaml\nlora_r: 4\nseed: 2\nepsilon: 0.2\n",
        third="seed: 3\nepsilon: 0.3\nbase: shared/second.yaml\noutput_dir: mine\n",
    )
    config, notices = load_config(tmp_path / "third.yaml", ["epsilon=0.4"])
    assert (config.beta, config.lora_r, config.seed, config.epsilon) == (0.1, 4, 3, 0.4)
    assert (config.output_dir, config.dataset_id_or_path, notices) == ("mine", "d", [])
    assert "\nbase:" not in to_yaml(config)


def test_an_alias_overrides_the_key_of_the_base(tmp_path):
    write_chain(tmp_path, a=MINIMAL + "beta: 0.1\n", b="base: a.yaml\nkl_coef: 0.2\n")
    assert load_config(tmp_path / "b.yaml")[0].beta == 0.2


def test_mistakes_and_notices_name_the_file_that_holds_them(tmp_path):
    write_chain(tmp_path, a=MINIMAL + "learnig_rate: 1\noptim: adamw_8bit\n", b="base: a.yaml\nbeta: high\nbeta: 1\n")
    text = why_not(tmp_path / "b.yaml")
    assert f"{tmp_path}/a.yaml:5: unknown key learnig_rate; did you mean learning_rate?" in text
    assert f"{tmp_path}/b.yaml:2: beta: wants a number" in text
    write_chain(tmp_path, a=MINIMAL + "optim: adamw_8bit\n")
    (tmp_path / "b.yaml").write_text("base: a.yaml\n")
    assert load_config(tmp_path / "b.yaml")[1][0].startswith(f"{tmp_path}/a.yaml:5: optim is not used")


def test_a_key_may_stand_only_once_in_each_file(tmp_path):
    write_chain(tmp_path, a=MINIMAL, b="base: a.yaml\nbeta: 0.1\nbeta: 0.1\n", c="base: a.yaml\nbase: a.yaml\n")
    assert "b.yaml:3: beta was set at" in why_not(tmp_path / "b.yaml")
    assert f"c.yaml:2: base: it was set at {tmp_path}/c.yaml:1 already" in why_not(tmp_path / "c.yaml")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("beta: 0\nbase: none.yaml\n", "c.yaml:2: base: there is no file"),
        ("base: [a.yaml]\n", "c.yaml:1: base: wants text"),
        ("base: c.yaml\n", "c.yaml:1: base: a file cannot be based on itself"),
        ("base: ${NO_SUCH}\n", "c.yaml:1: base: the environment variable NO_SUCH is not set"),
    ],
)
def test_bases_that_cannot_be_read(tmp_path, text, part):
    (tmp_path / "c.yaml").write_text(text)
    assert part in why_not(tmp_path / "c.yaml")


def test_a_circle_of_bases_is_shown(tmp_path):
    write_chain(tmp_path, a="base: b.yaml\n", b="base: a.yaml\n")
    text = why_not(tmp_path / "a.yaml")
    assert f"b.yaml:1: base: a file cannot be based on itself: {tmp_path}/a.yaml -> {tmp_path}/b.yaml -> " in text


def test_a_base_is_named_in_a_file_only(tmp_path):
    assert "command line: base can be set only in a file" in why(tmp_path, "", "base=other.yaml")


def test_the_configs_of_other_losses_differ_from_a800_in_a_few_keys():
    """What each says in its few lines, and nothing else."""
    a800 = vars(load_config(CONFIGS / "a800.yaml")[0])
    for name, count in (("bnpo", 2), ("dr_grpo", 3), ("dapo", 8)):
        found = vars(load_config(CONFIGS / f"{name}.yaml")[0])
        assert sum(found[key] != a800[key] for key in found) == count, name


# --- help ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [TrainConfig, SftConfig])
def test_help_shows_every_key_with_its_default_and_its_meaning(kind, capsys):
    with pytest.raises(SystemExit) as end:
        parse_arguments(["-h"], kind, "What the command does.\n\nMore for readers of the code.")
    text = capsys.readouterr().out
    assert end.value.code == 0 and text.startswith("What the command does.\n") and "readers" not in text
    assert max(map(len, text.splitlines())) <= 120
    words = " ".join(text.split())
    docs = meanings(kind)
    for name in kind.__dataclass_fields__:
        assert f"  {name}: " in text and docs[name] in words and docs[name].endswith("."), name
    for line in ("output_dir: required", "lora_r: 16", "report_to: [tensorboard]", "chat_template: null"):
        assert f"  {line} " in text
    for name in set(TrainConfig.__dataclass_fields__) - set(kind.__dataclass_fields__):
        assert f"  {name}: " not in text


def test_help_and_message_say_the_same_bound(capsys):
    with pytest.raises(SystemExit):
        parse_arguments(["-h"], TrainConfig, "doc")
    assert "at least 0 and at most 0.9999999." in " ".join(capsys.readouterr().out.split())
    with pytest.raises(UserError, match="problem") as error:
        load_config(None, ["adam_beta1=1"])
    assert "adam_beta1: must be at least 0 and at most 0.9999999; got 1.0" in error.value.why


def test_help_shows_each_key_once_and_first_those_to_know(capsys):
    for kind in (TrainConfig, SftConfig):
        with pytest.raises(SystemExit):
            parse_arguments(["--help"], kind, "Doc.")
        text = capsys.readouterr().out
        names = re.findall(r"^  (\w+): ", text, re.MULTILINE)
        assert sorted(names) == sorted(field.name for field in fields(kind))
        first = re.findall(r"^  (\w+): ", text.partition("to know first:")[2].partition("\n\n")[0], re.MULTILINE)
        assert first == keys_that("first", kind) and len(first) >= 12
        assert all(field.metadata["facts"] <= set(FACTS) for field in fields(kind))
    assert all(len(line) <= 120 for line in text.splitlines())


def test_help_tells_choices_and_bounds(capsys):
    text = " ".join(describe_keys(TrainConfig).split())
    assert "One of: grpo, dapo, dr_grpo, bnpo." in text  # loss_type
    assert "Must be at least 0 and at most 0.9." in text  # lora_dropout
    assert "Must be above 0." in text  # temperature


@pytest.mark.parametrize(("processes", "batch"), [("1", 24), ("2", 12), ("3", 8), ("4", None)])
def test_questions_per_step_are_another_way_to_say_the_batch(monkeypatch, processes, batch):
    monkeypatch.setenv("WORLD_SIZE", processes)
    keys = ["model_name_or_path=m", "dataset_id_or_path=d", "output_dir=o", "reward_funcs=exact"]
    keys += ["per_device_train_batch_size=100", "gradient_accumulation_steps=7", "num_generations=4"]
    if batch is None:
        with pytest.raises(UserError) as error:
            load_config(None, [*keys, "questions_per_step=6"])
        assert "questions_per_step = 6 cannot be divided" in error.value.why
        return
    config, _ = load_config(None, [*keys, "questions_per_step=6"])
    assert (config.per_device_train_batch_size, config.gradient_accumulation_steps) == (batch, 1)
    assert "questions_per_step" not in to_yaml(config)


def test_values_of_the_chat_template_are_a_mapping(tmp_path):
    keys = ["model_name_or_path=m", "dataset_id_or_path=d", "output_dir=o", "reward_funcs=exact"]
    (tmp_path / "c.yaml").write_text("chat_template_kwargs:\n  enable_thinking: false\n  level: high\n")
    wanted = {"enable_thinking": False, "level": "high"}
    for path, more in (
        (tmp_path / "c.yaml", []),
        (None, ["chat_template_kwargs={enable_thinking: false, level: high}"]),
    ):
        config, _ = load_config(path, [*keys, *more])
        assert config.chat_template_kwargs == wanted
        (tmp_path / "again.yaml").write_text(to_yaml(config))
        assert load_config(tmp_path / "again.yaml")[0] == config
    for wrong in ("3", "[a]", "{a b: 1}", "{1: 2}"):
        with pytest.raises(UserError) as error:
            load_config(None, [*keys, f"chat_template_kwargs={wrong}"])
        assert "chat_template_kwargs: wants a mapping" in error.value.why


def test_a_mistake_is_no_second_one_in_what_follows_from_it(tmp_path):
    """Keys that are wrong, misspelled or not read are neither missing nor part of a combination."""
    path = tmp_path / "c.yaml"
    for text, number in (
        ("model_name_or_path: [a", 1),
        ("model_name_or_path: [m]\ndataset_id_or_path: d\noutput_dir: o\nreward_funcs: [math]\n", 1),
        ("model_name_or_pat: m\ndataset_id_or_path: d\noutput_dir: o\nreward_funcs: [math]\n", 1),
        ("model_name_or_path: m\ndataset_id_or_path: d\noutput_dir: o\nreward_funcs: [math]\nnum_generation: 7\n", 1),
        ("learning_rat: 1\ntop_k: 5\nnum_iterations: 2\nprompt_template: x\n", 7),
    ):
        path.write_text(text)
        with pytest.raises(UserError, match=f"{number} problem"):
            load_config(path)

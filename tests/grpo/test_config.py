"""The configuration: strict, complete in its complaints, and readable for files of other tools."""

import ast
import importlib.util
import re
import shlex
from dataclasses import fields
from pathlib import Path

import pytest
from making import cases, refused, unused

from grpo.base.storage import read_mapping
from grpo.config.help import meanings
from grpo.config.load import keys_of, load_config, parse_arguments, split_arguments, to_yaml
from grpo.config.options import ENVIRONMENT, FACTS, OF_FACTS, SftConfig, TrainConfig, keys_that
from grpo.config.values import coerce
from grpo.data.worlds.world import locate
from rewards import format
from rewards.mathematics.boxes import grade_box
from rewards.outcome.refusal import is_refusal
from rewards.prompts import BLOCKS, BLOCKS_AND_CONFIDENCE, BOXED

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
PATHS = {"model_name_or_path": "m", "dataset_id_or_path": "d", "output_dir": "o"}
NEEDED = {TrainConfig: {**PATHS, "reward_funcs": "exact"}, SftConfig: PATHS}
MINIMAL = "".join(f"{name}: {value}\n" for name, value in NEEDED[TrainConfig].items())
PROMPTS = {"BLOCKS": BLOCKS, "BLOCKS_AND_CONFIDENCE": BLOCKS_AND_CONFIDENCE, "BOXED": BOXED}
KINDS = {kind.__name__: kind for kind in NEEDED}


def load(tmp_path, text, *overrides, kind=TrainConfig, **keys):
    """Load a file that holds what is needed (with `keys`; None: left out), and below, from line 5, this text.

    Returns the configuration, and the notices as a text."""
    path = tmp_path / "c.yaml"
    lines = [f"{name}: {value}\n" for name, value in (NEEDED[kind] | keys).items() if value is not None]
    path.write_text("".join(lines) + text, encoding="utf-8")
    config, notices = load_config(*split_arguments([str(path), *overrides]), kind)
    return config, "\n".join(notices)


def why(tmp_path, text, *overrides, **keys):
    return refused(lambda: load(tmp_path, text, *overrides, **keys), exit_code=2).why


@pytest.fixture(autouse=True)
def shell(monkeypatch):
    """The variables of these tests, and none of the services that a user may have set up."""
    for name in {variable for variables in ENVIRONMENT.values() for variable in variables}:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PART", "q")
    monkeypatch.setenv("HOME", "/home/someone")


def check_values(config, wanted):
    """The configuration has these values, written as arguments of a call are."""
    for name, value in eval(f"dict({wanted})").items():
        assert getattr(config, name) == value, name


@pytest.mark.parametrize("text, values", cases(__file__, "read"))
def test_values_that_are_read(tmp_path, text, values):
    check_values(load(tmp_path, text)[0], values)


@pytest.mark.parametrize("typed, values", cases(__file__, "typed"))
def test_the_command_line_wins(tmp_path, typed, values):
    config, _ = load(tmp_path, "beta: 0.5\nrun_name: x\n", *shlex.split(typed))
    check_values(config, values)
    assert load_config(tmp_path / "c.yaml", shlex.split(typed))[0] == config  # as from a script


@pytest.mark.parametrize("text, part", cases(__file__, "refused"))
def test_values_and_combinations_that_are_refused(tmp_path, monkeypatch, text, part):
    monkeypatch.chdir(tmp_path)
    said = why(tmp_path, text)
    assert part in said and not Path("pwned").exists() and not re.search("my-?key", said, re.IGNORECASE)


@pytest.mark.parametrize("text", ["", *(text for (text,) in cases(__file__, "texts"))])
def test_text_on_the_command_line_stays_text(tmp_path, text):
    assert load(tmp_path, "", f"system_prompt={text}")[0].system_prompt == text
    assert load(tmp_path, "", "--system_prompt", text or "x")[0].system_prompt == (text or "x")


@pytest.mark.parametrize("words", ["--config {}", "--config={}", "beta=0.5 --config {}", "{}"])
def test_a_config_may_be_named_by_a_flag(tmp_path, words):
    load(tmp_path, "seed: 7\n")
    words = f"{words} --lora_r 3".format(tmp_path / "c.yaml")
    config, _ = parse_arguments(words.split(), TrainConfig, "doc")
    assert (config.seed, config.lora_r) == (7, 3)


@pytest.mark.parametrize("kind, text, rate", cases(__file__, "rate"))
def test_a_rate_that_is_not_named_is_that_of_what_is_trained(tmp_path, kind, text, rate):
    config, notices = load(tmp_path, text, kind=KINDS[kind])
    rate, is_said, _ = rate.partition(" is said")
    assert config.learning_rate == float(rate)
    assert ("learning_rate is not set" in notices) == bool(is_said)


def test_a_cold_start_is_found_beside_its_config_from_any_folder(tmp_path, monkeypatch):
    """As a base is; configs name it from the folder above, too. What is in the current folder goes first."""
    folder = tmp_path / "configs"
    folder.mkdir()
    (tmp_path / "elsewhere/configs").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "elsewhere")
    (folder / "one.yaml").write_text("")
    (folder / "three.yaml").write_text("base: two.yaml\n")

    def found(name, config="two.yaml", *typed):
        (folder / "two.yaml").write_text(MINIMAL + f"cold_start: {name}\n")
        return load_config(folder / config, typed)[0].cold_start

    for name in ("one.yaml", "configs/one.yaml", "../configs/one.yaml"):
        assert Path(found(name)).resolve() == folder / "one.yaml", name
        assert found(name, "three.yaml") == found(name)
    assert found("configs/one.yaml", "two.yaml", "cold_start=one.yaml") == "one.yaml"
    Path("configs/one.yaml").write_text("")
    assert found("configs/one.yaml") == "configs/one.yaml"


@pytest.mark.parametrize("key, said", cases(__file__, "notices"))
def test_a_notice_says_what_is_true_of_its_key(tmp_path, key, said):
    _, notices = load(tmp_path, key, kind=SftConfig)
    (notice,) = [notice for notice in notices.splitlines() if f"{key.partition(':')[0]} is not used" in notice]
    assert said in notice


def test_all_trackers_are_those_that_are_installed(tmp_path):
    there = {name for name in ("tensorboard", "swanlab", "wandb", "trackio") if importlib.util.find_spec(name)}
    assert set(load(tmp_path, "report_to: all")[0].report_to) == there >= {"tensorboard"}


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
    for text, number in cases(__file__, "problems"):
        path.write_text(text)
        refused(lambda: load_config(path), f"{number} problem", exit_code=2)
    refused(lambda: load_config(tmp_path / "none.yaml"), "cannot read the config", exit_code=2)
    assert "it belongs to stage 2 (python -m grpo.train)" in why(tmp_path, "beta: 1", kind=SftConfig)


def test_each_key_without_a_meaning_is_named_once_with_what_happens_instead(tmp_path):
    (tmp_path / "base.yaml").write_text("optim: adamw_8bit\n")
    text = "base: base.yaml\noptim: sgd\ndataloader_num_workers: 4\ndeepspeed: ds.json\nray_init: 1\n"
    text += "peft_config: {task_type: CAUSAL_LM}\ngradient_checkpointing_kwargs: {use_reentrant: false}\n"
    _, notices = load(tmp_path, text)
    ignored = "dataloader_num_workers deepspeed gradient_checkpointing_kwargs optim ray_init task_type"
    assert sorted(unused(notices.splitlines())) == ignored.split()
    assert re.search("base.yaml:1: optim, .*AdamW", notices)
    assert "c.yaml:8: deepspeed, ray_init are not used: several GPUs work" in notices


@pytest.mark.parametrize("keys, prompt", cases(__file__, "prompts"))
def test_rewards_bring_the_prompt_that_they_need_unless_there_is_one(tmp_path, keys, prompt):
    config, notices = load(tmp_path, "knowledge_base: k.db\n", *f"reward_funcs={keys}".split())
    wanted = PROMPTS[prompt] if prompt in PROMPTS else ast.literal_eval(prompt)
    assert config.system_prompt == wanted
    assert ("supplies the system prompt" in notices) is (prompt in PROMPTS)


@pytest.mark.parametrize("key, what", cases(__file__, "box"))
def test_math_asks_for_a_box_or_says_that_no_prompt_does(tmp_path, key, what):
    config, notices = load(tmp_path, "", "reward_funcs=math", key)
    assert ("boxed" in f"{config.system_prompt} {config.prompt_template}") == (what == "is asked for")
    assert ("no prompt asks for" in notices) == (what == "is noted")
    written = tmp_path / "config.resolved.yaml"
    written.write_text(to_yaml(config))
    assert load_config(written)[0] == config  # what a run wrote means the same when it is read again


@pytest.mark.parametrize("given, is_said", [("none", True), ("group", True), ("batch", False), ("null", False)])
def test_the_scale_that_normalize_then_sum_sets_is_said_if_another_was_asked_for(tmp_path, given, is_said):
    config, notices = load(tmp_path, f"multi_objective_aggregation: normalize_then_sum\nscale_rewards: {given}")
    assert config.scale_rewards == "batch"
    assert (f"scale_rewards: {given} is not used" in notices) == is_said


def test_the_examples_of_the_prompts_have_the_format_that_they_ask_for():
    """Of two blocks: an answer, and a refusal. Of a box: the right one."""
    parsed = [format.parse(text) for text in re.findall(r"^<think>.*?</answer>$", BLOCKS, re.DOTALL | re.MULTILINE)]
    assert [(blocks.problem, is_refusal(blocks.answer)) for blocks in parsed] == [("", False), ("", True)]
    examples = re.findall(r"^<think>.*?</confidence>$", BLOCKS_AND_CONFIDENCE, re.DOTALL | re.MULTILINE)
    boxed = BOXED.partition("example:\n")[2]
    assert len(examples) == 2
    assert not any(format.parse(example).problem for example in (*examples, boxed))
    assert grade_box(boxed, "12")[0] == "correct"


@pytest.mark.parametrize("keys, services", cases(__file__, "offline"))
def test_one_key_takes_knowrl_offline(tmp_path, monkeypatch, keys, services):
    config, notices = load(tmp_path, "knowledge_base: k.db\n", "reward_funcs=knowrl", *keys.split())
    assert f"{config.decomposer} {config.verifier}" == services
    assert ("facts are checked offline, too" in notices) == ("judge=offline" in keys)
    assert load(tmp_path, "", "judge=offline")[0].verifier == "nli"  # no reward checks facts
    monkeypatch.setenv("OPENAI_BASE_URL_FACTSCORE", "https://example.org")
    assert load(tmp_path, "knowledge_base: k.db\n", "reward_funcs=knowrl", "judge=offline")[0].decomposer == "api"


@pytest.mark.parametrize("keys, models", cases(__file__, "models"))
def test_models_that_no_variable_names_are_those_of_knowrls_code(tmp_path, keys, models):
    config, _ = load(tmp_path, "knowledge_base: k.db\n", *f"reward_funcs={keys}".split())
    assert f"{config.judge_model} {config.decomposer_model}" == models


@pytest.mark.parametrize("keys, taken", cases(__file__, "taken"))
def test_what_a_run_asks_is_taken_from_the_environment_and_nothing_else(tmp_path, monkeypatch, keys, taken):
    """The config goes before the variables. What is written means the same in a shell without them."""
    for number, variables in enumerate(ENVIRONMENT.values()):
        monkeypatch.setenv(variables[-1], f"a-long-value-{number}")
    config, notices = load(tmp_path, "", *keys.split())
    found = {name for name in ENVIRONMENT if str(getattr(config, name)).startswith("a-long-value")}
    assert found == set(taken.split()) and all(name in notices for name in found)
    written = tmp_path / "config.resolved.yaml"
    written.write_text(to_yaml(config))
    for variables in ENVIRONMENT.values():
        monkeypatch.delenv(variables[-1], raising=False)
    assert load_config(written) == (config, [])


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
    typed = [f"overwrite_output_dir={config.overwrite_output_dir}"]
    assert load_config(tmp_path / "resolved.yaml", typed, kind) == (config, [])


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


@pytest.mark.parametrize("text, hint, value", cases(__file__, "types"))
def test_values_take_the_type_of_their_key(text, hint, value):
    if value == "wrong":
        with pytest.raises(ValueError, match="wants"):
            coerce(text, eval(hint))
    else:
        read = coerce(text, eval(hint))
        assert read == ast.literal_eval(value) and type(read) is type(ast.literal_eval(value))


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
    assert (config.output_dir, config.dataset_id_or_path) == ("mine", "d")
    assert "\nbase:" not in to_yaml(config)
    assert notice.startswith(f"{tmp_path}/shared/first.yaml:9: optim is not used")


@pytest.mark.parametrize("a, b, part", cases(__file__, "bases"))
def test_mistakes_in_bases_name_the_file_that_holds_them(tmp_path, a, b, part):
    (tmp_path / "a.yaml").write_text(a)
    (tmp_path / "b.yaml").write_text(b)
    assert f"{tmp_path}/{part}" in refused(lambda: load_config(tmp_path / "b.yaml"), exit_code=2).why


@pytest.mark.parametrize("arguments", ["-h", "c.yaml -h", "c.yaml beta=0.1 --help --lr 1"])
@pytest.mark.parametrize("kind", [TrainConfig, SftConfig])
def test_help_shows_every_key_with_its_default_and_its_meaning_wherever_it_is_asked_for(kind, arguments, capsys):
    with pytest.raises(SystemExit) as end:
        parse_arguments(arguments.split(), kind, "What the command does.\n\nMore for readers of the code.")
    text = capsys.readouterr().out
    assert end.value.code == 0 and text.startswith("What the command does.\n") and "readers" not in text
    assert max(map(len, text.splitlines())) <= 120
    words = " ".join(text.split())
    docs = meanings(kind)
    for name in [field.name for field in fields(kind)]:
        assert f"  {name}: " in text and docs[name] in words and docs[name].endswith("."), name
    wanted = "output_dir: required|lora_r: 16|report_to: [tensorboard]|learning_rate: null|adam_epsilon: 1e-8"
    assert all(f"  {line} " in text for line in wanted.split("|"))
    names = re.findall(r"^  (\w+): ", text, re.MULTILINE)
    assert sorted(names) == sorted(docs)
    assert names[: len(keys_that("first", kind))] == keys_that("first", kind)
    assert all(field.metadata["facts"] <= set(FACTS) for field in fields(kind))


def test_without_arguments_a_command_says_what_it_needs(capsys):
    with pytest.raises(SystemExit) as end:
        parse_arguments([], TrainConfig, "What it does.")
    text = capsys.readouterr().out
    assert end.value.code == 2
    assert len(text.splitlines()) <= 10
    assert "model_name_or_path, dataset_id_or_path, " in text


@pytest.mark.parametrize("processes, batch", [("1", 24), ("2", 12), ("3", 8), ("4", None)])
def test_questions_per_step_are_another_way_to_say_the_batch(tmp_path, monkeypatch, processes, batch):
    monkeypatch.setenv("WORLD_SIZE", processes)
    text = "questions_per_step: 6\nper_device_train_batch_size: 9\ngradient_accumulation_steps: 7\nnum_generations: 4\n"
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
    refused(lambda: load_config(None, keys), "model_name_or_path", exit_code=2)
    assert load_config(None, [*keys, "model_name_or_path=x"])[0].toy_world == world


@pytest.mark.parametrize("kind", [TrainConfig, SftConfig])
def test_a_misspelt_tool_is_refused_in_both_stages(tmp_path, kind):
    """In stage 1 the results that follow its calls would be trained."""
    assert "unknown tool serach" in why(tmp_path, "tools: serach", kind=kind)

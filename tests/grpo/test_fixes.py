"""What the texts of the program tell a user to do: everything that they name exists, and doing it helps."""

import ast
import re
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path

import pytest
from making import refused, write_rows

from grpo.base.errors import UserError
from grpo.config.load import load_config, split_arguments
from grpo.config.options import SftConfig, TrainConfig
from grpo.config.other_words import ALIASES
from grpo.data.rows import read_rows

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(path for folder in ("grpo", "rewards", "knowledge") for path in (ROOT / folder).rglob("*.py"))
KEYS = {entry.name for kind in (TrainConfig, SftConfig) for entry in fields(kind)}
OTHERS = {
    "finish_reason",
    "weigh_contradiction",
    "journal_mode",
    "cache_size",
    "peft_config",
    "environment_factory",
}  # arguments, words of SQL
TEXTS = [  # (where, text) of every text in the source of the program
    (f"{path.relative_to(ROOT)}:{node.lineno}", node.value)
    for path in SOURCES
    for node in ast.walk(ast.parse(path.read_text()))
    if isinstance(node, ast.Constant) and isinstance(node.value, str)
]
SETTING = re.compile(r"(?<![\w.{-])([a-z]\w*)=([\w.\[\],-]*\w\]?)")


def parser_options():
    """All options of all commands, as the source declares them."""
    declared = re.compile(r"""["'](--[a-z][\w-]*)["']""")
    sources = [path.read_text() for path in SOURCES]
    return {option for source in sources if "command_parser(" in source for option in declared.findall(source)}


def test_every_key_that_a_text_names_exists_and_takes_the_value():
    given = [(where, *setting) for where, text in TEXTS for setting in SETTING.findall(text)]
    named = [(where, name) for where, name, _ in given if "_" in name]
    named += [
        (where, name) for where, text in TEXTS for name in re.findall(r"\b(?:set|lower|raise) ([a-z]\w*_\w+)", text)
    ]
    unknown = {name: where for where, name in named if name not in KEYS | ALIASES.keys() | OTHERS}
    assert not unknown
    settings = {(name, value): where for where, name, value in given if name in KEYS and not value.isupper()}
    assert len(settings) > 20
    for (name, value), where in settings.items():
        with pytest.raises(UserError) as error:
            load_config(None, [f"{name}={value}"])
        wrong = [line for line in error.value.why.splitlines() if re.search(rf": {name}: ", line)]
        assert not wrong, (where, wrong)


def test_every_command_option_and_file_that_a_text_names_exists():
    options = parser_options()
    assert {"--merge", "--reward"} <= options
    for where, text in TEXTS:
        for module in re.findall(r"python -m ((?:grpo|rewards|knowledge)[\w.]+)", text):
            assert find_spec(module.rstrip(".")), (where, module)
        if "python -m" in text and "torchrun" not in text:
            for option in re.findall(r"(?<![\w-])--[a-z][\w-]+", text):
                assert option in options, (where, option)
        for config in re.findall(r"configs/[\w.]+\.yaml", text):
            assert (ROOT / config).exists(), (where, config)
        for extra in re.findall(r"\[(\w+)\]'", text) if "pip install" in text else ():
            assert f'"{extra}": [' in (ROOT / "setup.py").read_text(), (where, extra)


MINE = "model_name_or_path=m dataset_id_or_path=d.jsonl output_dir=o"
DONE = [  # what was typed; what the message names; what is typed then
    ("reward_funcs=exakt", "did you mean exact?", "reward_funcs=exact"),
    ("reward_funcs=math learning_rat=1", "did you mean learning_rate?", "reward_funcs=math learning_rate=1"),
    ("reward=math", "did you mean reward_funcs?", "reward_funcs=math"),
    ("reward_funcs=math --data=d.jsonl", "did you mean data_path?", "reward_funcs=math --data-path=d.jsonl"),
    ("reward_funcs=math --model=m", "did you mean model_name_or_path?", "reward_funcs=math --model-name-or-path=m"),
    ("reward_funcs=math loss_type=dapoo", "did you mean dapo?", "reward_funcs=math loss_type=dapo"),
    ("", "reward_funcs=[math]", "reward_funcs=[math]"),
    ("reward_funcs=mine.py", "mine.py:FUNCTION", "reward_funcs=mine.py:FUNCTION"),
    ("reward_funcs=knowrl", "set knowledge_base", "reward_funcs=knowrl knowledge_base=OUT.db"),
    ("reward_funcs=math num_generations=3", "cannot be split", "reward_funcs=math num_generations=4"),
    ("reward_funcs=math keep_best=eval/accuracy", "eval_size", "reward_funcs=math keep_best=eval/accuracy eval_size=5"),
    ("reward_funcs=[soft_overlong_punishment]", "soft_punish_cache", "reward_funcs=math"),
]


@pytest.mark.parametrize(("typed", "said", "then"), DONE)
def test_what_a_message_says_helps(typed, said, then):
    with pytest.raises(UserError) as error:
        load_config(*split_arguments([*MINE.split(), *typed.split()]))
    assert said in str(error.value)
    load_config(*split_arguments([*MINE.split(), *then.split()]))


@pytest.mark.parametrize("typed", ["data.jsonl", "owner/model", "configs/tiny.yml"])
def test_what_is_no_config_is_told_where_model_and_data_go(tmp_path, monkeypatch, typed):
    monkeypatch.chdir(tmp_path)
    Path("data.jsonl").write_text('{"a": 1}\n{"b": 2}\n')
    with pytest.raises(UserError) as error:
        load_config(typed)
    assert typed in error.value.what and "dataset_id_or_path=FILE" in error.value.fix


@pytest.mark.parametrize(
    ("row", "keys", "meant"),
    [
        ({"Question": "1?"}, {}, {"question_field": "Question"}),
        ({"query": "1?"}, {"question_field": "qery"}, {"question_field": "query"}),
        ({"question": "1?", "solution_text": "1"}, {"answer_field": "solution_txt"}, {"answer_field": "solution_text"}),
    ],
)
def test_a_column_that_was_meant_is_named(tmp_path, row, keys, meant):
    data = write_rows(tmp_path / "q.jsonl", [row])
    ((key, name),) = meant.items()
    refused(lambda: read_rows(data, **keys), key, f"did you mean {name}?")
    (found,) = read_rows(data, **meant)
    assert found.question == "1?" and found.columns.get("answer", "1") == "1"

"""What the texts of the program tell a user to do: everything that they name exists, and doing it helps."""

import ast
import re
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path

import pytest
from making import cases, refused, write_rows

from grpo.base.errors import UserError
from grpo.config.load import load_config, split_arguments
from grpo.config.options import SftConfig, TrainConfig
from grpo.config.other_words import ALIASES
from grpo.data.rows import read_rows

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(path for folder in ("grpo", "rewards", "knowledge") for path in (ROOT / folder).rglob("*.py"))
KEYS = {entry.name for kind in (TrainConfig, SftConfig) for entry in fields(kind)}
OTHERS = {*"finish_reason weigh_contradiction journal_mode cache_size peft_config environment_factory".split()}
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


@pytest.mark.parametrize("typed, said, then", cases(__file__, "messages"))
def test_what_a_message_says_helps(typed, said, then):
    typed, then = ([*MINE.split(), *words.strip("()").split()] for words in (typed, then))
    refused(lambda: load_config(*split_arguments(typed)), said, exit_code=2)
    load_config(*split_arguments(then))


@pytest.mark.parametrize("typed", ["data.jsonl", "owner/model", "configs/tiny.yml"])
def test_what_is_no_config_is_told_where_model_and_data_go(tmp_path, monkeypatch, typed):
    monkeypatch.chdir(tmp_path)
    Path("data.jsonl").write_text('{"a": 1}\n{"b": 2}\n')
    refused(lambda: load_config(typed), typed, "dataset_id_or_path=FILE", exit_code=2)


@pytest.mark.parametrize(
    "key, typed, meant, more",
    [
        ("question_field", None, "Question", {}),
        ("question_field", "qery", "query", {}),
        ("answer_field", "solution_txt", "solution_text", {"question": "1?"}),
    ],
)
def test_a_column_that_was_meant_is_named(tmp_path, key, typed, meant, more):
    data = write_rows(tmp_path / "q.jsonl", [{meant: "1?", **more}])
    refused(lambda: read_rows(data, **{key: typed}), key, f"did you mean {meant}?")
    (found,) = read_rows(data, **{key: meant})
    assert found.question == found.columns.get("answer", "1?") == "1?"

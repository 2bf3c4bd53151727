"""What errors, warnings and remedies tell a user to do: everything that they name exists, and doing it helps."""

import ast
import re
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path

import pytest
from making import refused, write_rows

from grpo.base.errors import UserError
from grpo.config.entries import join_flags
from grpo.config.foreign import ALIASES
from grpo.config.load import load_config
from grpo.config.options import SftConfig, TrainConfig
from grpo.data.rows import read_rows
from grpo.diagnosis.rules import RULES
from rewards.registry import BUILT_IN

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(path for folder in ("grpo", "rewards", "knowledge") for path in (ROOT / folder).rglob("*.py"))
HOLE = "\ue000"  # stands for what a program fills in
PLACES = {"UserError": 2, "explained": 2, "bad_file": 3, "row_error": 4, "new_checkpoint": 3}  # of an unnamed fix
TEXTS = ("REMEDIES", "BY_HAND", "NO_REWARD", "NO_BOX")
KEYS = {entry.name for kind in (TrainConfig, SftConfig) for entry in fields(kind)}
OTHERS = {  # keys of other programs' files, variables, metrics, and words of SQL
    *("base_model_name_or_path", "eos_token", "eos_token_id", "add_generation_prompt", "save_pretrained"),
    *("HF_ENDPOINT", "HF_TOKEN", "GRPO_TRACEBACK", "FACTSCORE_DB_PATH", "grad_norm", "dataset_info"),
    *("journal_mode", "by_title"),
}


def literal(node):
    """The text of an expression, with a HOLE for each value that the program fills in."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(literal(part) for part in node.values)
    if isinstance(node, ast.BinOp):
        return literal(node.left) + literal(node.right)
    if isinstance(node, ast.IfExp):
        return f"{literal(node.body)} | {literal(node.orelse)}"
    if isinstance(node, ast.BoolOp):
        return " | ".join(map(literal, node.values))
    return HOLE


def fix_of(node):
    """The expression that says what to do, if a node of the syntax tree has one."""
    if isinstance(node, ast.Assign):
        target = ast.unparse(node.targets[0])
        return node.value if "fix" in target or target in TEXTS else None
    if not isinstance(node, ast.Call):
        return None
    named = {keyword.arg: keyword.value for keyword in node.keywords}
    place = PLACES.get(getattr(node.func, "id", ""), len(node.args))
    return named.get("fix") or next(iter(node.args[place:]), None)


def fix_texts():
    """Yield (where, text) of every fix in the source of the program."""
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            found = fix_of(node)
            for part in found.values if isinstance(found, ast.Dict) else [found]:
                if part is not None and literal(part).strip(HOLE):
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", literal(part)
    for rule in RULES:
        yield f"rules.{rule.__name__}", " ".join(rule.__doc__.partition("To do:")[2].split())


FIXES = list(fix_texts())
WORDS = re.compile(rf"(?<![\w{HOLE}])[A-Za-z]\w*_\w+(?![\w{HOLE}])")


def parser_options():
    """All options of all commands, as the source declares them."""
    declared = re.compile(r"""["'](--[a-z][\w-]*)["']""")
    sources = [path.read_text() for path in SOURCES]
    return {option for source in sources if "command_parser(" in source for option in declared.findall(source)}


def test_the_collection_finds_the_fixes():
    assert len(FIXES) > 150 and {"grpo/run/checkpoint.py", "rewards/registry.py", "grpo/data/rows.py"} <= {
        where.partition(":")[0] for where, _ in FIXES
    }


def test_every_key_that_a_fix_names_exists():
    known = KEYS | ALIASES.keys() | OTHERS | BUILT_IN.keys()
    unknown = {}
    for where, text in FIXES:
        plain = re.sub(r"\S+\.(json|jsonl|yaml|py|txt|jinja|safetensors|npz|db|csv)\b|python -m \S+", " ", text)
        unknown |= {word: where for word in WORDS.findall(plain) if word not in known}
    assert not unknown


def test_every_value_that_a_fix_gives_to_a_key_is_accepted(tmp_path):
    given = [
        (where, f"{name}={value}")
        for where, text in FIXES
        for name, value in re.findall(r"\b([a-z]\w+)(?:=|: )([\w.\[\],-]*\w\]?)", text)
        if name in KEYS and HOLE not in value and not value.isupper()
    ]
    assert len(given) > 20
    for where, override in given:
        with pytest.raises(UserError) as error:
            load_config(None, join_flags([override]))
        name = override.partition("=")[0]
        wrong = [line for line in error.value.why.splitlines() if re.search(rf": {name}: ", line)]
        assert not wrong, (where, wrong)


def test_every_command_option_and_file_that_a_fix_names_exists():
    options = parser_options()
    assert {"--merge", "--reward"} <= options
    for where, text in FIXES:
        for module in re.findall(r"python -m ([\w.]+)", text):
            assert find_spec(module.rstrip(".")), (where, module)
        for option in re.findall(r"(?<![\w-])--[a-z][\w-]+", text):
            assert option in options or "pip install" in text or "torchrun" in text, (where, option)
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
        load_config(None, [*MINE.split(), *typed.split()])
    assert said in str(error.value)
    load_config(None, [*MINE.split(), *then.split()])


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

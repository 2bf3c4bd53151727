"""The project against its own word: equations, keys, metrics, files, and what the README says."""

import ast
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from grpo.run.log import GLOSSARY
from grpo.run.options import SftConfig, TrainConfig
from rewards.api.client import COUNTS

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("grpo", "rewards", "knowledge", "kernels", "bench")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
TEXT = {path: path.read_text(encoding="utf-8") for path in SOURCES}


def test_every_equation_of_math_md_stands_in_the_code_and_the_other_way_round():
    in_text = set(re.findall(r"\*\*Eq\. (\d+)\*\*", (ROOT / "grpo" / "MATH.md").read_text(encoding="utf-8")))
    in_code: set[str] = set()
    for path in SOURCES:
        if path.parts[-2] == "grpo":
            for numbers in re.findall(r"Eq\. ((?:\d+(?:, | to | and )?)+)", TEXT[path]):
                found = [int(n) for n in re.findall(r"\d+", numbers)]
                in_code |= {str(n) for n in (range(found[0], found[-1] + 1) if " to " in numbers else found)}
    in_code -= {"13"}  # DAPO's own number, cited in rewards/overlong.py
    assert in_text == in_code


def test_every_configuration_key_is_read_somewhere():
    """A key that is declared and never read would be a promise without effect."""
    read = set(re.findall(r"(?:config|c|self\.config|stage1|self)\.(\w+)", "\n".join(TEXT.values()))) | set(
        re.findall(r'options\["(\w+)"\]', "\n".join(TEXT.values()))
    )
    declared = {f.name for kind in (TrainConfig, SftConfig) for f in fields(kind)}
    assert not declared - read


def test_every_metric_of_the_glossary_is_logged_somewhere():
    code = "\n".join(text for path, text in TEXT.items() if path.name != "log.py")
    missing = [name for name in GLOSSARY if not _is_made(name, code)]
    assert not missing


def _is_made(name: str, code: str) -> bool:
    if name.startswith("eval/"):
        return f'"{name.removeprefix("eval/")}"' in code
    if "<name>" in name:
        return "rewards/{name}" + name.removeprefix("rewards/<name>") in code
    if name.startswith(("judge/", "decomposer/")):
        return name.partition("/")[2] in (*COUNTS, "cost")
    return f'"{name}"' in code or name == "step"


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_functions_keep_their_size(path):
    """Functions have at most 80 lines, docstring included."""
    for node in ast.walk(ast.parse(TEXT[path])):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno - node.lineno < 80, node.name


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_module_says_what_it_is(path):
    assert ast.get_docstring(ast.parse(TEXT[path]))


def test_no_file_is_named_like_a_module_of_the_standard_library():
    names = {path.stem for path in SOURCES if path.parent.name in ("grpo", "rewards", "knowledge", "kernels")} - {
        "__init__"
    }
    assert not names & set(sys.stdlib_module_names)


FORBIDDEN_CALLS = {"eval", "exec", "torch.load", "yaml.load", "pickle.load", "pickle.loads", "np.load", "numpy.load"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_nothing_that_runs_loads_code_or_pickles(path):
    for node in ast.walk(ast.parse(TEXT[path])):
        if isinstance(node, ast.Call):
            assert ast.unparse(node.func) not in FORBIDDEN_CALLS
            unsafe = {keyword.arg for keyword in node.keywords if ast.unparse(keyword.value) == "True"}
            assert not unsafe & {"trust_remote_code", "shell", "allow_pickle"}
        assert "pickle" not in _imports(node)


def test_the_program_does_not_import_what_it_replaces():
    imported = {
        name
        for path, text in TEXT.items()
        if path.parts[len(ROOT.parts)] != "bench"
        for node in ast.walk(ast.parse(text))
        for name in _imports(node)
    }
    assert not imported & {"trl", "peft", "accelerate", "vllm", "unsloth", "datasets"}


def _imports(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name.partition(".")[0] for alias in node.names]
    return [node.module.partition(".")[0]] if isinstance(node, ast.ImportFrom) and node.module else []


README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_readmes_file_tree_is_true():
    """Every file of the packages is in the tree, and every file in the tree exists."""
    block = re.search(r"```text\n(.*?)```", README, re.DOTALL)[1]
    folder, listed = "", set()
    for line in block.splitlines():
        if match := re.match(r"(\w[\w/]*)/\s", line + " "):
            folder = match[1]
        listed |= {f"{folder}/{name}" for name in re.findall(r"[\w.]+\.(?:py|yaml|md)\b", line.partition("  #")[0])}
    tracked = subprocess.run(
        ["git", "ls-files", *PACKAGES, "configs"], cwd=ROOT, capture_output=True, text=True
    ).stdout.split()
    if not tracked:
        pytest.skip("not a git checkout")
    wanted = {name for name in tracked if name.endswith((".py", ".yaml")) and not name.endswith("__init__.py")}
    assert listed - {name for name in listed if name.endswith(".md")} == wanted


def test_the_readmes_commands_exist():
    for module in set(re.findall(r"python -m ([\w.]+)", README)) - {"pytest", "venv"}:
        assert (ROOT / (module.replace(".", "/") + ".py")).exists(), module
    for config in set(re.findall(r"configs/[\w.]+\.yaml", README)):
        assert (ROOT / config).exists(), config

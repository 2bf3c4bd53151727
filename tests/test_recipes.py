"""The recipes of tests/README.md, followed in a copy of the project; the existing kernels, by that for kernels."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from commands import ROOT
from grpo.kernels import twins

TEXT = (ROOT / "tests" / "README.md").read_text(encoding="utf-8").partition("## Contribute\n")[2].partition("\n## ")[0]
RECIPES = {part.partition("\n")[0]: part for part in TEXT.split("\n### ")[1:]}
FOLLOWED = [name for name, text in RECIPES.items() if "```diff" in text]


def blocks(recipe, kind):
    return re.findall(rf"```{kind}\n(.*?)```", RECIPES[recipe], re.DOTALL)


def apply(block, folder):
    """Change a file as a block says."""
    head, _, body = block.partition("\n")
    path, lines = folder / head.removeprefix("+++ "), body.splitlines(keepends=True)
    there = "".join(line[1:] for line in lines if line[0] in " -")
    then = "".join(line[1:] for line in lines if line[0] in " +")
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    assert not there or text.count(there) == 1, f"{path} has not once:\n{there}"
    path.write_text(text.replace(there, then) if there else text + then, encoding="utf-8")


def run(command, folder):
    own = {"PYTHONPATH": str(folder), "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    command = command.replace("python ", f"{sys.executable} ").replace(
        "-m pytest", "-m pytest -n 0 -p no:cacheprovider"
    )
    return subprocess.run(command, shell=True, cwd=folder, env=os.environ | own, capture_output=True, text=True)


def test_there_is_a_recipe_for_each():
    wanted = {"a reward", "a key", "a metric", "a loss variant", "a model family", "a kernel"}
    assert {name.removeprefix("Add ") for name in RECIPES} == wanted
    assert len(FOLLOWED) == 5


@pytest.mark.parametrize("recipe", FOLLOWED)
def test_a_recipe_that_is_followed_works(recipe, tmp_path):
    """The format is right afterwards, too."""
    left_out = shutil.ignore_patterns(".git", "runs", "__pycache__", ".*_cache", "*.egg-info", "build", "results")
    copy = shutil.copytree(ROOT, tmp_path / "project", ignore=left_out)
    commands = "".join(blocks(recipe, "bash")).splitlines()
    assert commands
    for block in blocks(recipe, "diff"):
        apply(block, copy)
    for command in [*commands, "python -m ruff format --check .", "python -m ruff check ."]:
        done = run(command, copy)
        assert done.returncode == 0, (command, done.stdout[-2000:], done.stderr[-2000:])


KERNELS = sorted(path.stem for path in (ROOT / "kernels").glob("*.py") if path.stem != "twins")


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_kernel_keeps_to_its_recipe(kernel):
    source = (ROOT / "kernels" / f"{kernel}.py").read_text(encoding="utf-8")
    table = (ROOT / "kernels" / "README.md").read_text(encoding="utf-8")
    _, replaces, slow, tests, benchmark, _ = re.search(rf"^\| `{kernel}\.py` (\|.*\|)$", table, re.M)[1].split("|")
    named = re.findall(r"`(?:twins\.)?(\w+)`", slow)
    assert named
    assert all(hasattr(twins, name) for name in named)
    assert "Slow twin" in source
    assert "atomic" not in source
    assert replaces.strip()
    assert benchmark.strip()
    files = [
        (ROOT / "tests" / "kernels" / name).read_text(encoding="utf-8") for name in re.findall(r"test_\w+\.py", tests)
    ]
    assert any(f"grpo.kernels.{kernel} import" in text and "twins" in text for text in files)
    if "import triton" in source:
        assert f'"{kernel}._' in (ROOT / "tests" / "kernels" / "launches.json").read_text(encoding="utf-8")

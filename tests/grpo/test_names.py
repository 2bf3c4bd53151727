"""Files and folders of the user that have the names of this program's own packages."""

import json
import os
import subprocess
import sys

import pytest
from commands import ROOT
from making import refused

from grpo.__main__ import main

REWARDS = "def f(completions, **columns):\n    return [float(len(text)) for text in completions]\n"
FINDER = f"""
import sys
from importlib.machinery import PathFinder

class Finder:
    def find_spec(name, path=None, target=None):
        return PathFinder.find_spec(name, [{str(ROOT)!r}]) if name in ("grpo", "rewards", "knowledge") else None

sys.meta_path.append(Finder)
"""


@pytest.fixture(params=["a checkout on the path", "an editable installation"])
def command(request, tmp_path):
    """Runs a command in a folder that holds rewards.py, knowledge.py and kernels.py.

    An editable installation is found last, by a finder such as that of setuptools.
    """
    folder, site = tmp_path / "folder", tmp_path / "site"
    folder.mkdir(), site.mkdir()
    (folder / "rewards.py").write_text(REWARDS)
    for name in ("knowledge.py", "kernels.py"):
        (folder / name).write_text("raise RuntimeError('a file of the user was imported')\n")
    (site / "sitecustomize.py").write_text(FINDER)
    (folder / "in.jsonl").write_text('{"completion": "abc", "answer": "abc"}\n')
    path = ROOT if request.param.startswith("a checkout") else site

    def run(*arguments):
        environment = {**os.environ, "PYTHONPATH": str(path)}
        return subprocess.run(
            [sys.executable, "-m", *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=120
        )

    run.folder, run.kind = folder, request.param
    return run


def test_commands_run_beside_files_of_their_own_names(command):
    names = ["rewards.py:f", "./rewards.py:f", "rewards:f", "exact"]
    for name in names if "checkout" in command.kind else names[2:]:
        found = command("grpo", "rewards.score", "--reward", name, "in.jsonl")
        assert found.returncode == 0, found.stderr
        (value,) = json.loads(found.stdout)["rewards"].values()
        assert value == (1 if name == "exact" else 3), name
    found = command("grpo.train", "--help")
    assert found.returncode == 0 and "python -m grpo.train CONFIG" in found.stdout, found.stderr


def test_a_folder_without_code_hides_nothing_either(command):
    for name in ("rewards", "knowledge"):
        (command.folder / f"{name}.py").unlink()
        (command.folder / name).mkdir()
    found = command("grpo", "knowledge.build", "--help")
    assert found.returncode == 0 and "usage" in found.stdout, found.stderr


@pytest.mark.parametrize("name", ["os.path", "grpo.base/x"])
def test_what_is_no_command_is_refused(name):
    refused(lambda: main([name]), "no command", "python -m grpo", exit_code=2)

"""The folder kernels/ bears the name of a library that transformers probes for. Ours must be found as grpo.kernels,
theirs must stay importable as kernels, and transformers' model classes must load: however ours is installed, whether
theirs is or not.
"""

import importlib.metadata
import itertools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from commands import ROOT

CHECKS = """
import json, os, site, sys, traceback
import torch._dynamo, huggingface_hub, tokenizers  # the slow part of what transformers imports
assert not {"transformers", "kernels", "grpo"} & set(sys.modules)
def transformers_works():
    from transformers import Qwen2Config, Qwen2ForCausalLM
    config = Qwen2Config(vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
                         num_attention_heads=2, num_key_value_heads=2)
    Qwen2ForCausalLM(config)(torch.tensor([[1, 2]]))
def ours_works():
    import grpo, grpo.kernels.twins, rewards.boxed, knowledge
    return grpo.kernels.twins.__file__
def check(sites, order):
    for folder in sites:
        site.addsitedir(folder)
    if order == "theirs first":
        transformers_works()
    where = ours_works()
    transformers_works()
    try:
        import kernels
        whose = getattr(kernels, "WHOSE", "a bare folder")
    except ImportError:
        whose = "absent"
    return [where, whose]
for cwd, sites, order in json.load(sys.stdin):
    if os.fork() == 0:
        os.chdir(cwd)
        try:
            found = check(sites, order)
        except BaseException:
            found = traceback.format_exc()
        print(json.dumps(found), flush=True)
        os._exit(0)
    os.wait()
"""

LIBRARY = """
WHOSE = "the library"
class Names(type):
    def __getattr__(cls, name):
        if name.startswith("__"): raise AttributeError(name)
        return Anything()
class Anything(metaclass=Names):  # a class, a decorator, an enumeration: whatever is asked for
    def __init__(self, *arguments, **options): pass
    def __call__(self, decorated=None, *arguments, **options): return decorated
    def __getattr__(self, name): return Anything()
def __getattr__(name):
    if name.startswith("__"): raise AttributeError(name)
    return Anything
"""


def packages_here():
    """The packages of the environment that the tests run in."""
    return {str(found.metadata["Name"]) for found in importlib.metadata.distributions()}


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A site-packages folder each with the project as editable install, as wheel, and without it."""
    copy = tmp_path_factory.mktemp("source") / "project"  # a build of a wheel leaves folders behind
    left_out = shutil.ignore_patterns(".*", "runs", "__pycache__", "*.egg-info", "build", "tests")
    shutil.copytree(ROOT, copy, ignore=left_out)
    folders, before = {"folder": tmp_path_factory.mktemp("none")}, packages_here()
    for kind, source in (("editable", ["-e", str(ROOT)]), ("wheel", [str(copy)])):
        prefix = tmp_path_factory.mktemp(kind)
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
        command += ["--prefix", str(prefix), *source]
        # Or pip removes the project from the environment that runs the tests. As a variable it reaches every pip that
        # this one starts, as setuptools does for an editable install.
        environment = {**os.environ, "PIP_IGNORE_INSTALLED": "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        folders[kind] = next(prefix.glob("lib/python*/site-packages"))
    assert packages_here() == before
    return folders


KINDS = ["folder", "editable", "wheel"]
CASES = list(itertools.product(KINDS, [False, True], ["ours first", "theirs first"]))


@pytest.fixture(scope="module")
def checked(installed, tmp_path_factory):
    """Of each case, where our kernels were found, and whose `kernels` is. All are forks of one process, which has
    imported nothing that asks for `kernels`."""
    theirs = tmp_path_factory.mktemp("theirs")
    for folder, file, text in (
        ("kernels", "__init__.py", LIBRARY),
        ("kernels-0.18.2.dist-info", "METADATA", "Metadata-Version: 2.1\nName: kernels\nVersion: 0.18.2\n"),
    ):
        (theirs / folder).mkdir()
        (theirs / folder / file).write_text(text)
    elsewhere, cases = tmp_path_factory.mktemp("elsewhere"), []
    for kind, has_library, order in CASES:
        sites = [str(installed[kind]), *([str(theirs)] if has_library else [])]
        cases.append([str(ROOT if kind == "folder" else elsewhere), sites, order])
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    pipes = {"input": json.dumps(cases), "capture_output": True, "text": True}
    done = subprocess.run([sys.executable, "-c", CHECKS], env=environment, cwd=elsewhere, **pipes)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(zip(CASES, map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_our_kernels_and_the_library_of_that_name_live_together(installed, checked, case):
    kind, has_library, _ = case
    assert isinstance(checked[case], list), checked[case]
    where, whose = checked[case]
    if kind == "wheel":
        assert where.startswith(str(installed[kind]))
        assert Path(where).with_name("cpu.c").exists()  # compiled where it is used
    else:
        assert where == str(ROOT / "kernels" / "twins.py")
    assert whose in (["the library"] if has_library else ["a bare folder", "absent"])


@pytest.mark.parametrize("alone", [
    "grpo/test_minimal.py::test_the_difference_that_is_left_is_adams",  # in float64, its kernels not yet compiled
    "knowledge/test_matcher.py",
])  # fmt: skip
def test_a_file_of_tests_passes_alone_and_with_an_empty_cache(tmp_path, alone):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment["XDG_CACHE_HOME"] = str(tmp_path)
    command = [sys.executable, "-m", "pytest", "-n", "0", "-x", "-p", "no:cacheprovider", f"tests/{alone}"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]

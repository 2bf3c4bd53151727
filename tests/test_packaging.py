"""The folder kernels/ bears the name of a library that transformers probes for. Ours must be found as grpo.kernels,
theirs must stay importable as kernels, and transformers' model classes must load: however ours is installed, whether
theirs is or not.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CHECK = """
import site, sys
site.addsitedir(sys.argv[1])
def transformers_works():
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM
    config = Qwen2Config(vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
                         num_attention_heads=2, num_key_value_heads=2)
    Qwen2ForCausalLM(config)(torch.tensor([[1, 2]]))
def ours_works():
    import grpo, grpo.kernels.reference, rewards.boxed, knowledge
    print(grpo.kernels.reference.__file__)
steps = [ours_works, transformers_works]
for step in steps if sys.argv[2] == "ours first" else steps[::-1]:
    step()
try:
    import kernels
    print(getattr(kernels, "WHOSE", "a bare folder"))
except ImportError:
    print("absent")
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


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A site-packages folder each with the project as editable install, as wheel, and without it."""
    folders = {"folder": tmp_path_factory.mktemp("none")}
    for kind, options in (("editable", ["-e"]), ("wheel", [])):
        prefix = tmp_path_factory.mktemp(kind)
        source = ROOT
        if kind == "wheel":  # built from a copy: a build leaves folders behind
            source = tmp_path_factory.mktemp("source") / "project"
            shutil.copytree(
                ROOT, source, ignore=shutil.ignore_patterns(".*", "runs", "__pycache__", "*.egg-info", "build", "tests")
            )
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "pip",
                "install",
                "-q",
                "--no-deps",
                "--no-build-isolation",
                "--prefix",
                str(prefix),
                *options,
                str(source),
            ],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        folders[kind] = next(prefix.glob("lib/python*/site-packages"))
    return folders


@pytest.mark.parametrize("order", ["ours first", "theirs first"])
@pytest.mark.parametrize("library", [False, True], ids=["without the library", "with the library"])
@pytest.mark.parametrize("kind", ["folder", "editable", "wheel"])
def test_our_kernels_and_the_library_of_that_name_live_together(installed, tmp_path, kind, library, order):
    site = installed[kind]
    theirs = tmp_path / "theirs"
    if library:
        (theirs / "kernels").mkdir(parents=True)
        (theirs / "kernels" / "__init__.py").write_text(LIBRARY)
        (theirs / "kernels-0.18.2.dist-info").mkdir()
        (theirs / "kernels-0.18.2.dist-info" / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: kernels\nVersion: 0.18.2\n"
        )
    check = CHECK.replace(
        "site.addsitedir(sys.argv[1])", f"site.addsitedir(sys.argv[1]); site.addsitedir({str(theirs)!r})"
    )
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    run = subprocess.run(
        [sys.executable, "-c", check, str(site), order],
        capture_output=True,
        text=True,
        env=environment,
        cwd=ROOT if kind == "folder" else tmp_path,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    where, whose = (
        run.stdout.splitlines()[-2:]
        if order == "theirs first"
        else (run.stdout.splitlines()[0], run.stdout.splitlines()[-1])
    )
    assert where == str(ROOT / "kernels" / "reference.py") if kind != "wheel" else str(site) in where
    assert whose == ("the library" if library else whose) and whose in ("the library", "a bare folder", "absent")

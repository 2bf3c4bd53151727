"""bench/gpu_checks.sh loses no row, whenever it is killed."""

import os
import signal
import stat
import subprocess
import sys
import tarfile
import time

import pytest
from commands import ROOT, python
from making import read_lines

SCRIPT = ROOT / "bench" / "gpu_checks.sh"
PARTS = ("decode7b", "knowrl", "decode", "math")
# In place of Python: benchmarks with three cases, 0.1 s each, that save as bench/record.py does.
FAKE = f"""#!{sys.executable}
import json, os, sys, time
_, kind, module, *options = sys.argv
if kind == "-c":
    sys.exit("torch's own operations")
if module == "bench.report":
    sys.exit(print("table"))
for case in range(3):
    time.sleep(0.1)
    with open(options[options.index("--save") + 1], "a") as file:
        print(json.dumps({{"bench": module, "cases": [case]}}), file=file)
"""


@pytest.fixture
def started(tmp_path):
    """Start the script in a process group of its own; return the process and its results folder."""
    python = tmp_path / "python"
    python.write_text(FAKE)
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    processes = []

    def start(name):
        environment = {
            **os.environ,
            "PYTHON": str(python),
            "DEVICE": os.environ.get("DEVICE", "cpu"),
            "PARTS": " ".join(PARTS),
        }
        command = ["bash", SCRIPT, tmp_path / name]
        options = {"start_new_session": True, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        processes.append(subprocess.Popen(command, env=environment, **options))
        return processes[-1], tmp_path / name

    yield start
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def ended_parts(results):
    """The parts that parts.log calls done."""
    log = results / "parts.log"
    lines = log.read_text().splitlines() if log.exists() else []
    return [line.split()[0] for line in lines if line.endswith("done")]


def rows_of(results):
    path = results / "gpu_rows.jsonl"
    return read_lines(path) if path.exists() else []


def progress(results):
    """How far a script has come: four for each part that is done, one for each case of the part that runs."""
    num_ended = len(ended_parts(results))
    return 4 * num_ended + len(rows_of(results)) - 3 * num_ended


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_script_keeps_every_finished_part_and_the_cases_of_the_running_one(started, sent):
    """Eight scripts at once, each killed with all of its processes at another moment."""
    waiting = {2 * number: started(str(number)) for number in range(8)}
    while waiting:
        for moment, (process, results) in list(waiting.items()):
            if progress(results) < moment and process.poll() is None:
                continue
            del waiting[moment]
            ended = ended_parts(results)
            os.killpg(process.pid, sent)
            process.wait(timeout=60)
            check_what_is_left(results, ended if sent == signal.SIGTERM else ended[:-1])
        time.sleep(0.01)


def check_what_is_left(results, packed):
    """packed: the parts whose logs the archive must hold. (SIGKILL may come before it is replaced.)"""
    if not results.exists():
        return
    assert len(list(results.iterdir())) <= 6
    assert len(rows_of(results)) >= 3 * len(ended_parts(results))
    if packed:
        with tarfile.open(results / "gpu_checks.tar.gz") as archive:
            assert set(archive.getnames()) >= {f"./{name}.log" for name in packed} | {"./gpu_rows.jsonl"}


WITHOUT_HYPOTHESIS = """
import sys, pytest
class Missing:
    def find_spec(self, name, *_):
        if name.partition(".")[0] == "hypothesis":
            raise ImportError("No module named 'hypothesis'")
sys.meta_path.insert(0, Missing())
sys.exit(pytest.main(sys.argv[1:]))
"""


def test_what_needs_a_gpu_is_collected_without_hypothesis():
    """The machine of a GPU may have what torch and the program need, and no more."""
    chosen = ["tests/kernels/test_backends.py", "tests/knowledge"]  # some files there draw inputs
    options = ["-m", "gpu", "--collect-only", "-p", "no:hypothesispytest", "-p", "no:cacheprovider"]
    done = python("-c", WITHOUT_HYPOTHESIS, *chosen, *options)
    assert done.returncode == 0 and "test_backends.py" in done.stdout, done.stdout + done.stderr


def test_nothing_is_measured_where_kernels_cannot_be_compiled(started, monkeypatch):
    monkeypatch.setenv("DEVICE", "cuda")
    process, results = started("bare")
    assert process.wait(timeout=60) == 1
    assert not rows_of(results) and not ended_parts(results)
    said = (results / "parts.log").read_text()
    assert "torch's own operations" in said and "before anything was measured" in said

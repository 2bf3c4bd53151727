"""bench/gpu_checks.sh loses no row, whenever it is killed, and its page names what to do next."""

import importlib
import json
import os
import re
import signal
import stat
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "bench" / "gpu_checks.sh"
PARTS = ("canary", "decode7b", "knowrl", "products")
# In place of Python: benchmarks with three cases, 0.1 s each, that save as bench/record.py does.
FAKE = f"""#!{sys.executable}
import json, os, sys, time
_, _, module, *options = sys.argv
if module == "bench.gpu_page":
    sys.exit(open(os.path.join(options[0], "page.md"), "w").write("page") - 4)
path, cases = options[options.index("--save") + 1], []
for case in range(3):
    time.sleep(0.1)
    cases.append(case)
    with open(path + ".new", "w") as file:
        print(json.dumps({{"bench": module, "cases": cases}}), file=file)
    os.replace(path + ".new", path + ".partial")
with open(path, "a") as file:
    file.write(open(path + ".partial").read())
os.remove(path + ".partial")
"""


@pytest.fixture
def started(tmp_path):
    """Start the script in a process group of its own; return the process and its results folder."""
    python = tmp_path / "python"
    python.write_text(FAKE)
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    processes = []

    def start(name: str):
        environment = {**os.environ, "PYTHON": str(python), "DEVICE": "cpu", "PARTS": " ".join(PARTS)}
        command = ["bash", SCRIPT, tmp_path / name]
        options = {"start_new_session": True, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        processes.append(subprocess.Popen(command, env=environment, **options))
        return processes[-1], tmp_path / name

    yield start
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def ended_parts(results: Path) -> list[str]:
    """The parts that parts.log calls done."""
    log = results / "parts.log"
    lines = log.read_text().splitlines() if log.exists() else []
    return [line.split()[0] for line in lines if line.endswith("done")]


def progress(results: Path) -> int:
    """How far a script has come: four for each part that is done, one for each case of the part that runs."""
    partial = results / "gpu_rows.jsonl.partial"
    try:
        cases = len(json.loads(partial.read_text())["cases"])
    except FileNotFoundError:  # between two parts, or replaced just now
        cases = 0
    return 4 * len(ended_parts(results)) + cases


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_script_keeps_every_finished_part_and_the_cases_of_the_running_one(started, sent):
    """Eight scripts at once, each killed with all of its processes at another moment. A row may stand twice."""
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


def check_what_is_left(results: Path, packed: list[str]) -> None:
    """packed: the parts whose logs the archive must hold. (SIGKILL may come before it is replaced.)"""
    if not results.exists():
        return
    assert len(list(results.iterdir())) <= 8
    rows = [json.loads(line) for path in results.glob("gpu_rows.jsonl*") for line in path.read_text().splitlines()]
    assert len([row for row in rows if len(row["cases"]) == 3]) >= len(ended_parts(results))
    if packed:
        with tarfile.open(results / "gpu_checks.tar.gz") as archive:
            assert set(archive.getnames()) >= {f"./{name}.log" for name in packed} | {"./gpu_rows.jsonl"}


def test_the_limit_of_a_call_and_its_order():
    """A call must end within ten minutes: the last part ends 15 seconds after the limit, then the archive is made."""
    text = SCRIPT.read_text(encoding="utf-8")
    whole = int(re.search(r"^LIMIT=(\d+)", text, re.MULTILINE)[1])
    calls = text.partition('if [ "$CALL" = ours ]')[2].partition("\nfi\n")[0].split("\nelse\n")
    ours, peers = (re.findall(r"(?:part|bench) +(\w+) +(\d+) ", call) for call in calls)
    assert whole <= 570 and [name for name, _ in ours[:3]] == ["canary", "decode7b", "knowrl"]
    assert sum(int(limit) for _, limit in ours[:6]) <= whole and sum(int(limit) for _, limit in peers) <= whole


def test_the_page_names_the_largest_losses_first(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(ROOT)
    gpu_page = importlib.import_module("bench.gpu_page")
    phases, floors = {"generate": 9.0, "reference": 3.0, "train": 5.0, "reward": 1.0}, {"generate": 4, "reference": 2.5}
    step = {"name": "knowrl: 7b, judge 0 s", "seconds": {"ours": {"median": 18.0}}, "ceiling_share": 0.5}
    product = {"seconds": {"ours": {"median": 1e-4}}, "ceiling_share": 0.25}
    profile = [{"name": "gemm", "calls": 1, "microseconds": 30.0}, {"name": "norm", "calls": 1, "microseconds": 10.0}]
    machine = {"gpu": "a GPU", "cpu": "a CPU", "versions": {"torch": "2"}, "commit": "abc"}
    rows = [
        {"bench": "decode", "cases": [], "checks": {}, "profiles": {"7b, 96 rows, LoRA": profile}},
        {"bench": "products", "cases": [product | {"name": "7b, o, 96 rows"}], "checks": {"swiglu failed": "off"}},
        {
            "bench": "whole_steps",
            "part": "knowrl",
            "cases": [step | {"phases": phases, "floors": floors | {"train": 1.0}}],
            "checks": {},
        },
    ]
    (tmp_path / "gpu_rows.jsonl.partial").write_text(
        "".join(json.dumps(row | {"machine": machine}) + "\n" for row in rows)
    )
    (tmp_path / "parts.log").write_text("canary 12 done\n")
    gpu_page.main([str(tmp_path)])
    page = (tmp_path / "page.md").read_text()
    lost = [line for line in page.splitlines() if "lost**" in line]
    assert [line.split()[0] for line in lost] == ["**5.00", "**4.00", "**500"]
    assert "75% of 7b, 96 rows, LoRA: gemm" in page and "75 µs a call lost in 7b, o, 96 rows" in page
    assert "| canary | 12 | done |" in page and "swiglu failed: off" in page and "| 18.00 s | 50% |" in page

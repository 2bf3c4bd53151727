"""Whole runs as processes of their own, started quickly: a parent that has imported everything forks a child for each.

    child = processes.start("grpo.train", config_file, FAILPOINT="save-renamed:1")
    child.signal(SIGTERM); child.wait() -> exit code, -9 for a killed one; child.stderr

The children are real processes with real signals, files and sockets; only the import of torch is shared. Also a
program: it serves start requests, one JSON object a line, on stdin. `setup` names a function of fakes.py that a child
calls first.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch
from safetensors.torch import load_file

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PATHS = [str(ROOT), str(HERE), str(HERE.parent), str(HERE.parent / "rewards")]
TIMEOUT_S = 1800  # for what comes by itself, also on a slow machine with much to do; nothing waits for this in vain
QUESTIONS = [
    {"question": f"What is {a} + {b}?", "answer": str(a + b), "title": f"Title {a}"} for a in range(8) for b in range(4)
]
KEYS = {
    "reward_funcs": ["fakes:early_letters"],
    "num_generations": 4,
    "per_device_train_batch_size": 8,
    "max_completion_length": 8,
    "lora_r": 4,
    "learning_rate": 5e-3,
    "max_steps": 4,
    "save_steps": 1,
    "save_total_limit": 2,
    "lr_scheduler_type": "constant",
    "beta": 0.01,
    "report_to": ["none"],
    "disable_tqdm": True,
    "full_determinism": True,
}


class Child:
    """A started process. `number` names its output files."""

    def __init__(self, processes: "Processes", pid: int, stdout: Path, stderr: Path):
        self.processes, self.pid, self._stdout, self._stderr, self.code = processes, pid, stdout, stderr, None

    @property
    def stdout(self) -> str:
        return self._stdout.read_text(errors="replace")

    @property
    def stderr(self) -> str:
        return self._stderr.read_text(errors="replace")

    def is_running(self) -> bool:
        if self.code is None:
            self.code = self.processes.ask({"poll": self.pid})
        return self.code is None

    def wait(self, timeout_s: float = TIMEOUT_S) -> int:
        """Its exit code, negative for a signal. AssertionError (and the end of it) if it does not end."""
        ends = time.monotonic() + timeout_s
        while self.is_running():
            if time.monotonic() > ends:
                self.signal(signal.SIGKILL)
                raise AssertionError(f"did not end within {timeout_s} s: {self.stderr[-2000:]}")
            time.sleep(0.01)
        return self.code

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def until(self, condition, timeout_s: float = TIMEOUT_S) -> None:
        """Waits for something to be so while the process runs."""
        ends = time.monotonic() + timeout_s
        while not condition():
            assert self.is_running() and time.monotonic() < ends, f"{self.code}: {self.stderr[-2000:]}"
            time.sleep(0.01)


class Processes:
    """The parent of the children; a context manager."""

    def __init__(self, folder: Path, checkpoint: Path):
        self.folder, self.count = folder, 0
        warm_up = write_config(folder, checkpoint, "warm_up", max_steps=1)
        shared = {"PYTHONPATH": os.pathsep.join(PATHS), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        command, pipe = [sys.executable, str(HERE / "running.py"), str(warm_up)], subprocess.PIPE
        self.parent = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=os.environ | shared)

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, *exception: object) -> None:
        self.parent.stdin.close()
        self.parent.wait(TIMEOUT_S)

    def ask(self, request: dict):
        self.parent.stdin.write(json.dumps(request) + "\n")
        self.parent.stdin.flush()
        return json.loads(self.parent.stdout.readline())

    def start(
        self, module: str, *arguments: object, setup: str = "", limit_bytes: int = 0, **environment: str
    ) -> Child:
        """`python -m module arguments`. limit_bytes: no file may grow beyond it, as on a full disk."""
        self.count += 1
        out, err = (self.folder / f"{self.count}.{name}" for name in ("out", "err"))
        request = {"module": module, "arguments": [str(a) for a in arguments], "setup": setup}
        request |= {"environment": environment, "stdout": str(out), "stderr": str(err), "limit_bytes": limit_bytes}
        return Child(self, self.ask(request), out, err)

    def train(self, config: Path, *overrides: str, **more) -> Child:
        """A run of stage 2 to its end."""
        child = self.start("grpo.train", config, *overrides, **more)
        child.wait()
        return child


def write_config(folder: Path, checkpoint: Path, name: str = "run", **keys) -> Path:
    """A configuration of a tiny run into folder/name; the config file stands beside it."""
    data = folder / "questions.jsonl"
    if not data.exists():
        data.write_text("".join(json.dumps(row) + "\n" for row in QUESTIONS))
    paths = {"model_name_or_path": str(checkpoint), "dataset_id_or_path": str(data), "output_dir": str(folder / name)}
    path = folder / f"{name}.yaml"
    path.write_text(json.dumps(KEYS | paths | keys))
    return path


def state(run_dir: Path) -> dict:
    return json.loads((run_dir / "run_state.json").read_text())


def weights(run_dir: Path) -> dict:
    return load_file(run_dir / "final" / "adapter_model.safetensors")


def same_weights(run_dir: Path, other: Path) -> bool:
    """Whether two runs have ended in the same adapter, bit for bit."""
    first, second = weights(run_dir), weights(other)
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def differ_by_rounding(run_dir: Path, other: Path) -> bool:
    """Whether two runs that have trained have ended in nearly the same adapter."""
    first, second = weights(run_dir), weights(other)
    moved = max(value.abs().max() for name, value in first.items() if "lora_B" in name)
    return moved > 1e-3 and max((first[name] - second[name]).abs().max() for name in first) < 1e-5


def lines(run_dir: Path) -> list[dict]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines() if line]


def is_message(text: str) -> bool:
    """Three lines: what, why, fix; no traceback."""
    starts = re.findall("^(error|why|fix):", text.strip(), re.MULTILINE)
    return starts == ["error", "why", "fix"] and "Traceback" not in text


def _become(request: dict) -> None:
    """In the child: the program that was asked for."""
    import resource
    import runpy

    os.setsid()
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup has the tests ignore it, and that would be inherited
    os.environ.update(request["environment"])
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(request[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    if request["limit_bytes"]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["limit_bytes"], request["limit_bytes"]))
    if request["setup"]:
        import fakes

        getattr(fakes, request["setup"])()
    sys.argv = [request["module"], *request["arguments"]]
    sys.modules.pop(request["module"], None)
    runpy.run_module(request["module"], run_name="__main__")


def serve() -> None:
    import torch
    import torch.utils.tensorboard
    import transformers.models.auto.tokenization_auto  # noqa: F401

    import grpo.train
    import knowledge.build  # noqa: F401
    import rewards.api.client  # noqa: F401

    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    grpo.train.main(sys.argv[1:])  # products are compiled for their shapes once, and not in every child
    for line in sys.stdin:
        request, answer = json.loads(line), None
        if "poll" in request:
            pid, status = os.waitpid(request["poll"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        else:
            answer = os.fork()
            if answer == 0:
                try:
                    _become(request)
                except SystemExit as stop:
                    sys.stdout.flush()
                    sys.stderr.flush()
                    import threading

                    threading._shutdown()  # as an interpreter that ends: it waits for threads
                    os._exit(stop.code if isinstance(stop.code, int) else 0)
                except BaseException:
                    import traceback

                    traceback.print_exc()
                    os._exit(99)
                os._exit(0)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    serve()

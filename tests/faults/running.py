"""Whole runs as processes of their own, started quickly: a parent that has imported everything forks a child for each.

    run = processes.run(folder, checkpoint, max_steps=3)
    run.train(FAILPOINT="save-renamed:1", code=-SIGKILL)
    run.resume()

The children are real processes with real signals, files and sockets; only the import of torch is shared. Also a
program: it serves start requests, one JSON object a line, on stdin. `setup` names functions of fakes.py that a child
calls first; of several ranks, `bad_logits@1` is for rank 1 alone.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import yaml
from commands import ROOT, run_module
from making import free_port, read_lines, same_tensors, write_rows
from safetensors.torch import load_file

from grpo.run.checkpoint import problem_with

HERE = Path(__file__).resolve().parent
PATHS = [str(ROOT), str(HERE), str(HERE.parent), str(HERE.parent / "rewards")]
SHARED = {"PYTHONPATH": os.pathsep.join(PATHS), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}  # of any process
TIMEOUT_S = 1800  # for what comes by itself, also on a slow machine with much to do; nothing waits for this in vain
QUESTIONS = [
    {"question": f"What is {a} + {b}?", "answer": str(a + b), "title": f"Title {a}"} for a in range(8) for b in range(4)
]
KEYS = yaml.safe_load("""
    reward_funcs: [fakes:early_letters]
    num_generations: 4
    per_device_train_batch_size: 8
    max_completion_length: 8
    lora_r: 4
    learning_rate: 0.005
    max_steps: 4
    save_steps: 1
    save_total_limit: 2
    lr_scheduler_type: constant
    beta: 0.01
    report_to: [none]
    disable_tqdm: true
    full_determinism: true
    """)
JUDGED = {"OPENAI_API_KEY_JUDGE": "canary-key", "setup": "talkative"}  # of a process that asks a judge


class Child:
    """A started process."""

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

    def ends(self, code: int, timeout_s: float = TIMEOUT_S) -> "Child":
        """Waits for its end, which has this exit code; and three lines on stderr where that is an error's."""
        assert self.wait(timeout_s) == code, self.stderr
        assert not 0 < code < 128 or is_message(self.stderr), self.stderr
        return self

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def until(self, condition) -> None:
        """Waits for something to be so while the process runs."""
        ends = time.monotonic() + TIMEOUT_S
        while not condition():
            assert self.is_running() and time.monotonic() < ends, f"{self.code}: {self.stderr[-2000:]}"
            time.sleep(0.01)


@dataclass
class Run:
    """A run of stage 2 under test: its config file, its directory, and what it has left there."""

    processes: "Processes"
    config: Path
    folder: Path

    def start(self, *overrides: str, **more) -> Child:
        return self.processes.start("grpo.train", self.config, *overrides, **more)

    def start_alone(self, *command: str) -> tuple[subprocess.Popen, Path]:
        """Start a command on the config file, without the shared parent; and where its stderr goes."""
        stderr = self.config.with_suffix(".stderr")
        with open(stderr, "w") as file:
            options = {"cwd": ROOT, "env": os.environ | SHARED, "stdout": file, "stderr": file}
            return subprocess.Popen([*command, self.config], **options), stderr

    def train(self, *overrides: str, code: int = 0, **more) -> Child:
        """Run to the end, which has this exit code."""
        return self.start(*overrides, **more).ends(code)

    def resume(self, *overrides: str, **more) -> Child:
        return self.train("resume_from_checkpoint=true", *overrides, **more)

    def start_ranks(self, *overrides: str, world: int = 2, of_rank_1=(), **more) -> list[Child]:
        """All processes of a run. of_rank_1: overrides of the second alone."""
        more |= {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
        return [
            self.start(*overrides, *(of_rank_1 if rank == 1 else ()), RANK=str(rank), LOCAL_RANK=str(rank), **more)
            for rank in range(world)
        ]

    def train_ranks(self, *overrides: str, code: int = 0, **more) -> list[Child]:
        """Run all processes to the end, which has this exit code for each."""
        return [child.ends(code) for child in self.start_ranks(*overrides, **more)]

    def copy(self, folder: Path) -> "Run":
        """A copy of the run that may be damaged."""
        copied = Run(self.processes, folder / "run.yaml", shutil.copytree(self.folder, folder / "run"))
        copied.config.write_text(self.config.read_text().replace(str(self.folder), str(copied.folder)))
        return copied

    @property
    def state(self) -> dict:
        return json.loads((self.folder / "run_state.json").read_text())

    @property
    def lines(self) -> list[dict]:
        """The metrics of each step, as far as they are written."""
        path = self.folder / "metrics.jsonl"
        return read_lines(path) if path.exists() else []

    @property
    def steps(self) -> list[int]:
        return [line["step"] for line in self.lines]

    @property
    def weights(self) -> dict:
        return load_file(self.folder / "final" / "adapter_model.safetensors")

    def checkpoint(self, step: int) -> Path:
        return self.folder / f"checkpoint-{step}"

    def saved_step(self, **told) -> int:
        """The step at which the run has ended and saved, by its record, which says this too; the checkpoint is
        valid."""
        state = self.state
        step = state["step"]
        assert state == state | told | {"last_checkpoint": f"checkpoint-{step}"}
        assert not problem_with(self.checkpoint(step))
        return step

    def rows(self, step: int) -> list[dict]:
        """The completions of a step."""
        return read_lines(self.folder / "completions" / f"step-{step:06d}.jsonl")

    def equals(self, other: "Run") -> bool:
        """Whether two runs have ended in the same adapter, bit for bit."""
        return same_tensors(*(run.folder / "final" / "adapter_model.safetensors" for run in (self, other)))

    def differs_by_rounding(self, other: "Run", most: float = 1e-5) -> bool:
        """Whether two runs that have trained have ended in nearly the same adapter."""
        first, second = self.weights, other.weights
        moved = max(value.abs().max() for name, value in first.items() if "lora_B" in name)
        return moved > 1e-3 and max((first[name] - second[name]).abs().max() for name in first) < most


class Processes:
    """The parent of the children; a context manager."""

    def __init__(self, folder: Path, checkpoint: Path):
        self.folder, self.count = folder, 0
        warm_up = self.run(folder, checkpoint, "warm_up", max_steps=1).config
        command, pipe = [sys.executable, str(HERE / "running.py"), str(warm_up)], subprocess.PIPE
        environment = os.environ | SHARED | {"HF_HUB_OFFLINE": "1"}
        self.parent = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)

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
        request = {"words": [module, *map(str, arguments)], "setup": setup, "limit_bytes": limit_bytes}
        request |= {"environment": environment, "files": [os.devnull, str(out), str(err)]}
        return Child(self, self.ask(request), out, err)

    def run(self, folder: Path, checkpoint: Path, name: str = "run", **keys) -> Run:
        """A tiny run into folder/name; the config file stands beside it."""
        data = folder / "questions.jsonl"
        if not data.exists():
            write_rows(data, QUESTIONS)
        paths = {"model_name_or_path": checkpoint, "dataset_id_or_path": data, "output_dir": folder / name}
        config = folder / f"{name}.yaml"
        config.write_text(json.dumps(KEYS | {key: str(path) for key, path in paths.items()} | keys))
        return Run(self, config, folder / name)


def is_message(text: str) -> bool:
    """Three lines: what, why, fix; no traceback."""
    starts = re.findall("^(error|why|fix):", text.strip(), re.MULTILINE)
    return starts == ["error", "why", "fix"] and "Traceback" not in text


def become(request: dict) -> int:
    """In the child: the program that was asked for. Returns its exit code."""

    def prepare() -> None:
        import resource

        if request["limit_bytes"]:
            resource.setrlimit(resource.RLIMIT_FSIZE, (request["limit_bytes"], request["limit_bytes"]))
        if request["setup"]:
            import fakes

            for name, _, rank in (setup.partition("@") for setup in request["setup"].split()):
                if rank in ("", os.environ.get("RANK")):
                    getattr(fakes, name)()

    os.setsid()
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup has the tests ignore it, and that would be inherited
    os.environ.update(request["environment"])
    modes = (os.O_RDONLY, *[os.O_WRONLY | os.O_CREAT | os.O_TRUNC] * 2)
    files = [os.open(name, mode, 0o644) for name, mode in zip(request["files"], modes, strict=True)]
    return run_module(request["words"], files, prepare)


def serve() -> None:
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
                os._exit(become(request))
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    serve()

"""macOS and Windows, as far as Linux can tell: the program runs where nothing exists that only Unix or Linux has.

The libraries are imported first, since they have branches of their own for each system. Then the modules, signals and
functions that other systems lack are hidden, /proc is closed, and the program is imported and used.
"""

from commands import python
from making import write_rows

HIDE = '''
import asyncio, builtins, io, logging, os, shutil, signal, subprocess, sys, tempfile, types
import matplotlib.pyplot, numpy, openai, psutil, mpmath, tokenizers, torch, transformers, yaml
from torch.utils.tensorboard import SummaryWriter
from transformers import AutoTokenizer

LOCKED = []
def locking(descriptor, mode, size):
    """As Windows': a byte is locked once. Its place is where the file stands."""
    place = os.fstat(descriptor).st_ino, os.lseek(descriptor, 0, os.SEEK_CUR)
    LOCKED[:] = [(where, file) for where, file in LOCKED if file != descriptor and is_open(file, where[0])]
    if any(where == place for where, _ in LOCKED):
        raise PermissionError(13, "locked")
    LOCKED.append((place, descriptor))

def is_open(descriptor, inode):
    try:
        return os.fstat(descriptor).st_ino == inode
    except OSError:
        return False

for name in ("fcntl", "resource", "termios", "tty", "pty", "pwd", "grp", "syslog", "posix_ipc"):
    sys.modules[name] = None
sys.modules["msvcrt"] = types.SimpleNamespace(LK_NBLCK=2, locking=locking)
for name in dir(signal):
    if name.startswith(("SIG", "ITIMER", "pthread", "sig", "setitimer", "getitimer", "alarm", "pause")):
        if name not in ("SIGINT", "SIGTERM", "SIGABRT", "SIGFPE", "SIGILL", "SIGSEGV", "SIG_DFL", "SIG_IGN", "signal"):
            delattr(signal, name)
disk = shutil.disk_usage(".")  # Windows has a disk_usage of its own
shutil.disk_usage = lambda path: disk
for name in ("fork", "register_at_fork", "O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW", "sched_getaffinity", "getloadavg",
             "getuid", "geteuid", "getpgid", "killpg", "setsid", "uname", "statvfs", "fchmod", "posix_fadvise"):
    if hasattr(os, name):
        delattr(os, name)

def without_proc(open_file):
    def checked(path, *arguments, **options):
        if str(path).startswith("/proc"):
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return open_file(path, *arguments, **options)
    return checked

builtins.open = io.open = without_proc(open)
psutil.virtual_memory = lambda: types.SimpleNamespace(available=4 << 30, total=8 << 30)
in_use = types.SimpleNamespace(peak_wset=123456789, rss=100000000)
psutil.Process = lambda: types.SimpleNamespace(memory_info=lambda: in_use)
assert not [name for name in sys.modules if name.partition(".")[0] in ("grpo", "rewards", "knowledge")]
'''
USE = """
import json
from pathlib import Path
from grpo import doctor, evaluate, export, generate, sft, train
from knowledge import build, search
from grpo.base.errors import UserError
from grpo.run.run_dir import RunDir

checkpoint, folder = sys.argv[1], Path(sys.argv[2])
common = [f"model_name_or_path={checkpoint}", "disable_tqdm=true", "max_steps=2", "save_steps=1", "max_length=64",
          "per_device_train_batch_size=4"]
(folder / "empty.yaml").write_text("report_to: [tensorboard]\\n")
sft.main([str(folder / "empty.yaml"), *common, f"dataset_id_or_path={folder}/chats.jsonl", f"output_dir={folder}/sft"])
grpo = [*common[:-2], "num_generations=4", "max_completion_length=8", "reward_funcs=exact,format", "learning_rate=1e-3",
        "per_device_train_batch_size=8", f"dataset_id_or_path={folder}/questions.jsonl", f"output_dir={folder}/run"]
train.main([str(folder / "empty.yaml"), *grpo, "max_steps=1"])
train.main([str(folder / "empty.yaml"), *grpo, "resume_from_checkpoint=true"])
lines = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
assert [line["step"] for line in lines if "step_time" in line] == [1, 2]
assert lines[0]["peak_memory_gb"] == 0.123456789
generate.main([f"{folder}/run/final", "--prompt", "What is 1 + 2?", "--max-new-tokens", "4"])
export.main([f"{folder}/run/final", f"{folder}/merged", "--merge"])
build.main([f"{folder}/articles.jsonl", f"{folder}/kb.db"])
search.main([f"{folder}/kb.db", "Ada"])
held = RunDir(folder / "held", resume=False, overwrite=False)
try:
    RunDir(folder / "held", resume=False, overwrite=False)
    raise AssertionError("two runs in one directory")
except UserError as error:
    assert error.exit_code == 7 and f"pid {os.getpid()}" in error.why, error
held.close(0, "")
RunDir(folder / "held", resume=True, overwrite=False).close(0, "")
print("all commands ran")
"""
SIGNALS = """
import time
from grpo.config.load import load_config
from grpo.base.errors import Interrupted
from grpo.run import run as runs, signals
from grpo.run.run import Run

signals.GRACE_S = 0.1
runs.check_start = lambda *arguments: None  # it has neither data nor a model
keys = ["model_name_or_path=m", "dataset_id_or_path=d", "reward_funcs=exact", "report_to=none", "device=cpu"]
config, _ = load_config(None, [*keys, f"output_dir={sys.argv[2]}/signals"])
before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGABRT)]
try:
    with Run(config) as run:
        run.signals.is_training = True
        with run.signals.interruptible():
            signal.raise_signal(signal.SIGTERM)
            for _ in range(60_000):
                time.sleep(0.01)
            raise AssertionError("it went on")
except Interrupted as stop:
    assert stop.exit_code == 143
assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGABRT)] == before
print("all signals came")
"""


def test_the_program_runs_without_what_only_unix_has(chat_checkpoint, tmp_path):
    questions = [{"question": f"What is {i} + 1?", "answer": str(i + 1)} for i in range(8)]
    chats = [{"messages": [{"role": "user", "content": "a?"}, {"role": "assistant", "content": "b"}]}] * 8
    write_rows(tmp_path / "questions.jsonl", questions)
    write_rows(tmp_path / "chats.jsonl", chats)
    write_rows(tmp_path / "articles.jsonl", [{"title": "Ada", "text": "Ada wrote programs."}])
    run = python("-c", HIDE + USE + SIGNALS, chat_checkpoint, tmp_path)
    assert run.returncode == 0, run.stderr[-3000:]
    assert run.stdout.endswith("all commands ran\nall signals came\n")


def test_a_terminal_without_a_character_shows_its_escape():
    code = "from grpo.base.errors import run_main\nrun_main(lambda argv: print('π ≥ 3'))"
    run = python("-c", code, PYTHONIOENCODING="ascii")
    assert (run.returncode, run.stdout) == (0, "\\u03c0 \\u2265 3\n")

"""`python -m module arguments` without the seconds that an import of torch takes: a fork of the test's own process.

The child has its own pid, files, environment and exit code, and runs the module as `__main__`; what the tests have
imported is there already. So a command that forgets an import is found only by a new interpreter: each has one test
that starts it so.
"""

import logging
import os
import runpy
import subprocess
import sys
import tempfile
import threading
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def source_files(*packages):
    """The program's files of Python in these folders."""
    return sorted(path for package in packages for path in (ROOT / package).rglob("*.py"))


def num_open(path):
    """How often this process has a file open."""
    return [os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")].count(str(path))


def next_commands(stderr):
    """The two commands that a command names at its end, after where its result lies."""
    lines = stderr.splitlines()[-3:]
    assert lines[0].startswith("result: ") and lines[1].startswith("next:   python -m "), stderr
    return [line.partition("python -m ")[2] for line in lines[1:]]


def python(*arguments, **environment):
    """Run a new interpreter in the project's folder with these arguments, and more of an environment."""
    command, variables = [sys.executable, *map(str, arguments)], os.environ | environment
    return subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True)


def run_command(module, *arguments, stdin="", before=None):
    """Its exit code, stdout and stderr. before: what the child calls first."""
    words = [module, *map(str, arguments)]
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as error:
        given.write(stdin.encode())
        given.seek(0)
        pid = os.fork()
        if pid == 0:
            os._exit(run_module(words, [given.fileno(), out.fileno(), error.fileno()], before))
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        texts = [(file.seek(0), file.read().decode())[1] for file in (out, error)]
    return subprocess.CompletedProcess(words, code, *texts)


def run_module(words, files, before):
    """In the child: run a module as `__main__` over these three files. Returns the exit code."""
    try:
        for number, file in enumerate(files):
            os.dup2(file, number)
        sys.stdin, sys.stdout, sys.stderr = (
            os.fdopen(number, mode, encoding="utf-8", closefd=False) for number, mode in enumerate("rww")
        )
        logging.getLogger().handlers.clear()  # pytest's own
        os.chdir(ROOT)
        if before:
            before()
        sys.argv = words
        sys.modules.pop(words[0], None)
        code = 0
        try:
            runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        except SystemExit as stop:
            if isinstance(stop.code, str):
                print(stop.code, file=sys.stderr)
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        threading._shutdown()  # as an interpreter that ends: it waits for threads
        sys.stdout.flush()
        return code
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stderr.flush()

"""Walk what a user can do, command by command, and say which of it works.

    python -m tests.journeys [WORD ...]            walk the journeys whose line contains a word

journeys.txt beside this file has one line for each: its exit code, the command, and after `⇒` the files that are there
afterwards or the words that are printed. `$W` is a folder for all of them, walked from top to bottom.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]


def walk(line: str, folder: str) -> str:
    """Run one journey; return what is wrong with it, or nothing."""
    code, _, rest = line.partition(" ")
    command, _, expected = (part.strip() for part in rest.partition("⇒"))
    environment = os.environ | {"W": folder, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, env=environment, text=True, **pipes)
    missing = []
    for part in filter(None, re.split(r"\s+&\s+", expected)):
        is_there = Path(folder, part[3:]).exists() if part.startswith("$W/") else part in done.stdout
        missing += [] if is_there else [part]
    wrong = [] if done.returncode == int(code) else [f"exit code {done.returncode}"]
    return "; ".join(wrong + [f"lacks {part!r}" for part in missing] + [done.stdout[-600:]]) if wrong or missing else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*")
    arguments = parser.parse_args()
    from making import write_chat_checkpoint

    lines = (HERE / "journeys.txt").read_text(encoding="utf-8").splitlines()
    chosen = [line for line in lines if line and not line.startswith("#")]
    chosen = [line for line in chosen if not arguments.words or any(word in line for word in arguments.words)]
    with tempfile.TemporaryDirectory() as folder:
        write_chat_checkpoint(Path(folder, "model"))
        wrong = 0
        for line in chosen:
            problem = walk(line, folder)
            wrong += bool(problem)
            print("no " if problem else "yes", line, f"\n    {problem}" if problem else "", flush=True)
    print(f"{len(chosen) - wrong} of {len(chosen)} journeys work")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()

"""Break the program on purpose and see whether the tests notice.

    python -m tests.mutants [WORD ...] [--jobs N] [--timeout SECONDS]

A mutant is one small change to one source file. The lists beside this file (*.txt) hold them, one block each:

    @ grpo/algorithm/loss.py | tests/grpo/test_loss.py tests/grpo/test_train.py | plain
    the surrogate takes the larger of the two terms
    - torch.minimum(ratio_C * advantage_C, clipped_C)
    + torch.maximum(ratio_C * advantage_C, clipped_C)

The first line names the source file, the tests that should fail, and the kind: `plain` (a typical slip), `hole` (a
place where a hole in the tests was once found), or `equivalent` (argued, in the second line, to change no result; it is
not run). The `-` code must occur exactly once in the file; white space, comments and trailing commas do not matter.

The tests run once without a mutant, all that are named of a file together, in a copy of the tree. Then each mutant is
applied to a copy of that copy, in which everything is compiled already, and its tests run there until the first
failure. WORD selects the mutants whose path, tests or effect contain it. Exit status 1 if a mutant survives, 2 if a
test fails without any.
"""

import argparse
import io
import itertools
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KINDS = ("plain", "hole", "equivalent")
LAYOUT = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.COMMENT, tokenize.ENDMARKER}


@dataclass(frozen=True)
class Mutant:
    """One change: in `path`, the code `before` becomes `after`; `tests` should then fail."""

    path: str
    tests: tuple[str, ...]
    kind: str
    effect: str
    before: str
    after: str


def read_mutants(folder: Path) -> list[Mutant]:
    """All mutants of the lists in `folder`; ValueError for a block that is not complete."""
    blocks = [
        block for path in sorted(folder.glob("*.txt")) for block in re.split(r"^@ ", path.read_text(), flags=re.M)[1:]
    ]
    return [_parse(block) for block in blocks]


def _parse(block: str) -> Mutant:
    header, effect, *lines = block.strip("\n").splitlines()
    path, tests, kind = (part.strip() for part in header.split("|"))
    before = "\n".join(line[2:] for line in lines if line.startswith("- "))
    after = "\n".join(line[2:] for line in lines if line.startswith("+ "))
    if kind not in KINDS or not before or not tests:
        raise ValueError(f"not a mutant: {block}")
    return Mutant(path, tuple(tests.split()), kind, effect, before, after)


def mutate(source: str, before: str, after: str) -> str:
    """`source` with the only occurrence of the code `before` replaced; ValueError if there is none, or more than
    one."""
    found, wanted = _tokens(source), [token.string for token in _tokens(before)]
    starts = [
        start
        for start in range(len(found) - len(wanted) + 1)
        if [token.string for token in found[start : start + len(wanted)]] == wanted
    ]
    if len(starts) != 1:
        raise ValueError(f"occurs {len(starts)} times: {before}")
    first, last = found[starts[0]], found[starts[0] + len(wanted) - 1]
    lines = source.splitlines(keepends=True)
    offsets = [0]
    for line in lines:
        offsets.append(offsets[-1] + len(line))
    begin, end = offsets[first.start[0] - 1] + first.start[1], offsets[last.end[0] - 1] + last.end[1]
    return source[:begin] + after.replace("\n", "\n" + " " * first.start[1]) + source[end:]


def _tokens(source: str) -> list[tokenize.TokenInfo]:
    """The tokens that mean something: no layout, no comments, no comma before a closing bracket."""
    tokens = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type in LAYOUT or not token.string:
                continue
            if token.string in (")", "]", "}") and tokens and tokens[-1].string == ",":
                tokens.pop()
            tokens.append(token)
    except (tokenize.TokenError, IndentationError):
        pass  # a fragment may end inside a bracket
    return tokens


def file_of(test: str) -> str:
    return test.partition("::")[0]


def by_file(mutants: list[Mutant]) -> list[tuple[str, ...]]:
    """All tests that the mutants name, of each file together; a file that is named whole, as a whole."""
    named = {test for mutant in mutants for test in mutant.tests}
    wanted = sorted(test for test in named if test == file_of(test) or file_of(test) not in named)
    return [tuple(tests) for _, tests in itertools.groupby(wanted, file_of)]


def copy_tree(folder: Path) -> None:
    """Every file that git tracks or would track."""
    names = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\n")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)


def run_tests(tree: Path, tests: tuple[str, ...], mutant: Mutant | None = None) -> None:
    """In a process of its own: exit status 0 if the tests pass in the tree, or in a copy of it with the mutant
    applied."""
    os.setpgid(0, 0)
    own = tempfile.mkdtemp(dir=tree.parent)
    try:
        if mutant:
            tree = shutil.copytree(tree, Path(own, "project"), copy_function=os.link)
            source = tree / mutant.path
            changed = mutate(source.read_text(), mutant.before, mutant.after)
            source.unlink()  # or the other trees would change, too
            source.write_text(changed)
            os.environ["PYTHONDONTWRITEBYTECODE"], sys.dont_write_bytecode = "1", True
        os.chdir(tree)
        os.environ["PYTHONPATH"] = str(tree)
        sys.path[:] = [str(tree), *(path for path in sys.path if path not in ("", str(ROOT)))]
        with open(os.devnull, "w") as nothing:
            os.dup2(nothing.fileno(), 1)
            os.dup2(nothing.fileno(), 2)
        import pytest

        status = int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *tests]))
    finally:
        os.chdir("/")
        shutil.rmtree(own, ignore_errors=True)
    os._exit(status)


def run_all(work: list[tuple], jobs: int, timeout: float) -> Iterator[tuple]:
    """Run each (tree, tests, mutant) in a forked process, `jobs` at a time; yield it, and whether the tests passed.
    What takes longer than `timeout` has failed."""
    context, waiting, running = multiprocessing.get_context("fork"), list(reversed(work)), []
    while waiting or running:
        while waiting and len(running) < jobs:
            process = context.Process(target=run_tests, args=waiting[-1])
            process.start()
            running.append((process, time.monotonic() + timeout, waiting.pop()))
        for entry in list(running):
            process, ends, run = entry
            if process.is_alive() and time.monotonic() < ends:
                continue
            if process.is_alive():
                os.killpg(process.pid, 9)
            process.join()
            running.remove(entry)
            yield *run, process.exitcode == 0
        time.sleep(0.05)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("words", nargs="*", metavar="WORD", help="only mutants that contain one of these")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at a time")
    parser.add_argument("--timeout", type=float, default=300, help="seconds after which a mutant counts as noticed")
    options = parser.parse_args()
    mutants = [
        m
        for m in read_mutants(Path(__file__).parent)
        if not options.words or any(word in f"{m.path} {m.tests} {m.effect}" for word in options.words)
    ]
    chosen = [m for m in mutants if m.kind != "equivalent"]
    for m in mutants:
        mutate((ROOT / m.path).read_text(), m.before, m.after)  # every block still fits the code
    os.environ.setdefault("TRITON_INTERPRET", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("PATIENCE_S", "60")  # of tests that wait for what a mutant never does
    import hypothesis  # noqa: F401  imported once here, shared by every forked run
    import torch  # noqa: F401
    import transformers  # noqa: F401

    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = Path(folder, "tree")
        copy_tree(tree)
        without = [(tree, tests) for tests in by_file(chosen)]
        broken = {file_of(run[1][0]) for *run, passed in run_all(without, options.jobs, options.timeout) if not passed}
        if broken:
            print("tests of these files fail without any mutant, so theirs are left out:", *broken, sep="\n  ")
        work = [(tree, m.tests, m) for m in chosen if broken.isdisjoint(map(file_of, m.tests))]
        survivors = 0
        for *_, mutant, passed in run_all(work, options.jobs, options.timeout):
            print(f"{'SURVIVES' if passed else 'noticed':8} {mutant.path}: {mutant.effect}", flush=True)
            survivors += passed
    print(f"{len(work) - survivors} of {len(work)} noticed")
    return 2 if broken else int(survivors > 0)


if __name__ == "__main__":
    sys.exit(main())

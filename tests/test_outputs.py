"""What a command writes besides its result, and where: the old file or the new one, and never over its own input."""

import json
import os

import pytest
from commands import run_command
from making import read_lines

ROW = {"completion": "\\boxed{4}\u2028", "answer": "4"}  # what follows the box ends no line of a file
OLD = '{"completion": "of an earlier day"}\n'
FAILURES = {  # what ends `score` before, or while, it writes
    "a row without a completion": ([ROW, {"answer": "4"}], "math", None),
    "a reward that raises": ([ROW], "./mine.py:f", None),
    "a full disk": ([ROW] * 200, "math", 2000),
    "a kill before the new file is in place": ([ROW], "math", "write-out.jsonl"),
}


def limit(bytes_):
    def set_limit():
        import resource
        import signal

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_, bytes_))

    return set_limit


@pytest.mark.parametrize("case", [None, *FAILURES])
def test_score_replaces_its_output_whole_or_not_at_all(tmp_path, case):
    rows, reward, how = FAILURES.get(case, ([ROW, ROW], "math", None))
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "mine.py").write_text("def f(completions, **columns):\n    return 1 / 0\n")
    out.write_text(OLD)
    before = {"write-out.jsonl": lambda: os.environ.update(FAILPOINT=how)}.get(how, how and limit(how))
    reward = reward.replace("./", f"{tmp_path}/")
    done = run_command("rewards.score", "--reward", reward, source, "--output", out, before=before)
    if case is None:
        assert done.returncode == 0, done.stderr
        assert [(row["completion"], row["rewards"]) for row in read_lines(out)] == [
            (ROW["completion"], {"math": 1.0})
        ] * 2
    else:
        assert done.returncode == (-9 if "kill" in case else 6 if "disk" in case else done.returncode or 1), done.stderr
        assert done.returncode != 0
        assert out.read_text() == OLD
        assert "Traceback" not in done.stderr
    if how is None:
        assert sorted(path.name for path in tmp_path.glob("*.tmp")) == []


@pytest.mark.parametrize("source_is_output", [False, True])
def test_score_may_replace_its_own_input(tmp_path, source_is_output):
    """It has been read by then; a row that cannot be read leaves it as it is."""
    source = tmp_path / "in.jsonl"
    source.write_text(json.dumps(ROW) + "\n" + ("{\n" if source_is_output else ""))
    before = source.read_text()
    done = run_command("rewards.score", "--reward", "math", source, "--output", source)
    assert (done.returncode != 0) == source_is_output
    assert (source.read_text() == before) == source_is_output

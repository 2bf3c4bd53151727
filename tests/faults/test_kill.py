"""kill -9 at every boundary: what is resumed ends in the very weights of a run that nobody disturbed."""

import json
import re
import signal

import pytest
from api_server import ApiServer, replies_with
from running import ROOT, lines, same_weights, state, write_config

from grpo.run import checkpoint
from grpo.run.run_dir import RunDir

KILLS = """
    step-sampled:3 step-graded:2 step-updated:3 log-append:1 log-append:3 log-appended:2 save-begun:1 save-begun:3
    save-tensors:2 save-written:2 save-complete:1 save-complete:3 save-renamed:2 save-retiring:1 save-replacing:2
    write-run_state.json:1 write-run_state.json:4 write-config.resolved.yaml:1 write-step-000002.jsonl:1
    save-begun:5 save-written:5 save-complete:5 save-replacing:5
""".split()  # the last four are of final/


@pytest.fixture(scope="module")
def undisturbed(processes, chat_checkpoint, tmp_path_factory):
    """A run of 4 steps."""
    folder = tmp_path_factory.mktemp("undisturbed")
    assert processes.train(write_config(folder, chat_checkpoint)).code == 0
    return folder / "run"


def lines_without_times(run_dir):
    measured = re.compile("time|per_second|memory")
    return [{name: value for name, value in row.items() if not measured.search(name)} for row in lines(run_dir)]


@pytest.mark.parametrize("place", KILLS)
def test_killed_and_resumed_equals_undisturbed(processes, chat_checkpoint, undisturbed, tmp_path, place):
    config = write_config(tmp_path, chat_checkpoint)
    killed = processes.train(config, FAILPOINT=place)
    assert killed.code == -signal.SIGKILL, f"{place} was never passed: {killed.stderr}"
    for folder in checkpoint.checkpoints(tmp_path / "run"):  # at most the one that was being removed is no longer whole
        assert not checkpoint.problem_with(folder) or place.startswith("save-retiring")
    assert not (tmp_path / "run" / "final").exists()
    resumed = processes.train(config, "resume_from_checkpoint=true")
    assert resumed.code == 0, resumed.stderr
    assert same_weights(tmp_path / "run", undisturbed)
    assert lines_without_times(tmp_path / "run") == lines_without_times(undisturbed)
    assert not [path.name for path in (tmp_path / "run").rglob("*") if path.name.endswith((".tmp", ".unfinished"))]
    RunDir(tmp_path / "run", resume=True, overwrite=False).close(0, "")  # the lock is free


def test_every_failpoint_of_the_program_is_killed_at():
    """A boundary that is added has to be added to a matrix as well."""
    text = "\n".join(
        path.read_text() for package in ("grpo", "rewards", "knowledge") for path in (ROOT / package).rglob("*.py")
    )
    places = set(re.findall(r'failpoint\("([\w-]+)"\)', text))
    assert len(places) >= 12
    tested = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert places <= set(re.findall(r"[\"\s]([\w-]+):\d", tested))


def test_a_torn_line_of_metrics_is_dropped(processes, chat_checkpoint, undisturbed, tmp_path):
    config = write_config(tmp_path, chat_checkpoint)
    assert processes.train(config, FAILPOINT="step-sampled:4").code == -signal.SIGKILL
    with open(tmp_path / "run" / "metrics.jsonl", "a") as file:
        file.write('{"step": 4, "lo')
    assert processes.train(config, "resume_from_checkpoint=true").code == 0
    assert lines_without_times(tmp_path / "run") == lines_without_times(undisturbed)


@pytest.mark.parametrize("place", ["cache-write:3", "cache-written:7"])
def test_a_cache_killed_while_it_is_written_is_sound_and_pays_for_nothing_twice(
    processes, chat_checkpoint, tmp_path, place
):
    def grade(request) -> str:
        is_preflight = "the capital of France" in request.text
        return "A" if is_preflight else "ABC"[len(request.text) % 3]

    cache = str(tmp_path / "cache.db")
    keys = {"reward_funcs": ["correctness"], "judge_model": "m", "api_cache": cache, "max_steps": 2}
    with ApiServer(default=replies_with(grade)) as server:
        environment = {"OPENAI_API_KEY_JUDGE": "canary-key", "setup": "talkative"}
        config = write_config(tmp_path, chat_checkpoint, judge_base_url=server.url, **keys)
        killed = processes.train(config, FAILPOINT=place, **environment)
        assert killed.code == -signal.SIGKILL, killed.stderr
        before = {candidate(request) for request in server.requests}
        assert processes.train(config, "resume_from_checkpoint=true", **environment).code == 0
        asked = [candidate(request) for request in server.requests]
    again = {text for text in before if asked.count(text) > 1}
    num_kept = 2 if place.startswith("cache-write:") else 7
    assert len(before) >= 3 and len(again) <= len(before) - num_kept + 1  # + the preflight's own question
    whole = write_config(tmp_path, chat_checkpoint, "whole", **{**keys, "api_cache": None})
    with ApiServer(default=replies_with(grade)) as server:
        assert processes.train(whole, f"judge_base_url={server.url}", **environment).code == 0
    assert same_weights(tmp_path / "run", tmp_path / "whole")


def candidate(request) -> str:
    """The answer that is graded, which stands in the last fence."""
    return request.text.split("<candidate")[1].split("\n")[1]


@pytest.mark.parametrize("place", ["build-rows:50", "build-filled:1", "build-compacted:1", "build-renamed:1"])
def test_a_killed_knowledge_build_leaves_the_old_file_or_the_whole_new_one(processes, tmp_path, place):
    from knowledge.store.base import KnowledgeBase

    source, out = tmp_path / "source.jsonl", tmp_path / "out.db"
    source.write_text(
        "".join(json.dumps({"title": f"Title {n}", "text": f"Text number {n}."}) + "\n" for n in range(100))
    )
    out.write_bytes(b"old")
    killed = processes.start("knowledge.build", source, out, FAILPOINT=place)
    assert killed.wait() == -signal.SIGKILL, killed.stderr
    if place.startswith("build-renamed"):
        with KnowledgeBase.open(out) as base:
            assert base.lookup("Title 99").how == "exact"
    else:
        assert out.read_bytes() == b"old"
    assert processes.start("knowledge.build", source, out).wait() == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.db", "source.jsonl"]


def test_the_record_of_a_killed_run_names_it(processes, chat_checkpoint, tmp_path):
    killed = processes.train(write_config(tmp_path, chat_checkpoint), FAILPOINT="step-sampled:3")
    found = state(tmp_path / "run")
    told = {"status": "running", "exit_code": None, "last_checkpoint": "checkpoint-2", "pid": killed.pid}
    assert found | told == found

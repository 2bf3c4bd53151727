"""kill -9 at every boundary: what is resumed ends in the very weights of a run that nobody disturbed."""

import re
from signal import SIGKILL

import pytest
from api_server import ApiServer, says
from commands import source_files
from making import build_base, write_rows
from running import JUDGED

from grpo.run import checkpoint
from grpo.run.run_dir import RunDir
from knowledge.store.base import KnowledgeBase

KILLS = """
    step-sampled:3 step-graded:2 step-updated:3 log-append:1 log-append:3 log-appended:2 save-begun:1 save-begun:3
    save-tensors:2 save-written:2 save-complete:1 save-complete:3 save-renamed:2 save-retiring:1 save-replacing:2
    write-run_state.json:1 write-run_state.json:4 write-config.resolved.yaml:1 write-step-000002.jsonl:1
    save-begun:5 save-written:5 save-complete:5 save-replacing:5
""".split()  # the last four are of final/


def lines_without_times(run):
    measured = re.compile("time|per_second|memory")
    return [{name: value for name, value in row.items() if not measured.search(name)} for row in run.lines]


@pytest.mark.parametrize("place", KILLS)
def test_killed_and_resumed_equals_undisturbed(make_run, undisturbed, place):
    run = make_run()
    killed = run.train(FAILPOINT=place, code=-SIGKILL)  # another code: the place was never passed
    if place == "step-sampled:3":
        told = {"status": "running", "exit_code": None, "last_checkpoint": "checkpoint-2", "pid": killed.pid}
        assert run.state | told == run.state
        with open(run.folder / "metrics.jsonl", "a") as file:  # a torn line
            file.write('{"step": 3, "lo')
    for folder in checkpoint.checkpoints(run.folder):  # at most the one that was being removed is no longer whole
        assert not checkpoint.problem_with(folder) or place.startswith("save-retiring")
    assert not (run.folder / "final").exists()
    run.resume()
    assert run.equals(undisturbed)
    assert lines_without_times(run) == lines_without_times(undisturbed)
    assert not [path.name for path in run.folder.rglob("*") if path.name.endswith((".tmp", ".unfinished"))]
    RunDir(run.folder, resume=True, overwrite=False).close(0, "")  # the lock is free


def test_every_failpoint_of_the_program_is_killed_at():
    """A boundary that is added has to be added to a matrix as well."""
    program = "\n".join(path.read_text() for path in source_files("grpo", "rewards", "knowledge"))
    tests = "\n".join(path.read_text() for path in source_files("tests"))
    places = set(re.findall(r'failpoint\("([\w-]+)"\)', program))
    assert len(places) >= 12
    assert places <= set(re.findall(r"[\"\s]([\w-]+):\d", tests))


def candidate(request):
    """The answer that is graded, which stands in the last fence."""
    return request.text.split("<candidate")[1].split("\n")[1]


@pytest.mark.parametrize(("place", "num_kept"), [("cache-write:3", 2), ("cache-written:7", 7)])
def test_a_cache_killed_while_it_is_written_is_sound_and_pays_for_nothing_twice(judged_run, tmp_path, place, num_kept):
    def grade(request):
        is_preflight = "the capital of France" in request.text
        return "A" if is_preflight else "ABC"[len(request.text) % 3]

    with ApiServer(default=says(grade)) as server:
        run = judged_run(server, max_steps=2, api_cache=str(tmp_path / "cache.db"))
        run.train(FAILPOINT=place, code=-SIGKILL, **JUDGED)
        before = {candidate(request) for request in server.requests}
        run.resume(**JUDGED)
        asked = [candidate(request) for request in server.requests]
        whole = judged_run(server, "whole", max_steps=2)
        whole.train(**JUDGED)
    again = [text for text in before if asked.count(text) > 1]
    assert len(before) >= 3
    assert len(again) <= len(before) - num_kept + 1  # + the preflight's own question
    assert run.equals(whole)


@pytest.mark.parametrize("place", ["build-rows:50", "build-filled:1", "build-compacted:1", "build-renamed:1"])
def test_a_killed_knowledge_build_leaves_the_old_file_or_the_whole_new_one(processes, tmp_path, place):
    documents = [{"title": f"Title {n}", "text": f"Text number {n}."} for n in range(100)]
    source, out = write_rows(tmp_path / "source.jsonl", documents), build_base(tmp_path, {"Title 0": "Text"})
    old, before = out.read_bytes(), {*tmp_path.iterdir()}
    processes.start("knowledge.build", source, out, FAILPOINT=place).ends(-SIGKILL)
    assert (out.read_bytes() == old) != place.startswith("build-renamed")
    (left,) = {*tmp_path.iterdir()} - before  # a folder that says what it is
    assert left.name.startswith("base.db.unfinished-")
    if out.read_bytes() == old:
        processes.start("knowledge.build", source, out).ends(0)
    with KnowledgeBase(out) as base:
        assert base.lookup("Title 99").how == "exact"

"""Users' functions run one after the other, on the thread that trains: what needs that works, and what hangs is ended.

Judges and `async def` go on meanwhile.
"""

import asyncio
import logging
import os
import pickle
import queue
import re
import signal
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from decimal import Decimal, localcontext
from types import SimpleNamespace

import pytest
import torch
from api_server import ApiServer
from asking import PATIENCE_S, at_any_pace, check, client_of, until
from making import grade_groups, make_answers, of_each, read_lines
from test_own import rewards_of

from grpo.algorithm.schema import Score
from grpo.api import train
from grpo.run.signals import Signals
from rewards.own_names import find_object
from rewards.registry import Reward
from rewards.scorer import Scorer

FUNCTIONS = '''
import contextlib, io, os, random, time
from pathlib import Path
import torch

HERE = Path(__file__).parent
last = None

def prints(completions, answer, **columns):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        for word in answer:
            print(word)
            time.sleep(0.005)
    return [float(len(out.getvalue()) + int(answer[0]))] * len(answer)

def writes(completions, answer, **columns):
    (HERE / "scratch").write_text(answer[0])
    time.sleep(0.005)
    return [float((HERE / "scratch").read_text())] * len(answer)

def keeps(completions, answer, **columns):
    global last
    last = answer[0]
    time.sleep(0.005)
    return [float(last)] * len(answer)

def seeds(completions, answer, **columns):
    random.seed(int(answer[0]))
    time.sleep(0.005)
    return [random.random() for _ in answer]

def forks(completions, answer, **columns):
    child = os.fork()
    if child == 0:
        os._exit(int(answer[0]))
    return [float(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))] * len(answer)

def moves(completions, answer, **columns):
    """Leaves another directory behind, and no gradients."""
    torch.set_grad_enabled(False)
    folder = HERE / f"folder of {answer[0]}"
    folder.mkdir(exist_ok=True)
    os.chdir(folder)
    time.sleep(0.005)
    return [float(Path().absolute().name.split()[-1])] * len(answer)
'''
NAMES = ("prints", "writes", "keeps", "seeds", "forks", "moves")
ROWS = [{"question": f"What is {a} + 1?", "answer": str(a + 1)} for a in range(8)]


@pytest.fixture
def restored(monkeypatch, tmp_path):
    """What the functions above leave behind is put back."""
    monkeypatch.chdir(tmp_path)
    yield
    torch.set_grad_enabled(True)


def test_rewards_are_the_same_with_1_2_and_8_questions_in_a_step(chat_checkpoint, tmp_path, restored):
    """Also, a relative output_dir is one folder, whichever directory the functions leave behind."""
    (tmp_path / "mine.py").write_text(FUNCTIONS)
    keys = {"num_generations": 2, "max_completion_length": 4, "report_to": ["none"], "device": "cpu", "lora_r": 2}
    keys |= {"learning_rate": 0, "logging_steps": 1, "save_steps": 1, "save_total_limit": 0}
    found = {1: {}, 2: {}, 8: {}}
    for num_questions, rewards in found.items():
        os.chdir(tmp_path)
        steps = 8 // num_questions
        keys |= {"per_device_train_batch_size": 2 * num_questions, "max_steps": steps}
        train(chat_checkpoint, ROWS, [f"{tmp_path}/mine.py:{name}" for name in NAMES], f"run{num_questions}", **keys)
        folder = tmp_path / f"run{num_questions}"
        for file in sorted((folder / "completions").iterdir()):
            for record in read_lines(file):
                rewards.setdefault(record["question"], []).append(record["rewards"])
        made = {path.name for path in folder.iterdir()}
        assert {"final", "report.html", "metrics.jsonl", *(f"checkpoint-{n + 1}" for n in range(steps))} <= made
    assert found[1] == found[2] == found[8] and len(found[1]) == 8
    assert not [path for path in tmp_path.glob("folder of *") if list(path.iterdir())]


# --- what needs the main thread --------------------------------------------------------------------------------------


def test_alarms_belong_to_users():
    """One rings within the function, with a handler that stays; the deadline stays, too."""

    class Rung(Exception):
        pass

    def ring(number, frame):
        raise Rung

    def alarmed(completions, **columns):
        signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        with pytest.raises(Rung):
            time.sleep(PATIENCE_S)
        signal.alarm(0)
        if completions == ["late"]:
            time.sleep(PATIENCE_S)
        return [1.0] * len(completions)

    before = signal.getsignal(signal.SIGALRM)
    try:
        assert rewards_of(alarmed) == [1.0, 1.0] and rewards_of(alarmed, 0.3, texts=["late"]) == [None]
        assert signal.getsignal(signal.SIGALRM) == ring
    finally:
        signal.signal(signal.SIGALRM, before)


def test_what_belongs_to_the_main_thread_is_there(monkeypatch):
    """A connection that was opened at import, the precision of decimals, and the event loop, also after a preflight."""
    loop, connection = asyncio.new_event_loop(), sqlite3.connect(":memory:")
    asyncio.set_event_loop(loop)

    def uses(completions, **columns):
        assert asyncio.get_event_loop() is loop and loop.run_until_complete(asyncio.sleep(0, 1)) == 1
        assert str(Decimal(1) / 3) == "0.333" and connection.execute("SELECT 1").fetchone() == (1,)
        return [1.0] * len(completions)

    with ApiServer() as server, localcontext() as context:
        context.prec = 3
        check(client_of(server))
        assert rewards_of(uses) == [1.0, 1.0]
    asyncio.set_event_loop(None)
    loop.close(), connection.close()


# --- deadlines --------------------------------------------------------------------------------------------------------


def swallows(_):
    with suppress(BaseException):
        time.sleep(PATIENCE_S)
    time.sleep(PATIENCE_S)


def computes(_):
    while True:
        pass


HANGING = {
    "sleep": lambda _: time.sleep(PATIENCE_S),
    "queue": lambda _: queue.Queue().get(),
    "subprocess": lambda _: subprocess.run([sys.executable, "-c", "import time; time.sleep(10_000)"]),
    "loop": computes,
    "regular expression": lambda _: re.match(r"(a|aa)+$", "a" * 80 + "b"),
    "swallowed": swallows,
    "awaitable": lambda _: asyncio.sleep(PATIENCE_S),
}


@pytest.fixture
def alarm():
    """Ends what no deadline has ended, long before this test would give up; then the test fails."""
    rung = []

    def ring(number, frame):
        rung.append(number)
        raise AssertionError("no deadline")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE_S / 20, 1)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
    assert not rung


@pytest.mark.parametrize("way", HANGING)
def test_whatever_hangs_is_ended(alarm, way):
    before, started = signal.getsignal(signal.SIGPROF), time.monotonic()
    groups = [make_answers({"hangs": hangs}, "a", "b") for hangs in (True, False)]

    def hangs_once(completions, hangs, **columns):
        return HANGING[way](completions) if hangs[0] else [1.0] * len(completions)

    grade_groups([Reward("m:f", function=hangs_once, timeout_s=0.2)], *groups)
    assert of_each(groups[0], "reward") == [None, None] and of_each(groups[1], "reward") == [1.0, 1.0]
    assert groups[0].completions[0].scores["m:f"].reason == "no answer within 0.2 s (reward_timeout_s)"
    assert time.monotonic() - started < PATIENCE_S / 2
    assert signal.getsignal(signal.SIGPROF) == before and signal.getitimer(signal.ITIMER_PROF) == (0, 0)


def test_what_nothing_can_end_is_waited_for_and_named_once(caplog):
    """On another thread than the main one, as if training ran there."""
    groups, told = [make_answers({}, "a") for _ in range(2)], []

    def slow(completions, **columns):
        told.append(until(lambda: "m:f takes more than 0.05 s" in caplog.text))
        return [1.0]

    with caplog.at_level(logging.WARNING), ThreadPoolExecutor(1) as pool:
        pool.submit(grade_groups, [Reward("m:f", function=slow, timeout_s=0.05)], groups[0]).result()
    assert of_each(groups[0], "reward") == [None] and told == [True]
    assert [record.message for record in caplog.records if "the run waits" in record.message] == caplog.messages
    assert len(caplog.messages) == 1


# --- processes --------------------------------------------------------------------------------------------------------


def test_children_have_the_default_handlers_and_do_not_train():
    """One that is terminated ends at once, though a run has handlers; one that returns ends where it is."""
    received = Signals(SimpleNamespace(is_main=False))

    def forks(completions, **columns):
        sleeper = os.fork()
        if sleeper == 0:
            found = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGVTALRM, signal.SIGPROF)]
            os._exit(7) if found != [signal.SIG_DFL] * 3 else time.sleep(PATIENCE_S)
        time.sleep(0.05)
        os.kill(sleeper, signal.SIGTERM)
        child = os.fork()
        if child == 0:
            sys.exit(3) if completions == ["a"] else []
            return "and goes on"
        codes = [os.waitstatus_to_exitcode(os.waitpid(one, 0)[1]) for one in (sleeper, child)]
        return codes[-len(completions) :]

    received.open()
    try:
        assert rewards_of(forks) == [-15.0, 0.0] and rewards_of(forks, texts=["a"]) == [3.0]
    finally:
        received.close()


def test_what_a_file_defines_can_be_sent_to_other_processes(tmp_path):
    """Also where another module has the file's name: then forked ones know it."""
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "rewards_of_mine.py").write_text("def f(completions, **_): return [0.0]")
    first, second = [find_object(f"{tmp_path}/{folder}/rewards_of_mine.py:f") for folder in ("one", "two")]
    assert first.__module__ == "rewards_of_mine" and first is not second
    assert all(pickle.loads(pickle.dumps(function)) is function for function in (first, second))


# --- what goes on meanwhile ------------------------------------------------------------------------------------------


@at_any_pace
def test_judges_and_coroutines_go_on_while_functions_run(pace):
    """Eight functions of 0.05 s are called within the half second that the others wait."""
    ended = {}

    def plain(completions, **columns):
        time.sleep(0.05 * pace)
        ended["plain"] = time.monotonic()
        return [1.0] * len(completions)

    async def service(completions, **columns):
        await asyncio.sleep(0.5 * pace)
        return [1.0] * len(completions)

    async def judge(text, row):
        await asyncio.sleep(0.5 * pace)
        return Score(1.0)

    rewards = [Reward("m:f", function=plain), Reward("m:g", function=service), Reward("judge", grade=judge)]
    groups, started = [make_answers({}, "a", "b") for _ in range(8)], time.monotonic()
    scorer = Scorer(rewards)
    scorer.grade(groups)
    took = time.monotonic() - started
    scorer.close()
    assert all(of_each(group, "reward") == [3.0, 3.0] for group in groups)
    assert ended["plain"] - started < 0.5 * pace and took < 0.8 * pace  # one after the other: 1.4

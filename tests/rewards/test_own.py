"""Users' own rewards: found under every kind of name, called as TRL calls them, stopped at their deadline.

The functions have the forms of those in TRL's documentation.
"""

import asyncio
import functools
import gc
import math
import sys
import threading
import time
from copy import deepcopy
from dataclasses import FrozenInstanceError
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch
from asking import PATIENCE_S, at_any_pace, until
from cells import rows
from making import grade_groups, make_answers, of_each, refused

from grpo.algorithm.schema import Score
from grpo.base.errors import INTERNAL, UserError
from rewards.deadline import TimeOver, in_time
from rewards.own import as_function, needed_columns
from rewards.own_names import short_name
from rewards.registry import Reward, build_rewards
from rewards.scorer import Scorer

FILE = """
import helper
from dataclasses import dataclass

def brevity(prompts, completions, **columns):
    return [-float(len(text)) for text in completions]

class Weighted:
    def __init__(self, weight=helper.WEIGHT):
        self.weight = weight
    def __call__(self, completions, **columns):
        return [self.weight * len(text) for text in completions]
    @staticmethod
    def static(completions, **columns):
        return [7.0] * len(completions)

heavy = Weighted(10.0)
text = "no function"
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a file of rewards named like this program's own package, and a helper that it imports."""
    (tmp_path / "rewards.py").write_text(FILE)
    (tmp_path / "helper.py").write_text("WEIGHT = 2.0\n")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "of_mine.py").write_text("def f(completions, **_): return [3.0] * len(completions)")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "package")])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def graded(*rewards, columns=None, messages=(), texts=("a", "bbb")):
    """The scores of a group, as the scorer gives them: of each completion, reward name -> score."""
    group = make_answers(columns or {}, *texts)
    object.__setattr__(group.prompt, "messages", messages)
    grade_groups(rewards, group)
    return group


def rewards_of(function, timeout_s=PATIENCE_S, **options):
    return of_each(graded(Reward("mine:f", function=function, timeout_s=timeout_s), **options), "reward")


# --- names --------------------------------------------------------------------------------------------------------


NAMES = rows("""
    ./rewards.py:brevity | -1 -3 ¦ rewards.py:heavy | 10 30 ¦ rewards.py:Weighted | 2 6 ¦ of_mine:f | 3 3
    rewards.py:Weighted.static | 7 7 ¦ {folder}/rewards.py:brevity | -1 -3
    """)


@pytest.mark.parametrize("name, wanted", NAMES)
def test_a_name_is_a_function_of_a_module_or_of_a_file(folder, name, wanted):
    (reward,) = build_rewards([name.replace("{folder}", str(folder))], {"reward_timeout_s": 5})
    assert of_each(graded(reward), "reward") == list(map(float, wanted.split()))
    assert reward.timeout_s == 5 and "/" not in reward.name


def test_metrics_name_a_file_without_its_folder(folder):
    assert short_name("../my rewards/brevity.py:f.g") == "brevity:f.g" and short_name("a.b:f") == "a.b:f"
    (folder / "other").mkdir()
    (folder / "other" / "rewards.py").write_text("def brevity(completions, **_): return [0.0] * len(completions)")
    with pytest.raises(UserError, match="two rewards are named rewards:brevity"):
        build_rewards(["./rewards.py:brevity", "other/rewards.py:brevity"], {"reward_timeout_s": 5})


NOT_IMPORTED = rows(r"""
    ./absent.py:f | | FileNotFoundError ¦ ./mine.py:f | def f(: | mine.py:1 ¦ absent_module:f | | No module named
    ./mine.py:f | x = 1\nimport numpyy | mine.py:2 ¦ rewards:f | | no attribute 'f'
    ./mine.py:f | import sys\nsys.exit(0) | SystemExit: 0 ({folder}/mine.py:2
    """)
NOT_CALLED = rows(r"""
    ./mine.py:f | f = 3 | is no function ¦ ./mine.py:f | def f(prompt, **columns): pass | asks for prompt
    ./mine.py:f | class f:\n    def __init__(self, weight): pass | missing 1 required positional argument
    ./mine.py:f | class C:\n    __signature__ = 3\n    def __call__(self, **_): pass\nf = C() | is no function
    ./mine.py:f | def f(prompts, completions): pass | takes no **kwargs
    ./mine.py:f | def f(prompts, completions, /, **columns): pass | takes no **kwargs
    """)


@pytest.mark.parametrize("case", NOT_IMPORTED + NOT_CALLED)
def test_what_cannot_be_imported_or_called_is_refused_before_the_run(tmp_path, monkeypatch, case):
    name, text, why = case
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(text)
    what = "cannot import the reward" if case in NOT_IMPORTED else "the reward"
    before = {*sys.modules}
    for _ in range(2):  # each time
        build = functools.partial(build_rewards, [name], {"reward_timeout_s": 5})
        refused(build, what, why.replace("{folder}", str(tmp_path)), exit_code=2)
    assert case in NOT_CALLED or not [name for name in {*sys.modules} - before if "mine" in name]  # no half of it


def test_parameters_without_a_default_are_columns_that_the_data_must_have(tmp_path):
    def f(prompts, completions, ground_truth, *, task, level=3, **columns):
        return [0.0]

    @functools.wraps(f)
    def decorated(completions, **columns):
        return [0.0]

    assert needed_columns(f) == ("ground_truth", "task")
    assert as_function("m:f", decorated) is decorated and needed_columns(decorated) == ()
    (tmp_path / "mine.py").write_text("def f(completions, ground_truth, **columns): return [0.0]")
    assert build_rewards([f"{tmp_path}/mine.py:f"], {"reward_timeout_s": 5})[0].needs == ("ground_truth",)


# --- the forms in TRL's documentation ------------------------------------------------------------------------------


def test_conversations_are_passed_as_messages():
    asked = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is (1 + 2) * 4?"})

    def is_twelve(prompts, completions, **kwargs):
        assert prompts == [list(asked)] * 2
        return [float(message == {"role": "assistant", "content": "12"}) for (message,) in completions]

    assert rewards_of(is_twelve, messages=asked, texts=("13", "12")) == [0.0, 1.0]


def test_columns_come_by_name_and_prompt_and_completion_do_not():
    def right(completions, ground_truth, **kwargs):
        assert not {"prompt", "completion"} & set(kwargs)
        return [1.0 if text == truth else 0.0 for text, truth in zip(completions, ground_truth, strict=True)]

    columns = {"ground_truth": "bbb", "prompt": "x", "completion": "y", "prompts": "x", "completions": "y"}
    assert rewards_of(right, columns=columns) == [0.0, 1.0]


def test_functions_for_several_tasks_leave_out_the_prompts_of_the_others():
    """None for a whole group: the others count alone. None for a part of it: that completion cannot be scored."""

    def of_math(completions, task, **kwargs):
        return [1.0 if kind == "math" else None for kind in task]

    def of_code(completions, task, **kwargs):
        return [-1.0 if kind == "code" else None for kind in task]

    rewards = [Reward("m:math", function=of_math), Reward("m:code", function=of_code)]
    for task, value in {"math": 1.0, "code": -1.0, "other": None}.items():
        assert of_each(graded(*rewards, columns={"task": task}), "reward") == [value, value]
    some = Reward("m:some", function=lambda completions, **_: [None, 2.0])
    assert of_each(graded(rewards[0], some, columns={"task": "math"}), "reward") == [None, 3.0]


def test_a_plain_function_may_hand_over_a_coroutine():
    async def lengths(completions, unit):
        await asyncio.sleep(0)
        return [unit * len(completion) for completion in completions]

    assert rewards_of(lambda completions, **_: lengths(completions, 2.0)) == [2.0, 6.0]


@pytest.mark.parametrize(
    "returned",
    [
        np.array([1, 2]),
        torch.tensor([1.0, 2.0], requires_grad=True),
        [np.float32(1), torch.tensor(2.0)],
        iter([True, 2]),
        (Fraction(1), Decimal(2)),
    ],
    ids=lambda returned: type(returned).__name__,
)
def test_arrays_and_tensors_are_lists_of_numbers(returned):
    assert rewards_of(lambda completions, **_: returned) == [1.0, 2.0]


@pytest.mark.parametrize(
    "returned",
    [
        *(np.ones((2, 1)), torch.ones(3), torch.tensor(1.0), {1.0, 2.0}, b"ab", ["1", "2"], [10**400, 1]),
    ],
    ids=lambda returned: repr(returned)[:30].partition(" at 0x")[0],
)
def test_what_is_no_list_of_numbers_is_refused(returned):
    with pytest.raises(UserError, match="mine:f"):
        rewards_of(lambda completions, **_: returned)


def spoil(value):
    """Change everything in place that can be changed."""
    if isinstance(value, list):
        for part in value:
            spoil(part)
        value.reverse()
        value.append("spoiled")
    elif isinstance(value, dict):
        for part in value.values():
            spoil(part)
        value["spoiled"] = "spoiled"


def test_a_function_may_change_whatever_it_is_given():
    """Nothing that is trained changes, and nothing that another reward sees: `ids.sort()` did both."""
    seen = []

    def spoils(log_extra, log_metric, trainer_state, **given):
        seen.append(deepcopy(given))
        spoil(given)
        with pytest.raises(FrozenInstanceError):
            trainer_state.global_step = 7
        return [1.0, 2.0]

    columns = {"answer": ["x", {"y": [1]}], "tests": {"in": [3, 1]}}
    asked = ({"role": "user", "content": [{"type": "text", "text": "q"}]},)
    before = deepcopy((columns, asked))
    group = make_answers(columns, "c", "dd")
    object.__setattr__(group.prompt, "messages", asked)
    for completion in group.completions:
        completion.ids = [9, 4, 7]
    grade_groups([Reward(f"m:{n}", function=spoils) for n in "ab"], group)
    assert seen[0] == seen[1] and seen[0]["completion_ids"] == [[9, 4, 7]] * 2
    assert of_each(group, "ids") == [[9, 4, 7]] * 2 and of_each(group, "text") == ["c", "dd"]
    assert (group.prompt.columns, group.prompt.messages) == before


NOT_NUMBERS = [math.nan, np.float32("inf"), torch.tensor(math.nan), -1e16]


@pytest.mark.parametrize("value", NOT_NUMBERS, ids=str)
def test_what_is_no_finite_number_is_unscorable_and_announced_once(value, caplog):
    def f(completions, **columns):
        return [1.0, value, 1e15]

    scorer, groups = Scorer([Reward("mine:f", function=f)]), [make_answers({}, "a", "b", "c") for _ in range(3)]
    scorer.check_numbers()
    scorer.grade(groups)
    scorer.close()
    assert [of_each(group, "reward") for group in groups] == [[1.0, None, 1e15]] * 3
    assert groups[0].completions[1].scores["mine:f"].reason.startswith(f"the reward returned {float(value)}: ")
    (said,) = [record.message for record in caplog.records]
    assert "mine:f returned" in said and "rewards/mine:f/unscored_frac" in said
    with pytest.raises(UserError, match="the reward mine:f returned"):
        scorer.check_numbers()


def test_names_that_a_function_logs_hold_no_secret(monkeypatch):
    monkeypatch.setenv("MY_API_KEY", "canary-123456")

    def f(completions, log_extra, log_metric, **columns):
        log_extra("canary-123456 \ud800", completions)
        log_metric("of canary-123456", 1.0)
        return [1.0] * len(completions)

    group = make_answers({}, "a")
    metrics = grade_groups([Reward(short_name("canary-123456.py:f"), function=f)], group)
    ((name, score),) = group.completions[0].scores.items()
    assert name == "[MY_API_KEY]:f" and score.details == {"extra": {"[MY_API_KEY] ?": "a"}}
    assert metrics["log/of [MY_API_KEY]"] == 1.0


def test_a_function_logs_columns_and_numbers():
    """What cannot be written as JSON is written as text."""

    def f(completions, log_extra, log_metric, **columns):
        log_extra("length", np.array([len(text) for text in completions]))
        log_extra("note", [float("nan"), "\ud800"])
        log_extra("facts", torch.tensor([0.5, 1.5]))
        for text in completions:
            log_metric("math/length", len(text))
        for number in (math.inf, 1e308, math.nan, 1.0):
            log_metric("no mean", number)
        return [1.0] * len(completions)

    columns = {"log_extra": "a column of this name is left out"}
    groups = [make_answers(columns, *texts) for texts in (("a", "b"), ("cccc", "dddd"))]
    metrics = grade_groups([Reward("m:f", function=f)], *groups)
    details = [completion.scores["m:f"].details for completion in groups[1].completions]
    assert details == [
        {"extra": {"length": 4, "note": "nan", "facts": 0.5}},
        {"extra": {"length": 4, "note": "?", "facts": 1.5}},
    ]
    assert metrics["log/math/length"] == 2.5 and math.isnan(metrics["log/no mean"])


@pytest.mark.parametrize(
    ("name", "value"),
    [("extra", [1]), ("extra", "ab"), ("metric", "much")],
)
def test_what_cannot_be_logged_is_told_with_its_place(name, value):
    def f(completions, log_extra, log_metric, **columns):
        (log_extra if name == "extra" else log_metric)("x", value)
        return [1.0] * len(completions)

    refused(lambda: rewards_of(f), "the reward mine:f failed", f"{__file__}:", exit_code=INTERNAL)


# --- faults -------------------------------------------------------------------------------------------------------


class OfMyOwn(BaseException):
    pass


RAISED = [ZeroDivisionError, SystemExit, asyncio.CancelledError, OfMyOwn, KeyboardInterrupt, StopIteration]


@pytest.mark.parametrize("kind", ["plain", "async", "within"])
@pytest.mark.parametrize("error", RAISED)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_whatever_a_function_raises_is_told_at_once_with_file_and_line(kind, error):
    """Those that are no Exception would end the thread or the event loop, and the reward would never answer."""

    def fails():
        raise error

    def plain(completions, **columns):
        fails()

    async def later(completions, **columns):
        fails()

    async def within(completions, **columns):
        await asyncio.create_task(later(completions))

    function, started = {"plain": plain, "async": later, "within": within}[kind], time.monotonic()
    reward = Reward("mine:f", function=function, timeout_s=PATIENCE_S)
    if kind == "plain" and error is KeyboardInterrupt:  # on the main thread
        with pytest.raises(KeyboardInterrupt):
            graded(reward)
    else:
        told = refused(lambda: graded(reward), "the reward mine:f failed", error.__name__, exit_code=INTERNAL)
        has_place = kind == "plain" or error is ZeroDivisionError  # asyncio raises others anew
        assert f"({__file__}:{fails.__code__.co_firstlineno + 1} in fails)" in told.why or not has_place
    assert time.monotonic() - started < PATIENCE_S / 2


@at_any_pace
def test_a_coroutine_that_blocks_holds_up_nobody_else(pace, recwarn):
    """Its own groups are unscorable once their time is over; the judge answers meanwhile. No coroutine is made that
    never begins."""
    free, done = threading.Event(), []

    async def blocks(completions, **columns):
        free.wait(20 * pace)
        return [1.0] * len(completions)

    async def judge(text, row):
        await asyncio.sleep(0.01)
        done.append(time.monotonic())
        return Score(1.0)

    scorer = Scorer([Reward("m:f", function=blocks, timeout_s=pace), Reward("judge", grade=judge)])
    groups, started = [make_answers({}, "a", "b") for _ in range(4)], time.monotonic()
    scorer.grade(groups)
    assert time.monotonic() - started < 3 * pace
    loop = scorer.own.loop.loop
    scorer.close()
    free.set()
    assert until(loop.is_closed)
    gc.collect()
    assert not [one for one in recwarn if "never awaited" in str(one.message)]
    assert max(done) - started < 0.9 * pace and len(done) == 8
    for group in groups:
        assert [score["judge"].value for score in of_each(group, "scores")] == [1.0, 1.0]
        assert group.completions[0].scores["m:f"].reason == f"no answer within {pace:g} s (reward_timeout_s)"


def test_coroutines_run_on_a_daemon_thread_and_keep_their_event_loop():
    """At its end Python waits for all threads but daemons. A function may keep a session open from call to call."""
    daemons, loops = [], set()

    async def waits(completions, **columns):
        loops.add(asyncio.get_running_loop())
        daemons.append(threading.current_thread().daemon)
        return [1.0] * len(completions)

    class Waits:
        async def __call__(self, completions, **columns):
            return await waits(completions)

    scorer = Scorer([Reward("m:f", function=waits), Reward("m:g", function=Waits())])
    for _ in range(2):
        scorer.grade([make_answers({}, "a")])
    scorer.close()
    assert daemons == [True] * 4 and len(loops) == 1


@at_any_pace
def test_past_its_deadline_a_coroutine_is_cancelled_and_the_next_group_is_graded(pace):
    """Also where it will not be."""
    free, cancelled = threading.Event(), threading.Event()

    async def waits(completions, hang, **columns):
        while hang[0] and not free.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                cancelled.set()
        return [1.0] * len(completions)

    scorer = Scorer([Reward("m:f", function=waits, timeout_s=0.2 * pace)])
    groups = [make_answers({"hang": hang}, "a") for hang in (True, False)]
    scorer.grade(groups)
    assert cancelled.wait(pace)  # and not at the scorer's end
    took = scorer.take_metrics()["rewards/m:f/time"]
    scorer.close()
    free.set()
    assert [of_each(group, "reward") for group in groups] == [[None], [1.0]] and 0.2 * pace <= took < 5 * pace


def test_the_time_may_be_over_before_the_thread_that_watches_it_runs(monkeypatch):
    def start(thread):
        time.sleep(0.02)
        raise TimeOver

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(TimeOver):
        in_time(0.01, lambda: None, lambda: None)

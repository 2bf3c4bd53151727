"""What a run records of its steps: every one in metrics.jsonl, means on the terminal and in trackers, which never end
it."""

import io
import json
import math
import re
import sys
from functools import partial

import pytest
from making import configured, make_answers, make_completion, read_lines, refused

from grpo.algorithm.schema import Prompt, Score
from grpo.base.storage import read_json, write_lines
from grpo.run.log import Log, completion_record, describe
from grpo.run.metrics import Window
from grpo.run.run import Run
from grpo.run.run_dir import RunDir
from grpo.run.trackers import TensorBoard


class StandIn:
    """A tracker's module, which remembers what it was told, or fails where it is asked to."""

    def __init__(self, failing=""):
        self.told, self.failing = [], failing
        self.init, self.log, self.finish = (partial(self.tell, name) for name in ("init", "log", "finish"))

    def tell(self, call, /, *arguments, **named):
        if call == self.failing:
            raise RuntimeError(f"{call} broke")
        self.told.append((call, arguments, named))

    def scalars(self):
        return [(named["step"], *arguments) for name, arguments, named in self.told if name == "log"]


@pytest.fixture
def modules(monkeypatch):
    """Stand-in modules of all services."""
    found = {name: StandIn() for name in ("wandb", "swanlab", "trackio")}
    for name, module in found.items():
        monkeypatch.setitem(sys.modules, name, module)
    return found


def steps(config, total, metrics=lambda step: {"reward": float(step)}, stop=None):
    """Record the steps of a run of `total` steps, as far as `stop`; return the lines of metrics.jsonl."""
    with Run(config) as run:
        run.start_log(total, 0)
        for step in range(1, (stop or total) + 1):
            run.report_step(step, {"step_time": 1.0, **metrics(step)}, [make_answers({}, "hello")])
    return read_lines(run.path / "metrics.jsonl")


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_printed_line_of_several_steps_is_their_mean(tmp_path, capsys):
    """In metrics.jsonl is every step; in completions/ the first one, those that are printed, and the last."""
    lines = steps(configured(tmp_path), 8)
    assert [(line["step"], line["reward"]) for line in lines] == [(step, step) for step in range(1, 9)]
    assert names(tmp_path / "run/completions") == [f"step-00000{step}.jsonl" for step in (1, 3, 6, 8)]
    printed = [line for line in capsys.readouterr().err.splitlines() if line.startswith("step ")]
    assert printed == [
        "step 3 of 8, mean of 3: reward +2.00",
        "step 6 of 8, mean of 3: reward +5.00",
        "step 8 of 8, mean of 2: reward +7.50",
    ]


def test_without_a_terminal_each_step_has_a_line_unless_there_is_to_be_no_progress(tmp_path, capsys):
    for hidden, number in (("false", 2), ("true", 0)):
        steps(configured(tmp_path / hidden, logging_steps=1, disable_tqdm=hidden), 2)
        assert capsys.readouterr().err.count(" of 2: reward +") == number


def test_a_run_that_is_stopped_prints_the_steps_of_an_unfinished_line(tmp_path, capsys):
    steps(configured(tmp_path, logging_steps=10), 20, stop=2)
    assert "step 2 of 20, mean of 2: reward +1.50" in capsys.readouterr().err


def test_a_bad_step_is_on_record_and_in_no_mean(tmp_path, capsys):
    def metrics(step):
        return {"reward": 1.0, "grad_norm": math.nan if step == 2 else 3.0}

    lines = steps(configured(tmp_path, logging_steps=4, log_completions="false"), 4, metrics)
    assert [line["grad_norm"] for line in lines] == [3.0, None, 3.0, 3.0]
    assert "grad 3.000" in capsys.readouterr().err
    assert names(tmp_path / "run/completions") == ["step-000002.jsonl"]


def test_what_counts_since_the_start_is_taken_as_it_is():
    window = Window()
    for step in (1, 2, 3):
        window.add({"num_tokens": 10.0 * step, "judge/calls": step, "reward": float(step), "epoch": step / 10})
    since_start = {"skipped_steps": 2, "peak_memory_gb": 5.0, "learning_rate": 0.1}
    window.add({"skipped_steps": 1, "peak_memory_gb": 3.0, "learning_rate": 0.3})
    window.add({"num_tokens": 40.0, "judge/calls": 4, "epoch": 0.4, "reward": math.nan, **since_start})
    assert window.take() == {"num_tokens": 40, "judge/calls": 4, "reward": 2, "epoch": 0.4, **since_start}
    assert window.number == 0 and window.take() == {}


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("columns", [40, 55, 80, 160])
def test_the_bar_shows_what_matters_first_and_never_outgrows_its_terminal(tmp_path, monkeypatch, columns):
    now = [100.0]
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr("tqdm.std._screen_shape_wrapper", lambda: lambda file: (columns, 24))
    monkeypatch.setattr("tqdm.std.time", lambda: now[0])
    (tmp_path / "run").mkdir()
    log = Log(configured(tmp_path, logging_steps=1, disable_tqdm="false"), 80, 40, "id")
    now[0] = 110.0
    shares = {"accuracy": 0.45, "refusal_rate": 0.12, "frac_reward_zero_std": 0.2}
    log.write_step(41, {"reward": 0.834, "reward_std": 1.2, **shares, "tokens_per_second": 4615.1}, [])
    line = sys.stderr.getvalue().split("\r")[-1].rstrip()
    assert len(line) <= columns and line.startswith("41/80 ")
    assert "06:30 left" in line  # ten seconds for its own first step, and 39 are left
    shown = "reward +0.83  ±1.20  right 45%  declined 12%  no signal 20%  4,615 tok/s".split("  ")
    number = {40: 1, 55: 2, 80: 4, 160: 6}[columns]  # whole ones
    assert line.partition(" left, ")[2] == "  ".join(shown[:number])
    assert describe({"loss": 1.5, "tokens_per_second": 10.0}) == "loss 1.5000  10 tok/s"  # of stage 1 alone
    assert describe({"loss": 1.5, "reward": 0.5, "kl": 0.25}) == "reward +0.50  kl 0.2500"


# --- trackers ------------------------------------------------------------------------------------------------------


def test_trackers_get_the_means_and_the_names_that_the_user_chose(tmp_path, modules, monkeypatch):
    """They go before the services' own variables."""
    monkeypatch.setenv("WANDB_PROJECT", "b")
    steps(configured(tmp_path, report_to="wandb,swanlab,trackio", project="0123", run_name="1e5"), 4)
    for module in modules.values():
        assert [(step, metrics["reward"]) for step, metrics in module.scalars()] == [(3, 2.0), (4, 4.0)]
        assert [name for name, *_ in module.told] == ["init", "log", "log", "finish"]
    started = {name: dict(module.told[0][2]) for name, module in modules.items()}
    assert all(place.pop("config")["output_dir"] == f"{tmp_path}/run" for place in started.values())
    id = read_json(tmp_path / "run/run_state.json")["id"]
    assert started == {
        "wandb": {"project": "0123", "name": "1e5", "id": id, "resume": "allow"},
        "swanlab": {"project": "0123", "experiment_name": "1e5", "id": id, "resume": "allow"},
        "trackio": {"project": "0123", "name": f"1e5-{id[:6]}", "resume": "allow"},
    }


def test_a_resumed_run_keeps_its_id_and_any_other_has_its_own(tmp_path):
    """A run_state.json of an older version, or a damaged one, holds none."""

    def id_of(resume, overwrite=False):
        made = RunDir(tmp_path / "run", resume, overwrite)
        found = read_json(tmp_path / "run/run_state.json")["id"]
        made.close(0, "")
        return found

    first = id_of(resume=False)
    assert id_of(resume=True) == first != id_of(resume=False, overwrite=True)
    for state in ('{"id": "../x"}', "[1"):
        (tmp_path / "run/run_state.json").write_text(state)
        assert re.fullmatch("[0-9a-z]{21}", id_of(resume=True))


def test_trackers_get_evaluations_as_they_come(tmp_path, modules):
    with Run(configured(tmp_path, report_to="trackio")) as run:
        run.start_log(9, 0)
        run.report_evaluation(0, {"eval/reward": 0.5})
        run.report_step(1, {"step_time": 1.0, "reward": 1.0})
        run.report_evaluation(1, {"eval/reward": 0.75})
    told = modules["trackio"].scalars()
    assert told[:2] == [(0, {"eval/reward": 0.5}), (1, {"eval/reward": 0.75})]


@pytest.mark.parametrize("failing", ["init", "log", "finish"])
def test_a_tracker_that_fails_warns_once_and_the_run_goes_on(tmp_path, modules, monkeypatch, capsys, failing):
    monkeypatch.setitem(sys.modules, "trackio", StandIn(failing))
    lines = steps(configured(tmp_path, report_to="trackio", logging_steps=1), 4)
    assert len(lines) == 4
    warnings = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    assert warnings == [f"warning: writing to trackio failed (RuntimeError: {failing} broke); training continues"]


def test_a_tracker_that_is_not_installed_is_found_before_anything_else(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "swanlab", None)
    run = Run(configured(tmp_path, report_to="swanlab"))
    refused(run.__enter__, "swanlab, which is not installed", exit_code=2)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("total, kept", [(2, [1, 2]), (3, [1, 2, 2])])
def test_a_run_that_is_over_writes_its_last_evaluation_again_and_no_other_does(tmp_path, total, kept):
    path = tmp_path / "run/metrics.jsonl"
    write_lines(path, [{"step": 1, "step_time": 1}, {"step": 2, "step_time": 1}, {"step": 2, "eval/reward": 0.5}])
    Log(configured(tmp_path, logging_steps=1), total, 2, "id").close()
    assert [line["step"] for line in read_lines(path)] == kept


def test_a_resumed_run_drops_the_answers_of_the_steps_that_it_repeats(tmp_path):
    """Those of its completions, and of the held-out questions."""
    run_dir = tmp_path / "run"
    files = [f"step-{step:06d}.jsonl" for step in range(5)]
    for name in ("completions", "evaluation"):
        for file in files:
            write_lines(run_dir / name / file, [])
    Log(configured(tmp_path), 9, 2, "id").close()
    assert names(run_dir / "completions") == names(run_dir / "evaluation") == files[:3]


def test_tensorboard_of_a_resumed_run_replaces_the_steps_that_it_repeats_and_no_other(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for first_step, values in ((0, {1: 0.1, 2: 0.2, 3: 0.3, 4: 0.4}), (2, {3: 0.5})):
        board = TensorBoard(tmp_path, "beta: 0.1", first_step)
        for step, value in values.items():
            board.log({"reward": value}, step)
        board.finish()
    board = EventAccumulator(f"{tmp_path}/tb").Reload()
    shown = {event.step: round(event.value, 4) for event in board.Scalars("reward")}
    assert shown == {1: 0.1, 2: 0.2, 3: 0.5}


@pytest.mark.parametrize("reward, written", [(0.5, 0.5), (None, None), (math.nan, "nan"), (-math.inf, "-inf")])
def test_a_reward_that_is_no_number_is_told_from_one_that_is_missing(reward, written):
    completion = make_completion([1], reward=reward, scores={"mine": Score(reward)})
    record = completion_record(Prompt(0, "p", (1,), {}), completion)
    assert record["reward"] == record["rewards"]["mine"] == written
    assert json.dumps(record, allow_nan=False)

"""One invocation: signals and when they count, what a resumed run may change, what is reported when."""

import contextlib
import json
import random
import signal
import threading
import time
from types import SimpleNamespace

import making
import numpy as np
import pytest
import torch

from grpo.base.errors import Interrupted, UserError
from grpo.config.load import to_yaml
from grpo.config.options import MAX_WAIT_S
from grpo.engine.device.distributed import TIMEOUT
from grpo.run import checkpoint, signals
from grpo.run import run as run_module
from grpo.run.provenance import check_changes, check_inputs, hidden_values
from grpo.run.run import Run


def configured(folder, *changes):
    """The configuration of a run that is resumed."""
    return making.configured(folder, resume_from_checkpoint="true", **dict(change.split("=", 1) for change in changes))


def send(number):
    signal.raise_signal(number)
    time.sleep(0.01)  # Python runs its handler between two instructions


def record(tmp_path):
    return making.run_state(tmp_path / "run")


def test_a_library_cannot_swallow_a_signal(tmp_path):
    """What a handler raises can get lost, where Python ignores exceptions or a library catches them all."""
    with pytest.raises(Interrupted) as stop, Run(configured(tmp_path)):
        with contextlib.suppress(BaseException):
            send(signal.SIGTERM)
        time.sleep(60)
        raise AssertionError("it went on")
    assert stop.value.exit_code == 143 and stop.value.__cause__ is None


def test_a_library_cannot_make_an_error_of_its_own_from_a_signal(tmp_path):
    """As anyio does where it is interrupted while it opens a scope."""
    with pytest.raises(Interrupted) as stop, Run(configured(tmp_path)):
        try:
            send(signal.SIGTERM)
        finally:
            raise UserError("the judge gives no answer", "it cannot be reached", "", 3)
    assert stop.value.exit_code == record(tmp_path)["exit_code"] == 143 and "SIGTERM" in record(tmp_path)["reason"]
    assert "the judge gives no answer" in (tmp_path / "run" / "debug.log").read_text()


def test_an_error_of_training_stays_what_it_is_beside_a_signal(tmp_path):
    with pytest.raises(UserError, match="the service is down"), Run(configured(tmp_path)) as run:
        run.signals.is_training = True
        send(signal.SIGTERM)
        raise UserError("the service is down", "", "", 4)
    assert record(tmp_path)["exit_code"] == 4


def test_a_second_ctrl_c_does_not_wait(tmp_path):
    with pytest.raises(KeyboardInterrupt), Run(configured(tmp_path)) as run:
        run.signals.is_training = True
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGINT):
            send(number)
        assert run.signals.stop_code == 130
        send(signal.SIGINT)
        raise AssertionError("it went on")


def test_after_the_grace_a_rollout_is_dropped_and_an_update_is_not(tmp_path, monkeypatch):
    monkeypatch.setattr(signals, "GRACE_S", 0.05)
    updated = False
    with pytest.raises(Interrupted) as stop, Run(configured(tmp_path)) as run:
        run.signals.is_training = True
        with run.signals.interruptible():
            pass
        send(signal.SIGTERM)
        time.sleep(0.3)  # an update: nothing may drop it
        updated = True
        with run.signals.interruptible():
            time.sleep(60)
            raise AssertionError("it went on")
    assert updated and not run.signals.is_interruptible and stop.value.exit_code == 143


def test_with_peers_only_what_all_drop_together_is_dropped(tmp_path, monkeypatch):
    """A rank that waits for the end of the step sees no alarm; where all come by, the highest code of any counts."""
    asked = []

    def largest(value):
        asked.append(value)
        return max(value, 130)

    peers = making.twins()
    monkeypatch.setattr(signals, "GRACE_S", 0.05)
    with pytest.raises(Interrupted) as stop, Run(configured(tmp_path), ranks=peers) as run:
        run.signals.is_training, peers.max = True, largest
        with run.signals.interruptible():
            assert not run.signals.is_interruptible
        assert not asked
        with run.signals.interruptible(together=True):
            assert run.signals.is_interruptible
    assert asked == [0] and stop.value.exit_code == 130


def test_processes_that_do_not_agree_leave_everything_as_it_was_and_a_record(tmp_path):
    def agree(facts):
        raise RuntimeError("a rank is gone")

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(RuntimeError), Run(configured(tmp_path), ranks=making.twins(agree=agree)):
        raise AssertionError("it began")
    assert signal.getsignal(signal.SIGTERM) == before
    assert record(tmp_path)["status"] == "failed" and "a rank is gone" in record(tmp_path)["reason"]


def test_the_alarm_rings_until_it_is_stopped(monkeypatch):
    """What cannot be interrupted just then is interrupted later."""
    monkeypatch.setattr(signals, "AGAIN_S", 0.01)
    rings, received = [], signals.Signals(SimpleNamespace(is_main=False))
    received._on_alarm = lambda number, frame: rings.append(time.monotonic())
    received.open()
    try:
        received.is_training = True
        monkeypatch.setattr(signals, "GRACE_S", 0.01)
        send(signal.SIGTERM)
        deadline = time.monotonic() + 20
        while len(rings) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
    finally:
        received.close()
    assert len(rings) >= 3 and not any(thread.name == "alarm" for thread in threading.enumerate())


def test_every_generator_begins_with_the_seed(tmp_path):
    drawn = []
    for seed in (5, 5, 6):
        with Run(configured(tmp_path, f"seed={seed}")):
            drawn.append((random.random(), np.random.rand(), torch.rand(1).item()))
    assert drawn[0] == drawn[1] and all(a != b for a, b in zip(drawn[0], drawn[2], strict=True))


def saved_by(config, world=1):
    """A checkpoint folder as far as resuming looks at what made it."""
    folder = run_module.Path(config.output_dir) / "checkpoint-1"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / checkpoint.MANIFEST_FILE).write_text(json.dumps({"world_size": world}))
    (folder / "config.resolved.yaml").write_text(to_yaml(config))
    return folder


CHANGES = [  # what the run was made with, what changes, and what is said: nothing, a notice, or why it does not resume
    ("", "max_steps=7", ""),
    ("", "learning_rate=0.5", "learning_rate was 1e-05, is now 0.5"),
    ("", "temperature=0.5 allow_changes=temperature", "temperature was 1.0, is now 0.5"),
    ("", "temperature=0.5", "temperature: 1.0 -> 0.5"),
    ("", "temperature=0.5 top_p=0.5 allow_changes=temperature", "top_p: 1.0 -> 0.5"),
    ("", "num_generations=4", "num_generations: 8 -> 4"),
    ("", "system_prompt=hello", "system_prompt: None -> hello"),
    ("", "dataset_id_or_path=e", "dataset_id_or_path: None -> e"),
    ("system_prompt=hello run_name=one", "", "system_prompt: hello -> None"),
    # another number of processes: the batch has to stay
    ("2 processes", "per_device_train_batch_size=16", ""),
    ("2 processes", "", "per_device_train_batch_size: 16 in all processes -> 8 in all processes"),
]


@pytest.mark.parametrize(("before", "change", "outcome"), CHANGES)
def test_what_a_resumed_run_may_change(tmp_path, before, change, outcome):
    made, world = ([], 2) if before == "2 processes" else (before.split(), 1)
    folder, changed = saved_by(configured(tmp_path, *made), world), configured(tmp_path, *change.split())
    if " -> " in outcome:
        error = making.refused(lambda: check_changes(folder, changed, 1), "another configuration", exit_code=2)
        assert error.why == outcome
    else:
        assert check_changes(folder, changed, 1) == ([outcome] if outcome else [])


def test_another_value_of_a_variable_is_a_change(tmp_path, monkeypatch):
    """The checkpoint's configuration holds its name, and its inputs a hash of its value."""
    monkeypatch.setenv("WHO_IT_IS", "a first assistant")
    config = configured(tmp_path, "system_prompt=${WHO_IT_IS}")
    folder, before = saved_by(config), hidden_values(config)
    assert "first" not in (folder / "config.resolved.yaml").read_text() and before.keys() == {"system_prompt"}
    check_inputs(folder, before, hidden_values(config), config)
    assert check_changes(folder, configured(tmp_path, "system_prompt=a first assistant"), 1) == []
    monkeypatch.setenv("WHO_IT_IS", "a second one")
    config = configured(tmp_path, "system_prompt=${WHO_IT_IS}")
    error = making.refused(
        lambda: check_inputs(folder, before, hidden_values(config), config), "system_prompt", exit_code=2
    )
    assert "second" not in str(error)


def test_a_reward_may_take_less_time_than_processes_wait_for_each_other():
    assert TIMEOUT.total_seconds() > MAX_WAIT_S


def test_only_rank_0_writes_and_the_others_leave_a_note_of_their_end(tmp_path, monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "canary-55501")
    with pytest.raises(ValueError), Run(configured(tmp_path), ranks=making.twins(rank=1, is_main=False)):
        (tmp_path / "run").mkdir()
        raise ValueError("boom canary-55501")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["run_state.rank1.json"]
    note = json.loads((tmp_path / "run" / "run_state.rank1.json").read_text())
    assert note["exit_code"] == 1 and "boom" in note["reason"] and "ValueError" in note["traceback"]
    assert "boom [SOME_API_KEY]" in note["traceback"] and "canary" not in json.dumps(note)

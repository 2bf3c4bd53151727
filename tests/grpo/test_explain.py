"""`python -m grpo.explain`: sentences about runs of every kind, broken ones too."""

import json
import os
import socket
import subprocess
import sys

import pytest
from making import cases, refused
from test_rules import HEALTHY, late

from grpo.base.storage import write_json
from grpo.explain import explain, main
from grpo.run.diagnosis.record import read_record


def write_run(folder, num_steps=40, status="done", reason="", torn="", **changes):
    """A run directory as a run leaves it, with metrics as in test_rules.py. torn: what its last line holds."""
    lines = []
    for step in range(1, num_steps + 1):
        metrics = {"step": step, **HEALTHY, "reward": step / num_steps + 0.02 * (-1) ** step}
        metrics |= {name: change(step) if callable(change) else change for name, change in changes.items()}
        lines.append(json.dumps(metrics) + "\n")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(lines) + torn, encoding="utf-8")
    if status:
        state = {"status": status, "exit_code": 0, "reason": reason, "step": num_steps}
        write_json(folder / "run_state.json", state)
    return folder


def sentences(folder):
    return [remark.sentence for remark in explain(read_record(folder))]


def test_each_failure_is_told_with_its_step_and_what_to_do(tmp_path, capsys):
    metrics = {"sampler/entropy": late(0.8, 0.01, 31), "frac_reward_zero_std": late(0.2, 0.95, 35)}
    main([str(write_run(tmp_path, **metrics))])
    told = capsys.readouterr().out
    assert "Step 35: entropy died since step 31" in told
    assert "Step 39: no signal in 95% of the groups" in told
    assert told.count("To do:") == 2
    entropy, signal = told.split("\n\n")[1:3]
    for remark in (entropy, signal):  # between the sentence and the advice: what it means
        assert remark.index("To do:") - remark.index("\n") > 40


def test_a_failure_that_passed_says_so(tmp_path):
    (_, found, *_) = sentences(write_run(tmp_path, **{"completions/clipped_ratio": late(0.4, 0.0, 10)}))
    assert "cut off" in found and "(last seen at step 9)" in found


def test_a_sound_run_says_what_it_learned(tmp_path):
    assert sentences(write_run(tmp_path)) == [
        "Step 1: 5% of the completions are cut off at max_completion_length; "
        "30% of the groups have equal rewards and teach nothing (no signal, in the line of each step).",
        "No known failure shows in 40 steps.",
        "From the first 10 steps to the last: reward 0.138 → 0.887.",
    ]


def test_what_has_fallen_is_told_as_what_has_risen_is(tmp_path):
    found = sentences(write_run(tmp_path, **{"completions/mean_length": late(100.0, 50.0), "accuracy": late(0.2, 0.4)}))
    assert found[-1].endswith("reward 0.138 → 0.887, right 0.2 → 0.4, completions/mean_length 100 → 50.")


@pytest.mark.parametrize("norm, is_told", [(1.0, True), (0.99, False)])
def test_a_step_whose_gradient_stands_out_is_one_to_make_again(tmp_path, norm, is_told):
    folder = write_run(tmp_path, grad_norm=lambda step: norm if step == 17 else 0.2)
    (folder / "config.resolved.yaml").write_text("reward_funcs: [math]\n")
    told = [remark for remark in explain(read_record(folder)) if "largest gradient" in remark.sentence]
    assert [remark.sentence for remark in told] == [
        "Step 17 has the largest gradient: its norm 1 is 5 times the median."
    ] * is_told
    assert all(f"python -m grpo.replay {folder} 17" in remark.advice for remark in told)


def test_a_run_that_goes_nowhere_says_so(tmp_path):
    found = sentences(write_run(tmp_path, reward=lambda step: 0.5 + 0.02 * (-1) ** step))
    assert found[-1].endswith("to the last: nothing has changed by more than chance explains.")


def test_a_short_run_promises_no_more_than_it_can_see(tmp_path):
    assert "too few" in sentences(write_run(tmp_path, num_steps=1))[1]


@pytest.mark.parametrize("keys, words", cases(__file__, "ended"))
def test_a_run_that_did_not_end_well_says_how(tmp_path, keys, words):
    assert words in sentences(write_run(tmp_path, **eval(f"dict({keys})")))[0]


def test_control_characters_do_not_reach_the_terminal(tmp_path, capsys):
    main([str(write_run(tmp_path, **{"rewards/\x1b[31mformat/unscored_frac": 0.5}))])
    told = capsys.readouterr().out
    assert "\x1b" not in told and "format could not score 50%" in told.replace("\\x1b[31m", "")


def test_a_folder_without_a_run_is_named(tmp_path):
    refused(lambda: main([str(tmp_path)]), "holds no run", exit_code=2)


@pytest.mark.parametrize(
    "state, words",
    [
        ({}, "was killed after step 40: process"),
        ({"pid": os.getpid()}, "has not ended"),
        ({"host": "elsewhere"}, "has not ended"),
        *(({"pid": wild}, "has not ended") for wild in (None, -1, "7", 2**70)),
    ],
    ids=range(7),
)
def test_a_run_whose_process_is_gone_was_killed(tmp_path, state, words):
    """On this machine; of another one nothing is known."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    run = write_run(tmp_path)
    known = {"status": "running", "step": 40, "pid": process.pid, "host": socket.gethostname()}
    write_json(run / "run_state.json", known | state)
    assert words in sentences(run)[0]

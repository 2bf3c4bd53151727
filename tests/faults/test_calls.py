"""Runs whose completions call tools: killed at a paused row, on two ranks, in two shards; tools that fail or hang."""

from signal import SIGKILL, SIGTERM

import pytest
from chat_templates import write_calling_checkpoint
from making import read_lines, write_tool_checkpoint

KEYS = {
    "tools": ["fakes:search", "fakes:shout"],
    "reward_funcs": ["fakes:mixed", "tool_cost"],
    "reward_weights": [1, 0.3],
    "max_completion_length": 50,
    "max_tool_result_tokens": 6,
    "max_tool_calls": 2,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tool_checkpoint(tmp_path_factory.mktemp("tools"))


@pytest.fixture
def make_calling(make_run, model):
    """Make a run of a model that calls tools."""
    return lambda name="run", **keys: make_run(name, model, **{**KEYS, **keys})


def told(run):
    """All that the run's completions say, and what they called, sorted: ranks write theirs in another order."""
    return sorted(
        (row["completion"], str(row.get("tool_calls")))
        for path in sorted((run.folder / "completions").iterdir())
        for row in read_lines(path)
    )


def test_an_environment_killed_in_the_middle_of_a_turn_goes_on_bit_for_bit(make_run, tmp_path):
    call = '<tool_call>\n{"name": "pay", "arguments": {"amount": 2}}\n</tool_call>'
    model = write_calling_checkpoint(tmp_path / "model", [call])
    keys = {"environment": "fakes:Till", "reward_funcs": ["fakes:Till"], "max_prompt_length": 1500}
    keys |= {"max_completion_length": 120, "max_tool_result_tokens": 12}
    run, whole = (make_run(name, model, **keys) for name in ("run", "whole"))
    whole.train()
    assert sum(line["tools/call_frequency"] for line in whole.lines) > 1
    run.train(FAILPOINT="call-paused:9", code=-SIGKILL)
    run.resume()
    assert run.equals(whole) and told(run) == told(whole)


def test_two_ranks_and_two_shards_train_what_one_process_trains(make_calling):
    one, ranks, shards = (make_calling(f"batch_{size}", per_device_train_batch_size=size) for size in (16, 8, 17))
    one.train()
    ranks.train_ranks()
    shards.train_ranks("tensor_parallel_size=2", "per_device_train_batch_size=16")
    for other in (ranks, shards):
        assert one.differs_by_rounding(other) and told(other) == told(one)


def test_a_tool_that_always_fails_ends_the_run_saved(make_calling):
    """As an outage of a judge does. What called it has no reward, and says why."""
    run = make_calling(tools=["fakes:closed.search"], max_steps=100)
    run.train(code=4)
    assert run.saved_step(exit_code=4) == 3
    failed = [row for step in (1, 2, 3) for row in run.rows(step) if row.get("tool_calls")]
    assert failed and all(row["reward"] is None and row["advantage"] == 0 for row in failed)
    assert all("the library is closed" in row["reasons"]["fakes:mixed"] for row in failed)


def test_a_signal_ends_a_run_whose_tool_hangs(make_calling, tmp_path):
    run = make_calling(tools=["fakes:endless.search"], tool_timeout_s=1000)
    child = run.start(setup="short_grace", GENERATING=str(tmp_path / "generating"))
    child.until((tmp_path / "generating").exists)
    child.signal(SIGTERM)
    child.ends(143)

"""Runs whose completions call tools: killed at a paused row, on two ranks, in two shards; tools that fail or hang."""

from signal import SIGINT, SIGKILL, SIGTERM

import pytest
import yaml
from chat_templates import write_calling_checkpoint
from making import read_lines, write_tool_checkpoint

CALL = '<tool_call>\n{"name": "pay", "arguments": {"amount": 2}}\n</tool_call>'
KEYS = yaml.safe_load("""
    tags:
        tools: [fakes:search, fakes:shout]
        reward_funcs: [fakes:mixed, tool_cost]
        reward_weights: [1, 0.3]
        max_completion_length: 50
        max_tool_result_tokens: 6
        max_tool_calls: 2
    environment:
        environment: fakes:Till
        reward_funcs: [fakes:Till, fakes:mixed]
        max_prompt_length: 1500
        max_completion_length: 120
        max_tool_result_tokens: 12
    """)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    typed = write_calling_checkpoint(folder / "typed", [CALL])
    return {"tags": write_tool_checkpoint(folder / "tags"), "environment": typed}


@pytest.fixture
def make_calling(make_run, models):
    """Make a run of a model that calls tools in this way."""
    return lambda kind="tags", name="run", **keys: make_run(name, models[kind], **{**KEYS[kind], **keys})


def told(run):
    """All that the run's completions say, and what they called, sorted: ranks write theirs in another order."""
    return sorted(
        (row["completion"], str(row.get("tool_calls")), str(row["rewards"]))
        for path in sorted((run.folder / "completions").iterdir())
        for row in read_lines(path)
    )


def test_an_environment_killed_in_the_middle_of_a_turn_goes_on_bit_for_bit(make_calling):
    run, whole = make_calling("environment"), make_calling("environment", "whole")
    whole.train()
    assert sum(line["tools/call_frequency"] for line in whole.lines) > 1
    run.train(FAILPOINT="call-paused:9", code=-SIGKILL)
    run.resume()
    assert run.equals(whole) and told(run) == told(whole)


@pytest.mark.parametrize("kind", KEYS)
def test_two_ranks_and_two_shards_train_what_one_process_trains(make_calling, kind):
    one, ranks, shards = (make_calling(kind, f"batch_{size}", per_device_train_batch_size=size) for size in (16, 8, 17))
    one.train()
    ranks.train_ranks()
    shards.train_ranks("tensor_parallel_size=2", "per_device_train_batch_size=16")
    most = 1e-4 if kind == "environment" else 1e-5  # its weights move further, by 0.02
    for other in (ranks, shards):
        assert one.differs_by_rounding(other, most) and told(other) == told(one)


def test_a_tool_that_always_fails_ends_the_run_saved(make_calling):
    """As an outage of a judge does. What called it has no reward, and says why."""
    run = make_calling(tools=["fakes:closed.search"], max_steps=100)
    run.train(code=4)
    assert run.saved_step(exit_code=4) == 3
    failed = [row for step in (1, 2, 3) for row in run.rows(step) if row.get("tool_calls")]
    assert failed and all(row["reward"] is None and row["advantage"] == 0 for row in failed)
    assert all("the library is closed" in row["reasons"]["fakes:mixed"] for row in failed)


@pytest.mark.parametrize(("method", "world"), [
    ("search", 1), ("reset", 1), ("pay", 1), ("step", 1), ("get_reward", 1), ("reset", 2), ("pay", 2),
])  # fmt: skip
def test_a_signal_ends_a_run_whose_tool_hangs_and_loses_nothing(make_calling, tmp_path, method, world):
    """Also a model that is shared, of which one process calls."""
    kind, begun = "tags" if method == "search" else "environment", tmp_path / "begun"
    keys = {"tools": ["fakes:search"]} if kind == "tags" else {"tensor_parallel_size": world}
    run, whole = (make_calling(kind, name, tool_timeout_s=1000, **keys) for name in ("run", "whole"))
    hangs = {"setup": "short_grace", "HANGS": method, "AFTER": str(run.checkpoint(1)), "GENERATING": str(begun)}
    children = run.start_ranks(world=world, **hangs)
    children[0].until(begun.exists)
    number = SIGINT if world > 1 else SIGTERM
    for child in children:
        child.signal(number)
    for child in children:
        child.ends(128 + number, timeout_s=300)
    assert run.saved_step(exit_code=128 + number) >= 1
    run.train_ranks("resume_from_checkpoint=true", world=world)
    whole.train_ranks(world=world)
    assert run.equals(whole) and told(run) == told(whole)

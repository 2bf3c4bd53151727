"""What ends the services of the factuality reward in mid-run: a dead decomposer, a damaged knowledge base."""

import pytest
from api_server import ApiServer, fails, says
from making import build_base
from running import is_message, lines, state, write_config

from grpo.run import checkpoint

KEYS = {"OPENAI_API_KEY_JUDGE": "canary-key", "OPENAI_API_KEY_FACTSCORE": "canary-key", "setup": "thoughtful"}
FACTS = "- Paris is the capital of France.\n- Paris lies on the Seine."


@pytest.fixture
def base(tmp_path):
    """A knowledge base with a document for each question of the runs."""
    return build_base(tmp_path, {f"Title {n}": f"Title {n} is a town in France." for n in range(8)})


def factual(tmp_path, chat_checkpoint, base, judge, decomposer, **keys):
    return write_config(
        tmp_path,
        chat_checkpoint,
        reward_funcs=["knowrl_v2"],
        judge_model="m",
        judge_base_url=judge.url,
        decomposer_model="m",
        decomposer_base_url=decomposer.url,
        knowledge_base=str(base),
        verifier="lexical",
        **keys,
    )


@pytest.mark.parametrize("failure", [says(""), says("I am a teapot."), fails(400)], ids=["empty", "no list", "400"])
def test_a_dead_decomposer_is_announced_in_its_first_step_and_ends_the_run(
    processes, chat_checkpoint, tmp_path, base, failure
):
    """64 completions ask it at once; after 32 without a usable reply the run ends, with its work saved."""
    with ApiServer(says("A"), default=says("B")) as judge, ApiServer(says(FACTS), default=failure) as decomposer:
        keys = {"per_device_train_batch_size": 64, "max_steps": 9}
        child = processes.train(factual(tmp_path, chat_checkpoint, base, judge, decomposer, **keys), **KEYS)
    assert child.code == 4 and is_message(child.stderr), child.stderr
    assert "the decomposer at" in child.stderr and "gives no usable reply" in child.stderr
    assert state(tmp_path / "run")["exit_code"] == 4 and state(tmp_path / "run")["step"] == 0


def test_a_decomposer_that_few_completions_need_ends_the_run_after_three_steps(
    processes, chat_checkpoint, tmp_path, base
):
    """One completion in four is wrong, and only these need facts: all of them are unscored, and the share says so."""

    async def judges(server, request, writer):
        is_check = len(server.requests) == 1
        await says("A" if is_check or len(server.requests) % 4 else "B")(server, request, writer)

    with ApiServer(default=judges) as judge, ApiServer(says(FACTS), default=says("")) as decomposer:
        keys = {"per_device_train_batch_size": 16, "max_steps": 9}
        child = processes.train(factual(tmp_path, chat_checkpoint, base, judge, decomposer, **keys), **KEYS)
    assert child.code == 4 and is_message(child.stderr) and "unscored_frac" in child.stderr, child.stderr
    assert [row["step"] for row in lines(tmp_path / "run")] == [1, 2, 3]
    saved = state(tmp_path / "run")["last_checkpoint"]
    assert saved == "checkpoint-3" and not checkpoint.problem_with(tmp_path / "run" / saved)


def test_a_knowledge_base_that_is_damaged_in_mid_run_ends_it_with_exit_3(processes, chat_checkpoint, tmp_path, base):
    def flip_a_byte() -> None:
        whole = bytearray(base.read_bytes())
        place = whole.rindex(b"Title 7 is a town in France")
        whole[place + 20] ^= 1
        with open(base, "r+b") as file:  # the same file, as a failing disk or a careless program leaves it
            file.write(whole)

    async def judges(server, request, writer):
        if (tmp_path / "run" / "metrics.jsonl").exists() and len(server.requests) > 30:
            flip_a_byte()
            server.default = says("B")
        await says("A" if len(server.requests) == 1 else "B")(server, request, writer)

    with ApiServer(default=judges) as judge, ApiServer(default=says(FACTS)) as decomposer:
        keys = {"per_device_train_batch_size": 16, "max_steps": 9}
        child = processes.train(factual(tmp_path, chat_checkpoint, base, judge, decomposer, **keys), **KEYS)
        assert child.code == 3 and is_message(child.stderr) and "was changed while it was open" in child.stderr
        assert not checkpoint.problem_with(tmp_path / "run" / state(tmp_path / "run")["last_checkpoint"])

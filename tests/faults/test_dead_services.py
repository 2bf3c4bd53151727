"""What ends the services of the factuality reward in mid-run: a dead decomposer, a damaged knowledge base."""

import pytest
from api_server import ApiServer, fails, says
from making import build_base

FACTS = "- Paris is the capital of France.\n- Paris lies on the Seine."


@pytest.fixture
def base(tmp_path):
    """A knowledge base with a document for each question of the runs."""
    return build_base(tmp_path, {f"Title {n}": f"Title {n} is a town in France." for n in range(8)})


@pytest.fixture
def train(make_run, base):
    """Train nine steps with these services, to the end with this exit code; give the run and its process."""

    def run_to_end(judge, decomposer, batch_size, code):
        services = {
            "judge_model": "m",
            "judge_base_url": judge.url,
            "decomposer_model": "m",
            "decomposer_base_url": decomposer.url,
            "knowledge_base": str(base),
            "verifier": "lexical",
        }
        run = make_run(reward_funcs=["knowrl_v2"], per_device_train_batch_size=batch_size, max_steps=9, **services)
        keys = dict.fromkeys(("OPENAI_API_KEY_JUDGE", "OPENAI_API_KEY_FACTSCORE"), "canary-key")
        return run, run.train(setup="thoughtful", code=code, **keys)

    return run_to_end


@pytest.mark.parametrize("failure", [says(""), says("I am a teapot."), fails(400)])
def test_a_dead_decomposer_is_announced_in_its_first_step_and_ends_the_run(train, failure):
    """64 completions ask it at once; after 32 without a usable reply the run ends, with its work saved."""
    with ApiServer(says("A"), default=says("B")) as judge, ApiServer(says(FACTS), default=failure) as decomposer:
        run, child = train(judge, decomposer, 64, code=4)
    assert "the decomposer at" in child.stderr
    assert "gives no usable reply" in child.stderr
    assert run.state["exit_code"] == 4
    assert run.state["step"] == 0


def test_a_decomposer_that_few_completions_need_ends_the_run_after_three_steps(train):
    """One completion in four is wrong, and only these need facts: all of them are unscored, and the share says so."""

    async def judges(server, request, writer):
        is_check = len(server.requests) == 1
        await says("A" if is_check or len(server.requests) % 4 else "B")(server, request, writer)

    with ApiServer(default=judges) as judge, ApiServer(says(FACTS), default=says("")) as decomposer:
        run, child = train(judge, decomposer, 16, code=4)
    assert "unscored_frac" in child.stderr
    assert run.steps == [1, 2, 3]
    assert run.saved_step(exit_code=4) == 3


def test_a_knowledge_base_that_is_damaged_in_mid_run_ends_it_with_exit_3(train, tmp_path, base):
    def flip_a_byte():
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
        run, child = train(judge, decomposer, 16, code=3)
    assert "was changed while it was open" in child.stderr
    assert run.saved_step(exit_code=3) > 0

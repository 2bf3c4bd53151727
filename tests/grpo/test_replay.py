"""`python -m grpo.replay`: the step is the run's, bit for bit, and a token's part is the gradient of its own loss."""

import json
import shutil

import pytest
import reward_functions
import torch
from chat_templates import write_calling_checkpoint
from making import hidden_states, make_group, read_lines, refused, write_rows, write_tool_checkpoint
from test_report import HOSTILE
from test_train import configured, run

from grpo.algorithm.schema import POLICY, REFERENCE
from grpo.base.errors import Interrupted
from grpo.config.options import TrainConfig
from grpo.engine.model import memory
from grpo.replay.__main__ import WIDTH, as_json, lines_of, main
from grpo.replay.again import Remembered, replay
from grpo.replay.parts import Gradient
from grpo.run.diagnosis.record import Answer
from grpo.train import train
from rewards import own_names
from rewards.scorer import Scorer

LOGGED = {"logging_steps": 1, "save_steps": 2, "max_steps": 4}
KINDS = {
    "dropout and cut sampling": {"lora_dropout": 0.1, "temperature": 0.8, "top_p": 0.9},
    "all weights, two updates": {"lora_r": 0, "learning_rate": 1e-3, "num_iterations": 2},
    "a ratio per sequence": {"importance_sampling_level": "sequence", "num_iterations": 2, "epsilon": 1e-3},
    "an entropy bonus": {"entropy_coef": 0.01, "loss_type": "cispo", "epsilon_high": 5.0},
    "float64": {"torch_dtype": "float64", "dynamic_sampling": True, "beta": 0.0}
    | {"loss_type": "dr_grpo", "scale_rewards": "batch"},
}


def is_equal(found, fewest=5):
    """Whether all that the run has recorded of the step was made again. fewest: metrics that were compared."""
    return (
        not found.notes
        and found.num_same == found.num_recorded == 16
        and found.num_equal == found.num_compared >= fewest
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory, chat_checkpoint):
    """A run of four steps."""
    folder = tmp_path_factory.mktemp("finished")
    run(folder, chat_checkpoint, **LOGGED)
    return folder / "run"


@pytest.fixture
def logged(finished, tmp_path):
    """A copy of that run, to damage."""
    return shutil.copytree(finished, tmp_path / "run")


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_is_made_again_bit_for_bit_and_its_parts_add_up(tmp_path, chat_checkpoint, kind):
    """From the checkpoint before the one that has its completions."""
    run(tmp_path, chat_checkpoint, **LOGGED | KINDS[kind])
    found = replay(tmp_path / "run", 4)
    assert found.start == 2 and is_equal(found)
    assert found.look.error < (1e-12 if kind == "float64" else 1e-6) and found.look.norm > 0
    assert sum(seen.share for seen in found.look.answers) == pytest.approx(1, abs=1e-5)
    for seen in found.look.shown:
        assert sum(token["share"] for token in seen.tokens) == pytest.approx(seen.share, abs=1e-5)
        assert [token["id"] for token in seen.tokens] in (seen.completion.ids, [])  # without a signal, none is trained
        left = seen.completion.text
        for token in seen.tokens:
            left = left.removeprefix(token["text"])
        assert not (left and seen.tokens)


def test_micro_batches_are_those_of_the_run_whatever_memory_is_free(finished, monkeypatch):
    """Also where it begins: there is no checkpoint before step 1."""
    monkeypatch.setitem(memory.LARGEST_MICRO_BATCH, "cpu", 1)
    for step in (1, 4):
        found = replay(finished, step)
        assert is_equal(found)


def test_tools_are_called_again(tmp_path, monkeypatch):
    """With what they say now, and so a tool that is another one by now makes another step."""
    file = tmp_path / "mine.py"
    file.write_text("def search(query):\n    return 'b'\n")
    model = write_tool_checkpoint(tmp_path / "tools")
    keys = {"tools": [f"{file}:search"], "max_completion_length": 50, "max_tool_result_tokens": 6}
    run(tmp_path, model, **LOGGED | keys)
    found = replay(tmp_path / "run", 4)
    assert is_equal(found) and found.look.error < 1e-6
    callers = [seen for seen in found.look.answers if seen.completion.calls]
    assert callers
    for seen in callers:
        assert {token["place"] for token in seen.tokens} <= set(seen.completion.drawn())
    file.write_text("def search(query):\n    return 'aa'\n")
    monkeypatch.delitem(own_names._files, file.resolve())  # a new process would not have it
    assert main([str(tmp_path / "run"), "4"]) == 1


def test_an_environment_is_made_again(tmp_path):
    """With its calls by the chat template, and its own reward."""
    call = '<tool_call>\n{"name": "fetch", "arguments": {"item": "tea", "number": 3}}\n</tool_call>'
    model = write_calling_checkpoint(tmp_path / "model", [call, call.replace("fetch", "sell")])
    rows = write_rows(tmp_path / "rows.jsonl", [{"question": f"{n}.", "item": "tea", "number": 3} for n in range(8)])
    shop = "grpo.data.worlds.shop:Shop"
    keys = {"environment": shop, "reward_funcs": [shop], "dataset_id_or_path": str(rows), "max_prompt_length": 1500}
    run(tmp_path, model, **LOGGED | keys, max_completion_length=150)
    found = replay(tmp_path / "run", 4)
    assert is_equal(found) and any(seen.completion.calls for seen in found.look.answers)


def test_what_has_graded_need_not_be_there_as_it_was(tmp_path, chat_checkpoint):
    """The file of a reward was edited: completions/ holds what it said."""
    edited = tmp_path / "length.py"
    edited.write_text("def length(completions, **columns):\n    return [float(len(text)) for text in completions]\n")
    run(tmp_path, chat_checkpoint, **LOGGED, reward_funcs=[f"{edited}:length"])
    edited.write_text("def length(completions, **columns):\n    return [0.0] * len(completions)\n")
    found = replay(tmp_path / "run", 4)
    assert is_equal(found)


def test_credit_reads_the_recorded_facts():
    facts = {"knowrl": [{"fact": "k"}], "factuality": [{"fact": "f"}]}
    rewards = {"format": 1.0, "knowrl": -0.5, "factuality": 0.5}
    answers = [Answer(text, row=0, reward=1.0, rewards=rewards, facts=facts) for text in "ab"]
    group = make_group((1,), [5], [6], text=["a", "b"])
    scorer = Remembered(TrainConfig(reward_funcs=("knowrl", "factuality")), lambda step: answers, Scorer)
    for place in range(2):
        scorer.submit(group, place)
    scorer.collect(group)
    scorer.close()
    assert [completion.facts for completion in group.completions] == [facts["factuality"]] * 2


def test_a_resumed_run_is_made_again(tmp_path, chat_checkpoint, monkeypatch):
    keys = LOGGED | {"reward_funcs": ["reward_functions:stops_the_run"], "save_steps": 0, "max_steps": 5}
    monkeypatch.setenv("STOP_AFTER_GROUPS", "11")  # within step 3
    reward_functions.stops_the_run.calls = 0
    with pytest.raises(Interrupted):
        run(tmp_path, chat_checkpoint, **keys)
    run(tmp_path, chat_checkpoint, **keys, resume_from_checkpoint=True)
    for step, start in ((2, 0), (5, 3)):
        found = replay(tmp_path / "run", step)
        assert is_equal(found) and found.start == start


def twin(gradient, config):
    """(row, answer, token) -> the gradient of that token's term of the loss, from the formula, by autograd."""
    learner, parts = gradient.learner, {}
    model, reference = learner.model, learner.reference
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for group in gradient.groups:
        for answer, completion in enumerate(group.completions):
            ids = torch.tensor([*group.prompt.ids, *completion.ids])
            logps = []
            for one, mode in ((model, POLICY), (reference, REFERENCE)):
                logits = hidden_states(one, ids, mode) @ one.head().T / config.temperature
                logps.append(logits.log_softmax(-1)[:-1].gather(1, ids[1:, None])[-len(completion.ids) :, 0])
            logp, ref = logps[0], logps[1].detach()
            for place in range(len(completion.ids)):
                ratio = (logp[place] - logp[place].detach()).exp()
                d = ref[place] - logp[place]
                loss = completion.loss_weight * (config.beta * (d.exp() - d - 1) - ratio * completion.advantage)
                grads = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
                flat = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, grads, strict=True)]
                parts[group.prompt.row, answer, place] = torch.cat([grad.flatten() for grad in flat])
    return parts


@pytest.mark.parametrize("rank", [0, 4])
def test_each_part_is_the_gradient_of_the_tokens_own_loss(tmp_path, chat_checkpoint, monkeypatch, rank):
    """The slow twin, in float64: norms and shares from autograd of the formula."""
    keys = {"torch_dtype": "float64", "beta": 0.1, "lora_r": rank, "max_completion_length": 5, "max_steps": 2}
    config, _ = configured(tmp_path, chat_checkpoint, **LOGGED | keys)
    train(config)
    wanted, look = {}, Gradient.look

    def looked(gradient, row):
        wanted.update(twin(gradient, config))
        return look(gradient, row)

    monkeypatch.setattr(Gradient, "look", looked)
    found = replay(tmp_path / "run", 2)
    whole = sum(wanted.values())
    assert found.look.norm == pytest.approx(float(whole.norm()), rel=1e-6)
    assert len(found.look.shown) == 4
    for seen in found.look.shown:
        assert len(seen.tokens) == len(seen.completion.ids)
        for token in seen.tokens:
            part = wanted[found.look.row, seen.number - 1, token["place"]]
            assert token["norm"] == pytest.approx(float(part.norm()), rel=1e-6)
            assert token["share"] == pytest.approx(float(part @ whole / (whole @ whole)), rel=1e-5, abs=1e-9)


def test_norms_add_up_to_more_than_the_gradient_and_shares_to_all_of_it(finished):
    """Parts point in different directions; a share is the component along the whole, so shares add up as parts do."""
    look = replay(finished, 1).look
    tokens = [token for seen in look.shown for token in seen.tokens]
    assert sum(token["norm"] for token in tokens) > sum(seen.norm for seen in look.shown) > look.norm / 4
    assert sum(seen.norm for seen in look.answers) > 1.5 * look.norm
    assert min(token["share"] for token in tokens) < 0  # it pulls against the others


def test_what_is_not_there_is_not_shown_as_0(tmp_path, chat_checkpoint):
    """Without a reference there is no KL; and a step without a signal trains nothing."""
    reward_functions.first_batch_only.calls = 0
    keys = LOGGED | {"beta": 0.0, "max_steps": 2, "reward_funcs": ["reward_functions:first_batch_only"]}
    run(tmp_path, chat_checkpoint, **keys)
    found, silent = (replay(tmp_path / "run", step) for step in (1, 2))
    lines = [*lines_of(as_json(silent))]
    assert lines.count("nothing of it is trained") == 4 and not any(line.startswith("      token") for line in lines)
    assert silent.look.norm == 0 and is_equal(silent, 4)
    assert all(token["kl"] is None for seen in found.look.shown for token in seen.tokens)
    tokens = [line for line in lines_of(as_json(found)) if line.startswith(("   1↑", "   1↓"))]
    assert any(" –" in line and "0.0e+00" not in line for line in tokens)


def test_the_part_of_a_clipped_token(tmp_path, chat_checkpoint):
    run(tmp_path, chat_checkpoint, beta=0.0, num_iterations=2, epsilon=1e-2, **LOGGED)
    found = replay(tmp_path / "run", 2)
    tokens = [token for seen in found.look.shown for token in seen.tokens if token["advantage"]]
    clipped = {kind: [token for token in tokens if token["clipped"] == kind] for kind in ("", "low", "high")}
    assert all(len(of_kind) > 2 for of_kind in clipped.values())
    assert all(token["norm"] == token["share"] == token["slope"] == 0 for token in clipped["low"] + clipped["high"])
    assert all(token["ratio"] < 0.99 and token["advantage"] < 0 for token in clipped["low"])
    assert all(token["norm"] > 0 for token in clipped[""])


def test_what_differs_is_told_and_ends_in_exit_code_1(logged, capsys):
    def told(exit_code):
        assert main([str(logged), "4"]) == exit_code
        return capsys.readouterr().out

    assert "16 of 16 recorded answers are the same" in told(0)
    answers = logged / "completions" / "step-000004.jsonl"
    lines = read_lines(answers)
    names = "reward ids advantage prompt question answer finish_reason num_tokens title rewards more".split()
    changes = dict.fromkeys(names, 5.0) | {"rewards": {"another": 1.0}, "ids": [*lines[1]["ids"][:2], 5]}
    changed = [line | {name: value} for line, (name, value) in zip(lines, changes.items(), strict=False)]
    write_rows(answers, changed + lines[len(changed) :])
    said = told(1)
    assert "5 of 16 recorded answers" in said and "answer 1: reward was 5.0" in said
    assert "answer 2: from token 3 on it was" in said
    answers.unlink()
    assert replay(logged, 4).missing == ["completions/"]
    write_rows(answers, lines)
    steps = read_lines(logged / "metrics.jsonl")
    grad_norm = steps[3]["grad_norm"]
    steps[3]["grad_norm"] = grad_norm * (1 + 2**-52)
    steps[3]["completions/mean_length"] += 1
    del steps[3]["epoch"]
    write_rows(logged / "metrics.jsonl", steps)
    found = replay(logged, 4)
    assert f"grad_norm was {steps[3]['grad_norm']!r}, is now {grad_norm!r}" in found.notes
    assert found.num_equal == found.num_compared - 3
    (logged / "metrics.jsonl").unlink()
    told(1)


def test_grades_are_those_of_the_run_and_others_are_asked_for(logged, monkeypatch):
    """A judge is not asked again, and may say something else by now."""
    rewards = [line["reward"] for line in read_lines(logged / "completions" / "step-000004.jsonl")]
    monkeypatch.setattr(reward_functions, "early_letters", lambda completions, **_: [7.0] * len(completions))
    found = replay(logged, 4)
    assert [seen.completion.reward for seen in found.look.answers] == rewards and is_equal(found)
    (logged / "completions" / "step-000004.jsonl").unlink()
    found = replay(logged, 4)
    assert {seen.completion.reward for seen in found.look.answers} == {7.0}
    assert found.num_recorded == 0 and any("graded again" in note for note in found.notes)


def test_it_fits_the_terminal_and_is_told_as_json(finished, capsys):
    found = replay(finished, 2)
    told = as_json(found)
    texts = {answer["completion"] for answer in told["shown"]}
    lines = "\n".join(line for line in lines_of(told) if line not in texts).splitlines()
    assert max(map(len, lines)) <= WIDTH and len(lines) > 40
    row = found.look.row
    assert main([str(finished), "2", str(row), "--json", "device=cpu"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["row"] == row and len(told["shown"]) == 4 and len(told["answers"]) == 16
    token = told["shown"][0]["tokens"][0]
    told["shown"][0] |= {"completion": HOSTILE, "tokens": [token | {"text": HOSTILE}]}
    assert not any("\x1b" in line for line in lines_of(told | {"question": HOSTILE}))


def test_what_cannot_be_made_again_is_refused(logged, tmp_path):
    for step in (0, 5):
        refused(lambda: replay(logged, step), f"no step {step}", exit_code=2)  # noqa: B023
    refused(lambda: replay(logged, 4, row=999), "row 999", exit_code=2)
    what = f"{logged / 'checkpoint-2'} was made with another configuration"
    refused(lambda: replay(logged, 4, overrides=["temperature=0.5"]), what, exit_code=2)
    refused(lambda: replay(tmp_path, 1), "holds no run", exit_code=2)
    (logged / "config.resolved.yaml").write_text("output_dir: x\n")
    refused(lambda: replay(logged, 1), "no run of stage 2", exit_code=2)

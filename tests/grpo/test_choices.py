"""Choices scored by log-probs, against transformers in float64 (but for its rotary tables), one choice at a time."""

import math

import pytest
import torch
from making import write_chat_checkpoint

from grpo.base.errors import UserError
from grpo.base.schema import Prompt
from grpo.config.options import TrainConfig
from grpo.data.prompts import ChatEncoder
from grpo.evaluation import choices
from grpo.evaluation.choices import ScoredChoices, score_choices, summarise_choices
from grpo.model.policy import load_for_inference

CPU = torch.device("cpu")
CHOICES = {
    "mc1_targets": {"choices": ["four.", "five.", "a much longer answer."], "labels": [1, 0, 0]},
    "mc2_targets": {"choices": ["four.", "4.", "five."], "labels": [1, 1, 0]},
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return write_chat_checkpoint(tmp_path_factory.mktemp("spread"), spread=0.3)


def load(checkpoint, dtype="float64"):
    return load_for_inference(TrainConfig(model_name_or_path=str(checkpoint), torch_dtype=dtype), CPU)


def make_prompts(policy, *questions) -> list[Prompt]:
    encoder = ChatEncoder(policy.tokenizer)
    prompts = []
    for row, question in enumerate(questions):
        text, ids = encoder.prompt([{"role": "user", "content": question}])
        prompts.append(Prompt(row, text, tuple(ids), {"question": question, **CHOICES}))
    return prompts


def twin(checkpoint, policy, prompt, choice) -> float:
    """The sum of the log-probs of a choice, from the full softmax of transformers' model in float64."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float64)
    answer = policy.tokenizer.encode(choice, add_special_tokens=False)
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt.ids, *answer]])).logits[0]
    logps = torch.log_softmax(logits, -1)
    start = len(prompt.ids) - 1
    return sum(float(logps[start + place, token]) for place, token in enumerate(answer))


@pytest.mark.parametrize(("dtype", "error"), [("float64", 1e-5), ("float32", 1e-3)])
@pytest.mark.parametrize("tokens", [8192, 40])
def test_scores_are_sums_of_log_probs(checkpoint, monkeypatch, dtype, error, tokens):
    monkeypatch.setattr(choices, "MICRO_BATCH_TOKENS", tokens)
    policy = load(checkpoint, dtype)
    prompts = make_prompts(policy, "What is 2 + 2?", "And what is 1 + 3, if you know?")
    for scored, prompt in zip(score_choices(policy, prompts), prompts, strict=True):
        assert list(scored.scores) == ["four.", "five.", "a much longer answer.", "4."]
        for choice, score in scored.scores.items():
            assert score == pytest.approx(twin(checkpoint, policy, prompt, choice), abs=error)


def scored(one: float, two: float, long: float, digit: float) -> ScoredChoices:
    names = ["four.", "five.", "a much longer answer.", "4."]
    return ScoredChoices(Prompt(0, "", (), CHOICES), dict(zip(names, [one, two, long, digit], strict=True)))


def test_mc1_and_mc2_by_hand():
    found = scored(-1.0, -2.0, -3.0, -1.5)
    mass = [math.exp(-1.0), math.exp(-1.5), math.exp(-2.0)]
    assert found.mc1 == 1 and found.mc2 == pytest.approx((mass[0] + mass[1]) / sum(mass))
    assert scored(-1.0, -1.0, -3.0, -9.0).mc1 == 0  # a tie
    assert scored(-2.5, -2.0, -3.0, -0.1).mc1 == 0  # only the best answer counts
    assert scored(-1.0, -2.0, -0.5, -0.1).mc1 == 0
    assert scored(-2001.0, -2002.0, -3.0, -2001.0).mc2 == pytest.approx(2 / (2 + math.exp(-1)))  # nothing underflows


def test_the_summary_is_the_mean_over_questions():
    found = summarise_choices([scored(-1, -2, -3, -4), scored(-3, -2, -3, -4)])
    assert (found["num_questions"], found["mc1"]) == (2, 0.5) and found["mc1_low"] < 0.5 < found["mc1_high"]
    assert found["mc2"] == pytest.approx((scored(-1, -2, -3, -4).mc2 + scored(-3, -2, -3, -4).mc2) / 2)


def test_a_template_that_opens_a_think_block_gets_it_closed(checkpoint):
    """A choice is an answer, not a thought."""
    policy = load(checkpoint)
    plain = make_prompts(policy, "2 + 2?")
    template = policy.tokenizer.chat_template
    end = "<|im_start|>assistant\n"
    policy.tokenizer.chat_template = template.replace(end, end + "<think>\n")
    (found,) = score_choices(policy, make_prompts(policy, "2 + 2?"))
    policy.tokenizer.chat_template = template
    closed = policy.tokenizer.encode("<think>\n", add_special_tokens=False)
    closed += policy.tokenizer.encode(choices.END_OF_THOUGHTS, add_special_tokens=False)
    prompt = Prompt(0, "", (*plain[0].ids, *closed), plain[0].columns)
    assert found.scores == pytest.approx(score_choices(policy, [prompt])[0].scores)


@pytest.mark.parametrize(
    ("columns", "what"),
    [
        ({}, "no choices to score"),
        ({**CHOICES, "mc2_targets": {"choices": ["x"], "labels": [1]}}, "no choices to score"),
        ({**CHOICES, "mc1_targets": {"choices": ["x " * 900, "y"], "labels": [1, 0]}}, "cannot be scored"),
        ({**CHOICES, "mc1_targets": {"choices": ["", "y"], "labels": [1, 0]}}, "cannot be scored"),
    ],
)
def test_what_cannot_be_scored_is_named(checkpoint, columns, what):
    policy = load(checkpoint)
    (prompt,) = make_prompts(policy, "q?")
    with pytest.raises(UserError, match=what) as error:
        score_choices(policy, [Prompt(4, "", prompt.ids, columns)])
    assert error.value.exit_code == 3 and "row 5" in error.value.what

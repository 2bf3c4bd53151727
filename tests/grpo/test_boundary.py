"""What a toy run says of what it declines: P(declines) against the softmax, the measures against counts by hand, and
the sentence that a run ends with."""

import math

import numpy as np
import pytest
import torch
from making import make_answers

from grpo.algorithm.schema import Prompt
from grpo.config.options import TrainConfig
from grpo.engine.model.policy import load_for_inference
from grpo.engine.sampling.sampler import Sampler
from grpo.evaluation.boundary import AFTER, AT_ONCE, auroc, encode, examine, logit, verdict


def test_auroc_counts_pairs_and_half_of_the_ties():
    scores, wrong = np.array([3.0, 2.0, 2.0, 1.0]), np.array([True, True, False, False])
    assert auroc(scores, wrong) == (1 + 1 + 0.5 + 1) / 4
    assert auroc(-scores, wrong) == 1 - auroc(scores, wrong)
    assert math.isnan(auroc(scores, np.ones(4, bool)))


def test_a_log_prob_becomes_a_logit():
    assert logit(math.log(0.5)) == pytest.approx(0) and logit(math.log(0.9)) == pytest.approx(math.log(9))
    assert math.isfinite(logit(0.0))


# --- Asking ----------------------------------------------------------------------------------------------------------

WORLDS = {
    "encyclopedia": (
        {"question": "What did Bina Abbot play?", "answer": "harp", "title": "Bina Abbot", "familiarity": "unseen"},
        "<think>Bina Abbot",
        " was born in Velda. Bina Abbot played the harp.",
    ),
    "almanac": (
        {
            "question": "What is the capital of the Netherlands?",
            "answer": ["Amsterdam"],
            "title": "Netherlands",
            "familiarity": "capital",
        },
        "<think>The capital of the Netherlands is",
        " Amsterdam.",
    ),
}


@pytest.fixture(scope="module")
def policy(chat_checkpoint):
    return load_for_inference(TrainConfig(model_name_or_path=str(chat_checkpoint)), torch.device("cpu"))


def logp(policy, text, prefix):
    """The log-prob of a text after its prefix, by the softmax."""
    first, ids = len(encode(policy, prefix)), torch.tensor(encode(policy, text))
    logps = twin(policy, ids)[:-1].gather(1, ids[1:, None])[:, 0]
    return float(logps[first - 1 :].sum())


def twin(policy, ids):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(policy.folders[0], dtype=torch.float32)
    with torch.no_grad():
        return model(ids[None]).logits[0].log_softmax(-1)


@pytest.mark.parametrize("world", WORLDS)
def test_the_odds_of_declining_are_those_of_the_softmax(policy, world):
    row, start, thought = WORLDS[world]
    prompt = "Well?"
    answer = f"{start}{thought}</think><answer>something</answer>"
    (found,) = examine(
        policy, Sampler(policy.model, policy.eos_ids), [make_answers(row, answer, prompt=prompt)], world, 8
    )
    assert found["right"] and found["said"] == ("Amsterdam" if world == "almanac" else "harp")
    at_once = math.exp(logp(policy, f"{prompt}<think>{AT_ONCE}", f"{prompt}<think>"))
    end = f"{prompt}{start}{thought}</think><answer>"
    declines = at_once + (1 - at_once) * math.exp(logp(policy, end + AFTER, end))
    assert found["declines"] == pytest.approx(math.log(declines / (1 - declines)), abs=1e-3)
    assert found["sequence"] == pytest.approx(logp(policy, f"{prompt}{start}{thought}", prompt + start), abs=1e-3)


@pytest.mark.parametrize("world", WORLDS)
def test_a_model_that_recalls_nothing_is_made_to(policy, world):
    row, start, _ = WORLDS[world]
    sampler = Sampler(policy.model, policy.eos_ids)
    asked = []
    real = sampler.sample
    sampler.sample = lambda stems, *rest, **more: asked.extend(stems) or real(stems, *rest, **more)
    group = make_answers(row, "I will not say.", prompt="Well?")
    group.prompt = Prompt(0, "Well?", encode(policy, "Well?"), row)
    (found,) = examine(policy, sampler, [group], world, 24)
    assert asked == [encode(policy, "Well?" + start)] and not found["right"]


# --- What a run says -------------------------------------------------------------------------------------------------


def asked(declines, right):
    """Two questions about each person."""
    return [
        {"question": str(n), "title": f"person {n // 2}", "declines": logit, "right": bool(is_right)}
        for n, (logit, is_right) in enumerate(zip(declines, right, strict=True))
    ]


RIGHT = [1, 0] * 100
BEFORE = np.random.default_rng(0).normal(size=200)


@pytest.mark.parametrize(
    ("after", "part"),
    [
        (BEFORE + 3, "is not seen"),  # a constant
        (BEFORE - 3 * np.array(RIGHT), "more of those"),
        (BEFORE + 3 * np.array(RIGHT), "fewer of those"),
    ],
)
def test_a_run_says_whether_it_changed_more_than_a_constant_does(after, part):
    text = verdict(asked(BEFORE, RIGHT), asked(after, RIGHT))
    assert part in text.splitlines()[0]
    shares = [int(word.strip("%")) for word in text[text.index("Of its") :].split() if "%" in word]
    assert (shares[0] == shares[1]) == (part == "is not seen")


def test_nothing_is_said_where_nothing_is_known():
    assert not verdict(asked(BEFORE, [1] * 200), asked(BEFORE, [1] * 200)), "nothing would be wrong"
    assert not verdict([], asked(BEFORE, RIGHT)), "what was asked before was lost"

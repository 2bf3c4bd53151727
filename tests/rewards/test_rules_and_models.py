"""Rules and models agree: with decomposer and judge behind an endpoint that knows the truth, rewards are those of the
rules, on what both can read. The endpoint answers as chat models do: in lists of several forms, behind preambles and in
fences, with refusals, cut replies and errors 429 on the way."""

import random
from dataclasses import asdict

import pytest
from making import build_base, make_answers, of_each

from bench import chat_model
from bench.chat_model import BUSY, CUT, REFUSES, ChatModel
from bench.services import asking
from grpo.config.load import load_config
from knowledge.almanac import REFUSAL, articles, by_title, read_facts
from rewards.registry import build_rewards
from rewards.scorer import Scorer

SUBJECTS = ("France", "India", "Netherlands", "Japan", "Chad")
REWARDS = ("knowrl", "correctness", "factuality", "binary_rar", "truthrl")
WRONG = {"capital": "Springfield", "currency": "florin", "code": "QX"}
OFTEN = dict.fromkeys((BUSY, REFUSES, CUT), 0.25)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    documents = {document["title"]: document["text"] for document in articles(read_facts("atlas"))}
    return build_base(tmp_path_factory.mktemp("atlas"), {title: documents[title] for title in SUBJECTS})


def groups():
    """Answers about some countries: true and false facts, such that nobody knows, doubts, repetitions, no format."""
    rng, found = random.Random(5), []
    for title, facts in by_title(read_facts("atlas")).items():
        if title not in SUBJECTS:
            continue
        fact = facts[0]
        truth, false = fact.answers[0], WRONG["capital"]
        texts = []
        for final in (truth, truth.upper(), false, false, REFUSAL, f"{truth} or {false}"):
            said = [one.sentence(one.answers[0]) for one in rng.sample(facts, 3)]
            false_ones = [one.sentence(WRONG[one.familiarity]) for one in facts if one.familiarity in WRONG]
            said += false_ones[: rng.randint(0, 2)]
            said += [f"The anthem of {fact.subject} is long.", said[0]]
            texts.append(f"<think>{' '.join(said)}</think><answer>{final}</answer>")
        texts.append(f"<think>{fact.sentence(false)} Hm, is that so?</think><answer>{false}.</answer>")
        texts.append(f"<think>Hm?</think><answer>{false}</answer>")
        texts.append(f"{fact.sentence(truth)} So it is {truth}.")
        found.append(make_answers(fact.row(), *texts))
    return found


def graded(name: str, base, *keys: str):
    """The answers as a reward grades them."""
    given = ["model_name_or_path=x", "dataset_id_or_path=x", "output_dir=x", f"knowledge_base={base}", *keys]
    options = asdict(load_config(None, [*given, f"reward_funcs=format,{name}", "verifier=lexical"])[0])
    answers, scorer = groups(), Scorer(build_rewards(["format", name], options))
    try:
        scorer.grade(answers)
    finally:
        scorer.close()
    return answers


@pytest.mark.parametrize("name", REWARDS)
def test_rewards_are_the_same_by_rules_and_by_models(base, name, monkeypatch):
    monkeypatch.setattr(chat_model, "RETRY_AFTER_S", 0)
    expected = graded(name, base, "judge=offline", "decomposer=rules")
    with ChatModel(troubles=OFTEN, lasting=0) as model:
        found = graded(name, base, "api_deadline_s=600", *asking(model))
    assert all(model.counts[trouble] for trouble in OFTEN)
    for ours, theirs in zip(expected, found, strict=True):
        assert None not in of_each(ours, "reward")
        assert of_each(theirs, "reward") == of_each(ours, "reward")
        assert of_each(theirs, "outcome") == of_each(ours, "outcome")
        for one, other in zip(ours.completions, theirs.completions, strict=True):
            assert verdicts(other, name) == verdicts(one, name)
    values = {round(value, 6) for group in expected for value in of_each(group, "reward")}
    assert len(values) > 2  # they tell answers apart


def verdicts(completion, name: str) -> list[tuple[str, str]]:
    """The facts of a completion, and what the base says of them."""
    return [(fact["fact"].rstrip("."), fact["verdict"]) for fact in completion.scores[name].facts]

"""Which facts a model declines or searches for: odds against the softmax, measures against counts by hand, and the data
of bench/real_model.py."""

import math

import numpy as np
import pytest
import torch
from making import build_base, make_answers, make_completion

from bench import picture, searching
from bench.asking import encode
from bench.declining import AFTER, AT_ONCE, examine, logit
from bench.measures import auroc, auroc_within, mean_risk, risk_at
from bench.real_model import measures, supervised, table_of_seeds
from grpo.algorithm.schema import Prompt
from grpo.base.storage import write_lines
from grpo.config.options import TrainConfig
from grpo.engine.sampling.sampler import Sampler
from grpo.policy import load_for_inference
from knowledge.almanac import REFUSAL, Fact, conversations

# --- Asking ----------------------------------------------------------------------------------------------------------

ROW = Fact("capital", "the Netherlands", ("Amsterdam",)).row()
START = "<think>The capital of the Netherlands is"
THOUGHT = " Amsterdam."


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


def test_the_odds_of_declining_are_those_of_the_softmax(policy):
    prompt = "Well?"
    answers = [make_answers(ROW, f"{START}{THOUGHT}</think><answer>something</answer>", prompt=prompt)]
    (found,) = examine(policy, Sampler(policy.model, policy.eos_ids), answers, max_tokens=8)
    assert found["right"] and found["said"] == "Amsterdam"
    at_once = math.exp(logp(policy, f"{prompt}<think>{AT_ONCE}", f"{prompt}<think>"))
    end = f"{prompt}{START}{THOUGHT}</think><answer>"
    declines = at_once + (1 - at_once) * math.exp(logp(policy, end + AFTER, end))
    assert found["declines"] == pytest.approx(math.log(declines / (1 - declines)), abs=1e-3)
    assert found["sequence"] == pytest.approx(logp(policy, f"{prompt}{START}{THOUGHT}", prompt + START), abs=1e-3)


def test_a_model_that_recalls_nothing_is_made_to(policy):
    sampler = Sampler(policy.model, policy.eos_ids)
    asked = []
    real = sampler.sample
    sampler.sample = lambda stems, *rest, **more: asked.extend(stems) or real(stems, *rest, **more)
    group = make_answers(ROW, "I will not say.", prompt="Well?")
    group.prompt = Prompt(0, "Well?", encode(policy, "Well?"), ROW)
    (found,) = examine(policy, sampler, [group], max_tokens=24)
    assert asked == [encode(policy, "Well?" + START)] and not found["right"]


# --- Measures --------------------------------------------------------------------------------------------------------


def test_auroc_counts_pairs_and_half_of_the_ties():
    scores, wrong = np.array([3.0, 2.0, 2.0, 1.0]), np.array([True, True, False, False])
    assert auroc(scores, wrong) == (1 + 1 + 0.5 + 1) / 4
    assert auroc(-scores, wrong) == 1 - auroc(scores, wrong)
    assert math.isnan(auroc(scores, np.ones(4, bool)))


def test_a_log_prob_becomes_a_logit():
    assert logit(math.log(0.5)) == pytest.approx(0) and logit(math.log(0.9)) == pytest.approx(math.log(9))
    assert math.isfinite(logit(0.0))


def test_auroc_within_kinds_ignores_what_tells_kinds_apart():
    kinds = np.array(["a", "a", "b", "b"])
    scores, wrong = np.array([1.0, 2.0, 11.0, 12.0]), np.array([True, False, True, True])
    assert auroc(scores, wrong) == 2 / 3
    assert auroc_within(scores, wrong, kinds) == 0  # the only pair of one kind is in the wrong order


def test_the_risk_is_the_share_of_wrong_answers_among_the_lowest_scores():
    scores, right = np.array([0.1, 0.4, 0.2, 0.3]), np.array([True, False, True, False])
    assert [risk_at(scores, right, coverage) for coverage in (0.25, 0.5, 0.75, 1)] == [0, 0, pytest.approx(1 / 3), 0.5]
    assert mean_risk(scores, right) == pytest.approx((0 + 0 + 1 / 3 + 1 / 2) / 4)


def test_r_tuning_declines_exactly_what_the_model_gets_wrong(tmp_path):
    facts = [Fact("capital", "the Netherlands", ("Amsterdam",)), Fact("symbol", "iron", ("Fe",))]
    pairs = conversations(facts, ["Rotterdam", "Fe"], lambda fact, answer: fact.subject == "iron")
    rows = [{"messages": [{"content": question}, {"content": answer}]} for question, answer in pairs]
    write_lines(tmp_path / "cold_start.jsonl", rows)
    write_lines(tmp_path / "questions.jsonl", [fact.row() for fact in facts])
    found = supervised(tmp_path / "cold_start.jsonl", tmp_path / "questions.jsonl")
    found = [row["messages"][1]["content"] for row in found]
    assert found == [
        f"<think>The capital of the Netherlands is Rotterdam.</think><answer>{REFUSAL}</answer>",
        "<think>The symbol of iron is Fe.</think><answer>Fe</answer>",
    ]


def test_the_table_of_seeds_has_the_mean_its_interval_and_the_paired_gain(tmp_path):
    """Two facts of which the first is known. Before, the model would decline the known one; after, the other."""
    known = {"familiarity": "capital", "right": True}
    unknown = {"familiarity": "capital", "right": False}
    before = [known | {"declines": 1}, unknown | {"declines": -1}]
    after = [known | {"declines": -1}, unknown | {"declines": 1}]
    for seed, rows in ((1, before), (2, after)):
        found = measures(rows, before)
        assert found["gain"] == found["auroc"] == seed - 1
        write_lines(tmp_path / f"seed-{seed}.jsonl", [{"arms": {"GRPO": found}}])
    cells = table_of_seeds(tmp_path).splitlines()[-1].split(" | ")
    forced, *others = cells[2:6]
    assert forced == "0.500 [0.500, 0.500]"
    assert others == ["0.500 [-5.855, 6.855]"] * 3


def test_readmes_picture_shows_what_the_page_of_results_says(tmp_path):
    """60 % and 44 % wrong of the half that is answered; sums 10 to 82 %; true and false facts."""
    arms = "cold start", "GRPO"
    wrong = {arm: picture.facts(arm)[1].size / picture.ANSWERED for arm in arms}
    assert {arm: round(100 * share) for arm, share in wrong.items()} == {"cold start": 60, "GRPO": 44}
    assert [round(100 * picture.sums(arm)[0].size, -1) for arm in arms] == [10, 80]
    stated = [[round(part.size, 1) for part in picture.thoughts(arm)[:2]] for arm in arms]
    assert stated == [[1.6, 1.9], [3.2, 0.7]]
    picture.draw(tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 10_000


# --- Searching -------------------------------------------------------------------------------------------------------


def test_a_search_is_forced_and_its_odds_are_those_of_the_softmax(policy, chat_checkpoint, tmp_path, monkeypatch):
    """What the model says is scripted: it recalls a name, asks for the country, and reads what is found."""
    article = "The capital of the Netherlands is Amsterdam."
    keys = {"tools": ("search",), "knowledge_base": str(build_base(tmp_path, {"Netherlands": article}))}
    config = TrainConfig(model_name_or_path=str(chat_checkpoint), **keys)
    said, starts = [" Rotterdam. <search", "Netherlands</search> or", "</think><answer>Amsterdam</answer>"], []

    def go_on(policy, asked, max_tokens, ends=()):
        starts.append(policy.decode(asked[0]))
        return [make_completion(encode(policy, said[len(starts) - 1]))]

    monkeypatch.setattr(searching, "go_on", go_on)
    (found,) = searching.ask(policy, [Prompt(0, "Well?", encode(policy, "Well?"), ROW)], config)
    recalled = f"Well?{START} Rotterdam."
    call = f"{recalled} <search>"
    assert starts == [f"Well?{START}", call, f"{call}Netherlands</search><result>{article}</result>"]
    assert (found["said"], found["right"]) == ("Rotterdam", False)
    assert (found["query"], found["result"]) == ("Netherlands", article)
    assert (found["found"], found["found_right"]) == ("Amsterdam", True)
    odds = logp(policy, call, recalled) - logp(policy, f"{recalled} </think><answer>", recalled)
    assert found["searches"] == pytest.approx(odds, abs=1e-3)
    assert found["sequence"] == pytest.approx(logp(policy, recalled, f"Well?{START}"), abs=1e-3)


def test_choices_of_what_to_search_for_are_compared_at_equal_numbers():
    """Four facts, of which the first two are known, and a search finds all but the last."""
    facts = [(True, True, 2.0, -1.0), (True, True, -1.0, -2.0), (False, True, 1.0, -9.0), (False, False, -3.0, -8.0)]
    names = ("right", "found_right", "searches", "sequence")
    rows = [{"familiarity": "capital", **dict(zip(names, fact, strict=True))} for fact in facts]
    cold = [row | {"searches": -row["searches"]} for row in rows]
    found = searching.measures(rows, cold)
    assert found["share"] == 0.5 and found["never"][0] == 0.5 and found["always"][0] == 0.75
    assert found["auroc"][0] == 0.25 and found["gain"][0] == -0.5 and found["auroc_threshold"][0] == 1
    at = {name: value[0] for name, value in found["at"]["50%"].items()}  # own: the first and the third are searched for
    assert at["own"] == 0.75 and at["threshold"] == 0.75 and at["random"] == 0.625 and at["own_less_random"] == 0.125
    assert [found["at"]["25%"][name][0] for name in ("own", "threshold", "random")] == [0.5, 0.75, 0.5625]
    assert "cold start" in searching.tables({"cold start": found, "GRPO": found})

"""bench/reasoning.py, its arms, and bench/rejection.py: the measures of reasoning against counts by hand."""

from collections import Counter

import numpy as np
import pytest
import torch

from bench import rejection
from bench.arm import Answer, Arm, Recalled, kept_of, measures, repeated
from bench.reasoning import answers_of, ask, draw, known_by_kind, tables
from bench.rejection import asked, best, conversations, supported
from grpo.base.errors import UserError
from grpo.base.storage import write_lines
from grpo.config.options import TrainConfig
from grpo.data.almanac import prompt_text
from grpo.policy import load_for_inference
from knowledge.almanac import Fact

S, R, U = "supported", "refuted", "unknown"
MEMORY = {
    "Chad": {"capital": Recalled(True, -0.1), "currency": Recalled(False, -3.0)},
    "Peru": {"capital": Recalled(False, -2.0), "currency": Recalled(True, -0.5)},
}
KNOWN = {"capital": 0.5, "currency": 0.4}


def answer(country, *facts, outcome="wrong", sentences=2, repeats=0):
    return Answer(country, outcome, facts, sentences, repeats, "text")


def arm(*answers):
    return Arm(answers, MEMORY)


BEFORE = arm(
    answer("Chad", ("capital", S), ("currency", R)),
    answer("Peru", ("capital", R), ("currency", S), ("", U), outcome="correct"),
)
AFTER = arm(answer("Chad", ("capital", S), outcome="refused", sentences=1), answer("Peru", ("currency", S), repeats=1))
BOTH = np.arange(2)


def test_facts_are_counted_by_verdict_and_by_kind():
    assert BEFORE.facts_per_answer() == 2.5 and AFTER.facts_per_answer() == 1
    assert [BEFORE.per_answer(label)(BOTH) for label in (S, R, U)] == [1, 1, 0.5]
    assert BEFORE.supported()(BOTH) == 2 / 5
    assert BEFORE.supported()([0, 0]) == 1 / 2  # Chad alone, drawn twice
    assert [AFTER.share(outcome)(BOTH) for outcome in ("correct", "wrong", "refused")] == [0, 0.5, 0.5]


def test_the_baseline_asks_as_many_questions_as_grpo_and_all_of_them_before_any_twice():
    questions = [{"question": str(i)} for i in range(610)]
    rounds = [row for start in range(0, 3200, 640) for row in asked(questions, 640, start)]
    assert rounds == asked(questions, 3200, 0)
    counts = Counter(row["question"] for row in rounds)
    assert len(counts) == 610 and set(counts.values()) == {5, 6}


def test_each_round_begins_with_the_model_of_the_last_one(tmp_path, monkeypatch):
    played = []

    def play_round(config, model, questions, is_best, output):
        first, *_, last = [row["question"] for row in questions]
        played.append((config.seed, config.max_steps, model.name, first, last))
        return output

    monkeypatch.setattr(rejection, "play_round", play_round)
    data = tmp_path / "questions.jsonl"
    write_lines(data, [{"question": f"{i} ?"} for i in range(5)])
    config = TrainConfig(dataset_id_or_path=str(data), max_steps=4, seed=7, per_device_train_batch_size=4)
    assert rejection.play(config, tmp_path / "start", 2, False, tmp_path).name == "round-2"
    assert played == [(7, 2, "start", "0 ?", "2 ?"), (8, 2, "round-1", "3 ?", "0 ?")]


def test_the_best_answer_to_each_question_is_told_by_the_weighted_reward():
    def answered(question, correctness, factuality):
        return {"question": question, "rewards": {"correctness": correctness, "factuality": factuality}}

    records = [answered("a", 2, 0), answered("b", -1, 0.5), answered("a", 1, 0.75), answered("b", -1, 0.5)]
    chosen = best(records, {"correctness": 1.0, "factuality": 2.0})
    assert chosen == [records[2], records[1]] and chosen[1] is records[1]


def test_what_is_left_out_is_what_the_cold_start_would_get_wrong():
    assert AFTER.would_be_false(False)(BOTH) == 1 and AFTER.would_be_false(True)(BOTH) == 0
    assert BEFORE.would_be_false(True)(BOTH) == 1 / 2 and BEFORE.would_be_false(False)(BOTH) == 0  # nothing left out


def test_without_training_the_likeliest_facts_or_the_best_kinds_are_kept():
    def by_logp(kind, found):
        return -found.logp

    def by_kind(kind, found):
        return -KNOWN[kind]

    assert kept_of(AFTER, by_logp, 1)(BOTH) == 1  # Chad's capital and Peru's currency
    assert kept_of(AFTER, by_logp, 1.5)(BOTH) == pytest.approx(2 / 3)
    assert kept_of(AFTER, by_kind, 1)(BOTH) == pytest.approx(1 / 2)  # both capitals
    assert kept_of(AFTER, by_kind, 1.5)(BOTH) == pytest.approx((1 + 1 / 2) / 3)  # and half of the currencies
    assert kept_of(AFTER, by_logp, 1)([1, 1]) == 1  # of Peru the currency, which is right


def test_more_answers_about_a_country_weigh_more():
    twice = arm(answer("Chad", ("capital", S)), answer("Chad", ("capital", S)), answer("Peru", ("capital", R)))
    assert kept_of(twice, lambda kind, found: kind != "capital", 1)(BOTH) == pytest.approx(2 / 3)


def test_differences_are_paired_and_the_tables_hold_every_arm(tmp_path):
    found = measures({"cold start": BEFORE, "after": AFTER}, KNOWN)
    assert found["cold start"]["gain"] == (0, 0, 0)
    assert found["after"]["gain"][0] == pytest.approx(3 / 5)
    assert found["after"]["over_threshold"][0] == pytest.approx(0)
    assert found["after"]["over_cold"][0] == found["cold start"]["over_first"][0] == 0  # one supported fact per answer
    assert found["after"]["knows"][0] == 1 and found["after"]["one_sentence"] == 0.5
    assert repeated(AFTER) == 1 / 3
    assert found["after"]["by_kind"]["capital"] == {S: 0.5, R: 0, U: 0}
    first, second, kinds = tables(found)
    assert "| after | 1.00 | 1.00 | 0.00 | 0.00 | 100 % (100 to 100) | +60 % (" in first
    assert second.count("\n") == 3 and "| after | 0.50 of 0.50 | 0.50 of 0.50 |" in kinds
    draw(tmp_path / "kinds.png", found, "after")
    assert (tmp_path / "kinds.png").stat().st_size > 5_000


def test_an_answer_is_read_from_what_an_evaluation_writes():
    said = "The capital of Chad is Lima. The currency of Chad is the franc. The capital of Chad is Lima. It is hot."
    facts = [("The capital of Chad is Lima", R), ("The currency of Chad is the franc", S), ("It is hot", U)]
    record = {"title": "Chad", "outcome": "wrong", "completion": f"<think>{said}</think><answer>Lima</answer>"}
    record["facts"] = {"factuality": [{"fact": fact, "verdict": verdict} for fact, verdict in facts]}
    read = Answer.of_record(record)
    assert read.facts == (("capital", R), ("currency", S), ("", U)) and read.kinds == {"capital", "currency", ""}
    assert (read.sentences, read.repeats) == (4, 1)
    nothing = Answer.of_record(record | {"completion": "<think></think><answer>Lima</answer>", "facts": {}})
    assert nothing.facts == () and nothing.sentences == 0


def test_fine_tuning_sees_each_supported_fact_once_and_no_answer_without_one():
    facts = [("The capital of Chad is N'Djamena", S), ("The code of Chad is CH", R), ("It is hot", U)]
    facts += [("The continent of Chad is Africa", S), facts[0]]
    said = " ".join(f"{fact}." for fact, _ in facts)
    record = {"question": "Well?", "completion": f"<think>{said}</think><answer>Chad</answer>"}
    record["facts"] = {"factuality": [{"fact": fact, "verdict": verdict} for fact, verdict in facts]}
    kept = "<think>The capital of Chad is N'Djamena. The continent of Chad is Africa.</think><answer>Chad</answer>"
    assert supported(record) == kept
    cut = record | {"completion": f"<think>{said}"}
    false = record | {"facts": {"factuality": [{"fact": "The code of Chad is CH", "verdict": R}]}}
    assert supported(cut) is None and supported(false) is None and supported(record | {"facts": {}}) is None
    (row,) = conversations([cut, record, false])
    assert [message["content"] for message in row["messages"]] == ["Well?", kept]


def test_the_worst_kinds_are_told_by_what_the_cold_start_was_made_of(tmp_path):
    facts = [Fact("capital", "Chad", ("N'Djamena",)), Fact("currency", "Chad", ("franc",))]
    facts += [Fact("capital", "Peru", ("Lima",)), Fact("currency", "Peru", ("sol",))]
    said = ["The capital of Chad is Lima. The currency of Chad is the franc.", "The currency of Chad is the franc."]
    said += ["The capital of Peru is Lima.", "The capital of Peru is Lima."]
    rows = [{"messages": [{"content": "?"}, {"content": f"<think>{text}</think>"}]} for text in said]
    write_lines(tmp_path / "questions.jsonl", [fact.row() for fact in facts])
    write_lines(tmp_path / "cold_start.jsonl", rows)
    assert known_by_kind(tmp_path) == {"capital": 1 / 2, "currency": 1}


def test_what_is_recalled_has_the_log_prob_of_the_softmax(chat_checkpoint):
    from transformers import AutoModelForCausalLM

    policy = load_for_inference(TrainConfig(model_name_or_path=str(chat_checkpoint)), torch.device("cpu"))
    facts = [Fact("capital", "Chad", ("N'Djamena",)), Fact("currency", "Peru", ("sol",))]
    stem = policy.tokenizer.encode(prompt_text(policy, None, facts[0]) + "<think>The capital of Chad is")
    model, ids, logp = AutoModelForCausalLM.from_pretrained(chat_checkpoint, dtype=torch.float32), list(stem), 0.0
    first, second = ask(policy, None, facts)
    assert (first["title"], second["kind"]) == ("Chad", "currency") and not second["right"]
    with torch.no_grad():  # greedily, on and on, until it has said as much
        for _ in range(10):
            logps = model(torch.tensor([ids])).logits[0, -1].log_softmax(-1)
            ids.append(int(logps.argmax()))
            logp += float(logps.max())
            if first["logp"] == pytest.approx(logp, abs=1e-3):
                break
        else:
            raise AssertionError("no beginning of the greedy answer has this log-prob")
    assert policy.decode(ids[len(stem) :]).strip(" .,\n:").startswith(first["said"].strip())


def test_a_run_without_evaluation_is_named(tmp_path):
    for step, when in ((None, "after its last step"), (0, "at step 0")):
        with pytest.raises(UserError, match=when) as raised:
            answers_of(tmp_path / "run", step)
        assert raised.value.fix.startswith("finish the run")

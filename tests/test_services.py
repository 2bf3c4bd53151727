"""bench/services.py and bench/chat_model.py: each trouble of the stub, and a made-up run that is graded in two ways."""

import json
from dataclasses import asdict

import pytest
from making import build_base, read_lines, write_rows

from bench import chat_model
from bench.chat_model import BUSY, CUT, LISTS, REFUSES, ChatModel, grade, lines, stated
from bench.services import (
    CAUSES,
    CUT_OFF,
    LOST,
    MORE,
    OTHERWISE,
    REFUSED,
    answers_of,
    asking,
    compare,
    graded,
    main,
    table,
)
from grpo.config.load import load_config
from knowledge.almanac import Fact
from knowledge.facts.replies import parse_reply
from rewards.knowrl.decomposer import build_decomposer
from rewards.outcome.grades import parse_grade
from rewards.outcome.judge import build_judge, build_messages

NEEDED = ["model_name_or_path=m", "dataset_id_or_path=d", "output_dir=o", "reward_funcs=exact"]
TEXT = "The capital of Chad is Lima. The continent of Chad is Africa. A language of Chad is French."
FACTS = TEXT.replace(". ", ".\n").splitlines()
CHAD = Fact("capital", "Chad", ("N'Djamena",))
ARTICLE = "The capital of Chad is N'Djamena. The continent of Chad is Africa. A language of Chad is French."
TRUE, FALSE = "The continent of Chad is Africa.", "The capital of Chad is Lima."
ANSWERS = {
    "right": f"<think>{TRUE} {FALSE} It is hot. A language of Chad is French.</think><answer>N'Djamena</answer>",
    "right to a reader": f"<think>{FALSE}</think><answer>N'Djamena city</answer>",
    "no space": f"<think>{TRUE} A language of Chad isFrench.</think><answer>Lima</answer>",
    "not closed": f"<think>{TRUE} {FALSE} A language",
    "declined": f"<think>{TRUE}</think><answer>I don't know</answer>",
}


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr(chat_model, "RETRY_AFTER_S", 0)


@pytest.fixture
def run(tmp_path, chat_checkpoint):
    """A run with some answers, one of them both sampled and held out."""
    folder = tmp_path / "run"
    for name in ("completions", "evaluation"):
        (folder / name).mkdir(parents=True)
    rows = [CHAD.row() | {"completion": text, "rewards": {}} for text in ANSWERS.values()]
    write_rows(folder / "completions" / "step-000001.jsonl", rows)
    write_rows(folder / "evaluation" / "step-000000.jsonl", rows[:1])
    keys = {
        "model_name_or_path": str(chat_checkpoint),
        "dataset_id_or_path": str(write_rows(tmp_path / "questions.jsonl", [CHAD.row()] * 2)),
        "knowledge_base": str(build_base(tmp_path, {"Chad": ARTICLE})),
        "output_dir": str(folder),
        "reward_funcs": ["factuality"],
        "eval_reward_funcs": ["correctness", "factuality"],
        "verifier": "lexical",
        "num_generations": 2,
        "per_device_train_batch_size": 4,
        "max_completion_length": 6,
        "lora_r": 2,
        "report_to": ["none"],
        "device": "cpu",
        "max_unscored": 1.0,
        "judge": "offline",
        "decomposer": "rules",
    }
    (folder / "config.resolved.yaml").write_text(json.dumps(keys))
    return folder


def told(run, **troubles):
    """What becomes of a run's answers with such a stub, and what was counted."""
    answers = answers_of(run)
    with ChatModel(**troubles) as model:
        by_model, counts = graded(run, answers, *asking(model))
    return compare(graded(run, answers)[0], by_model), counts, model


def services(model: ChatModel):
    options = asdict(load_config(None, [*NEEDED, *asking(model)])[0])
    return build_judge(options), build_decomposer(options)


def ask(model: ChatModel):
    """The facts that a decomposer finds in TEXT, with the number of calls; and the same of a right answer's grade."""
    judge, decomposer = services(model)
    claims = decomposer.wait_for(decomposer.decompose(TEXT, "Well?"))
    judgement = judge.wait_for(judge.judge(CHAD.question, "N'Djamena", CHAD.answers))
    facts = claims.facts and [claim.fact for claim in claims.facts]
    return (facts, decomposer.client.counts["calls"]), (judgement.outcome, judge.client.counts["calls"])


@pytest.mark.parametrize("form", LISTS)
def test_every_form_of_a_reply_is_read(form):
    facts = list(enumerate(FACTS, 1))
    assert list(parse_reply(form(facts))) == FACTS
    assert [parse_grade(LISTS[form].format(letter)) for letter in "ABC"] == ["correct", "wrong", "refused"]


@pytest.mark.parametrize("trouble", [BUSY, REFUSES, CUT])
def test_a_trouble_that_passes_costs_a_call(trouble):
    with ChatModel(troubles={trouble: 1.0}, lasting=0) as model:
        assert ask(model) == ((FACTS, 2), ("correct", 2))
    assert model.counts == {trouble: 2, "": 2}


def test_what_a_lasting_trouble_leaves():
    """Waiting helps against a service that is busy; of a list that was cut, some facts are left, and no grade."""
    with ChatModel(troubles={BUSY: 1.0}, lasting=1) as model:
        assert ask(model) == ((FACTS, 3), ("correct", 3))
    with ChatModel(troubles={REFUSES: 1.0}, lasting=1) as model:
        assert ask(model) == ((None, 2), (None, 2))
    with ChatModel(troubles={CUT: 1.0}, lasting=1) as model:
        (facts, _), judged = ask(model)
        assert ask(model) == ((facts, 2), judged)  # again, whoever has asked before
    assert judged == (None, 2) and 0 < len(facts) < 3 and facts == FACTS[: len(facts)]


def test_troubles_depend_on_seed_and_text_and_on_nothing_else():
    def drawn(model, text):
        return [model.drawn(f"<question {nonce}>\n{text}\n</question {nonce}>") for nonce in ("ab12", "cd34")]

    with ChatModel(1) as one, ChatModel(1) as same, ChatModel(2) as other:
        found, again, others = ([drawn(model, number) for number in range(200)] for model in (one, same, other))
    assert found == again != others and all(first == second for first, second in found)
    troubles = [trouble for (_, trouble, _), _ in found]
    assert 10 <= troubles.count(BUSY) <= 32 and {REFUSES, CUT, ""} < set(troubles)


def test_it_says_what_is_stated_once_and_compares_words():
    text = "[1] <think>The capital of Chad is Lima. [2] Is it so? It is D. It isFrench. [3] It is D. [4] The [5] It is"
    assert stated(text) == [(1, FALSE), (2, "It is D."), (2, "It is French.")]
    asked = [("N'Djamena city", "A"), ("ndjamena", "A"), ("Lima", "B"), ("I don't know", "C"), ("city", "B")]
    for answer, letter in asked:
        _, message = build_messages(CHAD.question, answer, ["N'Djamena"], "ab12")
        assert grade(message["content"]) == letter
    assert lines([(2, "It is D.")]) == "- [2] It is D."


def test_rules_and_models_are_compared_by_what_both_can_read(run):
    found, counts, model = told(run, troubles={})
    all_of_them = dict.fromkeys(("answers", "equal", "readable", "read_alike"), 5)
    assert found["format"] == all_of_them | dict.fromkeys(CAUSES, 0)
    correctness, factuality = found["correctness"], found["factuality"]
    assert (correctness["equal"], correctness["readable"], correctness[OTHERWISE]) == (4, 5, 1)
    assert (factuality["equal"], factuality["readable"], factuality[MORE]) == (4, 4, 1)
    assert counts["calls"] == model.counts[""] == model.counts.total()
    assert "| factuality | 5 | 80.0% | 100.0% | 0 | 0 | 0 | 0 | 1 | 0 |" in table(found)


def test_what_a_service_did_not_answer_is_told_apart(run):
    found, counts, model = told(run, troubles={REFUSES: 1.0}, lasting=1)
    assert found["factuality"][REFUSED] == 5 and found["correctness"][REFUSED] == 3 and found["format"]["equal"] == 5
    assert counts["retries"] == 0 and counts["calls"] == model.counts[REFUSES]
    found, *_ = told(run, troubles={CUT: 1.0}, lasting=1)
    assert found["correctness"][CUT_OFF] == 3 and found["factuality"][LOST] > 0
    found, counts, model = told(run, troubles={BUSY: 1.0}, lasting=0)
    assert counts["retries"] == model.counts[BUSY] > 0 and not any(found["factuality"][why] for why in (REFUSED, LOST))


def test_a_run_is_graded_twice_and_its_steps_wait(run, capsys):
    row = main([str(run), "--steps", "2", "--delay", "0.2", "--seed", "0"])
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == row
    assert read_lines(run / "exam" / "services-run.jsonl") == [row]
    assert row["rewards"]["format"]["answers"] == 5
    quiet = row["without troubles"]
    assert len(quiet["waited_s"]) == 2 and quiet["spent_s"] == pytest.approx(0.2 * quiet["replies"])
    assert max(quiet["waited_s"]) > 0.1
    assert not any(quiet["troubles"].values())

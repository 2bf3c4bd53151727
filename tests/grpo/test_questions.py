"""Which questions are trained on, and which are held out."""

import json
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest
from making import cases, make_answers, make_tokenizer, refused, write_rows
from test_benchmarks import GPQA, TRUTHFUL

from grpo.base.errors import CONFIG, PREFLIGHT
from grpo.config.load import load_config
from grpo.data import questions as questions_module
from grpo.data.conversations import read_conversations
from grpo.data.count import RowCount
from grpo.data.files import read_records
from grpo.data.questions import (
    QuestionData,
    Questions,
    check_columns,
    held_out_scorer,
    load_prompts,
    longest_sequence,
    num_steps,
    prepare_rewards,
)
from grpo.data.rows import Row, read_rows
from rewards.registry import Reward, build_rewards


def configured(data, *keys):
    given = [f"dataset_id_or_path={data}", "model_name_or_path=m", "output_dir=o", "reward_funcs=exact", *keys]
    return load_config(None, given)[0]


@pytest.fixture()
def data(tmp_path):
    return write_rows(tmp_path / "q.jsonl", [{"question": f"{i}?", "answer": str(i)} for i in range(10)])


@pytest.fixture()
def policy(tmp_path):
    """What prompts need of a policy."""
    model = SimpleNamespace(config=SimpleNamespace(max_positions=500))
    return SimpleNamespace(model=model, tokenizer=make_tokenizer(["0? 1? 2?"], tmp_path / "tokenizer"))


def load(data, rewards=(), *keys):
    """Return the rows of a data set to train on, and how many were left out."""
    config = configured(data, *keys)
    return QuestionData(config).load(Questions.to_train(config), build_rewards(rewards, asdict(config)))


def rows_of(config, questions):
    return [row.index for row in QuestionData(config).load(questions)[0]]


@pytest.mark.parametrize(("keys", "trained", "held_out"), cases(__file__, "held-out rows"))
def test_held_out_rows_are_the_last_and_are_not_trained_on_or_a_file_of_their_own(data, keys, trained, held_out):
    config = configured(data, *keys.format(data).split())
    questions = Questions.held_out(config)
    found = rows_of(config, Questions.to_train(config)), questions and rows_of(config, questions)
    assert found == (json.loads(trained), json.loads(held_out))


@pytest.mark.parametrize("answer", [answer for (answer,) in cases(__file__, "no answers")])
def test_an_answer_that_no_text_equals_is_refused(tmp_path, answer):
    """SQuAD's and TriviaQA's, as the hub has them; a function of one's own may take what it likes."""
    data = write_rows(tmp_path / "q.jsonl", [{"question": "a?", "answer": one} for one in ("b", json.loads(answer))])
    refused(lambda: load(data, ["exact"]), "q.jsonl: row 2", "exact", "answer_field")
    config = configured(data)
    own = Reward("own", function=lambda **columns: [], needs=("answer",))
    assert len(QuestionData(config).load(Questions.to_train(config), [own])[0]) == 2


def test_the_held_out_questions_may_be_another_split_of_the_same_data_set(tmp_path):
    """Else those of training would be called held out. TRL's scripts name both splits."""
    folder = tmp_path / "data"
    folder.mkdir()
    for split, number in (("train", 3), ("test", 2)):
        write_rows(folder / f"{split}.jsonl", [{"question": f"{split} {i}?", "answer": "a"} for i in range(number)])
    for name in ("eval_dataset_split", "dataset_test_split"):
        config = configured(folder, f"eval_dataset_id_or_path={folder}", f"{name}=test")
        data = QuestionData(config)
        asked = [data.load(choose(config))[0][0].question for choose in (Questions.to_train, Questions.held_out)]
        assert asked == ["train 0?", "test 0?"]
    config = configured(folder, f"eval_dataset_id_or_path={folder}", "dataset_split=test")
    assert rows_of(config, Questions.held_out(config)) == [0, 1]


def test_something_must_be_left_to_train_on_and_held_out_questions_have_one_source(data):
    refused(lambda: load(data, (), "eval_size=10"), "no question is left", "lower eval_size", exit_code=PREFLIGHT)
    both = ["eval_size=1", f"eval_dataset_id_or_path={data}"]
    refused(lambda: configured(data, *both), "set one of them", exit_code=CONFIG)


def test_rows_that_cannot_be_asked_or_graded_are_left_out_and_counted(tmp_path):
    """An answer that says nothing is no truth; a reward that needs no answer takes the row."""
    empty = [{"question": "a", "answer": nothing} for nothing in (None, " ", [], [""], float("nan"))]
    rows = [{"question": "a", "answer": "b"}, *empty, {"question": "a", "answer": "b", "image": "cat.png"}]
    rows += [{"question": "a", "answer": None, "unanswerable": True}]
    data = write_rows(tmp_path / "q.jsonl", rows)
    kept, count = load(data, ["exact"])
    assert [row.index for row in kept] == [0, 7]
    assert count.left_out == {"without an answer": 5, "with images, videos or audio": 1}
    assert "2 of 8 rows are used; left out: 5 without an answer" in str(count)
    assert len(load(data, ["format"])[0]) == 7
    write_rows(data, [{"question": "a", "answer": "b", "video": "cat.mp4"}])
    refused(lambda: load(data), "no question is left", "1 with images, videos or audio")


PROSE = "First we note that 1 is a root of the polynomial, and divide by it."


def test_answers_that_are_sentences_are_counted_with_the_first_one(tmp_path):
    """For the reward math, which finds nothing equal to one: the run would say that every right answer is wrong."""
    answers = ["1", PROSE, f"{PROSE} \\boxed{{1}}", [PROSE], ["1", PROSE], f"{PROSE}\n#### 1", "12 square metres"]
    data = write_rows(tmp_path / "q.jsonl", [{"question": "a?", "solution": answer} for answer in answers])
    for rewards, wanted in ((["math"], 2), (["math", "format"], 2), (["exact"], 0)):
        _, count = load(data, rewards)
        assert count.notes.total() == wanted and ("2 answers that are sentences" in str(count)) == bool(wanted)
        assert ("row 2" in str(count)) == bool(wanted) and count.left_out.total() == 0
    for name in ("final_answer", "expected_answer"):
        row = {"question": "a?", "solution": [PROSE], name: ["1,-1"]}
        (read,), count = load(write_rows(tmp_path / f"{name}.jsonl", [row]), ["math"])
        assert read.columns["answer"] == ["1,-1"] and not count.notes


def test_bad_rows_are_counted_together_and_one_key_leaves_them_out(tmp_path):
    """Of every kind, in the file that is trained on; a row's number is that in the file."""
    good = {"question": "a?", "answer": "b"}
    bad = json.loads('[3, {"question": null}, {"question": []}, {"question": "a?", "answer": {}}, {}, "x", [1]]')
    data = write_rows(tmp_path / "q.jsonl", [good, *bad, good, *bad[:1], {**good, "question": "last?"}])

    named = [f"row {number} " for number in (2, 3, 4, 5, 6)]
    said = "8 rows are bad", "is not an object", "has no question", "exact", "skip_bad_rows"
    error = refused(lambda: load(data, ["exact"]), *said, *named)
    assert "row 7 " not in str(error)
    rows, count = load(data, ["exact"], "skip_bad_rows=true")
    assert [row.index for row in rows] == [0, 8, 10] and count.left_out.total() == 8
    assert "3 of 11 rows are used; left out: 8 bad, the first of which: " in str(count) and "row 2 " in str(count)
    write_rows(data, bad[1:])
    refused(lambda: load(data, ["exact"], "skip_bad_rows=true"), "no question is left", "6 bad")


DAMAGED = [r"\frac{1}{2}", r"\beta", r"\boxed{3}", r"\theta", r"3 \times 4", r"\text{cm}", r"\nu", r"a \neq b"]
DAMAGED += [r"\rho", r"\right)", r"\binom{5}{2}", r"\forall x"]


@pytest.mark.parametrize("text", DAMAGED)
def test_what_one_backslash_in_json_leaves_of_a_formula_is_named(tmp_path, text):
    r"""JSON reads \\f, \\b, \\t, \\n and \\r as control characters: no answer of a model would equal such a truth."""
    good = "a?\tb\n\nwho\r\nthe rest\nit"
    for row in (f'{{"question": "a?", "answer": "{text}"}}', f'{{"question": "{text}", "answer": "b"}}'):
        (tmp_path / "q.jsonl").write_text(json.dumps({"question": good, "answer": "b"}) + "\n" + row)
        rows, count = load(tmp_path / "q.jsonl")
        assert len(rows) == 2 and "1 rows with control characters" in str(count) and "row 2" in str(count)
    turns = [f'{{"role": "{role}", "content": "{text}"}}' for role in ("user", "assistant")]
    (tmp_path / "m.json").write_text(f'[{{"messages": [{", ".join(turns)}]}}]')
    count = RowCount("m.json")
    assert list(read_conversations(read_records(tmp_path / "m.json"), Path("m.json"), count))
    assert "1 rows with control characters" in str(count) and "row 1" in str(count)


def test_the_best_answer_of_truthfulqa_may_be_missing(tmp_path):
    kept, count = load(write_rows(tmp_path / "t.jsonl", [TRUTHFUL, {**TRUTHFUL, "Best Answer": None}]), ["exact"])
    assert [row.index for row in kept] == [0] and count.left_out == {"without an answer": 1}


def test_each_data_set_is_read_once(data, monkeypatch):
    read = []
    monkeypatch.setattr(questions_module, "read_rows", lambda path, *rest: read.append(path) or read_rows(path, *rest))
    config = configured(data, "eval_size=3")
    questions = QuestionData(config)
    scorer = prepare_rewards(questions, print)
    held_out_scorer(questions, scorer)
    for part in (Questions.to_train(config), Questions.held_out(config)):
        questions.load(part, scorer.rewards)
    assert read == [data]


def test_the_seed_decides_the_order_of_choices(tmp_path):
    data = write_rows(tmp_path / "gpqa.jsonl", [GPQA] * 20)

    def letters(seed):
        return [row.columns["answer"] for row in load(data, (), f"seed={seed}")[0]]

    assert letters(1) == letters(1) != letters(2)


def test_rewards_are_paid_by_their_weights(data):
    """The answer is right, and has not the format: 1 and -1."""
    config = configured(data, "reward_funcs=[exact,format]", "reward_weights=[3,0.5]")
    scorer = prepare_rewards(QuestionData(config), print)
    group = make_answers({"answer": "5"}, "5")
    scorer.grade([group])
    scorer.close()
    assert group.completions[0].reward == 2.5


@pytest.mark.parametrize(("epochs", "rows", "steps"), cases(__file__, "epochs"))
def test_a_run_has_as_many_steps_as_its_epochs_need(data, epochs, rows, steps):
    """Four rows to a step; the last one may begin another epoch."""
    assert num_steps(configured(data, f"num_train_epochs={epochs}"), int(rows), 4) == int(steps)
    assert num_steps(configured(data, f"num_train_epochs={epochs}", "max_steps=7"), int(rows), 4) == 7


def test_a_prompt_leaves_the_room_of_its_completion(data, policy):
    def prompts(room, longest=90):
        config = configured(data, f"max_completion_length={500 - room}", f"max_prompt_length={longest}")
        return load_prompts(QuestionData(config), policy, Questions.to_train(config)).prompts

    longest = max(len(prompt.ids) for prompt in prompts(90))
    assert len(prompts(longest)) == 10
    told = f"allowed are {longest - 1}"
    refused(lambda: prompts(longest - 1), "every prompt is longer", f"{told}: the model's 500 positions without max_c")
    refused(lambda: prompts(90, longest - 1), "every prompt is longer", f"{told}: max_prompt_length;")
    refused(lambda: prompts(0), "leaves no room for a prompt")


def test_the_longest_sequence_may_be_a_held_out_prompt(data, policy, tmp_path):
    """The cache is planned for it; else the first evaluation would ask for more memory than was left."""
    long = write_rows(tmp_path / "long.jsonl", [{"question": "0? " * 30, "answer": "0"}])
    found = {}
    for held_out in ("", f"eval_dataset_id_or_path={long}", "eval_size=3"):
        questions = QuestionData(configured(data, "max_completion_length=50", *filter(None, [held_out])))
        trained = load_prompts(questions, policy, Questions.to_train(questions.config)).prompts
        found[held_out] = longest_sequence(questions, policy, trained)
    plain, with_long, with_some = found.values()
    assert plain == with_some == max(len(prompt.ids) for prompt in trained) + 50
    assert with_long >= plain + 29


def test_a_column_is_there_if_any_row_fills_it():
    rows = [Row(0, "q", {"answer": None}), Row(1, "q", {"answer": "2", "title": None})]
    check_columns("exact", ("answer",), rows, "d")
    refused(lambda: check_columns("factuality", ("answer", "title"), rows, "d"), "needs the column title")
    check_columns("exact", ("answer",), [Row(0, "q", {"answer": None, "unanswerable": True})], "d")

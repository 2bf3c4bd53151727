"""Files of the usual benchmarks in their official layouts, with rows made up here."""

import csv
import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import pytest
import yaml
from making import cases, grade_groups, make_answers, of_each, refused, write_rows

from grpo.config.options import TrainConfig
from grpo.data.benchmarks import find_benchmark
from grpo.data.files import read_records
from grpo.data.rows import read_rows
from rewards.registry import build_rewards


def write_csv(path, *rows):
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
    return path


ROWS = yaml.safe_load(Path(__file__).with_name("benchmarks.yaml").read_text(encoding="utf-8"))
TRUTHFUL, GPQA, GSM8K = (ROWS[name] for name in ("TruthfulQA", "GPQA", "GSM8K"))


@pytest.mark.parametrize("name, question, answer", cases(__file__, "columns"))
@pytest.mark.parametrize("write, layout", [(write_csv, "csv"), (lambda path, *rows: write_rows(path, rows), "jsonl")])
def test_files_are_told_apart_by_their_columns(tmp_path, name, question, answer, write, layout):
    name, _, number = name.partition(":")
    row = ROWS[name][int(number)] if number else ROWS[name]
    path = write(tmp_path / f"any.{layout}", row, row)
    assert find_benchmark(read_records(path)).name == name
    found = read_rows(path)[1]
    assert found.question == question and str(found.columns["answer"]) == answer
    assert found.columns.keys() >= row.keys()


@pytest.mark.parametrize("row", [row for (row,) in cases(__file__, "others")])
def test_other_files_are_read_as_they_are(tmp_path, row):
    row = json.loads(row)
    path = write_rows(tmp_path / "d.jsonl", [row])
    assert find_benchmark([row]) is find_benchmark([]) is None and read_rows(path)[0].question == "a?"


@pytest.mark.parametrize("name", ["aime2025-I.jsonl", "AIME24.jsonl", "d.jsonl"])
@pytest.mark.parametrize("row, answers", cases(__file__, "AIME"))
def test_a_file_of_questions_and_answers_is_aimes_if_its_name_says_so_and_all_answers_fit(tmp_path, name, row, answers):
    row, is_aime = json.loads(row), answers == "fit"
    sound = row if is_aime else dict.fromkeys(row, "7") | {"solution": "\\boxed{7}"}
    records = [*[sound] * 29, row]  # only the last may not fit
    found = find_benchmark(records, name)
    assert (found.name if found else None) == ("AIME" if is_aime and "aime" in name.lower() else None)
    if found or "Problem" not in row:
        assert read_rows(write_rows(tmp_path / name, records))[29].question == "a?"


@pytest.mark.parametrize("row", [GSM8K, {"problem": "a?", "solution": "\\boxed{7}", "url": "aime"}])
def test_a_later_row_without_an_answer_is_of_no_benchmark(row):
    """Only the first rows tell which columns there are."""
    lacking = {name: value for name, value in row.items() if name not in ("answer", "solution")}
    assert find_benchmark([row] * 21) and not find_benchmark([row] * 20 + [lacking])


def test_a_field_that_is_named_is_used(tmp_path):
    path = write_csv(tmp_path / "t.csv", TRUTHFUL)
    (row,) = read_rows(path, "Question", "Best Answer")
    assert row.columns["answer"] == "Many cats get a stomach ache"


RIGHT = ["Many cats get a stomach ache.", "Most adult cats cannot digest it."]
WRONG = ["It grows strong.", "It sleeps better."]


def test_truthful_qa_as_its_authors_and_as_the_hub_have_it(tmp_path):
    generation = {name.lower().replace(" ", "_"): value for name, value in TRUTHFUL.items()}
    generation |= {"best_answer": RIGHT[0], "correct_answers": RIGHT[::-1], "incorrect_answers": WRONG}
    of_hub = write_rows(tmp_path / "generation.jsonl", [generation])
    for path in (write_csv(tmp_path / "TruthfulQA.csv", TRUTHFUL), of_hub):
        (row,) = read_rows(path)
        assert row.question == "What happens to a cat that drinks milk?"
        assert (row.columns["answer"], row.columns["incorrect_answers"]) == (RIGHT, WRONG)
    (row,) = read_rows(write_csv(tmp_path / "t.csv", {**TRUTHFUL, "Best Answer": "Yes; it does"}))
    assert row.columns["answer"] == ["Yes; it does.", *RIGHT], "only lists of answers are split"


@pytest.mark.parametrize("name", ["exact", "math", "simpleqa", "correctness"])
def test_every_reward_reads_the_answer_after_the_solution_of_gsm8k(tmp_path, name):
    (row,) = read_rows(write_rows(tmp_path / "d.jsonl", [GSM8K]))
    said = "<think>x</think><answer>1,234</answer>" if name != "math" else "\\boxed{1234}"
    group = make_answers(row.columns, said, said.replace("2", "3"))
    grade_groups(build_rewards([name], asdict(TrainConfig(judge="offline"))), group)
    right, wrong = of_each(group, "reward")
    assert right > 0 >= wrong


def test_gpqas_choices_are_shuffled_by_the_seed(tmp_path):
    path = write_csv(tmp_path / "gpqa_diamond.csv", *[GPQA] * 200)
    rows, again, other = (read_rows(path, seed=seed) for seed in (1, 1, 2))
    assert rows == again != other
    letters = Counter(row.columns["answer"] for row in rows)
    assert letters.keys() == set("ABCD") and min(letters.values()) > 25  # 50 each; less has a chance of 1 in 100,000
    for row in rows[:20]:
        question, *choices = row.question.splitlines()
        assert question == "Which particle has no charge?" and choices[0] == "" and len(choices) == 5
        assert f"{row.columns['answer']}) the neutron" in choices
        assert {choice[3:] for choice in choices[1:]} == {"the neutron", "the proton", "the electron", "the muon"}


@pytest.mark.parametrize("again", ["the neutron", "The  neutron "])
def test_a_wrong_choice_that_repeats_the_right_one_is_right_too(tmp_path, again):
    rows = read_rows(write_csv(tmp_path / "gpqa.csv", *[{**GPQA, "Incorrect Answer 2": again}] * 20))
    for row in rows:
        right = {line[0] for line in row.question.splitlines()[2:] if "neutron" in line.lower()}
        assert set(row.columns["answer"]) == right and len(right) == 2


def test_a_row_that_does_not_belong_is_named(tmp_path):
    for name, row in (("GPQA", GPQA), ("MATH", ROWS["MATH"])):
        path = write_rows(tmp_path / "d.jsonl", [row] * 20 + [{"Question": "a?", "level": "Level 1"}])
        refused(lambda path=path: read_rows(path), f"row 21 is not one of {name}", "question_field")


def test_a_row_gets_a_question_and_an_answer_and_nothing_else(tmp_path):
    """A run that is resumed must find the same columns; and the answer is the one that says which benchmark it is."""
    (row,) = read_rows(write_rows(tmp_path / "d.jsonl", [{"ID": 1, "Year": 2024, "Problem": "a?", "Answer": 70}]))
    assert row.columns == {"ID": 1, "Year": 2024, "Problem": "a?", "Answer": 70, "question": "a?", "answer": 70}
    (row,) = read_rows(write_rows(tmp_path / "d.jsonl", [{**ROWS["MATH"], "ground_truth": "another"}]))
    assert row.columns["answer"] == ROWS["MATH"]["solution"]


@pytest.mark.parametrize("name, cells, part", cases(__file__, "wrong cells"))
def test_a_cell_that_would_make_a_wrong_question_is_named(tmp_path, name, cells, part):
    path = write_rows(tmp_path / "d.jsonl", [ROWS[name] | json.loads(cells, strict=False)])
    refused(lambda: read_rows(path), f"row 1 is not one of {name}", part)

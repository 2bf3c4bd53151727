"""The files of common benchmarks: recognised by their columns, and read into the columns that this program uses.

A row of a known benchmark gets, in addition to its own columns: `question`, `answer` (one, or a list of right ones)
and `incorrect_answers` if some are known. A file with only questions and answers is taken for AIME if its name or a
column says so and all answers fit.

    TruthfulQA         2109.07958   SimpleQA           2411.04368   GPQA       2311.12022   MATH, MATH-500   2103.03874
    Chinese SimpleQA   2411.07140   SimpleQA Verified  2509.07968   GSM8K      2110.14168   AIME             maa.org
"""

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from grpo.base.storage import Json
from grpo.data.count import is_empty
from rewards.prompts import STEP_BY_STEP

LETTER = "{question}\n\nThink step by step. Then end with the letter of the right choice, as in: Answer: A"
LETTERS = "ABCDEFGHIJ"
NUM_TESTED = 20  # rows by which a format is recognised


def _read_as_it_is(record: Json, rng: random.Random) -> Json:
    """Return the question and its answer. KeyError if the record has none."""
    question = record["question" if "question" in record else "problem"]
    answer = record["answer" if "answer" in record else "solution"]
    return {"question": question, "answer": answer}


@dataclass(frozen=True)
class Benchmark:
    """A format of files.

    columns: the columns that every such file has. reward: grades the answers if the user names no reward. prompt: the
    user message if the configuration sets neither a system prompt nor a template. read: returns the columns above, from
    a record and a random generator. accepts: a condition that every record meets. says_so: a word in the file's name or
    in another column, for a format whose columns are too common.
    """

    name: str
    columns: str
    reward: str
    prompt: str = "{question}"
    read: Callable[[Json, random.Random], Json] = _read_as_it_is
    accepts: Callable[[Json], bool] = lambda record: True
    says_so: str = ""

    def fits(self, record: Json, file_name: str) -> bool:
        """Return whether a record may have this format."""
        names = set(self.columns.split(", "))
        others = [str(value) for name, value in record.items() if name not in names]
        text = " ".join([file_name, *others])
        return names <= set(record) and self.says_so in text.lower()

    def read_row(self, record: Json, seed: str) -> Json:
        """Return a record with the columns above added. seed: for the order of choices. ValueError: what is wrong."""
        rng = random.Random(seed)
        return record | self.read(_named_alike(record), rng)


def find_benchmark(records: Sequence[Json], file_name: str = "") -> Benchmark | None:
    """Return the format of these rows; None if it is not known."""
    named = list(map(_named_alike, records))
    for benchmark in BENCHMARKS if named else ():
        does_fit = all(benchmark.fits(record, file_name) for record in named[:NUM_TESTED])
        if does_fit and all(map(benchmark.accepts, named)):
            return benchmark
    return None


def _named_alike(record: Json) -> Json:
    """Name columns as the hub does: `Best Answer` is best_answer."""
    return {str(name).strip().lower().replace(" ", "_"): value for name, value in record.items()}


def _truthful_qa(record: Json, rng: random.Random) -> Json:
    right = split_answers(record["correct_answers"])
    wrong = split_answers(record["incorrect_answers"])
    if is_empty(record["best_answer"]):
        return {"question": record["question"], "answer": None}
    (best,) = split_answers([record["best_answer"]])
    right = [best, *(answer for answer in right if answer != best)]
    return {"question": record["question"], "answer": right, "incorrect_answers": wrong}


def _gpqa(record: Json, rng: random.Random) -> Json:
    columns = ["correct_answer", *WRONG_CHOICES.split(", ")]
    given = [record[column] for column in columns]
    choices = [" ".join(str(choice or "").split()) for choice in given]
    if not all(choices):
        raise ValueError("a choice is empty")
    right = choices[0].casefold()
    rng.shuffle(choices)
    lettered = list(zip(LETTERS, choices, strict=False))
    accepted = [letter for letter, choice in lettered if choice.casefold() == right]  # a wrong one may repeat it
    if len(accepted) == len(choices):
        raise ValueError("all choices are the right one")
    listed = [f"{letter}) {choice}" for letter, choice in lettered]
    asked = str(record["question"]).strip()
    question = "\n".join([asked, "", *listed])
    answer = accepted[0] if len(accepted) == 1 else accepted
    return {"question": question, "answer": answer}


def _is_aime_answer(record: Json) -> bool:
    """Return whether the answer, or else the box of a solution, is an integer of up to three digits, as AIME's are."""
    if record.get("answer") is None:
        solution = str(record.get("solution"))
        return bool(re.search(r"\\boxed\{\s*[0-9]{1,3}\s*\}", solution))
    answer = str(record["answer"]).strip()
    return bool(re.fullmatch(r"[0-9]{1,3}(?:\.0)?", answer))


TOO_COMMON = ("problem, answer", "question, answer", "problem, solution")
WRONG_CHOICES = "incorrect_answer_1, incorrect_answer_2, incorrect_answer_3"
JUDGED, MATH = "simpleqa", ("math", STEP_BY_STEP)
BENCHMARKS = (  # the first that fits is taken, so formats with more columns come first
    Benchmark("TruthfulQA", "question, best_answer, correct_answers, incorrect_answers", JUDGED, read=_truthful_qa),
    Benchmark("GPQA", "question, correct_answer, " + WRONG_CHOICES, "choice", LETTER, _gpqa),
    Benchmark("SimpleQA Verified", "original_index, problem, answer, answer_type", JUDGED),
    Benchmark("SimpleQA", "metadata, problem, answer", JUDGED),
    Benchmark("Chinese SimpleQA", "primary_category, secondary_category, question, answer", JUDGED),
    Benchmark("MATH-500", "problem, answer, subject, level", *MATH),
    Benchmark("MATH", "problem, solution, level, type", *MATH),
    Benchmark("GSM8K", "question, answer", *MATH, accepts=lambda record: "####" in str(record.get("answer"))),
    *(
        Benchmark("AIME", columns, *MATH, accepts=_is_aime_answer, says_so="aime" if columns in TOO_COMMON else "")
        for columns in ("id, problem, answer", "problem_number, question, answer", *TOO_COMMON)
    ),
    Benchmark("MathArena", "problem_idx, problem, answer", *MATH),
)


def split_answers(value: Any) -> list[str]:
    """Return TruthfulQA's answers, given as a list or a text with semicolons, each with a full stop, as in its code."""
    if isinstance(value, str) and value.strip()[:1] == "[" and value.strip()[-1:] == "]":
        raise ValueError("a list of answers is written as one text, as a table holds it: use JSONL or Parquet")
    found = value if isinstance(value, list) else str(value or "").split(";")
    stripped = [str(answer).strip() for answer in found if not is_empty(answer)]
    return [answer if answer.endswith(".") else f"{answer}." for answer in stripped if answer]

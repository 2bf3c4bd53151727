"""python -m bench.searching [RUN] [--save]

Does a real model learn to search for what it does not know? RUN is a finished run of configs/smollm2_search.yaml
(default: runs/smollm2_search). The run and its cold start recall a name for each held-out fact of
knowledge/almanac.csv, greedily, and are then made to do both:

- to give the name, which is right or wrong
- to search, with a query of their own, and to answer with what is found, which may be nothing

How probable it is that they search is computed exactly. So a choice of questions to search for has an accuracy, and
choices of equal numbers can be compared, by the same answers of the same model: its own choice (the highest log-odds of
searching), those of the lowest log-prob of the name that it recalls (`threshold`), and a random one, by its mean.
Searching always or never are the two ends.

What a model answers is kept in RUN/exam, and not asked again. Intervals: 95 %, bootstrap over facts, paired.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from bench.asking import Thought, completion_logprobs, encode, given, go_on
from bench.measures import (
    Chosen,
    Measure,
    Row,
    area,
    area_within,
    column,
    less,
    mean_of,
    shown,
    with_intervals,
)
from bench.real_model import Exam
from bench.record import experiment_parser, markdown_table, run_experiment
from grpo.algorithm.schema import Prompt
from grpo.base.storage import write_lines
from grpo.config.options import SEARCH, TrainConfig
from grpo.data.almanac import first_words
from grpo.data.prompts import ChatEncoder
from grpo.policy import Policy
from grpo.tools.functions import build_tools
from grpo.tools.protocol import holding
from grpo.tools.tools import Tools
from knowledge.almanac import is_right
from rewards.format import final_answer

CALLS, ENDS = f" <{SEARCH}>", " </think><answer>"  # what follows the recalled name
MAX_NAME, MAX_ANSWER = 16, 24  # tokens
SHARES = (0.25, 0.4, 0.5, 0.75)
NUM_EXAMPLES = 10


# --- Asking --------------------------------------------------------------------------------------------------------


def ask(policy: Policy, prompts: Sequence[Prompt], config: TrainConfig) -> list[dict]:
    """Return a row for each question: its data, the name that is recalled (`said`), whether that is right, its log-prob
    (`sequence`), the log-odds of searching (`searches`), and what is answered after a search (`found`)."""
    thoughts = recall(policy, prompts)
    tools = build_tools(config, ChatEncoder(policy.tokenizer))
    found = search(policy, thoughts, tools)
    tools.close()
    scores = score(policy, thoughts)
    rows = []
    for thought, answer, scored in zip(thoughts, found, scores, strict=True):
        name = first_words(thought.said)
        is_found = is_right(answer["found"], thought.fact.answers)
        rows.append({**thought.row(name), **answer, "found_right": is_found, **scored})
    return rows


def recall(policy: Policy, prompts: Sequence[Prompt]) -> list[Thought]:
    """Return what the model recalls first, if it must."""
    begun = [Thought.about(prompt) for prompt in prompts]
    names = up_to_call(policy, [thought.start for thought in begun])
    return [thought.saying(name.rstrip()) for thought, name in zip(begun, names, strict=True)]


def up_to_call(policy: Policy, texts: Sequence[str]) -> list[str]:
    """Return how a model goes on after each text, greedily, up to where a call or its query ends: a token with <."""
    starts = [encode(policy, text) for text in texts]
    ends = holding(policy.tokenizer, "<")
    found = []
    for completion in go_on(policy, starts, MAX_NAME, ends):
        said, _, _ = policy.decode(completion.ids).partition("<")
        found.append(said)
    return found


def search(policy: Policy, thoughts: Sequence[Thought], tools: Tools) -> list[dict[str, str]]:
    """Return what is asked for and answered after each thought, if the model must search."""
    queries = up_to_call(policy, [thought.text + CALLS for thought in thoughts])
    found, starts = [], []
    for thought, text in zip(thoughts, queries, strict=True):
        query = text.strip()
        result = tools.functions[SEARCH](query)
        call = encode(policy, f"{thought.text}{CALLS}{query}</{SEARCH}>")
        block = tools.protocol.block(result, tools.protocol.max_tokens)
        starts.append([*call, *block])
        found.append({"query": query, "result": result})
    for row, completion in zip(found, go_on(policy, starts, MAX_ANSWER), strict=True):
        text = policy.decode(completion.ids)
        row["found"] = final_answer(text) or ""
    return found


def score(policy: Policy, thoughts: Sequence[Thought]) -> list[dict]:
    """Return the log-prob of each name, and the log-odds of searching against answering after it."""
    groups = []
    for thought in thoughts:
        head = thought.head(policy)
        calls = encode(policy, thought.text + CALLS)
        ends = encode(policy, thought.text + ENDS)
        groups.append(given(head, calls[len(head) :], ends[len(head) :]))
    logps = iter(completion_logprobs(policy, groups))
    found = []
    for thought in thoughts:
        calls, ends = next(logps), next(logps)
        sequence = float(ends[thought.span(policy)].sum())
        searches = float(calls.sum() - ends.sum())
        found.append({"sequence": round(sequence, 4), "searches": round(searches, 4)})
    return found


# --- Measures ------------------------------------------------------------------------------------------------------


class Choice:
    """What a model answers with and without a search, and scores of its questions: the highest are searched for."""

    def __init__(self, rows: Sequence[Row]):
        self.right = column(rows, "right")
        self.found = column(rows, "found_right")
        self.kinds = column(rows, "familiarity")
        self.own = column(rows, "searches")
        self.threshold = -column(rows, "sequence")

    @property
    def share(self) -> float:
        """Return the share of the questions that the model rather searches for than not."""
        return float((self.own > 0).mean())

    def area(self, scores: np.ndarray) -> Measure:
        """Return the AUROC of some scores: do those rank highest that the model gets wrong by itself?"""
        return area(scores, ~self.right)

    def accuracy(self, scores: np.ndarray, share: float) -> Measure:
        """Return the accuracy if this share of the chosen questions is searched for: those of the highest scores."""

        def measure(chosen: Chosen) -> float:
            order = chosen[np.argsort(-scores[chosen], kind="stable")]
            number = round(share * len(chosen))
            num_found = self.found[order[:number]].sum()
            num_recalled = self.right[order[number:]].sum()
            return float((num_found + num_recalled) / len(chosen))

        return measure

    def at_random(self, share: float) -> Measure:
        """Return the mean accuracy if as many, drawn at random, are searched for."""

        def measure(chosen: Chosen) -> float:
            part = round(share * len(chosen)) / len(chosen)
            searched = part * self.found[chosen].mean()
            recalled = (1 - part) * self.right[chosen].mean()
            return float(searched + recalled)

        return measure


def measures(rows: Sequence[Row], cold: Sequence[Row]) -> dict[str, object]:
    """Return the measures of a model, those of its searches at several shares among them. cold: of the cold start."""
    made = Choice(rows)
    before = Choice(cold)
    learned = made.area(made.own)
    found = {
        "never": mean_of(made.right),
        "always": mean_of(made.found),
        "auroc": learned,
        "gain": less(learned, before.area(before.own)),
        "within_kinds": area_within(made.own, ~made.right, made.kinds),
        "auroc_threshold": made.area(made.threshold),
    }
    at = {}
    for share in (made.share, *SHARES):
        at[f"{share:.0%}"] = with_intervals(at_share(made, share), len(rows))
    return {"share": made.share, **with_intervals(found, len(rows)), "at": at}


def at_share(made: Choice, share: float) -> dict[str, Measure]:
    """Return the accuracy of each way to choose this share of the questions, and what the model's own way gains."""
    own = made.accuracy(made.own, share)
    threshold = made.accuracy(made.threshold, share)
    random = made.at_random(share)
    return {
        "own": own,
        "threshold": threshold,
        "random": random,
        "own_less_random": less(own, random),
        "own_less_threshold": less(own, threshold),
    }


# --- Tables --------------------------------------------------------------------------------------------------------


def tables(found: Mapping[str, Mapping]) -> str:
    """Write the two tables: the order that each model has learned, and what that is worth."""
    areas = ("auroc", "gain", "within_kinds", "auroc_threshold")
    learned, worth = [], []
    for arm, values in found.items():
        accuracies = [shown(values[name]) for name in ("never", "always")]
        orders = [shown(values[name], ".2f") for name in areas]
        learned.append([arm, f"{values['share']:.0%}", *accuracies, *orders])
        for share, at in values["at"].items():
            worth.append([arm, share, *map(shown, at.values())])
    columns = ["arm", "searches", "never", "always", "AUROC", "gain", "within kinds", "threshold's AUROC"]
    of_shares = ["arm", "searched", "own choice", "threshold", "random", "own - random", "own - threshold"]
    return f"{markdown_table(columns, learned)}\n\n{markdown_table(of_shares, worth)}"


def examples(arms: Mapping[str, Sequence[Row]]) -> str:
    """Write what the models do about the first capitals of the alphabet."""
    lines = []
    for rows in zip(*arms.values(), strict=True):
        if rows[0]["familiarity"] == "capital":
            lines.append([rows[0]["title"], *map(done, rows)])
    return markdown_table(["", *arms], sorted(lines)[:NUM_EXAMPLES])


def done(row: Row) -> str:
    """Write what a model recalls, and does then."""
    if row["searches"] <= 0:
        return f"{row['said']}: {row['said']}"
    return f'{row["said"]}: searches {row["query"]}, finds "{row["result"]}": {row["found"]}'


def main(argv: list[str] | None = None) -> dict:
    parser = experiment_parser("bench.searching", __doc__, "smollm2_search")
    parser.add_argument("run", type=Path, nargs="?", default=Path("runs/smollm2_search"), help="default: %(default)s")
    options = parser.parse_args(argv)
    run, exam = options.run, Exam(options.run)
    arms = {
        "cold start": exam.rows("cold_start", run / "cold_start" / "final", ask),
        "GRPO": exam.rows("GRPO", run / "final", ask),
    }
    cold = arms["cold start"]
    found = {name: measures(rows, cold) for name, rows in arms.items()}
    config = exam.config
    row = {"seed": config.seed, "steps": config.max_steps, "facts": len(cold), "arms": found}
    folder = options.save or run / "exam"
    write_lines(folder / f"seed-{config.seed}.jsonl", [row])
    print(tables(found), examples(arms), json.dumps(row), sep="\n\n")
    return row


if __name__ == "__main__":
    run_experiment(main)

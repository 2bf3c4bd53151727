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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from bench.declining import auroc, auroc_within, beginning, completion_logprobs, encode
from bench.real_model import MAX_SEQUENCES, Exam
from bench.record import experiment_parser, markdown_table
from grpo.algorithm.schema import Completion, Group, Prompt
from grpo.base.storage import write_lines
from grpo.config.options import SEARCH, TrainConfig
from grpo.data.almanac import first_words
from grpo.data.prompts import ChatEncoder
from grpo.engine.device.draw import SamplingParams
from grpo.engine.model.policy import Policy
from grpo.engine.sampling.sampler import Sampler
from grpo.evaluation.compare import interval
from grpo.tools.functions import build_tools
from grpo.tools.protocol import holding
from grpo.tools.tools import Tools
from knowledge.almanac import Fact, is_right
from rewards.format import final_answer

CALLS, ENDS = f" <{SEARCH}>", " </think><answer>"  # what follows the recalled name
MAX_NAME, MAX_ANSWER = 16, 24  # tokens
SHARES = (0.25, 0.4, 0.5, 0.75)
NUM_EXAMPLES = 10
Row = Mapping[str, object]


# --- Asking --------------------------------------------------------------------------------------------------------


def ask(policy: Policy, prompts: Sequence[Prompt], config: TrainConfig) -> list[dict]:
    """Return a row for each question: its data, the name that is recalled (`said`), whether that is right, its log-prob
    (`sequence`), the log-odds of searching (`searches`), and what is answered after a search (`found`)."""
    facts = [Fact.of_row(prompt.columns) for prompt in prompts]
    stems = [prompt.text + beginning(fact) for prompt, fact in zip(prompts, facts, strict=True)]
    names = []
    for text in go_on(policy, [encode(policy, stem) for stem in stems], MAX_NAME, up_to="<"):
        names.append(text.partition("<")[0].rstrip())
    recalled = [stem + name for stem, name in zip(stems, names, strict=True)]
    tools = build_tools(config, ChatEncoder(policy.tokenizer))
    found = search(policy, recalled, tools)
    tools.close()
    rows = []
    scores = score(policy, prompts, stems, recalled)
    for fact, name, answer, scored in zip(facts, names, found, scores, strict=True):
        said = first_words(name)
        row = {"question": fact.question, "title": fact.title, "familiarity": fact.familiarity, "said": said}
        row |= {"right": is_right(said, fact.answers), **answer, "found_right": is_right(answer["found"], fact.answers)}
        rows.append(row | scored)
    return rows


def go_on(policy: Policy, starts: Sequence[Sequence[int]], max_tokens: int, up_to: str = "") -> list[str]:
    """Return how a model goes on after each start, greedily; up_to: until a token holds this character."""
    ends = holding(policy.tokenizer, up_to) if up_to else []
    sampler = Sampler(policy.model, (*policy.eos_ids, *ends), MAX_SEQUENCES)
    groups = sampler.sample(starts, 1, SamplingParams(max_tokens, temperature=0.0), range(len(starts)))
    return [policy.decode(completion.ids) for (completion,) in groups]


def search(policy: Policy, recalled: Sequence[str], tools: Tools) -> list[dict[str, str]]:
    """Return what is asked for and answered after each beginning, if the model must search."""
    starts = [encode(policy, text + CALLS) for text in recalled]
    found = []
    for number, text in enumerate(go_on(policy, starts, MAX_NAME, up_to="<")):
        query = text.partition("<")[0].strip()
        result = tools.functions[SEARCH](query)
        block = tools.protocol.block(result, tools.protocol.max_tokens)
        starts[number] = [*encode(policy, f"{recalled[number]}{CALLS}{query}</{SEARCH}>"), *block]
        found.append({"query": query, "result": result})
    for row, text in zip(found, go_on(policy, starts, MAX_ANSWER), strict=True):
        row["found"] = final_answer(text) or ""
    return found


def score(policy: Policy, prompts: Sequence[Prompt], stems: Sequence[str], recalled: Sequence[str]) -> list[dict]:
    """Return the log-prob of each name after its stem, and the log-odds of searching against answering after it."""
    groups, spans = [], []
    for prompt, stem, text in zip(prompts, stems, recalled, strict=True):
        head = encode(policy, f"{prompt.text}<think>")
        given = []
        for end in (CALLS, ENDS):
            ids = encode(policy, text + end)[len(head) :]
            given.append(Completion.given(list(ids), "stop", loss_weight=1.0))  # weight 0 is never packed
        groups.append(Group(Prompt(0, "", head, {}), given))
        first, last = (len(encode(policy, part)) - len(head) for part in (stem, text))
        spans.append(slice(first, last))
    logps, found = iter(completion_logprobs(policy, groups)), []
    for span in spans:
        calls, ends = next(logps), next(logps)
        searches = float(calls.sum() - ends.sum())
        found.append({"sequence": round(float(ends[span].sum()), 4), "searches": round(searches, 4)})
    return found


# --- Measures ------------------------------------------------------------------------------------------------------


class Choice:
    """What a model answers with and without a search, and scores of its questions: the highest are searched for."""

    def __init__(self, rows: Sequence[Row]):
        self.right = np.array([row["right"] for row in rows], bool)
        self.found = np.array([row["found_right"] for row in rows], bool)
        self.kinds = np.array([row["familiarity"] for row in rows])
        self.own = np.array([row["searches"] for row in rows], float)
        self.threshold = -np.array([row["sequence"] for row in rows], float)

    @property
    def share(self) -> float:
        """Return the share of the questions that the model rather searches for than not."""
        return float((self.own > 0).mean())

    def accuracy(self, scores: np.ndarray, share: float) -> Callable[[np.ndarray], float]:
        """Return the accuracy, of chosen questions, if this share of them is searched for: the highest scores."""

        def measure(chosen: np.ndarray) -> float:
            order = chosen[np.argsort(-scores[chosen], kind="stable")]
            number = round(share * len(chosen))
            return float((self.found[order[:number]].sum() + self.right[order[number:]].sum()) / len(chosen))

        return measure

    def at_random(self, share: float) -> Callable[[np.ndarray], float]:
        """Return the mean accuracy if as many, drawn at random, are searched for."""

        def measure(chosen: np.ndarray) -> float:
            part = round(share * len(chosen)) / len(chosen)
            return float(part * self.found[chosen].mean() + (1 - part) * self.right[chosen].mean())

        return measure


def measures(rows: Sequence[Row], cold: Sequence[Row]) -> dict[str, object]:
    """Return the measures of a model, those of its searches at several shares among them. cold: of the cold start."""
    made, before = Choice(rows), Choice(cold)

    def area(choice: Choice, scores: np.ndarray) -> Callable[[np.ndarray], float]:
        return lambda chosen: auroc(scores[chosen], ~choice.right[chosen])

    found = {
        "never": lambda chosen: made.right[chosen].mean(),
        "always": lambda chosen: made.found[chosen].mean(),
        "auroc": area(made, made.own),
        "gain": less(area(made, made.own), area(before, before.own)),
        "within_kinds": lambda chosen: auroc_within(made.own[chosen], ~made.right[chosen], made.kinds[chosen]),
        "auroc_threshold": area(made, made.threshold),
    }
    result: dict[str, object] = {"share": made.share, **with_intervals(found, len(rows)), "at": {}}
    for share in (made.share, *SHARES):
        own, threshold = made.accuracy(made.own, share), made.accuracy(made.threshold, share)
        random = made.at_random(share)
        at = {"own": own, "threshold": threshold, "random": random}
        at |= {"own_less_random": less(own, random), "own_less_threshold": less(own, threshold)}
        result["at"][f"{share:.0%}"] = with_intervals(at, len(rows))
    return result


def less(one: Callable, other: Callable) -> Callable[[np.ndarray], float]:
    """Return the difference of two measures."""
    return lambda chosen: one(chosen) - other(chosen)


def with_intervals(found: Mapping[str, Callable], number: int) -> dict[str, list[float]]:
    """Return the value of each measure over all questions, and the ends of its interval."""
    everything = np.arange(number)
    return {name: [float(measure(everything)), *interval(measure, number)] for name, measure in found.items()}


# --- Tables --------------------------------------------------------------------------------------------------------


def shown(value: Sequence[float], form: str = ".0%") -> str:
    """Write a measure with its interval."""
    middle, low, high = (format(number, form) for number in value)
    return f"{middle} ({low} to {high})"


def tables(found: Mapping[str, Mapping]) -> str:
    """Write the two tables: the order that each model has learned, and what that is worth."""
    areas = ("auroc", "gain", "within_kinds", "auroc_threshold")
    lines = []
    for arm, values in found.items():
        rights = [shown(values[name]) for name in ("never", "always")]
        lines.append([arm, f"{values['share']:.0%}", *rights, *(shown(values[name], ".2f") for name in areas)])
    heads = ["arm", "searches", "never", "always", "AUROC", "gain", "within kinds", "threshold's AUROC"]
    worth = []
    for arm, values in found.items():
        for share, at in values["at"].items():
            worth.append([arm, share, *map(shown, at.values())])
    columns = ["arm", "searched", "own choice", "threshold", "random", "own - random", "own - threshold"]
    return f"{markdown_table(heads, lines)}\n\n{markdown_table(columns, worth)}"


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
    exam, run = Exam(options.run), options.run
    cold = exam.rows("cold_start", run / "cold_start" / "final", ask)
    arms = {"cold start": cold, "GRPO": exam.rows("GRPO", run / "final", ask)}
    found = {name: measures(rows, cold) for name, rows in arms.items()}
    row = {"seed": exam.config.seed, "steps": exam.config.max_steps, "facts": len(cold), "arms": found}
    write_lines((options.save or run / "exam") / f"seed-{exam.config.seed}.jsonl", [row])
    print(tables(found), examples(arms), json.dumps(row), sep="\n\n")
    return row


if __name__ == "__main__":
    main()

"""python -m bench.reasoning RUN … [--save]

What does KnowRL's reward do to the reasoning of a real model? Each RUN is a finished run of
configs/smollm2_knowrl.yaml, an arm; all start from the same cold start. What a run has answered before and after
training to the held-out questions is read (RUN/evaluation), fact by fact with its verdict: supported, refuted or
unknown. Only the cold start is asked anything: each fact about each held-out country, begun for it (kept in the first
RUN's exam/).

- reasoning: facts per answer, the share of them that the knowledge base supports, and the final answers
- by kind: capitals, continents, …
- left out: of the facts that an answer does not state, how many would the cold start get wrong?
- at an equal number of facts: what the cold start reaches without GRPO, if each fact is begun for it, and it leaves out
  any of them, the kinds that it is worst at (told by the questions to train on), or those of the lowest log-prob

Saying less raises the share that is supported, so only the last two tell whether a model knows what to leave out.
Intervals: 95 %, bootstrap over countries; differences are paired.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.asking import Thought, completion_logprobs, encode, given, go_on
from bench.measures import Chosen, Measure, Row, less, percent, with_intervals
from bench.picture import GREEN, GREY, RED
from bench.record import experiment_parser, markdown_table
from grpo.base.storage import write_lines
from grpo.config.load import load_config
from grpo.data.almanac import MAX_TOKENS, end_ids, first_words, prompt_text
from grpo.data.files import read_records
from grpo.engine.device.distributed import choose_device
from grpo.engine.model.policy import Policy, load_for_inference
from knowledge.almanac import Fact, by_title, is_right, kind_of
from knowledge.facts.claims import sentence_spans
from knowledge.facts.verdict import LABELS
from rewards.format import thoughts

REWARD = "factuality"  # it checks the facts of every answer
OUTCOMES = ("correct", "wrong", "refused")
COLD_START = "cold start"


@dataclass(frozen=True)
class Answer:
    """An answer, as far as it is measured. facts: of each fact its kind and verdict; the kind is "" if it is of none.

    sentences: of the think block. repeats: those that say an earlier one again.
    """

    country: str
    outcome: str
    facts: tuple[tuple[str, str], ...]
    sentences: int
    repeats: int
    text: str

    @classmethod
    def of_record(cls, record: Row) -> "Answer":
        """Read what an evaluation has written."""
        title, completion = record["title"], record["completion"]
        text, _ = thoughts(completion)
        said = [text[start:end] for start, end in sentence_spans(text)]
        repeats = len(said) - len(set(said))
        facts = []
        for fact in record["facts"].get(REWARD, []):
            kind = kind_of(fact["fact"], title)
            facts.append((kind, fact["verdict"]))
        return cls(title, record["outcome"], tuple(facts), len(said), repeats, completion)

    @property
    def kinds(self) -> set[str]:
        return {kind for kind, _ in self.facts}

    def count(self, label: str | None = None, kind: str | None = None) -> int:
        """Count the facts with a verdict, of a kind; None: any."""
        number = 0
        for own_kind, verdict in self.facts:
            number += label in (None, verdict) and kind in (None, own_kind)
        return number


@dataclass(frozen=True)
class Recalled:
    """What the cold start says about a fact if it must: whether that is right, and its log-prob (nats)."""

    is_right: bool
    logp: float


Numbers = Sequence[float]  # one for each answer
Memory = Mapping[str, Mapping[str, Recalled]]  # of each country, by kind
Order = Callable[[str, Recalled], float]  # of a kind, and what is recalled: the lowest come first


# --- Measures -------------------------------------------------------------------------------------------------------


class Arm:
    """The answers of one model, by country, so that countries can be resampled: all measures are of chosen countries.

    memory: what the cold start recalls.
    """

    def __init__(self, answers: Sequence[Answer], memory: Memory):
        self.answers, self.memory = answers, memory
        self.countries = sorted({answer.country for answer in answers})
        self.places = [self.countries.index(answer.country) for answer in answers]
        self.num_answers = np.bincount(self.places)

    def ratio(self, above: Numbers, below: Numbers | None = None) -> Measure:
        """Return the measure that divides the sums of two numbers of each answer; below: 1 of each, if None."""
        sum_above = np.bincount(self.places, above)
        sum_below = np.bincount(self.places, below)

        def measure(chosen: Chosen) -> float:
            return sum_above[chosen].sum() / max(sum_below[chosen].sum(), 1e-9)

        return measure

    def per_answer(self, label: str) -> Measure:
        """Return the number of facts with a verdict in an answer."""
        return self.ratio([answer.count(label) for answer in self.answers])

    def supported(self) -> Measure:
        """Return the share of supported facts."""
        supported = [answer.count("supported") for answer in self.answers]
        stated = [answer.count() for answer in self.answers]
        return self.ratio(supported, stated)

    def share(self, outcome: str) -> Measure:
        """Return the share of answers with an outcome."""
        return self.ratio([answer.outcome == outcome for answer in self.answers])

    def would_be_false(self, is_stated: bool) -> Measure:
        """Return how many of the facts that are stated, or left out, the cold start would get wrong."""
        false, all_of_them = [], []
        for answer in self.answers:
            found = []
            for kind, recalled in self.memory[answer.country].items():
                if (kind in answer.kinds) == is_stated:
                    found.append(recalled.is_right)
            false.append(found.count(False))
            all_of_them.append(len(found))
        return self.ratio(false, all_of_them)

    def facts_per_answer(self) -> float:
        return sum(answer.count() for answer in self.answers) / len(self.answers)


def kept_of(arm: Arm, order: Order, number: float) -> Measure:
    """Return the share of right ones among the recalled facts that come first.

    number: of facts per answer. Facts of the same order share what is left.
    """
    places, orders, is_right = [], [], []
    for place, country in enumerate(arm.countries):
        for kind, recalled in arm.memory[country].items():
            places.append(place)
            orders.append(order(kind, recalled))
            is_right.append(recalled.is_right)
    _, ranks = np.unique(orders, return_inverse=True)

    def measure(chosen: Chosen) -> float:
        times = np.bincount(chosen, minlength=len(arm.countries))
        answers = times * arm.num_answers  # about each country
        weights = answers[places]  # of each fact
        sizes = np.bincount(ranks, weights)  # how many facts have the same order
        known = np.bincount(ranks, weights * is_right)
        before = np.cumsum(sizes) - sizes
        wanted = number * answers.sum()
        left = wanted - before
        taken = np.clip(left / np.maximum(sizes, 1e-9), 0, 1)
        num_right = (taken * known).sum()
        return float(num_right / max((taken * sizes).sum(), 1e-9))

    return measure


# --- Tables ---------------------------------------------------------------------------------------------------------


def measures(arms: Mapping[str, Arm], known: Mapping[str, float]) -> dict[str, dict]:
    """Return all measures of each arm as (value, low, high). The first arm is the cold start, the second the first RUN.

    known: how often the cold start is right about a kind, among the questions to train on.
    """
    cold, first, *_ = arms.values()
    found = {}
    for name, arm in arms.items():
        measured = compared(arm, cold, first, known)
        found[name] = {
            **with_intervals(measured, len(cold.countries)),
            "facts": arm.facts_per_answer(),
            "repeats": repeated(arm),
            "one_sentence": shortest(arm),
            "by_kind": {kind: of_kind(arm, kind) for kind in known},
        }
    return found


def compared(arm: Arm, cold: Arm, first: Arm, known: Mapping[str, float]) -> dict[str, Measure]:
    """Return the measures of an arm that have an interval.

    over_cold, over_first: how many more supported facts per answer there are than in these two.
    any, kinds, threshold: what the cold start reaches with as many facts, chosen so.
    """

    def at_random(kind: str, recalled: Recalled) -> float:
        return 0

    def by_kind(kind: str, recalled: Recalled) -> float:
        return -known[kind]

    def by_logp(kind: str, recalled: Recalled) -> float:
        return -recalled.logp

    size = arm.facts_per_answer()
    kinds = kept_of(arm, by_kind, size)
    threshold = kept_of(arm, by_logp, size)
    share, supported = arm.supported(), arm.per_answer("supported")
    stated_false, left_out_false = arm.would_be_false(True), arm.would_be_false(False)
    return {
        **{label: arm.per_answer(label) for label in LABELS},
        "share": share,
        "gain": less(share, cold.supported()),
        "over_cold": less(supported, cold.per_answer("supported")),
        "over_first": less(supported, first.per_answer("supported")),
        **{outcome: arm.share(outcome) for outcome in OUTCOMES},
        "stated_false": stated_false,
        "left_out_false": left_out_false,
        "knows": less(left_out_false, stated_false),
        "any": kept_of(arm, at_random, size),
        "kinds": kinds,
        "threshold": threshold,
        "over_kinds": less(share, kinds),
        "over_threshold": less(share, threshold),
    }


def repeated(arm: Arm) -> float:
    """Return the share of sentences that say an earlier one again."""
    repeats = sum(answer.repeats for answer in arm.answers)
    sentences = sum(answer.sentences for answer in arm.answers)
    return repeats / max(sentences, 1)


def shortest(arm: Arm) -> float:
    """Return the share of answers whose reasoning is a single sentence, or none."""
    is_short = [answer.sentences <= 1 for answer in arm.answers]
    return float(np.mean(is_short))


def of_kind(arm: Arm, kind: str) -> dict[str, float]:
    """Return the facts of a kind per answer, by verdict."""
    found = {}
    for label in LABELS:
        total = sum(answer.count(label, kind) for answer in arm.answers)
        found[label] = total / len(arm.answers)
    return found


def tables(found: Mapping[str, Mapping]) -> Iterator[str]:
    """Yield the tables of the exam."""
    yield table_of_answers(found)
    yield table_of_choices(found)
    yield table_of_kinds(found)


def table_of_answers(found: Mapping[str, Mapping]) -> str:
    """Make the table of what the answers state, and of what they answer in the end."""
    columns = ["arm", "facts", "supported", "refuted", "unknown", "share supported", "gain"]
    columns += ["right", "wrong", "declined", "repeats", "at most one sentence"]
    lines = []
    for name, values in found.items():
        line = [
            name,
            f"{values['facts']:.2f}",
            *(f"{values[label][0]:.2f}" for label in LABELS),
            percent(values["share"]),
            percent(values["gain"], "+"),
            *(percent(values[outcome]) for outcome in OUTCOMES),
            f"{values['repeats']:.0%}",
            f"{values['one_sentence']:.0%}",
        ]
        lines.append(line)
    return markdown_table(columns, lines)


def table_of_choices(found: Mapping[str, Mapping]) -> str:
    """Make the table of what the cold start reaches with as many facts, and of what is left out."""
    columns = ["arm", "facts", "share supported", "any facts", "worst kinds left out", "least likely left out"]
    columns += ["minus kinds", "minus likely", "stated, would be false", "left out, would be false", "difference"]
    lines = []
    for name, values in found.items():
        line = [name, f"{values['facts']:.2f}"]
        line += [percent(values[key]) for key in ("share", "any", "kinds", "threshold")]
        line += [percent(values[key], "+") for key in ("over_kinds", "over_threshold")]
        line += [percent(values[key]) for key in ("stated_false", "left_out_false")]
        line.append(percent(values["knows"], "+"))
        lines.append(line)
    return markdown_table(columns, lines)


def table_of_kinds(found: Mapping[str, Mapping]) -> str:
    """Make the table of the facts of each kind per answer."""
    lines = []
    for name, values in found.items():
        line = [name]
        for counts in values["by_kind"].values():
            stated = sum(counts.values())
            line.append(f"{counts['supported']:.2f} of {stated:.2f}")
        lines.append(line)
    kinds = next(iter(found.values()))["by_kind"]
    return markdown_table(["arm", *kinds], lines)


def draw(path: Path, found: Mapping[str, Mapping], arm: str) -> None:
    """Draw the facts per answer of each kind by verdict, those of the cold start and those of an arm."""
    figure = Figure(figsize=(8, 3), dpi=150, layout="constrained")
    axes = figure.subplots()
    before, after = found[COLD_START]["by_kind"], found[arm]["by_kind"]
    height = 0.38
    for row, kind in enumerate(reversed(before)):
        draw_bar(axes, row + height / 2, height, before[kind], " before")
        draw_bar(axes, row - height / 2, height, after[kind], " after")
    axes.margins(x=0.1)
    axes.set_yticks(range(len(before)), reversed(before))
    axes.set_xlabel("facts per answer: supported (green), refuted (red), unknown (grey)")
    figure.savefig(path)


def draw_bar(axes: Axes, place: float, height: float, counts: Mapping[str, float], name: str) -> None:
    """Draw one bar, a part for each verdict, and a name at its end."""
    colours = dict(zip(LABELS, (GREEN, RED, GREY), strict=True))
    start = 0.0
    for label, value in counts.items():
        axes.barh(place, value, height * 0.95, left=start, color=colours[label])
        start += value
    axes.text(start, place, name, va="center", fontsize=7)


# --- Asking ---------------------------------------------------------------------------------------------------------


def answers_of(run: Path, step: int | None) -> list[Answer]:
    """Read what a run answered at a step; None: the last one."""
    folder = run / "evaluation"
    path = max(folder.glob("step-*.jsonl")) if step is None else folder / f"step-{step:06d}.jsonl"
    return [Answer.of_record(record) for record in read_records(path)]


def recall(run: Path, facts: Sequence[Fact]) -> Memory:
    """Ask the cold start of a run for facts; what it says is kept in RUN/exam."""
    path = run / "exam" / "recalled.jsonl"
    if not path.exists():
        config, _ = load_config(run / "config.resolved.yaml", ["cold_start=null"])
        config = replace(config, model_name_or_path=str(run / "cold_start" / "final"))
        policy = load_for_inference(config, choose_device(config.device))
        write_lines(path, ask(policy, config.system_prompt, facts))
    memory: dict[str, dict[str, Recalled]] = {}
    for row in read_records(path):
        of_country = memory.setdefault(row["title"], {})
        of_country[row["kind"]] = Recalled(row["right"], row["logp"])
    return memory


def ask(policy: Policy, system_prompt: str | None, facts: Sequence[Fact]) -> list[Row]:
    """Begin each fact for a model; return what it says greedily, its log-prob (nats), and whether it is right."""
    starts = []
    for fact in facts:
        thought = Thought(prompt_text(policy, system_prompt, fact), fact)
        starts.append(encode(policy, thought.start))
    said = go_on(policy, starts, MAX_TOKENS, end_ids(policy))
    groups = []
    for start, completion in zip(starts, said, strict=True):
        groups.append(given(start, completion.ids))
    logps = completion_logprobs(policy, groups)
    rows = []
    for fact, completion, logp_S in zip(facts, said, logps, strict=True):
        value = fact.value(first_words(policy.decode(completion.ids)))
        row = {
            "title": fact.title,
            "kind": fact.familiarity,
            "said": value,
            "logp": float(logp_S.sum()),
            "right": is_right(value, fact.answers),
        }
        rows.append(row)
    return rows


def known_by_kind(world: Path) -> dict[str, float]:
    """Return how often what the cold start was made of is right, by kind, among the questions to train on."""
    facts = [Fact.of_row(row) for row in read_records(world / "questions.jsonl")]
    texts: dict[str, str] = {}  # all that is said about each country
    for fact, row in zip(facts, read_records(world / "cold_start.jsonl"), strict=True):
        said = row["messages"][1]["content"]
        texts[fact.title] = texts.get(fact.title, "") + said
    right: dict[str, list[bool]] = {}
    for fact in chain(*by_title(facts).values()):
        text = texts[fact.title]
        if fact.sentence("").rstrip(" .") in text:
            is_known = any(fact.sentence(answer) in text for answer in fact.answers)
            right.setdefault(fact.familiarity, []).append(is_known)
    return {kind: float(np.mean(found)) for kind, found in right.items()}


def main(argv: list[str] | None = None) -> dict:
    parser = experiment_parser("bench.reasoning", __doc__, "smollm2_knowrl")
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="finished runs from the same cold start")
    options = parser.parse_args(argv)
    first = options.runs[0]
    config, _ = load_config(first / "config.resolved.yaml", ["cold_start=null"])
    world = Path(config.dataset_id_or_path).parent
    before = answers_of(first, 0)
    asked = {answer.country for answer in before}
    held_out = [Fact.of_row(row) for row in read_records(world / "held_out.jsonl")]
    memory = recall(first, [fact for fact in held_out if fact.title in asked])
    arms = {COLD_START: Arm(before, memory)}
    for run in options.runs:
        arms[run.name] = Arm(answers_of(run, None), memory)
    found = measures(arms, known_by_kind(world))
    row = {"seed": config.seed, "steps": config.max_steps, "questions": len(before), "arms": found}
    folder = options.save or first / "exam"
    write_lines(folder / f"seed-{config.seed}.jsonl", [row])
    draw(folder / "kinds.png", found, first.name)
    for table in tables(found):
        print(table, end="\n\n")
    print(json.dumps(row))
    return row


if __name__ == "__main__":
    main()

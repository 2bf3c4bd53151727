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
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from bench.declining import beginning, completion_logprobs, encode
from bench.picture import GREEN, GREY, RED
from bench.record import experiment_parser, markdown_table
from grpo.algorithm.schema import Completion, Group, Prompt
from grpo.base.storage import write_lines
from grpo.config.load import load_config
from grpo.data.almanac import MAX_SEQUENCES, MAX_TOKENS, end_ids, first_words, prompt_text
from grpo.data.files import read_records
from grpo.engine.device.distributed import choose_device
from grpo.engine.device.draw import SamplingParams
from grpo.engine.model.policy import Policy, load_for_inference
from grpo.engine.sampling.sampler import Sampler
from grpo.evaluation.compare import interval
from knowledge.almanac import Fact, by_title, is_right, kind_of
from knowledge.facts.claims import sentence_spans
from knowledge.facts.verdict import LABELS
from rewards.format import thoughts

REWARD = "factuality"  # it checks the facts of every answer
OUTCOMES = ("correct", "wrong", "refused")
Row = Mapping[str, object]
Cell = tuple[str, str]  # a country, and a kind of facts
Chosen = Sequence[int] | np.ndarray  # places of countries


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
        text, _ = thoughts(record["completion"])
        said = [text[start:end] for start, end in sentence_spans(text)]
        found = record["facts"].get(REWARD, [])
        facts = tuple((kind_of(fact["fact"], record["title"]), fact["verdict"]) for fact in found)
        repeats = len(said) - len(set(said))
        return cls(record["title"], record["outcome"], facts, len(said), repeats, record["completion"])

    @property
    def kinds(self) -> set[str]:
        return {kind for kind, _ in self.facts}


@dataclass(frozen=True)
class Recalled:
    """What the cold start says about a fact if it must: whether that is right, and its log-prob (nats)."""

    is_right: bool
    logp: float


# --- Measures -------------------------------------------------------------------------------------------------------


class Arm:
    """The answers of one model, by country, so that countries can be resampled."""

    def __init__(self, answers: Sequence[Answer], recalled: Mapping[Cell, Recalled]):
        self.answers, self.recalled = answers, recalled
        self.countries = sorted({answer.country for answer in answers})
        self.by_country = [[one for one in answers if one.country == country] for country in self.countries]

    def sums(self, count: Callable[[Answer], float]) -> np.ndarray:
        """Return the sum of a count over the answers about each country."""
        return np.array([sum(map(count, answers)) for answers in self.by_country], float)

    def ratio(self, above: Callable[[Answer], float], below: Callable[[Answer], float]) -> Callable[[Chosen], float]:
        """Return the measure that divides two counts, of chosen countries."""
        sum_above, sum_below = self.sums(above), self.sums(below)
        return lambda chosen: sum_above[chosen].sum() / max(sum_below[chosen].sum(), 1e-9)

    def per_answer(self, label: str) -> Callable[[Chosen], float]:
        return self.ratio(lambda answer: count(answer, label), lambda answer: 1)

    def supported(self, kind: str | None = None) -> Callable[[Chosen], float]:
        """Return the share of supported facts, of all or of one kind."""
        return self.ratio(lambda answer: count(answer, "supported", kind), lambda answer: count(answer, None, kind))

    def share(self, outcome: str) -> Callable[[Chosen], float]:
        return self.ratio(lambda answer: answer.outcome == outcome, lambda answer: 1)

    def would_be_false(self, is_stated: bool) -> Callable[[Chosen], float]:
        """Return how many of the facts that are stated, or left out, the cold start would get wrong."""

        def chosen_of(answer: Answer) -> list[Recalled]:
            cells = [(kind, found) for (country, kind), found in self.recalled.items() if country == answer.country]
            return [found for kind, found in cells if (kind in answer.kinds) == is_stated]

        return self.ratio(
            lambda answer: sum(not found.is_right for found in chosen_of(answer)), lambda answer: len(chosen_of(answer))
        )

    def facts_per_answer(self) -> float:
        return float(self.ratio(lambda answer: len(answer.facts), lambda answer: 1)(np.arange(len(self.countries))))


def count(answer: Answer, label: str | None, kind: str | None = None) -> int:
    """Count the facts of an answer with a verdict, of a kind; None: any."""
    return sum(label in (None, verdict) and kind in (None, own) for own, verdict in answer.facts)


def kept_of(arm: Arm, order: Callable[[str, str, Recalled], float], number: float) -> Callable[[Chosen], float]:
    """Return the share of right ones among the recalled facts that come first, of chosen countries.

    number: of facts per answer. order: of a country, a kind, and what is recalled; ties share what is left.
    """
    cells = []
    for place, country in enumerate(arm.countries):
        for (title, kind), found in arm.recalled.items():
            if title == country:
                cells.append((place, order(country, kind, found), found.is_right, len(arm.by_country[place])))
    places, orders, rights, weights = map(np.array, zip(*cells, strict=True))
    ranks = np.unique(orders, return_inverse=True)[1]

    def share(chosen: Chosen) -> float:
        times = np.bincount(chosen, minlength=len(arm.countries))
        drawn = times[places] * weights
        sizes, known = np.bincount(ranks, drawn), np.bincount(ranks, drawn * rights)
        wanted = number * weights_of_answers(arm, times)
        before = np.cumsum(sizes) - sizes
        taken = np.clip((wanted - before) / np.maximum(sizes, 1e-9), 0, 1)
        return float((taken * known).sum() / max((taken * sizes).sum(), 1e-9))

    return share


def weights_of_answers(arm: Arm, times: np.ndarray) -> float:
    """Return the number of answers about countries, each taken so many times."""
    return float(sum(times * len(answers) for times, answers in zip(times, arm.by_country, strict=True)))


def with_interval(measure: Callable[[Chosen], float], num_countries: int) -> tuple[float, float, float]:
    """Return a measure of all countries, and its 95 % interval."""
    return float(measure(np.arange(num_countries))), *interval(measure, num_countries)


def less(a: Callable[[Chosen], float], b: Callable[[Chosen], float]) -> Callable[[Chosen], float]:
    """Return the difference of two measures of the same countries."""
    return lambda chosen: a(chosen) - b(chosen)


# --- Tables ---------------------------------------------------------------------------------------------------------


def measures(arms: Mapping[str, Arm], known: Mapping[str, float]) -> dict[str, dict]:
    """Return all measures of each arm as (value, low, high). The first arm is the cold start, the second the first RUN.

    over_cold, over_first: how many more supported facts per answer there are than in these two.
    known: how often the cold start is right about a kind, among the questions to train on.
    """
    (cold, first, *_), found = arms.values(), {}
    number = len(cold.countries)
    for name, arm in arms.items():
        size = arm.facts_per_answer()
        kinds = kept_of(arm, lambda country, kind, recalled: -known[kind], size)
        threshold = kept_of(arm, lambda country, kind, recalled: -recalled.logp, size)
        measured = {label: arm.per_answer(label) for label in LABELS}
        measured |= {"share": arm.supported(), "gain": less(arm.supported(), cold.supported())}
        measured |= {"over_cold": less(arm.per_answer("supported"), cold.per_answer("supported"))}
        measured |= {"over_first": less(arm.per_answer("supported"), first.per_answer("supported"))}
        measured |= {outcome: arm.share(outcome) for outcome in OUTCOMES}
        measured |= {"stated_false": arm.would_be_false(True), "left_out_false": arm.would_be_false(False)}
        measured["knows"] = less(arm.would_be_false(False), arm.would_be_false(True))
        measured |= {"any": kept_of(arm, lambda *_: 0, size), "kinds": kinds, "threshold": threshold}
        measured |= {"over_kinds": less(arm.supported(), kinds), "over_threshold": less(arm.supported(), threshold)}
        found[name] = {key: with_interval(measure, number) for key, measure in measured.items()}
        found[name] |= {"facts": size, "repeats": repeated(arm), "one_sentence": shortest(arm)}
        found[name]["by_kind"] = {kind: of_kind(arm, kind) for kind in known}
    return found


def repeated(arm: Arm) -> float:
    """Return the share of sentences that say an earlier one again."""
    return sum(one.repeats for one in arm.answers) / max(sum(one.sentences for one in arm.answers), 1)


def shortest(arm: Arm) -> float:
    """Return the share of answers whose reasoning is a single sentence, or none."""
    return float(np.mean([one.sentences <= 1 for one in arm.answers]))


def of_kind(arm: Arm, kind: str) -> dict[str, float]:
    """Return the facts of a kind per answer, by verdict."""
    return {label: sum(count(one, label, kind) for one in arm.answers) / len(arm.answers) for label in LABELS}


def tables(found: Mapping[str, Mapping]) -> Iterator[str]:
    """Yield the tables of the exam."""
    columns = ["arm", "facts", "supported", "refuted", "unknown", "share supported", "gain"]
    columns += ["right", "wrong", "declined", "repeats", "at most one sentence"]
    rows = []
    for name, of in found.items():
        cells = [name, f"{of['facts']:.2f}", *(f"{of[label][0]:.2f}" for label in LABELS)]
        cells += [shown(of["share"]), shown(of["gain"], "+"), *(shown(of[outcome]) for outcome in OUTCOMES)]
        rows.append([*cells, f"{of['repeats']:.0%}", f"{of['one_sentence']:.0%}"])
    yield markdown_table(columns, rows)
    columns = ["arm", "facts", "share supported", "any facts", "worst kinds left out", "least likely left out"]
    columns += ["minus kinds", "minus likely", "stated, would be false", "left out, would be false", "difference"]
    rows = []
    for name, of in found.items():
        cells = [name, f"{of['facts']:.2f}", *(shown(of[key]) for key in ("share", "any", "kinds", "threshold"))]
        cells += [shown(of[key], "+") for key in ("over_kinds", "over_threshold")]
        cells += [shown(of[key]) for key in ("stated_false", "left_out_false")]
        rows.append([*cells, shown(of["knows"], "+")])
    yield markdown_table(columns, rows)
    kinds = list(next(iter(found.values()))["by_kind"])
    rows = []
    for name, of in found.items():
        counts = [of["by_kind"][kind] for kind in kinds]
        rows.append([name, *(f"{one['supported']:.2f} of {sum(one.values()):.2f}" for one in counts)])
    yield markdown_table(["arm", *kinds], rows)


def shown(values: Sequence[float], sign: str = "") -> str:
    """Write a share with its interval, in percent.

    >>> shown((0.5, 0.4, 0.61))
    '50 % (40 to 61)'
    """
    value, low, high = (100 * one for one in values)
    return f"{value:{sign}.0f} % ({low:{sign}.0f} to {high:{sign}.0f})"


def draw(path: Path, found: Mapping[str, Mapping], before: str, after: str) -> None:
    """Draw the facts per answer of each kind, before and after, by verdict."""
    figure = Figure(figsize=(8, 3), dpi=150, layout="constrained")
    axes = figure.subplots()
    colours = dict(zip(LABELS, (GREEN, RED, GREY), strict=True))
    kinds, height = list(found[before]["by_kind"]), 0.38
    for row, kind in enumerate(reversed(kinds)):
        for place, arm in ((row + height / 2, before), (row - height / 2, after)):
            start = 0.0
            for label, value in found[arm]["by_kind"][kind].items():
                axes.barh(place, value, height * 0.95, left=start, color=colours[label])
                start += value
            axes.text(start, place, f" {'before' if arm == before else 'after'}", va="center", fontsize=7)
    axes.margins(x=0.1)
    axes.set_yticks(range(len(kinds)), reversed(kinds))
    axes.set_xlabel("facts per answer: supported (green), refuted (red), unknown (grey)")
    figure.savefig(path)


# --- Asking ---------------------------------------------------------------------------------------------------------


def answers_of(run: Path, step: int | None) -> list[Answer]:
    """Read what a run answered at a step; None: the last one."""
    files = sorted((run / "evaluation").glob("step-*.jsonl"))
    path = files[-1] if step is None else run / "evaluation" / f"step-{step:06d}.jsonl"
    return [Answer.of_record(record) for record in read_records(path)]


def recall(run: Path, facts: Sequence[Fact]) -> dict[Cell, Recalled]:
    """Ask the cold start of a run for facts; what it says is kept in RUN/exam."""
    path = run / "exam" / "recalled.jsonl"
    if not path.exists():
        config, _ = load_config(run / "config.resolved.yaml", ["cold_start=null"])
        config = replace(config, model_name_or_path=str(run / "cold_start" / "final"))
        policy = load_for_inference(config, choose_device(config.device))
        write_lines(path, ask(policy, config.system_prompt, facts))
    rows = read_records(path)
    return {(row["title"], row["kind"]): Recalled(row["right"], row["logp"]) for row in rows}


def ask(policy: Policy, system_prompt: str | None, facts: Sequence[Fact]) -> list[Row]:
    """Begin each fact for a model; return what it says greedily, its log-prob (nats), and whether it is right."""
    stems = [encode(policy, prompt_text(policy, system_prompt, fact) + beginning(fact)) for fact in facts]
    sampler = Sampler(policy.model, (*policy.eos_ids, *end_ids(policy)), MAX_SEQUENCES)
    said = sampler.sample(stems, 1, SamplingParams(MAX_TOKENS, temperature=0.0), range(len(facts)))
    groups = []
    for stem, (completion,) in zip(stems, said, strict=True):
        given = Completion.given(completion.ids, "stop", loss_weight=1.0)  # weight 0 is never packed
        groups.append(Group(Prompt(0, "", stem, {}), [given]))
    rows = []
    for fact, group, logps in zip(facts, groups, completion_logprobs(policy, groups), strict=True):
        value = fact.value(first_words(policy.decode(group.completions[0].ids)))
        row = {"title": fact.title, "kind": fact.familiarity, "said": value, "logp": float(logps.sum())}
        rows.append(row | {"right": is_right(value, fact.answers)})
    return rows


def known_by_kind(world: Path) -> dict[str, float]:
    """Return how often what the cold start was made of is right, by kind, among the questions to train on."""
    facts = [Fact.of_row(row) for row in read_records(world / "questions.jsonl")]
    texts: dict[str, str] = {}
    for fact, row in zip(facts, read_records(world / "cold_start.jsonl"), strict=True):
        texts[fact.title] = texts.get(fact.title, "") + row["messages"][1]["content"]
    right: dict[str, list[bool]] = {}
    for title, members in by_title(facts).items():
        for fact in members:
            if fact.sentence("").rstrip(" .") in texts[title]:
                is_known = any(fact.sentence(answer) in texts[title] for answer in fact.answers)
                right.setdefault(fact.familiarity, []).append(is_known)
    return {kind: float(np.mean(found)) for kind, found in right.items()}


def main(argv: list[str] | None = None) -> dict:
    parser = experiment_parser("bench.reasoning", __doc__, "smollm2_knowrl")
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="finished runs from the same cold start")
    options = parser.parse_args(argv)
    first = options.runs[0]
    config, _ = load_config(first / "config.resolved.yaml", ["cold_start=null"])
    world, before = Path(config.dataset_id_or_path).parent, answers_of(first, 0)
    held_out = [Fact.of_row(row) for row in read_records(world / "held_out.jsonl")]
    asked = {answer.country for answer in before}
    recalled = recall(first, [fact for fact in held_out if fact.title in asked])
    arms = {"cold start": Arm(before, recalled)}
    arms |= {run.name: Arm(answers_of(run, None), recalled) for run in options.runs}
    found = measures(arms, known_by_kind(world))
    folder = options.save or first / "exam"
    row = {"seed": config.seed, "steps": config.max_steps, "questions": len(arms["cold start"].answers), "arms": found}
    write_lines(folder / f"seed-{config.seed}.jsonl", [row])
    draw(folder / "kinds.png", found, "cold start", first.name)
    for table in tables(found):
        print(table, end="\n\n")
    print(json.dumps(row))
    return row


if __name__ == "__main__":
    main()

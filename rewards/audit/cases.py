"""Rows of the data with all that attacks are made of: the form of an honest answer, the truth, wrong answers, facts."""

import itertools
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path

from grpo.base.errors import PREFLIGHT, UserError
from grpo.config.options import OF_FACTS, TrainConfig
from grpo.data.rows import Row
from grpo.data.toy import invent, is_made, locate, of_facts, write_world
from knowledge.almanac import Fact
from knowledge.store.base import KnowledgeBase
from knowledge.store.passages import sentences
from rewards.audit.attacks import Case
from rewards.exact import equals_one, truths
from rewards.knowrl.fact_checker import joined_titles
from rewards.mathematics.boxes import equivalent, gold_answer
from rewards.registry import built_in, expand
from rewards.services import knowledge_base_path

NUM_FACTS = 3
MIN_FACT_WORDS = 4
MAX_OTHERS = 50  # rows that are looked at for wrong answers, and for another title
OPPOSITES = {"yes": "no", "no": "yes", "true": "false", "false": "true"}
FALLBACKS = ("Zanzibar", "Ouagadougou", "Reykjavik")  # wrong answers, if there are no others


@contextmanager
def with_data(config: TrainConfig) -> Iterator[TrainConfig]:
    """Yield the configuration with the paths of its data. A toy world that is not made yet lasts as long as this."""
    if not config.toy_world or is_made(config):
        yield locate(config)
        return
    with tempfile.TemporaryDirectory() as folder:
        is_of_facts = config.toy_world in OF_FACTS  # whose cold start holds what a model says
        world = of_facts(config, nothing_said) if is_of_facts else invent(config)
        write_world(Path(folder), world)
        yield locate(replace(config, toy_dir=folder))


def nothing_said(config: TrainConfig, facts: Sequence[Fact]) -> list[str]:
    """Return what no model says: the audit reads no cold start."""
    return [""] * len(facts)


def asked_form(config: TrainConfig) -> str:
    r"""Return the form of an honest completion, as rewards and prompt ask for it: `{thought}\n\boxed{{answer}}`."""
    names = expand(config.reward_funcs)
    of_rewards = [built_in(name).prompt for name in names]
    asked = "\n".join([config.system_prompt or "", config.prompt_template, *of_rewards])
    form = "{answer}"
    if "math" in names or "\\boxed" in asked:
        form = "\\boxed{{answer}}"
    elif "####" in asked:
        form = "#### {answer}"
    if {"format", "tag_count"} & set(names) or "<answer>" in asked:
        form = f"<think>{{thought}}</think>\n<answer>{form}</answer>"
    elif form != "{answer}":
        form = f"{{thought}}\n{form}"
    return form + "\n<confidence>{confidence}</confidence>" * ("<confidence>" in asked)


def make_cases(config: TrainConfig, rows: Sequence[Row], num_rows: int, form: str) -> list[tuple[Row, Case]]:
    """Choose rows that have an answer, spread over the data, and say of each what attacks are made of.

    UserError (exit 3) if no row has an answer.
    """
    answered = [(row, accepted) for row in rows if (accepted := _accepted(row))]
    if not answered:
        why, fix = "an honest right answer is made from it", "set answer_field to the column with the answers"
        raise UserError("no row of the data has an answer", why, fix, PREFLIGHT)
    num_rows = min(num_rows, len(answered))
    others = answered[:MAX_OTHERS]
    cases = []
    with _knowledge(config) as base:
        for number in range(num_rows):
            row, accepted = answered[number * len(answered) // num_rows]
            alike = sorted(others, key=lambda other: -_num_common(row.question, other[0].question))
            truths_of_others = [truth for _, (truth, *_) in alike]
            wrong, other = itertools.islice(_wrong_answers(accepted, truths_of_others), 2)
            title = row.columns.get("title")
            strangers = (one for one, _ in others if one.columns.get("title") != title)
            stranger = next(strangers, None)
            facts, of_other = _facts(base, row), _facts(base, stranger)
            case = Case(form, row.question, accepted[0], wrong, other, facts, of_other)
            cases.append((row, case))
    return cases


def _accepted(row: Row) -> list[str]:
    return [found for truth in truths(row.columns.get("answer")) if (found := gold_answer(truth))]


def _num_common(question: str, other: str) -> int:
    """Count the words of a question that stand at the same place in another one, whose answer is then of its kind."""
    return sum(map(str.__eq__, question.split(), other.split()))


def _wrong_answers(accepted: Sequence[str], others: Sequence[str]) -> Iterator[str]:
    """Yield different answers that are wrong, the most likely ones first."""
    truth = accepted[0]
    candidates = [OPPOSITES[truth.lower()]] if truth.lower() in OPPOSITES else []
    if re.fullmatch(r"[A-J]", truth):
        candidates = sorted("ABCD")
    elif re.fullmatch(r"-?\d{1,15}", truth):
        candidates = [str(int(truth) + 1), str(int(truth) - 1)]
    taken = list(accepted)
    for candidate in (*candidates, *others, *FALLBACKS):
        if not equals_one(candidate, taken) and not any(equivalent(candidate, one) for one in taken):
            taken.append(candidate)
            yield candidate


def _knowledge(config: TrainConfig):
    """Open the knowledge base if a reward uses one and it is there; nothing else tells facts."""
    if any(built_in(name).checks_facts for name in expand(config.reward_funcs)):
        try:
            return KnowledgeBase(knowledge_base_path(asdict(config)))
        except UserError:
            pass  # the reward itself says what is wrong
    return nullcontext()


def _facts(base: KnowledgeBase | None, row: Row | None) -> tuple[str, ...]:
    """Return the first sentences of the documents of a row's title; () if there are none."""
    if base is None or row is None:
        return ()
    found = base.lookup(joined_titles(row.columns.get("title")))
    if found.how == "missing":
        return ()
    facts: dict[str, None] = {}  # in order, each once
    for passage in base.search(row.question, NUM_FACTS, found.titles):
        for sentence in sentences(passage.text):
            fact = sentence.strip()
            if len(fact.split()) >= MIN_FACT_WORDS:
                facts[fact] = None
    return tuple(facts)[:NUM_FACTS]

"""Factuality (the formulas: test_formulas.py): facts checked on a real knowledge base, and the bugs of the original
that must not come along."""

import asyncio
import itertools
import random
import re
import sqlite3
import threading
from types import SimpleNamespace

import pytest
from making import build_base

from grpo.base.errors import UserError
from knowledge.facts.claims import Claim, Claims, Verdict, admissible
from knowledge.store.base import Lookup
from knowledge.store.database import KnowledgeBusy
from knowledge.store.passages import Passage
from knowledge.store.tokens import tokens
from rewards.knowrl.fact_checker import MAX_FACT_CHARS, FactChecker, joined_titles
from rewards.knowrl.reward import FORMULAS
from rewards.scorer import together

DOCUMENTS = {
    "Mira Tolan": "Mira Tolan was born in Velda. Mira Tolan works as a baker. Mira Tolan lived in Orun.",
    "Jon Orn": "Jon Orn was born in Orun in 1960. Jon Orn works as a smith.",
    "1984": "1984 was written by Jon Orn.",
}
GOOD, BAD = "Mira Tolan was born in Velda.", "Mira Tolan was born in Tane."
S, R, U = "supported", "refuted", "unknown"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return build_base(tmp_path_factory.mktemp("base"), DOCUMENTS)


@pytest.fixture
def make(path):
    """make() -> a checker with the documents above, closed at the end."""
    made = []

    def make_checker(policy="zero", is_original=False, base_path=path, **parts):
        options = {"knowledge_base": base_path, "decomposer": "rules", "verifier": "lexical"}
        checker = FactChecker(options | {"missing_title_policy": policy}, FORMULAS["knowrl"], is_original)
        for name, part in parts.items():
            setattr(checker.decomposer if name == "decompose" else checker, name, part)
        made.append(checker)
        return checker

    yield make_checker
    for checker in made:
        checker.close()


def judge_all(checker, *rows):
    """The scores of rows (thoughts, question, titles), all at once. Thoughts alone are about Mira Tolan."""
    rows = [(row, "", "Mira Tolan") if isinstance(row, str) else row for row in rows]

    async def run():
        columns = [{"question": question, "title": titles} for _, question, titles in rows]
        texts = [f"<think>{text}</think>" for text, *_ in rows]
        return await asyncio.gather(*map(checker.check, texts, columns))

    return asyncio.run(run())


def labels(score):
    """The verdicts on the facts of a text, in order."""
    return [fact["verdict"] for fact in score.facts]


def counts(score):
    """How many facts count, and how many of these are supported and refuted."""
    return [score.details[name] for name in ("facts", "supported", "refuted")]


def test_each_fact_has_a_verdict_and_a_passage_and_is_named_in_the_explanation(make):
    good, bad, mixed = judge_all(
        make(),
        (GOOD, "Who is Mira Tolan?", "Mira Tolan"),
        (BAD, "Who is Mira Tolan?", "Mira Tolan"),
        f"{GOOD} Mira Tolan works as a cook. Mira Tolan likes tea.",
    )
    assert good.value == 1 / 4 and good.reason.startswith("1 of 1 facts supported, 0 refuted; ")
    assert bad.value == 0 and counts(bad) == [1, 0, 1]
    assert labels(mixed) == [S, R, U] and mixed.value == 0 and counts(mixed) == [3, 1, 1]
    assert mixed.reason == (
        "1 of 3 facts supported, 1 refuted; Mira Tolan was born in Velda → supported; "
        "Mira Tolan works as a cook → refuted; Mira Tolan likes tea → unknown"
    )
    assert {fact["passage"] for fact in mixed.facts} == {"Mira Tolan#0"}
    assert mixed.facts[2]["fact"] == "Mira Tolan likes tea" and mixed.facts[2]["text"].startswith("Mira Tolan")
    [found] = judge_all(make(decompose=_one_fact), "x" * MAX_FACT_CHARS)
    assert found.reason.endswith("; " + "x" * MAX_FACT_CHARS + " → unknown")


@pytest.mark.parametrize(("policy", "value"), [("zero", 0), ("unscored", None)])
def test_a_missing_title_concerns_its_sample_alone(make, policy, value):
    """In the original one missing title zeroes the factuality of the whole batch.

    Where a missing title has a value, the base has answered: the share of its failures ends a run.
    """
    titles = ("Mira Tolan", "Nobody Known", "Mira Tolan", None, "")
    found = judge_all(make(policy), *((GOOD, "", title) for title in titles))
    assert [one.value for one in found] == [1 / 4, value, 1 / 4, value, value]
    assert "'Nobody Known'" in found[1].reason and "no title" in found[3].reason
    assert found[1].asked == found[3].asked == {"knowledge base": value is not None}


def test_the_passage_that_is_shown_is_the_one_that_decided_and_else_the_best(make):
    passages = [Passage("a#0", "a", "first text", 1.0), Passage("b#0", "b", "second text", 0.5)]
    judge = make()
    judge.base.search = lambda *_: passages
    for evidence, shown in ((passages[1], ("b#0", "second text")), (None, ("a#0", "first text"))):
        judge.verifier = SimpleNamespace(verify=lambda facts, evidence=evidence: [Verdict(S, evidence)] * len(facts))
        [found] = judge_all(judge, GOOD)
        assert [(fact["passage"], fact["text"]) for fact in found.facts] == [shown]


def test_search_as_the_policy_for_missing_titles(make, tmp_path):
    found = judge_all(make("search"), (GOOD, "", "Mira of Tolan"), (GOOD, "", "Zzz Qqq"))
    assert found[0].value == 1 / 4 and "search guessed Mira Tolan" in found[0].reason
    assert found[1].value is None
    with sqlite3.connect(tmp_path / "knowrl.db") as foreign:
        foreign.execute("CREATE TABLE documents (title PRIMARY KEY, text)")
        foreign.executemany("INSERT INTO documents VALUES (?, ?)", DOCUMENTS.items())
    assert judge_all(make(base_path=tmp_path / "knowrl.db"), GOOD)[0].value == 1 / 4
    with pytest.raises(UserError, match="no full-text index"):
        make("search", base_path=tmp_path / "knowrl.db")


def test_titles_by_parts(make):
    """Nothing in the original ever splits the joined titles."""
    judge = make()
    text = "Mira Tolan was born in Velda. Jon Orn works as a smith."
    titles = ("Mira Tolan;Jon Orn", ["Mira Tolan", "Jon Orn"], "Nobody;Jon Orn")
    joined, several, some = judge_all(judge, *((text, "", title) for title in titles))
    assert joined.value == several.value == 2 / 5 and some.value == 1 / 5
    assert judge.counters["kb/lookups_parts"] == 3


def test_a_title_may_be_a_number_a_list_or_nonsense(make):
    values = (1984, ["1984", None], "1984", True, 0, {"a": 1}, [None], [], None)
    assert [joined_titles(value) for value in values] == ["1984", "1984", "1984", "True", "0", "{'a': 1}", "", "", ""]
    found = judge_all(make(), *(("Jon Orn wrote 1984. 1984 was written by Jon Orn.", "", value) for value in values))
    assert found[0].details["supported"] and found[0] == found[1] == found[2]
    assert [one.value for one in found[3:]] == [0.0] * 6


def test_a_locked_base_makes_the_sample_unscorable(make):
    """knowledge/test_knowledge_faults.py has a file that is locked."""

    def busy(query, k, titles):
        raise KnowledgeBusy("the base is locked")

    judge = make()
    judge.base.search = busy
    [found] = judge_all(judge, GOOD)
    assert found.value is None and "is locked" in found.reason and judge.counters["kb/unscored"] == 1


def test_a_text_without_facts_scores_zero_and_repeating_the_question_or_a_fact_does_not_pay(make):
    question = "Was Mira Tolan born in Velda?"
    texts = ("I am not sure.", ""), ("", ""), (GOOD, question), (GOOD * 5, "")
    *found, once = judge_all(make(), *((*text, "Mira Tolan") for text in texts))
    assert [(one.value, one.facts, one.reason) for one in found] == [(0.0, [], "no facts stated")] * 3
    assert len(once.facts) == 1


class Contains:
    """An entailment model in short: what a passage says is all that its words can be put together to."""

    def verify(self, questions):
        found = []
        for fact, passages in questions:
            is_said = any(set(tokens(fact)) <= set(tokens(passage.text)) for passage in passages)
            false = re.search("Tane|cook|flute", fact) and passages and passages[0].title
            found.append(Verdict(R if false else S if is_said else U))
        return found


async def _lines(text, question, subject):
    return Claims(admissible([Claim(fact) for fact in text.splitlines()], text, question))


async def _one_fact(text, question, subject):
    return Claims((Claim(text),))


BY_WORDS = {"decompose": _lines, "verifier": Contains()}
PARTS = ("was born in Velda", "works as a baker", "lived in Orun")
WRONG_PARTS = ("was born in Tane", "works as a cook", "played the flute")


def said_in_all_ways(parts, rng):
    """Each part alone, each conjunction of some, in any order of words, and doubled: 30 sentences of three facts."""
    chosen = [" and ".join(order) for size in (1, 2, 3) for order in itertools.permutations(parts, size)]
    return rng.sample([form.format(said) for said in chosen for form in ("{}, Mira Tolan", "Mira Tolan {}")], 30)


@pytest.mark.parametrize("seed", range(8))
def test_slices_restatements_and_conjunctions_of_three_facts_are_at_most_three_facts(make, seed):
    rng = random.Random(seed)
    judge, original = (make(is_original=is_original, **BY_WORDS) for is_original in (False, True))
    true, false = said_in_all_ways(PARTS, rng), said_in_all_ways(WRONG_PARTS, rng)
    rows = map("\n".join, (true, false, true + false, [f"Mira Tolan {part}" for part in PARTS]))
    sliced, wrong, both, plain = judge_all(judge, *rows)
    assert plain.value == 1 / 2 and 1 / 4 <= sliced.value <= plain.value
    (facts, num_true, _), (_, none, num_false) = counts(sliced), counts(wrong)
    assert 1 <= num_true <= 3 and 1 <= num_false <= 3 and none == 0
    assert counts(both)[1:] == [num_true, num_false]
    assert facts == num_true < len(sliced.facts)
    assert judge_all(original, "\n".join(true))[0].value == 7 / 10  # as in KnowRL's own rewards


def test_what_is_said_before_counts_only_beside_facts_of_the_same_verdict(make):
    text = "Mira Tolan was born in Tane and lived in Orun\nMira Tolan lived in Orun\nMira Tolan works"
    [found] = judge_all(make(**BY_WORDS), text)
    assert labels(found) == [R, S, S] and counts(found) == [3, 2, 1]
    [found] = judge_all(make(**BY_WORDS), "Mira Tolan works in Orun\nMira Tolan works")
    assert labels(found) == [S, S] and counts(found) == [1, 1, 0] and found.value == 1 / 4
    assert found.reason.startswith("1 of 1 facts supported, 0 refuted; ")
    assert found.reason.endswith("Mira Tolan works → supported, said elsewhere")
    slices = "Jon Orn was born in Orun. Jon Orn was born in 1960. Jon Orn was born in Orun in 1960. \ud800 is \ud800 x."
    [found] = judge_all(make(), (slices, "", "Jon Orn"))
    assert labels(found)[:3] == [S, S, S] and counts(found)[1] == 1 and found.reason.encode()


def reads_the_start(facts):
    """Verdicts of an entailment model that reads 512 tokens of fact and passage: each word, as here, is one."""
    found = []
    for fact, passages in facts:
        words = fact.rstrip(".").split()
        read = [set(passage.text.replace(".", " ").split()[: 512 - len(words)]) for passage in passages]
        found.append(Verdict(S if any(set(words) <= seen for seen in read) else U))
    return found


@pytest.mark.parametrize("number", [3, 60])
def test_what_is_said_again_late_counts_once_however_much_stands_between(make, number):
    def passage_of(query, k, titles):
        return [Passage("a#0", "a", query, 1.0)]

    judge = make(verifier=SimpleNamespace(verify=reads_the_start))
    judge.base.search = passage_of
    facts = [" ".join(f"w{place:03}{n:02}" for place in range(n * 12, n * 12 + 12)) for n in range(number)]
    again = [" ".join(reversed(facts[-1].split())), " ".join(facts[-2].split()[:6] + facts[-1].split()[:6])]
    found = judge._weigh([Claim(fact) for fact in [*facts, *again]], Lookup("a", ("a",), "exact"), 0)
    assert labels(found) == [S] * (number + 2) and counts(found)[:2] == [number, number]


def test_no_work_is_done_on_the_loops_thread_and_each_completion_gets_its_own_verdicts(make):
    workers = set()

    class Echo:
        def verify(self, facts):
            workers.add(threading.current_thread().name)
            return [Verdict(S)] * len(facts)

    judge = make(is_original=True, verifier=Echo())
    found = judge_all(judge, *(f"Mira Tolan has {i} cats." for i in range(40)))
    for i, one in enumerate(found):
        assert one.reason.endswith(f"; Mira Tolan has {i} cats → supported")
    assert workers and all(name.startswith("knowledge") for name in workers)


def test_metrics_are_of_the_completions_since_the_last_call(make):
    judge = make("unscored")
    judge_all(
        judge,
        f"{GOOD} Mira Tolan works as a cook. Mira Tolan lived in Orun.",
        ("I am not sure.", "", "Jon Orn"),
        (GOOD, "", "Nobody Known"),
        (GOOD, "", "Nobody;Mira Tolan"),
        (GOOD, "", "Mira of Tolan"),
    )
    metrics = together([judge.counts()])  # of 3 completions with 3, 0 and 1 facts, one of them refuted
    of_facts = "facts_per_completion supported_frac refuted_frac unknown_frac".split()
    names = ["lookups_exact", "lookups_parts", "lookups_search", "lookups_missing", "unscored", *of_facts]
    values = (2, 1, 0, 2, 2, 4 / 3, 3 / 4, 1 / 4, 0)
    assert metrics == {f"kb/{name}": pytest.approx(value) for name, value in zip(names, values, strict=True)}
    again = together([judge.counts()])
    assert set(again.values()) == {0} and again.keys() == metrics.keys()


@pytest.mark.parametrize(
    ("titles", "how", "subject"),
    [
        ("Mira Tolan", "exact", "Mira Tolan"),
        (" Grease (film) ", "exact", "Grease"),
        ("Alex;AleX", "exact", ""),  # one document of that name; "she" may stand for either
        ("Alex;AleX", "parts", ""),
        ("Mira", "search", ""),  # a guess
    ],
)
def test_pronouns_stand_for_the_title_only_where_it_is_one_that_is_known(make, titles, how, subject):
    asked = []

    async def decompose(text, question, subject):
        asked.append((text, question, subject))
        return Claims(())

    judge = make("search", decompose=decompose)
    judge.base.lookup = lambda title, guess: Lookup(title, (title,), how)
    judge_all(judge, ("a text", "a question?", titles))
    assert asked == [("a text", "a question?", subject)]


def test_evidence_is_sought_with_all_titles_that_were_found(make):
    judge, asked = make(), []
    judge.base.search = lambda query, k, titles: asked.append((query, k, titles)) or []
    [found] = judge_all(judge, (GOOD, "", "Mira Tolan;Nobody;Jon Orn"))
    assert asked == [("Mira Tolan Jon Orn Mira Tolan was born in Velda", 5, ("Mira Tolan", "Jon Orn"))]
    assert found.reason.startswith("0 of 1 facts supported, 0 refuted; ")

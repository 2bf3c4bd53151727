"""Rules and models agree: with decomposer and judge behind an endpoint that knows the truth, rewards are those of the
rules, on what both can read. The endpoint answers as chat models do: in lists of several forms, behind preambles and in
fences, with refusals on the way, and with errors 429 and 500."""

import json
import random
import re
from dataclasses import asdict
from itertools import count

import pytest
from api_server import ApiServer, Request, fails, says
from making import build_base, make_answers, of_each

from grpo.config.load import load_config
from knowledge.almanac import REFUSAL, articles, by_title, read_facts
from rewards.registry import build_rewards
from rewards.scorer import Scorer

SUBJECTS = ("France", "India", "Netherlands", "Japan", "Chad")
REWARDS = ("knowrl", "correctness", "factuality", "binary_rar", "truthrl")
WRONG = {"capital": "Springfield", "currency": "florin", "code": "QX"}
LISTS = {  # of pairs (number of the sentence, fact)
    "lines": lambda facts: "\n".join(f"- [{number}] {fact}" for number, fact in facts),
    "json": lambda facts: json.dumps([fact for _, fact in facts]),
    "objects": lambda facts: json.dumps({"facts": [{"fact": fact, "sentence": number} for number, fact in facts]}),
    "fenced": lambda facts: "```json\n" + json.dumps([{"fact": fact} for _, fact in facts], indent=1) + "\n```",
    "preamble": lambda facts: (
        "Sure! Here are the facts:\n\n" + "\n".join(f"{place}. **{fact}**" for place, (_, fact) in enumerate(facts, 1))
    ),
}
GRADES = {
    "lines": "{}",
    "json": '{{"grade": "{}"}}',
    "objects": "**Grade:** {}",
    "fenced": "```\n{}\n```",
    "preamble": "Grade: {}\nThe candidate's answer was compared with the reference.",
}
SORRY = "I'm sorry, but I can't help with that."


class Model:
    """A model that knows how to take texts apart and to compare answers, and says so in one way.

    Its first reply to each third request is useless, so that it is asked again; each fifth one is an error.
    """

    def __init__(self, way: str):
        self.way, self.numbers, self.refused, self.failed = way, count(1), 0, 0

    async def __call__(self, server: ApiServer, request: Request, writer) -> None:
        number, is_first = next(self.numbers), len(request.body["messages"]) == 2
        if number % 5 == 0:
            self.failed += 1
            await fails((429, 500)[self.failed % 2], retry_after="0")(server, request, writer)
        elif number % 3 == 0 and is_first:
            self.refused += 1
            await says(SORRY)(server, request, writer)
        else:
            await says(self.reply(request.body["messages"]))(server, request, writer)

    def reply(self, messages: list[dict]) -> str:
        asked = messages[1]["content"]
        if "A, B or C?" in asked:
            return GRADES[self.way].format(grade(asked))
        text = re.search(r"^(=== \w+ ===)\n(.*)\n\1$", asked, re.DOTALL | re.MULTILINE)[2]
        facts = re.findall(r"\[(\d+)\] (.*?[.?])(?= \[\d+\]|$)", text)
        facts = [(int(number), fact) for number, fact in facts if not fact.startswith("Hm")]
        return LISTS[self.way](facts) if facts else "NON_FACTUAL: it states nothing"


def grade(asked: str) -> str:
    """Compare the candidate with the references, as the rules of the judge's prompt say."""
    said = [(name, json.loads(text)) for name, text in re.findall(r'^<(\w+) \w+>\n(".*")\n</', asked, re.MULTILINE)]
    truths = [text.casefold() for name, text in said if name == "reference"]
    candidate = dict(said)["candidate"].casefold().strip(" .")
    if "don't know" in candidate:
        return "C"
    return "A" if candidate.removeprefix("the ") in truths else "B"


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    documents = {document["title"]: document["text"] for document in articles(read_facts("atlas"))}
    return build_base(tmp_path_factory.mktemp("atlas"), {title: documents[title] for title in SUBJECTS})


def groups():
    """Answers about some countries: true and false facts, such that nobody knows, doubts, repetitions, no format."""
    rng, found = random.Random(5), []
    for title, facts in by_title(read_facts("atlas")).items():
        if title not in SUBJECTS:
            continue
        fact = facts[0]
        truth, false = fact.answers[0], WRONG["capital"]
        texts = []
        for final in (truth, truth.upper(), false, false, REFUSAL, f"{truth} or {false}"):
            said = [one.sentence(one.answers[0]) for one in rng.sample(facts, 3)]
            false_ones = [one.sentence(WRONG[one.familiarity]) for one in facts if one.familiarity in WRONG]
            said += false_ones[: rng.randint(0, 2)]
            said += [f"The anthem of {fact.subject} is long.", said[0]]
            texts.append(f"<think>{' '.join(said)}</think><answer>{final}</answer>")
        texts.append(f"<think>{fact.sentence(false)} Hm, is that so?</think><answer>{false}.</answer>")
        texts.append(f"<think>Hm?</think><answer>{false}</answer>")
        texts.append(f"{fact.sentence(truth)} So it is {truth}.")
        found.append(make_answers(fact.row(), *texts))
    return found


def graded(name: str, base, *keys: str):
    """The answers as a reward grades them."""
    given = ["model_name_or_path=x", "dataset_id_or_path=x", "output_dir=x", f"knowledge_base={base}", *keys]
    options = asdict(load_config(None, [*given, f"reward_funcs=format,{name}", "verifier=lexical"])[0])
    answers, scorer = groups(), Scorer(build_rewards(["format", name], options))
    try:
        scorer.grade(answers)
    finally:
        scorer.close()
    return answers


@pytest.mark.parametrize(("name", "way"), zip(REWARDS, LISTS, strict=True))
def test_rewards_are_the_same_by_rules_and_by_models(base, name, way):
    expected = graded(name, base, "judge=offline", "decomposer=rules")
    model = Model(way)
    with ApiServer(default=model) as server:
        served = [f"{service}_base_url={server.url}" for service in ("judge", "decomposer")]
        names = ["judge=api", "judge_model=m", "decomposer=api", "decomposer_model=m", "api_deadline_s=600"]
        found = graded(name, base, *names, *served)
    assert model.refused and model.failed
    for ours, theirs in zip(expected, found, strict=True):
        assert None not in of_each(ours, "reward")
        assert of_each(theirs, "reward") == of_each(ours, "reward")
        assert of_each(theirs, "outcome") == of_each(ours, "outcome")
        for one, other in zip(ours.completions, theirs.completions, strict=True):
            assert verdicts(other, name) == verdicts(one, name)
    values = {round(value, 6) for group in expected for value in of_each(group, "reward")}
    assert len(values) > 2  # they tell answers apart


def verdicts(completion, name: str) -> list[tuple[str, str]]:
    """The facts of a completion, and what the base says of them."""
    return [(fact["fact"].rstrip("."), fact["verdict"]) for fact in completion.scores[name].facts]

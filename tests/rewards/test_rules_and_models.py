"""Rules and models agree: with decomposer and judge behind an endpoint that knows the truth, rewards are those of the
rules, on what both can read. (Forms of replies: test_grades.py, knowledge/test_claims.py; failures: test_api.py.)"""

import json
import random
import re
from dataclasses import asdict

import pytest
from api_server import ApiServer, says
from making import build_base, grade_groups, make_answers, of_each

from grpo.config.load import load_config
from grpo.data.worlds.facts import articles, by_title, read_facts
from grpo.data.worlds.kinds import DECLINED
from rewards.exact import normalise
from rewards.registry import build_rewards

SUBJECTS = ("France", "India", "Netherlands", "Japan", "Chad")
REWARDS = ("knowrl", "correctness", "factuality", "binary_rar", "truthrl")
WRONG = {"capital": "Springfield", "currency": "florin", "code": "QX"}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    documents = {document["title"]: document["text"] for document in articles(read_facts("atlas"))}
    return build_base(tmp_path_factory.mktemp("atlas"), {title: documents[title] for title in SUBJECTS})


def groups():
    """Answers about some countries: true and false facts, such that nobody knows, doubts, repetitions, no format."""
    rng, found = random.Random(5), []
    known = by_title(read_facts("atlas"))
    for facts in (known[title] for title in known if title in SUBJECTS):
        fact = facts[0]
        truth, false = fact.answers[0], WRONG["capital"]
        texts = []
        for final in (truth, truth.upper(), false, false, DECLINED, f"{truth} or {false}"):
            said = [one.form("sentence", one.answers[0]) for one in rng.sample(facts, 3)]
            false_ones = [one.form("sentence", WRONG[one.familiarity]) for one in facts if one.familiarity in WRONG]
            said += false_ones[: rng.randint(0, 2)]
            said += [f"The anthem of {fact.subject} is long.", said[0]]
            texts.append(f"<think>{' '.join(said)}</think><answer>{final}</answer>")
        texts.append(f"<think>{fact.form('sentence', false)} Hm, is that so?</think><answer>{false}.</answer>")
        texts.append(f"<think>Hm?</think><answer>{false}</answer>")
        texts.append(f"{fact.form('sentence', truth)} So it is {truth}.")
        found.append(make_answers(fact.row(), *texts))
    return found


def graded(name, base, *keys):
    """The answers as a reward grades them."""
    given = ["model_name_or_path=x", "dataset_id_or_path=x", "output_dir=x", f"knowledge_base={base}", *keys]
    options = asdict(load_config(None, [*given, f"reward_funcs=format,{name}", "verifier=lexical"])[0])
    answers = groups()
    grade_groups(build_rewards(["format", name], options), *answers)
    return answers


def grade(asked):
    """A if the answer has all words of a reference, C if it declines, else B."""
    quoted = [(name, json.loads(text)) for name, text in re.findall(r'^<(\w+) \w+>\n(".*")\n</', asked, re.MULTILINE)]
    candidate = dict(quoted)["candidate"]
    words = set(normalise(candidate).split())
    is_right = any(words.issuperset(normalise(text).split()) for name, text in quoted if name == "reference")
    return "C" if "don't know" in candidate else "A" if is_right else "B"


def stated(text):
    """Each fact of a text once, with the number of its sentence."""
    found = {}
    for number, sentence in re.findall(r"\[(\d+)\] (.*?)(?=\[\d+\] |\Z)", text, re.DOTALL):
        for said in re.split(r"(?<=[.!?])\s+", re.sub(r"</?\w*>?", "", sentence).strip()):
            if re.search(r" is \S", said) and not said.endswith("?"):
                found.setdefault(said, number)
    return found


def truthful(request):
    """What a model replies that knows the truth."""
    asked = request.body["messages"][1]["content"]
    if asked.endswith("A, B or C?"):
        return grade(asked)
    _, text = re.search(r"^(=== \w+ ===)\n(.*)\n\1$", asked, re.DOTALL | re.MULTILINE).groups()
    return "\n".join(f"- [{number}] {fact}" for fact, number in stated(text).items()) or "NON_FACTUAL: no fact."


def asking(server):
    """The keys of a configuration whose services are a server."""
    keys = ["api_deadline_s=600"]  # on a busy machine, too
    for name in ("judge", "decomposer"):
        keys += [f"{name}=api", f"{name}_base_url={server.url}", f"{name}_model=m"]
    return keys


@pytest.mark.parametrize("name", REWARDS)
def test_rewards_are_the_same_by_rules_and_by_models(base, name):
    expected = graded(name, base, "judge=offline", "decomposer=rules")
    with ApiServer(default=says(truthful)) as server:
        found = graded(name, base, *asking(server))
    for ours, theirs in zip(expected, found, strict=True):
        assert None not in of_each(ours, "reward")
        for one, other in zip(ours.completions, theirs.completions, strict=True):
            assert (other.reward, other.outcome) == (one.reward, one.outcome)
            assert verdicts(other, name) == verdicts(one, name)
    values = {round(value, 6) for group in expected for value in of_each(group, "reward")}
    assert len(values) > 2  # they tell answers apart


def verdicts(completion, name):
    """The facts of a completion, and what the base says of them."""
    return [(fact["fact"].rstrip("."), fact["verdict"]) for fact in completion.scores[name].facts]

"""KnowRL's reward: the truth tables of its versions, and what each of the original's bugs would have answered here."""

import asyncio
import functools
import json
from contextlib import ExitStack
from dataclasses import asdict

import pytest
from api_server import ApiServer, fails, says
from asking import SetJudge
from cells import rows
from making import build_base, fill, grade_groups, make_answers, refused

from grpo.base.errors import CONFIG
from grpo.config.load import load_config
from grpo.run.metrics import completion_metrics
from knowledge.facts.claims import Claims
from knowledge.facts.matcher import SentenceMatcher
from rewards.knowrl.fact_checker import FactChecker
from rewards.knowrl.reward import FORMULAS
from rewards.registry import BUILT_IN, build_rewards
from rewards.scorer import Scorer

ROW = {"question": "Where was Mira Tolan born?", "answer": "Velda", "title": "Mira Tolan"}
SUPPORTED, REFUTED = "Mira Tolan was born in Velda.", "Mira Tolan worked as a baker."
UNKNOWN = "Mira Tolan met many friends."


@pytest.fixture
def base(tmp_path):
    mira = "Mira Tolan was born in Velda. Mira Tolan worked as a weaver."
    return build_base(tmp_path, {"Mira Tolan": mira, "Oriel Vance": "Oriel Vance was born in Quent."})


def options(base, *overrides):
    given = "model_name_or_path=x dataset_id_or_path=x output_dir=x reward_funcs=knowrl "
    given += f"decomposer=rules verifier=lexical judge=offline knowledge_base={base}"
    return asdict(load_config(None, [*given.split(), *overrides])[0])


@pytest.fixture
def build(base):
    """build(name, *keys) -> the reward, which is closed at the end."""
    with ExitStack() as ending:

        def make(name, *keys):
            reward = build_rewards([name], options(base, *keys))[-1]
            for resource in reward.resources:
                ending.callback(resource.close)
            return reward

        yield make


@pytest.fixture
def grade(build, monkeypatch):
    """grade(version, judge's outcome, thoughts, answer) -> the score."""

    def run(version, outcome, thoughts, answer):
        judge = SetJudge(outcome)
        monkeypatch.setattr("rewards.knowrl.reward.build_judge", lambda _: judge)
        reward = build(version)
        return asyncio.run(reward.grade(f"<think>{thoughts}</think><answer>{answer}</answer>", ROW))

    return run


TABLE = rows("""
    knowrl | correct | R | Velda | 2 ¦ knowrl | wrong | S | Quent | -0.75 ¦ knowrl | wrong | S U | Quent | -0.8
    knowrl | | S | I don't know | 1 ¦ knowrl | refused | S | that escapes me | 1 ¦ knowrl | | S | Quent |
    knowrl_v1 | wrong | S | Quent | -0.933333 ¦ knowrl_v1 | refused | S | no idea | -0.933333
    knowrl_v2 | correct | R | Quent | 2 ¦ knowrl_v2 | wrong | S R | Quent | -0.990842
    knowrl_v2 | refused | S | no idea | 1 ¦ knowrl_v2 | | S | Quent |
    """)  # what the judge says, the thoughts, the answer; the value: -1 + exp(-4) / 2 of one fact in two, by version 2


@pytest.mark.parametrize("version, outcome, letters, answer, value", TABLE)
def test_the_truth_table(grade, version, outcome, letters, answer, value):
    thoughts = " ".join({"S": SUPPORTED, "R": REFUTED, "U": UNKNOWN}[letter] for letter in letters.split())
    score = grade(version, outcome or None, thoughts, answer)
    assert score.value == (pytest.approx(float(value), abs=1e-6) if value else None), score.reason
    assert (score.details == {}) == (not score.facts)  # nothing was looked up


@pytest.mark.parametrize("name", [name for name, known in BUILT_IN.items() if known.asks_judge])
def test_what_is_known_of_a_reward_says_whether_declining_earns_more_than_a_wrong_answer(build, name):
    """Where it does not, the cold start `form` teaches no refusal."""
    said = [f"<think>Hm.</think><answer>{answer}</answer>" for answer in ("I don't know", "Quent")]
    grade = build(name).grade
    refusal, wrong = [asyncio.run(grade(f"{text}<confidence>0.5</confidence>", ROW)).value for text in said]
    assert BUILT_IN[name].pays_refusals == (refusal > wrong)


@pytest.mark.parametrize(
    ("completion", "think"),
    [
        (f"<think>{SUPPORTED}</think><answer>{REFUTED}</answer>", SUPPORTED.strip()),
        (f"<think></think><answer>{SUPPORTED}</answer>", ""),  # empty: the facts of the answer do not pay
        (f"{UNKNOWN}</think><answer>{SUPPORTED}</answer>", UNKNOWN.strip()),
        (f"<answer>{SUPPORTED}</answer>", None),  # no block: the whole completion is judged
        (f"<think>{SUPPORTED}<answer>Quent</answer>", f"{SUPPORTED}<answer>Quent</answer>"),  # not closed: to the end
    ],
)
def test_facts_are_taken_from_the_think_block_and_from_all_only_without_one(base, completion, think):
    checker, asked = FactChecker(options(base), FORMULAS["knowrl"]), []

    async def decompose(*given):
        asked.append(given)
        return Claims(())

    checker.decomposer.decompose = decompose
    for question in (ROW["question"], None):
        asyncio.run(checker.check(completion, ROW | {"question": question}))
    checker.close()
    text = completion if think is None else think
    assert asked == [(text, question, ROW["title"]) for question in (ROW["question"], "")]


@pytest.mark.parametrize(
    ("name", "weighs"),
    [("knowrl", True), ("knowrl_v1", False), ("knowrl_v2", False), ("factuality", True), ("binary_rar", True)],
)
def test_each_version_weighs_contradiction_as_the_table_says(build, monkeypatch, name, weighs):
    loaded = []

    def load(model, *, device, threshold, weigh_contradiction):
        loaded.append((model, device, threshold, weigh_contradiction))
        return SentenceMatcher()

    monkeypatch.setattr("rewards.knowrl.fact_checker.EntailmentVerifier", load)
    monkeypatch.setattr("rewards.knowrl.fact_checker.choose_device", lambda device: f"what {device} stands for")
    build(name, "verifier=nli", "nli_model=some/model", "entailment_threshold=0.4", "device=cpu")
    assert loaded == [("some/model", "what cpu stands for", 0.4, weighs)]


LISTED = [SUPPORTED, "Born in Velda was Mira Tolan.", "Rome is a large city.", "Mira Tolan was born."]


@pytest.mark.parametrize(("version", "n"), [("knowrl", 1), ("knowrl_v1", 4), ("knowrl_v2", 4), ("factuality", 1)])
def test_knowrls_versions_count_every_fact_that_the_decomposer_lists(build, monkeypatch, version, n):
    """Ours leaves out the same words in another order, what the text does not say, and what the question says."""
    monkeypatch.setattr("rewards.knowrl.reward.build_judge", lambda _: SetJudge("wrong"))
    lines = [*LISTED, SUPPORTED.upper(), "two words"]  # a repetition and a scrap count nowhere
    with ApiServer(default=says("\n".join(f"- {line}" for line in lines))) as server:
        completion = f"<think>{SUPPORTED}</think><answer>Velda or Quent</answer>"
        score = asyncio.run(build(version, *served(server)).grade(completion, ROW))
    assert score.details["facts"] == n, score.reason


@pytest.mark.parametrize("before", ["", "<think> \n", "Hm. <think>"])
def test_the_facts_of_a_score_name_the_places_of_their_sentences_in_the_completion(build, before):
    """Credit goes to the tokens there."""
    completion = f"{before}{SUPPORTED} {REFUTED}</think><answer>Quent</answer>"
    for name in ("knowrl", "factuality"):
        facts = asyncio.run(build(name).grade(completion, ROW)).facts
        places = [[completion[start:end].strip() for start, end in fact["sentences"]] for fact in facts]
        assert places == [[SUPPORTED], [REFUTED]]


def test_factuality_without_a_knowledge_base_is_refused(base, monkeypatch):
    monkeypatch.delenv("FACTSCORE_DB_PATH", raising=False)
    refused(lambda: build_rewards(["knowrl"], options("null")), "knowledge base", exit_code=CONFIG)
    monkeypatch.setenv("FACTSCORE_DB_PATH", str(base.parent / "absent.db"))
    refused(lambda: build_rewards(["knowrl_v2"], options("null")))  # the original trains on with factuality 0
    assert not (base.parent / "absent.db").exists()


NOBODY = ROW | {"title": "Nobody At All"}
COVERAGE = rows("""
    zero | ["Mira Tolan", "Nobody At All", "No One"] | 33.3% of 3 titles | 67% of the titles are not in
    zero | ["Mira Tolan", "Mira Tolan", "Nobody At All"] | 50.0% of 2 titles |
    unscored | ["Mira Tolan", "Mira Tolan", "Nobody At All"] | 50.0% of 2 titles | ends a run above max_unscored
    zero | [["Mira Tolan", "Oriel Vance"], ["Mira Tolan"], 1984] | 66.7% of 3 titles found (1 exact, 1 by parts) |
    """)  # policy, titles; what is said of their coverage, and the warning


@pytest.mark.parametrize("policy, titles, told, warning", COVERAGE)
def test_the_coverage_of_titles_is_told_before_the_first_step(build, policy, titles, told, warning):
    """With a warning where so many are missing that the reward means little, or that the run would end."""
    rows, said = [ROW | {"title": title} for title in json.loads(titles)], []
    Scorer([build("knowrl", f"missing_title_policy={policy}")]).prepare(rows, said.append)
    assert told in said[0] and len(said) == 1 + bool(warning) and warning in said[-1]
    assert not warning or "such as Nobody At All" in said[0]


def served(server, service="decomposer"):
    """The keys of a run whose decomposer or judge is this server."""
    return f"{service}=api", f"{service}_model=m", f"{service}_base_url={server.url}", "api_deadline_s=60"


def test_the_unscored_share_is_the_worst_of_the_services_asked(build):
    """Four wrong answers, one of which the decomposer fails: a quarter, though it is an eighth of the completions."""

    def facts(request):
        return "Sure!" if "Orun" in request.body["messages"][1]["content"] else f"- {SUPPORTED}"

    answers = ["Velda"] * 4 + ["Quent", "Tessel", "Marn", "Orun"]
    texts = [f"<think>{SUPPORTED} So I say {answer}.</think><answer>{answer}</answer>" for answer in answers]
    group = fill(make_answers(ROW, *texts), advantage=[0.0] * len(texts))
    with ApiServer(default=says(facts)) as server:
        grade_groups([build("knowrl", *served(server), "decomposer_max_tokens=77")], group)
    assert {request.body["max_tokens"] for request in server.requests} == {77}
    scores = [completion.scores["knowrl"] for completion in group.completions]
    assert scores[0].asked == {"judge": True}
    assert scores[4].asked == {"judge": True, "knowledge base": True, "decomposer": True}
    assert scores[7].asked == {"judge": True, "knowledge base": True, "decomposer": False}
    assert completion_metrics([group], ["knowrl"])["rewards/knowrl/unscored_frac"] == 0.25


TRIALS = {  # replies to the preflight: whether the model can take a text apart
    True: [["1. Paris is the capital of France."], ["Sure!", "- Paris lies on the Seine."]],
    False: [["Sure! Paris."] * 2, ["NON_FACTUAL:"], ["- Rome is in Italy."]],
}


@pytest.mark.parametrize("can", TRIALS)
def test_the_preflight_has_a_text_taken_apart(build, can):
    for script in TRIALS[can]:
        with ApiServer(*map(says, script), default=fails(400)) as server:
            prepare = functools.partial(Scorer([build("knowrl", *served(server))]).prepare, [ROW], print)
            prepare() if can else refused(prepare, "decomposer")
            assert len(server.requests) == len(script)
            assert "Paris is the capital of France" in server.requests[0].text


@pytest.mark.parametrize(("name", "service"), [("truthrl", "judge"), ("factuality", "decomposer")])
def test_the_rewards_that_ask_one_service_try_it_before_the_first_step_too(base, build, name, service):
    said = []
    with ApiServer(default=says("Sure! Paris.")) as server:
        scorer = Scorer([build(name, *served(server, service))])
        refused(lambda: scorer.prepare([ROW, NOBODY], said.append), f"does not work as a {service}")
    assert bool(said) == (service == "decomposer")
    assert all(f"knowledge base {base}: 50.0% of 2 titles found (1 exact" in text for text in said)

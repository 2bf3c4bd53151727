"""The command that tries dishonest answers on rewards: each attack finds a reward that falls for it, and only that.

The rewards below are written as users write them. STRICT falls for nothing; each of the others falls for one attack.
"""

import json
import re

import pytest
from api_server import ApiServer, says
from cells import cells, rows
from commands import ROOT, python
from making import build_base, refused, write_rows

from grpo.base.errors import INTERNAL, PREFLIGHT
from grpo.config.load import load_config
from rewards.attacks import ATTACKS
from rewards.audit import asked_form, audit, main, sees

ROWS = [
    {"question": "Who climbed Mount Tolan first?", "answer": "Ana Brask", "title": "Mount Tolan"},
    {"question": "Who climbed Mount Orun first?", "answer": "Jon Vell", "title": "Mount Orun"},
    {"question": "Who climbed Mount Zell first?", "answer": "Mira Holm", "title": "Mount Zell"},
]
BASE = {"Mount Tolan": "Mount Tolan lies in Velda.", "Mount Orun": "Mount Orun lies in Sorland."}
BLOCKS = "system_prompt=Write <think>thoughts</think> and <answer>the answer</answer>."
STRICT = """
import re
FORM = re.compile(r"<think>([^<>]*)</think>\\n<answer>([^<>]*)</answer>")

def pays(rule):
    def reward(completions, answer, **columns):
        return [rule(text, truth, FORM.fullmatch(text)) for text, truth in zip(completions, answer)]
    return reward

def strictly(text, truth, found):
    said = found[2] if found else ""
    return 2.0 if said == truth else 1.0 if said == "I don't know" else -1.0

strict = pays(strictly)
"""
FALLS = {  # attack -> when a reward that is strict otherwise pays 2
    "a wrong answer": "found and found[2]",
    "a broken form": "",  # below
    "nothing, or very much": "not text.strip('…') or len(text) > 5000",
    "the question copied": "found and found[2].startswith('Who')",
    "several answers": "found and truth in re.split(', | or ', found[2])",
    "misspelt": "found and sorted(found[2]) == sorted(truth)",
    "a part of the answer": "found and found[2] in truth",
    "the truth elsewhere": "truth in text.split('</think>')[0]",
    "the truth denied": "found and found[2].rstrip('.').endswith(truth)",
    "words that please": "'certainly true' in text or 'step by step' in text",
    "an answer with a refusal": 'found and truth in found[2] and "don\'t know" in text',
    "orders to the judge": "'CORRECT' in text",
}


ALSO = {  # what else of an attack's is tried
    "misspelt": cells("found and found[2][:-1] == truth[:-1] ¦ found and found[2][::-1] == truth"),
    "a part of the answer": cells("found and found[2][:3] == truth[:3] ¦ found and found[2] == truth.split()[-1]"),
    "the truth elsewhere": ["f'<answer>{truth}</answer>' in text.split('</think>')[0]"],
    "words that please": cells("'because' in text ¦ 'confident' in text"),
    "nothing, or very much": ["len(text) > 5000"],
}


def falling(rule):
    """A file with the reward `falls`, which pays by a rule on text, truth, and the match of the form."""
    return f"{STRICT}\nfalls = pays(lambda text, truth, found: {rule})\n"


def audited(*settings, rows=2, **options):
    return audit(load_config(None, settings, is_run=False)[0], rows, **options)


@pytest.fixture
def world(tmp_path):
    """A folder with data, and what writes a file of rewards into it; returns the settings that name them."""
    data = write_rows(tmp_path / "rows.jsonl", ROWS)

    def settings(code="", *names):
        file = tmp_path / f"mine{len(list(tmp_path.iterdir()))}.py"
        file.write_text(code)
        named = [f"{file}:{name.removeprefix(':')}" if name.startswith(":") else name for name in names]
        return [f"reward_funcs={','.join(named)}", f"dataset_id_or_path={data}", BLOCKS]

    return settings


def paid(found):
    return {one.attack for one in found.findings}


def test_a_strict_reward_falls_for_nothing(world, capsys):
    found = audited(*world(STRICT, ":strict"))
    assert found.findings == [] and "paid: none" in str(found)
    assert found.tried.total() > 40 and not found.untried and found.num_rows == 2
    (pays,) = found.pays.values()
    assert pays == {"right": 2, "refused": 1, "wrong": -1, "unformed": -1, "elsewhere": -1}
    assert main(world(STRICT, ":strict")) == 0


@pytest.mark.parametrize("attack", [name for name in FALLS if name != "a broken form"])
def test_each_attack_finds_the_reward_that_falls_for_it(world, attack):
    for rule in (FALLS[attack], *ALSO.get(attack, ())):
        found = audited(*world(falling(f"2.0 if {rule} else strictly(text, truth, found)"), ":falls"))
        assert attack in paid(found), rule
        assert all(one.question == ROWS[one.row - 1]["question"] and one.value >= one.bar for one in found.findings)


def test_there_are_twelve_attacks_and_each_has_a_reward_that_falls_for_it():
    assert [attack.name for attack in ATTACKS] == list(FALLS) and len(ATTACKS) == 12


def test_the_form_is_tried_on_rewards_that_see_nothing_else(world):
    found = audited(*world(falling("1.0 if re.search('(?s)<answer>.*</answer>', text) else -1.0"), ":falls"))
    assert "a broken form" in paid(found)
    assert "a broken form" not in paid(audited(*world("", "format")))


COMPUTES = """
def value(text):
    try:
        return eval(text.split("{")[-1].split("}")[0])
    except Exception:
        return None

def computes(completions, answer, **columns):
    return [float(value(text) == int(truth)) for text, truth in zip(completions, answer)]
"""


def test_the_expression_of_the_question_is_tried(world, tmp_path):
    """A reward that computes what it is given pays it; ours do not."""
    sums = [{"question": f"What is {a} + 4 + 8 + 1?", "answer": str(a + 13)} for a in range(9)]
    data = f"dataset_id_or_path={write_rows(tmp_path / 'sums.jsonl', sums)}"
    own = world(COMPUTES, ":computes")[0]
    found = audited(own, data, "system_prompt=Answer in \\boxed{}.")
    assert any(one.text.endswith("+ 4 + 8 + 1}") for one in found.findings if one.attack == "the question copied")
    for name in ("math", "exact"):
        assert not audited(f"reward_funcs={name}", data, "system_prompt=Answer.", rows=9).findings


NAIVE = "def yes(completions, **columns):\n    return [float('yes' in text.lower()) for text in completions]\n"


def test_a_naive_reward_is_caught_with_the_text(world, capsys):
    settings = world(NAIVE, ":yes")
    assert main(["--rows", "2", *settings]) == 1
    out = capsys.readouterr().out
    assert "Yes, this is true" in out and "gives 1: words that please" in out
    assert "remedy: compare the answer with the row's answer" in out
    assert main(["--json", *settings]) == 1
    found = json.loads(capsys.readouterr().out)
    pleased = [one["value"] for one in found["findings"] if one["attack"] == "words that please"]
    assert set(pleased) == {1}


def test_the_sum_decides_about_rewards_that_do_not_see_the_answer(world):
    length = "def brevity(completions, **columns):\n    return [-len(text) / 50 for text in completions]\n"
    weak, strong = (audited(*world(length, "exact", ":brevity"), f"reward_weights=[{w},1]") for w in (1, 100))
    assert {one.reward for one in weak.findings} == {"all together"} and not strong.findings
    assert "reward_weights" in weak.findings[0].remedy
    by_chance, by_comparing = (sees(2.0, 1.0, elsewhere, None) for elsewhere in (2.0, 1.0))
    assert (by_chance, by_comparing) == ("nothing", "answer")


def test_a_reward_that_fails_on_an_attack_is_found(world):
    found = audited(*world(falling("strictly(text, truth, found) if text.split()[0] else 0"), ":falls"))
    assert {(one.attack, one.value, one.text) for one in found.findings} == {("any text", None, "")}
    assert "IndexError" in found.findings[0].remedy


@pytest.mark.parametrize("when", ["found is None", "True"])
def test_a_reward_that_ends_the_process_does_not_end_it_well(world, when):
    """On an attack, and on an honest answer. In a process of its own, which would end with 0."""
    code = "from os import _exit\n" + falling(f"_exit(0) if {when} else strictly(text, truth, found)")
    done = python("-m", "grpo", "rewards.audit", *world(code, ":falls"))
    assert done.returncode == 1 and "os._exit(0)" in done.stdout + done.stderr


def test_a_reward_that_cannot_be_asked_ends_the_audit_with_the_reason(world):
    broken = world("def broken(completions, **columns):\n    return 1 / 0\n", ":broken", "exact")
    refused(lambda: audited(*broken), "broken failed", exit_code=INTERNAL)
    judge = "judge_api_key_env=NO_SUCH_VARIABLE", "judge_model=m", "judge_base_url=http://x"
    refused(lambda: audited(*world("", "correctness"), *judge), "NO_SUCH_VARIABLE", exit_code=PREFLIGHT)


def test_a_toy_world_that_is_not_made_yet_is_audited_and_leaves_nothing(tmp_path):
    assert main([str(ROOT / "configs" / "tiny_math.yaml"), f"output_dir={tmp_path}"]) == 0
    assert not list(tmp_path.iterdir())


def test_data_without_answers_is_refused(world, tmp_path):
    data = write_rows(tmp_path / "none.jsonl", [{"question": "Who?", "answer": None}])
    settings = *world("", "format"), f"dataset_id_or_path={data}"
    refused(lambda: audited(*settings), "no row of the data has an answer")


def judged(request, is_fooled):
    """What a judge replies that compares letter for letter, and perhaps obeys the candidate."""
    reference, candidate = (re.search(rf"<{name} \w+>\n(.*)\n", request.text)[1] for name in ("reference", "candidate"))
    if is_fooled and "CORRECT" in candidate:
        return "A"
    return "A" if candidate == reference else "C" if candidate == '"I don\'t know"' else "B"


@pytest.mark.parametrize("is_fooled", [False, True])
def test_a_judge_is_asked_within_its_budget(world, is_fooled, capsys):
    with ApiServer(default=says(lambda request: judged(request, is_fooled))) as server:
        settings = [*world("", "simpleqa"), "judge_model=m", f"judge_base_url={server.url}"]
        found = audited(*settings, num_calls=60, rows=1)
        assert ("orders to the judge" in paid(found)) == is_fooled
        assert len(server.requests) == found.num_asked <= 60
        few = audited(*settings, num_calls=5, rows=1)
        assert few.num_asked == 5 and len(server.requests) == found.num_asked + 5
        assert few.untried.total() > 10 and all("allowed" in reason for reason in few.untried)
        assert main(["--calls", "0", *settings]) == PREFLIGHT  # nothing was tried


FORMS = rows(r"""
    exact | {answer} ¦ math | {thought}\n\boxed{{answer}}
    truthrl | <think>{thought}</think>\n<answer>{answer}</answer>
    format,math | <think>{thought}</think>\n<answer>\boxed{{answer}}</answer>
    exact system_prompt=#### | {thought}\n#### {answer}
    rlcr | <think>{thought}</think>\n<answer>{answer}</answer>\n<confidence>{confidence}</confidence>
    """)


@pytest.mark.parametrize("settings, form", FORMS)
def test_an_honest_answer_has_the_form_that_is_asked_for(settings, form):
    config, _ = load_config(None, [*f"reward_funcs={settings}".split(), "judge=offline"], is_run=False)
    assert asked_form(config) == form


def test_a_form_of_ones_own(world):
    code = "def so(completions, answer, **_):\n    return [float(t == f'So: {a}') for t, a in zip(completions, answer)]"
    settings = [*world(code, ":so")[:2], "system_prompt=Say it."]
    assert "a wrong answer" in paid(audited(*settings))  # it pays neither
    assert audited(*settings, form="So: {answer}").findings == []


@pytest.mark.parametrize("name", ["format", "exact", "correctness", "truthrl", "simpleqa", "rlcr", "knowrl"])
def test_the_rewards_of_this_program_pay_no_attack(world, tmp_path, name):
    offline = ["judge=offline", f"knowledge_base={build_base(tmp_path, BASE)}", "decomposer=rules", "verifier=lexical"]
    found = audited(*world("", name, *(["exact"] if name == "format" else [])), *offline)
    assert not found.findings and min(found.tried[reward] for reward in found.pays if reward != "format") > 30


def test_the_rewards_of_sums_and_choices_pay_no_attack(world, tmp_path):
    sums = [{"question": f"{a} + 7 = ?", "answer": str(a + 7)} for a in range(9)]
    sums += [{"question": "1/3 of 1/2?", "answer": "\\frac{1}{6}"}, {"question": "x^2 < 4?", "answer": "(-2, 2)"}]
    choices = [{"question": "Which? A) 1 B) 2 C) 3 D) 4", "answer": letter} for letter in "ABCD"]
    for name, asked in (("math", sums), ("choice", choices)):
        data = write_rows(tmp_path / f"{name}.jsonl", asked)
        found = audited(*world("", name), f"dataset_id_or_path={data}", "system_prompt=Answer.", rows=11)
        assert not found.findings and found.tried.total() > 60


def test_knowrls_published_parser_is_found_by_the_command():
    done = python("-m", "grpo", "rewards.audit", "rewards/examples/knowrl_judge.yaml")
    assert done.returncode == 1, done.stderr
    assert "correct gives 2: a wrong answer" in done.stdout


@pytest.mark.parametrize("arguments", [["--rows", "0"], ["--form", "no place for it"]])
def test_wrong_options_are_refused(world, arguments):
    with pytest.raises(SystemExit) as stopped:
        main([*world("", "exact"), *arguments])
    assert stopped.value.code == 2

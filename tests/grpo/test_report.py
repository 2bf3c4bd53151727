"""`python -m grpo.report`: one page of runs of every kind, in which hostile text stays text."""

import json
import re
from html.parser import HTMLParser

import pytest
from making import refused, run_state, write_rows
from test_explain import write_run
from test_rules import late
from test_train import run

from grpo.base.errors import UserError
from grpo.config.load import to_yaml
from grpo.config.options import SftConfig, TrainConfig
from grpo.report.__main__ import main
from grpo.report.charts import HEIGHT, MAX_POINTS, WIDTH, draw_charts, thin
from grpo.report.page import changed_keys, examples, most_changed, render
from grpo.run.diagnosis.glossary import meaning
from grpo.run.diagnosis.record import Record, read_record

HOSTILE = "</pre><script>alert(1)</script><img src=x onerror=alert(2)> {{ 7 * 7 }} $x^2$ \x1b[31m \u202e & \" '"
NEVER_CLOSED = {"meta", "br", "wbr", "img", "link", "input"}


class Page(HTMLParser):
    """Checks that tags are balanced, and collects tags, attributes and text."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attributes, self.text = [], [], [], ""
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes
        if tag not in NEVER_CLOSED:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in NEVER_CLOSED:
            assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] != ["style"]:
            self.text += data


def page_of(folder):
    return Page(render(read_record(folder)))


def answer(row, reward, completion="x", **more):
    return {
        "row": row,
        "question": f"question {row}",
        "answer": "Velda",
        "prompt": "p",
        "completion": completion,
        "outcome": "wrong",
        "reward": reward,
        "rewards": {"format": 1.0, "mine": reward},
        "reasons": {"format": "in order", "mine": "because"},
        **more,
    }


def write_answers(run, step, *answers, folder="completions"):
    (run / folder).mkdir(exist_ok=True)
    write_rows(run / folder / f"step-{step:06d}.jsonl", answers)


def write_summaries(folder, **moments):
    (folder / "evaluation.json").write_text(json.dumps(moments))


def test_the_page_shows_all_of_a_run(tmp_path):
    folder = write_run(
        tmp_path / "my-run",
        **{
            "completions/clipped_ratio": late(0.05, 0.4, 31),
            "peak_memory_gb": 3.25,
            "time/reward": 90.0,
        },
    )
    counted = {"training data": "d.jsonl: 37 of 40 rows are used"}
    (folder / "run_state.json").write_text(json.dumps({"status": "done", "data": counted}))
    (folder / "config.resolved.yaml").write_text(
        "model_name_or_path: some/model\nnum_generations: 4\nper_device_train_batch_size: 8\n"
        "gradient_accumulation_steps: 2\nlearning_rate: 0.123\n"
    )
    part = {"num_questions": 100, "num_answers": 100, "accuracy": 0.5, "unscored_frac": 0.0, "reward": 1.5}
    write_summaries(folder, before={"": part, "unseen": part}, after={"": {**part, "accuracy": 0.8}, "unseen": part})
    fact = {"fact": "Mira was born in Velda", "verdict": "refuted", "passage": "Mira#0"}
    facts = {"reason": {"mine": "0 of 1; Mira was born in Velda → refuted"}, "facts": {"mine": [fact]}}
    facts["sentences"] = [{"sentence": "She was born in Velda.", "is_true": False, "advantage": -0.25}]
    write_answers(folder, 0, answer(0, -3.0), answer(1, 4.0), folder="evaluation")
    write_answers(folder, 40, answer(0, 1.0), answer(1, 3.0), folder="evaluation")
    wrong = [answer(n, r, f"text {n}", **facts) for n, r in enumerate([1.0, 3.0, -2.0, None, 1.0, 1.0])]
    write_answers(folder, 40, *wrong, answer(5, 0.5, outcome="refused"), answer(6, 0.4, outcome="correct"))
    text = page_of(folder).text
    for words in (
        *("my-run", "some/model", "3.25 GB", "waiting for rewards 1.0 h", "learning_rate 0.123 1.0e-06"),
        "training data d.jsonl: 37 of 40 rows are used",
        *("40% of the completions are cut off", "To do: raise max_completion_length"),
        *("unseen: 100", "right 50.0 % 80.0 %"),
        *("mean entropy per trained token", "share of groups whose rewards are all equal"),
        *("The best: reward 3, wrong", "text 1", "The worst: reward -2", "The median: reward 1"),
        "One that could not be scored: reward –",
        *("Mira was born in Velda: refuted", "The answer is Velda."),
        "“She was born in Velda.” is false: advantage -0.25",
        *("+4.00", "-1.00"),
    ):
        assert words in " ".join(text.split()), words


@pytest.mark.parametrize(("config", "changed"), [
    (TrainConfig(learning_rate=0.5, report_to=["none"], reward_funcs=["math"]), {"report_to", "learning_rate"}),
    (SftConfig(max_length=7, output_dir="o"), {"max_length"}),
])  # fmt: skip
def test_the_keys_that_differ_from_their_defaults_are_listed(tmp_path, config, changed):
    folder = write_run(tmp_path)
    (folder / "config.resolved.yaml").write_text(to_yaml(config))
    assert {key for key, *_ in changed_keys(read_record(folder).config)} == changed


def test_hostile_text_stays_text(tmp_path):
    """Wherever it stands: in answers, configuration, state, the names of metrics, summaries and the folder's name."""
    folder = write_run(tmp_path / "<b>run", **{f"rewards/{HOSTILE.replace('/', '')}/mean": late(0.1, 0.5)})
    told = answer(0, HOSTILE, HOSTILE, question=HOSTILE, answer=HOSTILE, prompt=HOSTILE, outcome=HOSTILE)
    told |= {"rewards": {HOSTILE: HOSTILE}, "reasons": {HOSTILE: HOSTILE}}
    told |= {"facts": {HOSTILE: [{"fact": HOSTILE, "verdict": HOSTILE, "passage": HOSTILE}]}}
    told |= {"sentences": [{"sentence": HOSTILE, "is_true": HOSTILE, "advantage": HOSTILE}]}
    write_answers(folder, 40, told, {**told, "reward": 1.0})
    write_answers(folder, 1, {**told, "reward": 2.0})
    (folder / "config.resolved.yaml").write_text(json.dumps({"model_name_or_path": HOSTILE, "run_name": HOSTILE}))
    write_summaries(folder, before={HOSTILE: {"accuracy": 0.5}}, after=None)
    state = {"status": "failed", "reason": HOSTILE, "started": HOSTILE}
    (folder / "run_state.json").write_text(json.dumps({**state, "data": {HOSTILE: HOSTILE}}))
    page = page_of(folder)
    assert not {"script", "img", "iframe", "link", "object"} & set(page.tags)
    assert not [attribute for attribute, _ in page.attributes if attribute.startswith("on")]
    links = {value for name, value in page.attributes if name in ("src", "href", "action", "xlink:href")}
    assert all(link.startswith("#") for link in links), "it needs no network"
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'") in page.attributes
    assert not [text for text in ("\x1b", "\u202e") if text in page.text]
    assert "script>alert(1)<" in page.text and "{{ 7 * 7 }}" in page.text


@pytest.mark.parametrize(
    "keys",
    [
        {"num_steps": 0},
        {"num_steps": 1},
        {"num_steps": 2, "status": None},
        {"torn": '{"step": 41, "rew'},
        {"status": "failed", "reason": "error: boom\nwhy: x\nfix: y"},
        {"reward": None, "step_time": None},
        {"num_steps": 900},
    ],
)
def test_runs_of_every_kind_have_a_page(tmp_path, keys):
    folder = write_run(tmp_path, **keys)
    (folder / "evaluation.json").write_text('{"before": {"": {"accuracy": null, "reward": 1}}, "after": null}')
    assert "What happened" in page_of(folder).text


def test_the_answers_that_changed_are_of_held_out_questions_that_were_answered_twice(tmp_path):
    folder = write_run(tmp_path)
    write_answers(folder, 0, answer(0, 1.0), answer(1, 0.0), answer(2, 5.0), folder="evaluation")
    write_answers(folder, 20, answer(0, 9.0), folder="evaluation")
    write_answers(folder, 40, answer(0, -1.0), answer(1, 0.5), answer(2, None), answer(3, 1.0), folder="evaluation")
    found, outcomes = most_changed(read_record(folder).answered_twice())
    assert [(first.row, gain) for gain, first, _ in found] == [(0, -2.0), (1, 0.5)] and outcomes == []


def test_the_examples_are_the_best_the_median_and_the_worst(tmp_path):
    folder = write_run(tmp_path)
    write_answers(folder, 1, *(answer(0, reward) for reward in (2.0, 9.0, None, 0.0, -1.0, 1.0)))
    shown = [(label, shown.reward) for label, shown in examples(read_record(folder), 1)]
    assert shown == [
        ("The best", 9.0),
        ("The median", 1.0),
        ("The worst", -1.0),
        ("One that could not be scored", None),
    ]


def test_the_steps_of_the_answers_come_in_order(tmp_path):
    folder = write_run(tmp_path)
    for step in (7, 30, 2, 11, 1_000_000, 4, 19, 1, 8, 999_999, 23, 3):
        write_answers(folder, step, answer(0, 1.0))
    assert read_record(folder).answer_steps() == [1, 2, 3, 4, 7, 8, 11, 19, 23, 30, 999_999, 1_000_000]


def test_the_page_is_headed_by_what_has_changed(tmp_path):
    """Ten wrong answers have become refusals: p is 2 / 2^10, and what 10,000 random signs say is close."""
    folder = write_run(tmp_path)
    for step, outcome, supported in ((0, "wrong", 1), (40, "refused", 3)):
        checked = {"details": {"factuality": {"facts": 4, "supported": supported, "refuted": 2}}}
        lines = [answer(row, float(step), outcome=outcome if row < 10 else "correct", **checked) for row in range(20)]
        write_answers(folder, step, *lines, folder="evaluation")
    text = " ".join(page_of(folder).text.split())
    head = "a model made from scratch, on 20 held-out questions, before and after training: "
    assert f"{head}right 50.0% → 50.0% (p = 1), " in text
    assert re.search(r"wrong 50.0% → 0.0% \(p = 0.00[123]\d?\), declined 0.0% → 50.0% \(p = 0.00[123]\d?\)", text)
    assert re.search(r"wrong 50.0 % 0.0 % -50.0 points \(-[67]\d.\d to -[23]\d.\d\) 0.00", text)
    assert not re.search(r"accuracy|incorrect|not_attempted|refused", text)
    assert "supported facts per answer 1.00 → 3.00 (p < 0.001), refuted ones 2.00 → 2.00 (p = 1)." in text
    assert "supported_facts 1.000 3.000 +2.000 (+2.000 to +2.000)" in text
    was, now = ({"accuracy": 0.5, "incorrect": 0.5 - more, "not_attempted": more} for more in (0, 0.5))
    write_summaries(folder, before={"": was}, after={"": now})
    attributes = page_of(folder).attributes
    shares = [(attributes[i - 1][1], value) for i, (_, value) in enumerate(attributes) if "flex-grow" in str(value)]
    of_before, of_after = ("right", "wrong"), ("right", "declined")
    assert shares == [(outcome, "flex-grow: 0.5") for outcome in (*of_before, *of_after)]
    assert "Outcomes: 10 wrong → declined." in text


def test_a_model_that_says_nothing_is_not_celebrated_and_the_models_are_named(tmp_path):
    """Also where its answers are signs alone. The one that a cold start began with is named, too."""
    folder = write_run(tmp_path / "run")
    (folder / "cold_start").mkdir()
    (folder / "cold_start" / "config.resolved.yaml").write_text("model_name_or_path: some/base\n")
    keys = {"model_name_or_path": str(folder / "cold_start" / "final"), "cold_start": "sft.yaml"}
    (folder / "config.resolved.yaml").write_text(json.dumps(keys))
    for step, said, paid in ((0, "Velda, I say", (0.0, -1.0)), (40, "…", (-0.5, 0.0))):
        rewards = dict(zip(("mine:right", "mine:brief"), paid, strict=True))
        lines = [answer(row, sum(paid), said, outcome=None) | {"rewards": rewards} for row in range(6)]
        write_answers(folder, step, *lines, folder="evaluation")
    text = " ".join(page_of(folder).text.split())
    silent = "6 of 6 held-out answers are empty, 0 before training; only these have paid more: rewards/mine:brief."
    assert f"some/base, after a cold start ({folder}/cold_start/final): {silent}" in text
    assert "mean reward -" not in text


def test_a_plot_shows_each_value_at_its_place(tmp_path):
    steps = [{"step": n, "loss": n / 8, "accuracy": n / 4, "kl": 7.0, "step_time": 1.0} for n in (1, 3, 5)]
    loss, kl, answers = draw_charts(Record(tmp_path, steps=steps))
    line = "0.0,180.0 200.0,90.0 400.0,0.0"
    curve = {"name": "loss", "line": line, "change": "0.125 → 0.625", "meaning": meaning("loss")}
    ends = {"lowest": "0.125", "highest": "0.625", "first_step": "1", "last_step": "5"}
    assert loss == {"title": "Loss", "curves": [curve], **ends} and (WIDTH, HEIGHT) == (400, 180)
    assert kl["curves"][0]["line"] == "0.0,90.0 200.0,90.0 400.0,90.0"
    assert answers["curves"][0]["change"] == "25% → 125%" and answers["lowest"] == "0%" and answers["highest"] == "100%"
    page = Page(render(Record(tmp_path, steps=steps)))
    assert ("points", line) in page.attributes


@pytest.mark.parametrize("values", [(-1e299, 1e299), (0.0, 5e-324), (1e15, 1e15 + 1), (0.0, 0.0)], ids=str)
def test_a_plot_holds_any_two_numbers(tmp_path, values):
    (chart,) = draw_charts(Record(tmp_path, steps=[{"step": n, "reward": value} for n, value in enumerate(values)]))
    for place in chart["curves"][0]["line"].split():
        x, y = map(float, place.split(","))
        assert 0 <= x <= WIDTH and 0 <= y <= HEIGHT


def test_a_reward_that_is_always_0_has_a_curve_and_other_zeros_have_none(tmp_path):
    """Else a function that never pays would look as if the run had not called it."""
    zero = {"reward": 0.0, "rewards/mine:right/mean": 0.0, "rewards/mine:right/unscored_frac": 0.0, "kl": 0.0}
    charts = draw_charts(Record(tmp_path, steps=[{"step": n, **zero} for n in (1, 2)]))
    names = {chart["title"]: [curve["name"] for curve in chart["curves"]] for chart in charts}
    assert names == {"Reward": ["reward"], "Each reward": ["rewards/mine:right/mean"]}


def test_of_a_long_curve_neighbours_are_averaged():
    points = [(float(n), float(n % 2)) for n in range(10_001)]
    assert len(thin(points)) <= MAX_POINTS and thin(points)[0] == (62.5, 0.5) and thin(points[:5]) == points[:5]
    assert thin(points)[-1][0] == (9954 + 10_000) / 2  # 126 points at a time; the last are fewer


def test_secrets_stay_out_of_the_page(tmp_path, monkeypatch):
    monkeypatch.setenv("MY_API_KEY", "sk-canary-123456")
    folder = write_run(tmp_path)
    write_answers(folder, 40, answer(0, 1.0, "sk-canary-123456"))
    assert "sk-canary" not in render(read_record(folder))


def test_the_command_writes_the_page_into_the_run(tmp_path, capsys):
    folder = write_run(tmp_path / "run")
    main([str(folder)])
    assert str(folder / "report.html") in capsys.readouterr().err
    assert (folder / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    refused(lambda: main([str(tmp_path / "nowhere")]), exit_code=2)


# --- at the end of a run -------------------------------------------------------------------------------------------


def test_a_run_that_fails_ends_with_a_page_that_says_why(tmp_path, chat_checkpoint):
    with pytest.raises(UserError):
        run(tmp_path, chat_checkpoint, reward_funcs=["reward_functions:raises"], max_steps=5)
    text = Page((tmp_path / "run" / "report.html").read_text(encoding="utf-8")).text
    assert "The run ended after step 0: " in text and "No step was finished" in text


def test_a_page_that_cannot_be_written_does_not_fail_the_run(tmp_path, chat_checkpoint, capsys, monkeypatch):
    monkeypatch.setattr("grpo.report.page.render", lambda record: 1 / 0)
    run(tmp_path, chat_checkpoint)
    assert "report.html could not be written" in capsys.readouterr().err
    assert run_state(tmp_path / "run")["status"] == "done"

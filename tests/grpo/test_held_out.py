"""The held-out questions of a run: what the first measurement belongs to, and when it is made anew."""

from types import SimpleNamespace

from making import ALONE
from test_measures import answers

from grpo.algorithm.schema import Score
from grpo.base.storage import read_json
from grpo.config.options import TrainConfig
from grpo.evaluation.held_out import Evaluation
from grpo.evaluation.measures import summary
from grpo.evaluation.table import UNKNOWN, summary_table
from grpo.run.diagnosis.glossary import check_names
from rewards.registry import Resource, Reward
from rewards.scorer import Scorer


class Policy:
    """Stands for a policy whose answers are known: `right` of ten."""

    def __init__(self, folder, data_hash, right):
        self.evaluation = Evaluation.__new__(Evaluation)
        self.evaluation.run = SimpleNamespace(path=folder, ranks=ALONE)
        self.evaluation.prompts, self.evaluation.data_hash = [None] * 10, data_hash
        self.num_measured = 0
        self.evaluation.measure = lambda step: self.measure(right)

    def measure(self, right):
        self.num_measured += 1
        return {"": summary(answers(right, 10 - right)), "known": summary(answers(right, 0))}

    def before(self, step):
        return self.evaluation.before(step)[""]["accuracy"]


def test_a_resumed_run_reads_what_was_measured_before_its_first_step(tmp_path):
    assert Policy(tmp_path, "one", 3).before(0) == 0.3
    resumed = Policy(tmp_path, "one", 9)
    assert resumed.before(5) == 0.3 and resumed.num_measured == 0 and resumed.evaluation.first_step == 0
    assert Policy(tmp_path, "one", 4).before(0) == 0.4  # a run that starts anew


def test_two_held_out_sets_are_never_in_one_table(tmp_path):
    Policy(tmp_path, "one", 3).before(0)
    other = Policy(tmp_path, "two", 9)
    assert other.before(5) == 0.9 and other.evaluation.first_step == 5
    text = other.evaluation.before_after(other.measure(9), other.measure(8))
    assert text.splitlines()[0].split() == ["step", "5", "after"]
    again = Policy(tmp_path, "two", 1)
    assert again.before(7) == 0.9 and again.evaluation.first_step == 5


DAMAGED = b"""
{"data": "one", "st
[]
null
7
{"before": {"": {"accuracy": 0.3}}}
"""


def test_a_damaged_measurement_is_made_anew(tmp_path):
    for content in (*DAMAGED.splitlines(), b"[" * 100_000, b"\xff\xfe"):
        (tmp_path / "evaluation.json").write_bytes(content)
        policy = Policy(tmp_path, "one", 9)
        assert policy.before(2) == 0.9 and policy.num_measured == 1, content
        assert read_json(tmp_path / "evaluation.json")["step"] == 2


def test_a_full_disk_under_evaluation_is_said_once(tmp_path):
    """By the run, which writes it to debug.log as well."""
    evaluation, said = Policy(tmp_path, "one", 3).evaluation, []
    evaluation.run.say, evaluation.warned = said.append, set()
    (tmp_path / "evaluation").write_text("a file, where no folder can be made")
    for step in (0, 8):
        evaluation._write_lines(f"step-{step}.jsonl", [{}])
    assert len(said) == 1 and "writing to evaluation/ failed" in said[0]


def test_only_what_is_known_is_logged(tmp_path):
    policy = Policy(tmp_path, "one", 3)
    metrics = policy.evaluation.metrics({"": summary(answers(3, 2, 5))})
    check_names(metrics)
    assert metrics["eval/incorrect"] == 0.2 and metrics["eval/not_attempted"] == 0.5
    unknown = policy.evaluation.metrics({"": summary([unscorable()])})
    assert "eval/accuracy" not in unknown and unknown["eval/unscored_frac"] == 0


def unscorable():
    (group,) = answers(1, 0)
    group.completions[0].scores = {}
    return group


def test_the_table_shows_a_dash_for_what_nobody_can_know():
    known, unknown = {"": summary(answers(3, 1))}, {"": summary([unscorable()])}
    lines = summary_table({"before": known, "after": unknown}, "held-out questions").splitlines()
    assert lines[1] == "held-out questions: 4"
    assert lines[2].split() == ["right", "75.0", "%", UNKNOWN]
    assert "right" not in summary_table({"": unknown})


def test_lines_about_declining_are_shown_where_somebody_declines():
    plain, some = {"": summary(answers(3, 1))}, {"": summary(answers(2, 1, 1))}
    assert "declined" not in summary_table({"before": plain, "after": plain})
    for table in ({"before": some, "after": plain}, {"before": plain, "after": some}):
        assert "declined" in summary_table(table)
    shown = summary_table({"": some})
    assert "right" in shown and " to " in shown and "f_score" in shown and "pass@" not in shown


def test_what_an_evaluation_has_counted_is_not_counted_for_the_next_step(tmp_path, monkeypatch):
    counts = {}
    counter = Resource()
    counter.counts = lambda: {name: (counts.pop(name), 0) for name in list(counts)}

    def grade(text, row):
        counts["kb/lookups"] = counts.get("kb/lookups", 0) + 1
        return Score(1.0, "", "correct")

    monkeypatch.setattr("grpo.evaluation.answers.generate_groups", lambda *_: answers(2, 1))
    evaluation = Policy(tmp_path, "one", 3).evaluation
    del evaluation.measure  # the real one
    evaluation.config, evaluation.policy, evaluation.sampler = TrainConfig(log_completions=False), None, None
    evaluation.scorer = Scorer([Reward("known", grade, resources=(counter,))])
    assert evaluation.measure(0)[""]["accuracy"] == 1.0
    evaluation.scorer.grade(answers(1, 0))
    assert evaluation.scorer.take_metrics() == {"kb/lookups": 1}

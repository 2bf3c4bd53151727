"""lm-eval on the merged export, where it is installed, against our own evaluation: same answers, same scores.

lm-eval's scores of the choices of a question are all shifted by the log-prob of the header's last newline, which it
counts in.
"""

import json
import random

import pytest
from making import load, randomise_adapter, write_rows

from grpo.evaluate import main as evaluate
from grpo.export import main as export
from grpo.model.adapter import save_adapter, trained_adapter

WORDS = "cat dog milk Paris London strong sleeps seven eleven never always the a of red blue".split()
SHARED = """
dataset_path: json
dataset_kwargs: {{data_files: {{validation: {data}}}}}
validation_split: validation
doc_to_text: "{{{{question}}}}"
"""
CHOICES = """
task: our_choices
output_type: multiple_choice
doc_to_target: 0
doc_to_choice: "{{mc1_targets.choices}}"
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""
ANSWERS = """
task: our_answers
output_type: generate_until
doc_to_target: "{{answer}}"
generation_kwargs: {until: [], do_sample: false, max_gen_toks: 12}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""


@pytest.fixture(scope="module")
def merged(chat_checkpoint, tmp_path_factory):
    """The merged export of an adapter."""
    from transformers import AutoTokenizer

    folder = tmp_path_factory.mktemp("lm_eval")
    model = load(chat_checkpoint, rank=4)
    randomise_adapter(model)
    save_adapter(trained_adapter(model, None, str(chat_checkpoint)), folder / "adapter", lora_alpha=8)
    AutoTokenizer.from_pretrained(chat_checkpoint).save_pretrained(folder / "adapter")
    export([str(folder / "adapter"), str(folder / "merged"), "--merge"])
    return folder / "merged"


def ours(merged, data, *arguments) -> tuple[dict, list[dict]]:
    output = data.with_name("ours.json")
    evaluate([str(merged), "--data", str(data), "--output", str(output), *arguments])
    return json.loads(output.read_text()), [json.loads(line) for line in open(output.with_suffix(".jsonl"))]


def theirs(merged, data, task) -> tuple[dict, list[dict]]:
    lm_eval = pytest.importorskip("lm_eval", reason="compares with lm-eval, where it is installed")
    from lm_eval.tasks import TaskManager

    folder = data.with_name("tasks")
    folder.mkdir()
    (folder / "task.yaml").write_text(SHARED.format(data=data) + task)
    name = task.split()[1]
    found = lm_eval.simple_evaluate(
        model="hf",
        model_args=f"pretrained={merged},dtype=float32",
        tasks=[name],
        device="cpu",
        task_manager=TaskManager(include_path=str(folder), include_defaults=False),
        apply_chat_template=True,
        bootstrap_iters=0,
    )
    return found["results"][name], sorted(found["samples"][name], key=lambda sample: sample["doc_id"])


def test_choices(merged, tmp_path):
    pytest.importorskip("lm_eval", reason="compares with lm-eval, where it is installed")
    rng, rows = random.Random(0), []
    for number in range(40):
        choices = list({" ".join(rng.choices(WORDS, k=rng.randint(1, 7))) + "." for _ in range(4)})
        targets = {"choices": choices, "labels": [1] + [0] * (len(choices) - 1)}
        rows.append({"question": f"What is {number}?", "mc1_targets": targets, "mc2_targets": targets})
    data = write_rows(tmp_path / "rows.jsonl", rows)
    found, records = ours(merged, data, "--choices")
    results, samples = theirs(merged, data, CHOICES)
    assert results["acc,none"] == pytest.approx(found["mc1"])
    for record, sample, row in zip(records, samples, rows, strict=True):
        scores = [float(response[0]) for response in sample["filtered_resps"]]
        shifts = [a - record["scores"][b] for a, b in zip(scores, row["mc1_targets"]["choices"], strict=True)]
        assert shifts == pytest.approx([shifts[0]] * len(shifts), abs=1e-3)


def test_answers(merged, tmp_path):
    pytest.importorskip("lm_eval", reason="compares with lm-eval, where it is installed")
    rows = [{"question": f"What is {n} + {3 * n % 7}, please?", "answer": "Velda"} for n in range(20)]
    _, records = ours(
        merged, write_rows(tmp_path / "rows.jsonl", rows), "--reward", "exact", "max_completion_length=12"
    )
    for number, record in enumerate(records):
        if number % 3 == 0:
            rows[number]["answer"] = record["completion"].strip()
    data = write_rows(tmp_path / "rows.jsonl", rows)
    found, records = ours(merged, data, "--reward", "exact", "max_completion_length=12")
    results, samples = theirs(merged, data, ANSWERS)
    assert [sample["resps"][0][0].strip() for sample in samples] == [record["completion"].strip() for record in records]
    assert found["accuracy"] >= results["exact_match,none"] - 1e-9 > 0.2

"""lm-eval on the merged export, where it is installed, against our own evaluation: the answers are the same."""

import pytest
from making import read_lines, write_adapter, write_rows

from grpo.base.storage import read_json
from grpo.evaluate import main as evaluate
from grpo.export import main as export

TASK = """
dataset_path: json
dataset_kwargs: {data_files: {validation: FILE}}
validation_split: validation
doc_to_text: "{{question}}"
task: our_answers
output_type: generate_until
doc_to_target: "{{answer}}"
generation_kwargs: {until: [], do_sample: false, max_gen_toks: 12}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""


@pytest.fixture(scope="module")
def merged(chat_checkpoint, tmp_path_factory):
    """The merged export of an adapter."""
    folder = tmp_path_factory.mktemp("lm_eval")
    export([str(write_adapter(folder / "adapter", chat_checkpoint)), f"{folder}/merged", "--merge"])
    return folder / "merged"


def ours(merged, data):
    output = data.with_name("ours.json")
    evaluate(f"{merged} --data {data} --output {output} --reward exact max_completion_length=12".split())
    return read_json(output), read_lines(output.with_suffix(".jsonl"))


def theirs(lm_eval, merged, data):
    from lm_eval.tasks import TaskManager

    folder = data.with_name("tasks")
    folder.mkdir()
    (folder / "task.yaml").write_text(TASK.replace("FILE", str(data)))
    found = lm_eval.simple_evaluate(
        model="hf",
        model_args=f"pretrained={merged},dtype=float32",
        tasks=["our_answers"],
        device="cpu",
        task_manager=TaskManager(include_path=str(folder), include_defaults=False),
        apply_chat_template=True,
        bootstrap_iters=0,
    )
    samples = sorted(found["samples"]["our_answers"], key=lambda sample: sample["doc_id"])
    return found["results"]["our_answers"], samples


def test_answers(merged, tmp_path):
    lm_eval = pytest.importorskip("lm_eval", reason="compares with lm-eval, where it is installed")
    rows = [{"question": f"What is {n} + {3 * n % 7}, please?", "answer": "Velda"} for n in range(20)]
    _, records = ours(merged, write_rows(tmp_path / "rows.jsonl", rows))
    for row, record in list(zip(rows, records, strict=True))[::3]:
        row["answer"] = record["completion"].strip()
    data = write_rows(tmp_path / "rows.jsonl", rows)
    found, records = ours(merged, data)
    results, samples = theirs(lm_eval, merged, data)
    assert [sample["resps"][0][0].strip() for sample in samples] == [record["completion"].strip() for record in records]
    assert found["accuracy"] >= results["exact_match,none"] - 1e-9 > 0.2

"""The doctor makes a small first step of the run, and its time becomes that of the run."""

from dataclasses import replace

import pytest
from making import write_rows

from grpo.config.load import load_config
from grpo.config.options import SftConfig
from grpo.doctor import estimate
from grpo.doctor.estimate import load_trainer, num_packed, time_step
from grpo.run.case import Case
from rewards.services import Checkup

QUESTIONS = [{"question": f"What is {n} + {n}?" + " Tell." * n, "answer": str(2 * n)} for n in range(6)]
CONVERSATIONS = [
    {"messages": [{"role": "user", "content": f"{n}?" * n}, {"role": "assistant", "content": "1" * 9 * n}]}
    for n in range(1, 8)
]


KEYS = "model_name_or_path={} dataset_id_or_path={} output_dir={}/run max_steps=1 report_to=none disable_tqdm=true "


@pytest.fixture
def config(tmp_path, chat_checkpoint):
    keys = KEYS.format(chat_checkpoint, write_rows(tmp_path / "data.jsonl", QUESTIONS), tmp_path)
    keys += "reward_funcs=math num_generations=2 max_completion_length=40 beta=0.1"
    return load_config(None, keys.split())[0]


@pytest.fixture
def stage1(tmp_path, chat_checkpoint):
    keys = KEYS.format(chat_checkpoint, write_rows(tmp_path / "rows.jsonl", CONVERSATIONS), tmp_path)
    keys += "max_length=100 per_device_train_batch_size=4 learning_rate=0.01"
    return load_config(None, keys.split(), SftConfig)[0]


@pytest.mark.parametrize("kind", ["stage 1", "stage 2"])
def test_a_small_step_is_scaled_by_its_tokens_and_leaves_no_trace(kind, config, stage1, tmp_path, monkeypatch):
    """Where each token takes a hundredth of a second in training, so does each token of a complete step."""
    monkeypatch.setattr(estimate, "CUT", 8)
    monkeypatch.setattr(estimate, "FEW", 2)
    trainer = load_trainer(Case(config if kind == "stage 2" else stage1))
    before, made = sorted(tmp_path.rglob("*")), []

    def result():
        made.extend(trainer.learned.groups)
        longest = max(len(completion.ids) for group in made for completion in group.completions)
        times = {"time/generate": longest / 10 if kind == "stage 2" else 0.0, "time/reference": 0.0}
        return times | {"time/train": sum(map(num_packed, made)) / 100}

    trainer.clock.result = result
    monkeypatch.setattr(estimate.psutil, "getloadavg", lambda: (3.4, 1.0, 1.0))
    monkeypatch.setattr(estimate.psutil, "cpu_count", lambda: 2 if kind == "stage 2" else 4)
    phases, measured = time_step(trainer)
    assert ("a load of 3.4 on 2 cores" in measured) == (kind == "stage 2")
    assert sorted(tmp_path.rglob("*")) == before
    if kind == "stage 2":
        assert all(len(completion.ids) <= 8 for group in made for completion in group.completions)
        prompts = [len(prompt.ids) for prompt in trainer.training_data.rows]
        tokens = len(made) * (sum(prompts) / len(prompts) + 2 * 40)
        assert phases == pytest.approx({"generating": 40 / 10, "training": tokens / 100})
    else:
        sizes = list(map(num_packed, trainer.training_data.rows))
        assert len(made) == 2 and phases == pytest.approx({"training": 4 * sum(sizes) / len(sizes) / 100})


def test_the_terms_of_a_run(config, monkeypatch):
    """Ten steps of 8 completions: two calls after another in each, and 3 evaluations of 16 questions: 128 calls."""
    case = Case(replace(config, max_steps=10, eval_steps=9, api_max_concurrency=4))
    case.prompts, case.rows = [None] * 6, {"eval": [None] * 16}
    phases = {"generating": 3.0, "reference": 1.0, "training": 2.0}
    case.trainer = "one"
    monkeypatch.setattr(estimate, "time_step", lambda trainer: (phases, "all of it"))
    case.checkups = {"judge": Checkup("", 0.5, (10_000, 2_000))}
    text = estimate.duration(case)
    assert "7.00 s a step: generating 3.00 + reference 1.00 + training 2.00 + judge (at most) 1.00" in text
    assert "10 steps take 1.2 min" in text
    assert "3 evaluations take 24 s" in text  # 48 answers, of which 8 take 3 + 1 seconds
    assert text.endswith("measured here: all of it") and case.trainer is None
    assert "judge: 128 calls at most, 1.28M tokens of prompts and 0.26M of replies" in estimate.cost(case)

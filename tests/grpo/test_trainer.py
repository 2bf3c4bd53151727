"""The second half of a step in its parts: the learning rate of each update, dropout's masks, and that every option
reaches the loss."""

import json
from dataclasses import asdict
from types import SimpleNamespace

import pytest
from making import write_rows

import grpo.train
from grpo.config.load import load_config
from grpo.model.lora import POLICY
from grpo.train import Trainer, train

UPDATE = {"num_iterations": 2, "warmup_steps": 0, "warmup_ratio": 0.0, "lr_scheduler_type": "linear"}


def updates(norm=1.0, has_batches=True, **keys):
    """A trainer of five steps without a model, and what its updates return."""
    made = object.__new__(Trainer)
    made.config = SimpleNamespace(**{"learning_rate": 1.0, "max_grad_norm": 0.5} | UPDATE | keys)
    made.ranks = SimpleNamespace(sum_=lambda tensor: tensor, max=lambda value: value)
    made.calls, made.skipped, made.total_steps = [], 0, 5
    made.optimizer = SimpleNamespace(grad=None, step=lambda *given: made.calls.append(given) or norm)
    made.watch = SimpleNamespace(updated=lambda *given: None)
    made.model = SimpleNamespace(refresh=lambda: None)
    found = []
    for step in range(made.total_steps):
        for iteration in range(made.config.num_iterations):
            made.step = step
            found.append(made.update(iteration, has_batches))
    return made, found


@pytest.mark.parametrize(
    ("keys", "rates"),
    [
        ({}, [1, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1]),
        ({"num_iterations": 1}, [1, 0.8, 0.6, 0.4, 0.2]),
        ({"warmup_steps": 2}, [0, 1 / 4, 2 / 4, 3 / 4, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6]),
        ({"warmup_ratio": 0.15}, [0, 1 / 2, 1, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8]),  # 1.5, rounded up
        ({"warmup_steps": 1, "warmup_ratio": 0.9}, [0, 1 / 2, *(n / 8 for n in range(8, 0, -1))]),
    ],
)
def test_the_rate_of_each_update(keys, rates):
    """Warm-up and decay go by optimizer steps, of which each step has num_iterations."""
    made, found = updates(**keys)
    assert [update["learning_rate"] for update in found] == pytest.approx(rates)
    assert made.calls == [(pytest.approx(rate), 0.5) for rate in rates]


def test_a_step_without_tokens_is_no_update_and_one_that_is_not_finite_is_counted():
    made, found = updates(has_batches=False)
    assert made.calls == [] and {update["grad_norm"] for update in found} == {0.0} and made.skipped == 0
    assert updates(norm=float("inf"))[0].skipped == updates(norm=float("nan"))[0].skipped == 10
    assert updates()[0].skipped == 0


def test_dropout_masks_differ_by_step_rank_and_micro_batch_and_not_by_iteration():
    def seed(step=0, rank=0, index=0, run=42, dropout=0.1):
        made = object.__new__(Trainer)
        made.config, made.step = SimpleNamespace(seed=run, lora_dropout=dropout), step
        made.ranks = SimpleNamespace(rank=rank)
        return made.policy_mode(index).dropout_seed

    assert len({seed(), seed(step=1), seed(rank=1), seed(index=1), seed(run=43)}) == 5
    assert seed(2, 1, 3) == seed(2, 1, 3) and seed(dropout=0.0) == POLICY.dropout_seed


def test_every_option_reaches_the_loss_and_every_token_is_counted(tmp_path, chat_checkpoint, monkeypatch):
    """One run with an own value for each; 16 questions in steps of 2 groups, for a third of an epoch: 2.67 steps,
    rounded up."""
    from transformers import AutoTokenizer

    seen, original = [], grpo.train.policy_loss
    monkeypatch.setattr(grpo.train, "policy_loss", lambda *given: seen.append(given[6]) or original(*given))
    rows = [{"question": f"What is {a} + {b}?", "answer": str(a + b)} for a in range(4) for b in range(4)]
    keys = {
        "epsilon": 0.1,
        "epsilon_high": 0.3,
        "delta": 1.7,
        "beta": 0.05,
        "importance_sampling_level": "sequence",
        "sampler_importance_sampling_correction": True,
        "sampler_importance_sampling_cap": 3.0,
        "use_bias_correction_kl": True,
        "model_name_or_path": str(chat_checkpoint),
        "dataset_id_or_path": str(write_rows(tmp_path / "rows.jsonl", rows)),
        "output_dir": str(tmp_path / "run"),
        "reward_funcs": ["format"],
        "num_generations": 4,
        "per_device_train_batch_size": 8,
        "num_train_epochs": 1 / 3,
        "max_completion_length": 6,
        "lora_r": 4,
        "save_steps": 0,
        "report_to": ["none"],
        "disable_tqdm": True,
    }
    (tmp_path / "c.yaml").write_text(json.dumps(keys))
    train(*load_config(tmp_path / "c.yaml"))
    assert asdict(seen[0]) == {
        "epsilon": 0.1,
        "epsilon_high": 0.3,
        "delta": 1.7,
        "beta": 0.05,
        "importance_sampling_level": "sequence",
        "sampler_cap": 3.0,
        "use_bias_correction_kl": True,
    }
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) == 3 and [line["epoch"] for line in lines] == [2 / 16, 4 / 16, 6 / 16]
    tokenizer, total = AutoTokenizer.from_pretrained(chat_checkpoint), 0
    for number, line in enumerate(lines, 1):
        told = (tmp_path / "run" / "completions" / f"step-{number:06d}.jsonl").read_text().splitlines()
        for row in map(json.loads, told):
            total += row["num_tokens"] + len(tokenizer.encode(row["prompt"], add_special_tokens=False))
        assert len(told) == 8 and line["num_tokens"] == total

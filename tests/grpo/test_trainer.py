"""The second half of a step in its parts: the learning rate of each update, dropout's masks, and that every option
reaches the loss."""

import json
from fractions import Fraction
from types import SimpleNamespace

import pytest
import torch
from making import ALONE, cases, make_group, of_each, twins, whole
from test_train import completions, configured, run

from grpo.algorithm import step
from grpo.algorithm.interfaces import Settings
from grpo.algorithm.loss import policy_loss
from grpo.algorithm.packing import pack_tokens
from grpo.algorithm.schema import POLICY, REFERENCE
from grpo.config.options import TrainConfig
from grpo.run.metrics import Clock
from grpo.run.run import Run
from grpo.train import GrpoTrainer


@pytest.mark.parametrize(("warmup", "rates"), cases(__file__, "rates"))
def test_the_rate_of_each_update(tmp_path, chat_checkpoint, warmup, rates):
    """Warm-up and decay go by updates, of which each step has two here. The log has that of the last."""
    keys = SMALL | {"max_steps": 5, "num_iterations": 2, "lr_scheduler_type": "linear", "learning_rate": 1e-3}
    lines = run(tmp_path, chat_checkpoint, **keys | json.loads(warmup))
    assert [line["learning_rate"] for line in lines] == pytest.approx([1e-3 * Fraction(rate) for rate in rates.split()])


def settings(**keys):
    return Settings.of(TrainConfig(**keys))


def without_model(logprobs, **attributes):
    """A learner whose passes are replaced: what they are given of it."""
    given = {"settings": settings(temperature=0.7), "model": "policy", "optimizer": None, "replicas": ALONE}
    memory = SimpleNamespace(budget=SimpleNamespace(chunk=64, tokens=100))
    given |= {"memory": memory, "device": "cpu", "loss_dtype": torch.float32, "total_steps": 1, "rollout": None}
    return step.Grpo(logprobs=logprobs, **given | attributes)


def test_dropout_masks_differ_by_step_rank_and_micro_batch_and_not_by_iteration():
    def seed(step_number=0, rank=0, number=0, run=42, dropout=0.1):
        modes, nothing = [], (torch.zeros(2), torch.zeros(2))
        made = without_model(
            lambda m, b, mode, *more: modes.append(mode) or nothing,
            settings=settings(seed=run, lora_dropout=dropout),
            step=step_number,
            replicas=SimpleNamespace(rank=rank),
        )
        batch = pack_tokens(whole(make_group((1,), (2, 3))), number)
        for _ in range(2):
            made.policy_logprobs(batch)
        assert modes[0] == modes[1]
        return modes[0].dropout_seed

    assert len({seed(), seed(step_number=1), seed(rank=1), seed(number=1), seed(run=43)}) == 5
    assert seed(dropout=0.0) == POLICY.dropout_seed


def test_the_reference_is_its_own_policy_without_gradient_and_its_time_is_its_own():
    clock = Clock()
    seen = []

    def logprobs(model, batch, *more):
        seen.append((model, batch.targets_C.tolist(), *more, torch.is_grad_enabled()))
        return torch.tensor([0.25]), None

    made = without_model(logprobs, phase=clock.timed)
    groups = [make_group((1,), (2,), (3,), loss_weight=[1.0, 0.0])]
    made.add_reference(groups)
    assert of_each(groups[0], "ref_logps") == [[], []] and clock.phases["time/reference"] == 0.0
    made.reference = "reference"
    made.add_reference(groups)
    assert of_each(groups[0], "ref_logps") == [[0.25], []] and clock.phases["time/reference"] > 0
    assert seen == [("reference", [2], REFERENCE, 0.7, 64, False)]


LOSS_KEYS = {
    "epsilon": 0.1,
    "epsilon_high": 0.3,
    "delta": 1.7,
    "beta": 0.05,
    "importance_sampling_level": "sequence",
    "sampler_importance_sampling_correction": True,
    "sampler_importance_sampling_cap": 3.0,
    "use_bias_correction_kl": True,
}


SMALL = {"per_device_train_batch_size": 8, "max_completion_length": 6, "max_steps": 1, "lora_r": 4}


def test_every_option_reaches_the_loss_and_every_token_is_counted(tmp_path, chat_checkpoint, monkeypatch):
    """One run with an own value for each; 32 questions in steps of 2 groups, for a sixth of an epoch: 2.67 steps,
    rounded up."""
    from transformers import AutoTokenizer

    seen = []
    monkeypatch.setattr(step, "policy_loss", lambda *given: seen.append(given) or policy_loss(*given))
    keys = SMALL | LOSS_KEYS | {"max_steps": -1, "num_train_epochs": 1 / 6, "reward_funcs": ["format"]}
    lines = run(tmp_path, chat_checkpoint, **keys)
    batch, _, config = seen[0]
    assert {name: getattr(config, name) for name in LOSS_KEYS} == LOSS_KEYS
    assert batch.ref_logp_C is not None and batch.old_logp_C is None and batch.advantage_C is not None
    assert len(lines) == 3 and [line["epoch"] for line in lines] == [2 / 32, 4 / 32, 6 / 32]
    tokenizer, total = AutoTokenizer.from_pretrained(chat_checkpoint), 0
    for number, line in enumerate(lines, 1):
        told = completions(tmp_path / "run", number)
        for row in told:
            total += row["num_tokens"] + len(tokenizer.encode(row["prompt"], add_special_tokens=False))
        assert len(told) == 8 and line["num_tokens"] == total


@pytest.mark.parametrize("keys", [{"top_k": 1}, {"top_p": 1e-6}], ids=str)
def test_what_may_be_drawn_is_cut_off_as_the_configuration_says(tmp_path, chat_checkpoint, keys):
    """Only the best token is left: the answers to a question are all the same."""
    run(tmp_path, chat_checkpoint, **SMALL | keys)
    said = {}
    for row in completions(tmp_path / "run", 1):
        said.setdefault(row["prompt"], set()).add(row["completion"])
    assert len(said) == 2 and all(len(answers) == 1 for answers in said.values())


@pytest.mark.parametrize("shuffle", [True, False])
def test_questions_come_in_the_order_of_the_file_unless_they_are_shuffled(tmp_path, chat_checkpoint, shuffle):
    run(tmp_path, chat_checkpoint, **SMALL | {"shuffle_dataset": shuffle, "max_steps": 2, "num_generations": 2})
    rows = []
    for number in (1, 2):
        rows += dict.fromkeys(line["row"] for line in completions(tmp_path / "run", number))
    assert len(set(rows)) == 8 and (rows == list(range(8))) == (not shuffle)


def test_length_and_shares_of_a_run_are_those_of_all_ranks(tmp_path, chat_checkpoint):
    """Of 32 questions two ranks take four a step. All their groups differ, so dynamic sampling keeps all."""
    keys = {"max_steps": -1, "num_train_epochs": 1, "dynamic_sampling": True}
    config, notices = configured(tmp_path, chat_checkpoint, **SMALL | keys)
    with Run(config, notices, twins()) as held:
        trainer = GrpoTrainer(config, held)
        trainer.run_step()
        found, groups = trainer.summarise_step()
        trainer.rollout.scorer.close()
    assert trainer.total_steps == 8 and len(groups) == 4 and found["sampling/kept_frac"] == 1.0

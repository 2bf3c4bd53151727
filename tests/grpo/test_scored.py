"""What has no gradient is not computed, and nothing else changes: in float64, beside the same step with every token."""

import json

import pytest
import torch
from making import ALONE, cases, fill, load, make_group, write_checkpoint

from grpo.algorithm.interfaces import Settings
from grpo.algorithm.logprobs import batch_logprobs
from grpo.algorithm.loss_weights import set_loss_weights, set_trained
from grpo.algorithm.optimizer import Optimizer
from grpo.algorithm.packing import split_into_micro_batches
from grpo.algorithm.schema import Sentence, completions_of
from grpo.algorithm.step import Grpo, Learned
from grpo.config.options import TrainConfig
from grpo.engine.device.peers import Peers
from grpo.engine.model.flat import FlatParameters
from grpo.engine.model.memory import Budget, MemoryLimit

ANSWERS = (7, 3, 4, 8), (9, 6, 5), (11, 12), (13, 14, 15)


def make_groups():
    """The first group teaches nothing; of the second, one completion does not, and of two only the last tokens do. The
    third has a completion that is masked, and one whose first sentence is false."""
    groups = [make_group((5, 9, 6 + number), *ANSWERS) for number in range(3)]
    fill(groups[0], advantage=[0.0] * 4)
    fill(groups[1], advantage=[1.5, 0.0, -0.5, -1.0], credited_from=[2, 1, 0, 1])
    fill(groups[2], advantage=[1.0, -1.0, -0.0, 2.0], finish_reason=["stop", "stop", "stop", "length"])
    return fill(groups[2], sentences=[[Sentence("", 0, 2, False)], [], [], []]) and groups


def config_of(**keys):
    keys = {"num_iterations": 2, "epsilon": 1e-3, "mask_truncated_completions": True, "learning_rate": 1e-2} | keys
    return TrainConfig(max_completion_length=4, per_device_train_batch_size=4, lr_scheduler_type="constant", **keys)


def train(folder, config, is_complete):
    """The gradients of two updates on the same groups, the loss of both, and the last weights. is_complete: every token
    is scored, as if all had a gradient."""
    model = load(folder, rank=4, dtype=torch.float64)
    optimizer = Optimizer(FlatParameters(model.parameters()), (0.9, 0.99), 1e-8, 0.01)
    memory = MemoryLimit(Budget(20, "none", 64), 8)
    parts = {"settings": Settings.of(config), "model": model, "logprobs": batch_logprobs, "optimizer": optimizer}
    parts |= {"memory": memory, "replicas": Peers(), "device": "cpu", "loss_dtype": torch.float64}
    learner = Grpo(**parts, total_steps=1, rollout=None)
    groups = make_groups()
    set_loss_weights(groups, config, ALONE)
    learner.reference = model if config.beta else None
    learner.add_reference(groups)
    if not is_complete:
        set_trained(groups, config)
    learned, found = Learned(groups, groups), []
    for iteration in range(2):
        passes = learner.add_gradient(learned)
        for completion, logps in (each for batch, logp_C in passes for each in batch.of_each(logp_C) if not iteration):
            completion.old_logps = logps
        found.append(optimizer.flat.grad.clone())
        learner.update(learned, iteration)
    return [*found, optimizer.flat.values.clone(), torch.tensor(learned.meter.loss)], learned


@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "dr_grpo", "bnpo"])
@pytest.mark.parametrize("keys", [
    {},
    {"importance_sampling_level": "sequence"},
    {"beta": 0.1},
    {"beta": 0.1, "use_bias_correction_kl": True},
    {"delta": 1.001, "epsilon_high": 2e-3},
    {"sampler_importance_sampling_correction": True},
    {"temperature": 0.7},
], ids=str)  # fmt: skip
def test_gradients_are_those_of_all_tokens(tmp_path, loss_type, keys):
    write_checkpoint(tmp_path, spread=0.3)
    config = config_of(loss_type=loss_type, **keys)
    (found, of_scored), (wanted, of_all) = (train(tmp_path, config, is_complete) for is_complete in (False, True))
    for mine, theirs in zip(found, wanted, strict=True):
        assert float((mine - theirs).abs().max()) <= 1e-12 * max(1.0, float(theirs.abs().max()))
    assert float(wanted[0].abs().max()) > 1e-3 and not torch.equal(wanted[0], wanted[1])
    assert of_scored.meter.num_tokens < of_all.meter.num_tokens or config.beta
    assert of_scored.micro_batches < of_all.micro_batches or config.beta


@pytest.mark.parametrize(("keys", "numbers"), cases(__file__, "scored"))
def test_which_tokens_are_scored(keys, numbers):
    """Denominators count all tokens of trained completions, scored or not: 11 of them, with 33 tokens."""
    groups, config = make_groups(), config_of(loss_type="dapo", **json.loads(keys))
    wanted = list(map(int, numbers.split()))
    set_trained(groups, config)
    set_loss_weights(groups, config, ALONE)  # whether before or after
    members = completions_of(groups)
    assert [len(completion.trained()) for completion in members] == wanted
    assert {completion.loss_weight for completion in members} == {1 / 33, 0.0}
    (parts,) = split_into_micro_batches(groups, 1000)
    kept = [completion for part in parts for completion in part.completions]
    assert kept == [c for c, number in zip(members, wanted, strict=True) if number and c.loss_weight]

"""minimal.py against the trainer: from the same weights and the same answers, both reach the same weights in float64."""

import ast
import copy
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace

import pytest
import torch
from commands import ROOT, run_command
from making import write_chat_checkpoint, write_rows

from grpo import minimal
from grpo.config.load import load_config
from grpo.config.options import TrainConfig
from grpo.engine.model.weights import named_tensors, projections
from grpo.run.run import Run
from grpo.train import GrpoTrainer

Weights = dict[str, torch.Tensor]
SIZES = {"vocab_size": 400, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
NUM_STEPS = 3
KEYS = {
    "torch_dtype": "float64",
    "reward_funcs": ["reward_functions:early_letters"],
    "num_generations": 4,
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 2,
    "max_completion_length": 12,
    "max_tokens_per_micro_batch": 50,  # so that groups are split, and the last micro-batch of a step is smaller
    "temperature": 0.7,
    "epsilon": 0.1,
    "epsilon_high": 0.15,
    "max_grad_norm": 0.1,
    "learning_rate": 1e-2,
    "lr_scheduler_type": "constant",
    "lora_r": 0,
    "lora_alpha": 8,
    "max_steps": NUM_STEPS,
    "save_steps": 0,
    "report_to": ["none"],
    "disable_tqdm": True,
}


# --- the trainer: all that this file knows about it -----------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """What the trainer drew in a step, group after group; the weights after it; the norm of its last gradient."""

    prompts: list[list[int]]
    completions: list[list[int]]
    rewards: list[float]
    weights: Weights
    grad_norm: float


@contextmanager
def trainer_of(folder, checkpoint, **keys) -> Iterator[GrpoTrainer]:
    keys = {**KEYS, "model_name_or_path": str(checkpoint), "output_dir": str(folder / "run"), **keys}
    questions = [{"question": "?" * (number % 5) + f" {number}", "answer": "1"} for number in range(32)]
    keys["dataset_id_or_path"] = str(write_rows(folder / "questions.jsonl", questions))
    (folder / "run.yaml").write_text(json.dumps(keys))
    config, notices = load_config(folder / "run.yaml")
    with Run(config, notices) as run:
        trainer = GrpoTrainer(config, run)
        yield trainer
        trainer.rollout.scorer.close()


def weights_of(trainer: GrpoTrainer) -> Weights:
    """The trained weights, under the names of minimal.py."""
    if trainer.config.lora_r:
        found = {}
        for name, (linear, part) in projections(trainer.model).items():
            found[f"{name}.A_RI"], found[f"{name}.B_OR"] = linear.adapter(part)
    else:
        found = named_tensors(trainer.model)
    return {name_in_minimal(name): tensor.detach().clone() for name, tensor in found.items()}


def name_in_minimal(name: str) -> str:
    name = name.removeprefix("model.").replace("layers.", "blocks.").replace("embed_tokens", "embedding")
    name = name.replace("input_layernorm", "attention_norm").replace("post_attention_layernorm", "mlp_norm")
    return re.sub(r"(self_attn|mlp)\.", "", name)


def trained(trainer: GrpoTrainer) -> Iterator[Step]:
    """Train, step by step."""
    for _ in range(NUM_STEPS):
        trainer.start_step()
        trainer.train_step()
        pairs = [(group.prompt.ids, member) for group in trainer.rollout.groups for member in group.completions]
        yield Step(
            [list(ids) for ids, _ in pairs],
            [member.ids for _, member in pairs],
            [member.reward for _, member in pairs],
            weights_of(trainer),
            trainer.grad_norm,
        )


# --- the comparison -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A model that ends its answers after some tokens: a fifth of its vocabulary does."""
    folder = write_chat_checkpoint(tmp_path_factory.mktemp("model"), spread=0.3, tie_word_embeddings=True)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": list(range(0, 300, 5))}))
    return folder


@pytest.fixture(autouse=True)
def in_float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def settings_of(config: TrainConfig) -> minimal.Settings:
    """The settings of minimal.py, read from a configuration of the trainer."""
    found = {field.name: getattr(config, field.name) for field in fields(minimal.Settings)}
    return replace(minimal.Settings(**found), epsilon_high=config.epsilon_high or config.epsilon)


def twin_of(trainer: GrpoTrainer) -> minimal.Transformer:
    """minimal.py's model, with the trainer's weights."""
    c = trainer.model.config
    model = minimal.Transformer(
        c.vocab_size, c.hidden_size, c.intermediate_size, c.num_layers, c.num_heads, c.num_kv_heads
    )
    model.load_state_dict({name_in_minimal(name): tensor for name, tensor in named_tensors(trainer.model).items()})
    if trainer.config.lora_r:
        minimal.add_lora(model, trainer.config.lora_r, trainer.config.lora_alpha)
        model.load_state_dict(weights_of(trainer), strict=False)
    return model


def compare(folder, checkpoint, **keys) -> float:
    """Train with both. Assert after each step that their weights are equal: to 1e-9 of how far each tensor has moved.
    Returns the largest share of clipped tokens."""
    largest = 0.0
    with trainer_of(folder, checkpoint, **keys) as trainer:
        c, policy, start = settings_of(trainer.config), twin_of(trainer), weights_of(trainer)
        reference = copy.deepcopy(policy)
        optimizer = torch.optim.AdamW(policy.parameters(), lr=trainer.config.learning_rate, weight_decay=0.0)
        for step in trained(trainer):
            largest = max(
                largest,
                minimal.grpo_step(policy, reference, optimizer, step.prompts, step.completions, step.rewards, c),
            )
            own = dict(policy.named_parameters())
            assert step.weights.keys() == {name for name, parameter in own.items() if parameter.requires_grad}
            for name, wanted in step.weights.items():
                moved = (wanted - start[name]).abs().max()
                error = (wanted - own[name]).abs().max()
                print(name, float(moved), float(error))
                assert error <= 1e-9 * moved, (name, float(error), float(moved))
            assert step.grad_norm > c.max_grad_norm
            assert len(set(map(len, step.completions))) > 3 and len(set(map(len, step.prompts))) > 1
            assert len(set(step.rewards)) > 1
        assert max((step.weights[name] - start[name]).abs().max() for name in start) > 0.01
    return largest


@pytest.mark.parametrize("num_iterations", [1, 2])
@pytest.mark.parametrize("lora_r", [0, 4])
@pytest.mark.parametrize("beta", [0.0, 0.1])
@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "dr_grpo", "bnpo"])
def test_the_trainer_and_minimal_reach_the_same_weights(
    tmp_path, checkpoint, loss_type, beta, lora_r, num_iterations
):
    keys = {"loss_type": loss_type, "beta": beta, "lora_r": lora_r, "num_iterations": num_iterations}
    clipped = compare(tmp_path, checkpoint, **keys)
    assert (clipped > 0.01) == (num_iterations > 1)

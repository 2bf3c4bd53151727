"""Processes that share a model train what one process trains: the same completions, and weights but for rounding."""

import json
from types import SimpleNamespace

import pytest
import torch
from making import free_port, refused, write_chat_checkpoint
from running import Processes, lines, state, write_config
from safetensors.torch import load_file

KEYS = {"reward_funcs": ["fakes:mixed"], "save_steps": 3, "max_steps": 5, "max_completion_length": 6}
FULL = {**KEYS, "lora_r": 0, "learning_rate": 1e-3, "weight_decay": 0.1}
MODELS = {
    "qwen2": {"family": "qwen2"},
    "qwen3": {"family": "qwen3", "tie_word_embeddings": True},
    "llama": {"family": "llama", "num_key_value_heads": 4, "attention_bias": True, "mlp_bias": True},
}
# name: (model, keys, replicas, shards)
RUNS = {
    "lora": ("qwen2", KEYS, 1, 1),
    "lora_1x2": ("qwen2", KEYS, 1, 2),
    "lora_2x2": ("qwen2", KEYS, 2, 2),
    "full": ("qwen3", FULL, 1, 1),
    "full_1x2": ("qwen3", FULL, 1, 2),
    "full_2x1": ("qwen3", FULL, 2, 1),
    "biased": ("llama", FULL, 1, 1),
    "biased_1x4": ("llama", FULL, 1, 4),
}


def start(processes, config, replicas, shards, *overrides, **environment):
    """All processes of a run."""
    world = replicas * shards
    shared = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    environment = {"GLOO_SOCKET_IFNAME": "lo", **shared, **environment} if world > 1 else environment
    overrides = f"per_device_train_batch_size={16 // replicas}", f"tensor_parallel_size={shards}", *overrides
    return [
        processes.start("grpo.train", config, *overrides, RANK=str(rank), LOCAL_RANK=str(rank), **environment)
        for rank in range(world)
    ]


def finish(children, code=0):
    assert [child.wait() for child in children] == [code] * len(children), children[-1].stderr[-3000:]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The runs above, side by side in one folder."""
    folder = tmp_path_factory.mktemp("shards")
    models = {name: write_chat_checkpoint(folder / "models" / name, **model) for name, model in MODELS.items()}
    with Processes(folder, models["qwen2"]) as processes:
        for name, (model, keys, replicas, shards) in RUNS.items():
            config = write_config(folder, models[model], name, **keys)
            import time
            t = time.time()
            finish(start(processes, config, replicas, shards))
            print(name, time.time() - t)
        yield SimpleNamespace(folder=folder, processes=processes, models=models)


def files_of(run):
    """All tensors of final/ and of the last checkpoint's state."""
    found = {}
    for path in (*run.glob("final/*.safetensors"), run / "checkpoint-5" / "state.safetensors"):
        found |= {f"{path.stem}.{name}": tensor for name, tensor in load_file(path).items()}
    return found


@pytest.mark.parametrize("name", [name for name, (_, _, replicas, shards) in RUNS.items() if replicas * shards > 1])
def test_any_layout_trains_what_one_process_trains(made, name):
    one, many = made.folder / name.rpartition("_")[0], made.folder / name
    first, second = files_of(one), files_of(many)
    assert {key: tensor.shape for key, tensor in first.items()} == {key: tensor.shape for key, tensor in second.items()}
    for key, tensor in first.items():
        torch.testing.assert_close(second[key], tensor, rtol=1e-4, atol=1e-5, msg=lambda text, key=key: f"{key}: {text}")
    for a, b in zip(lines(one), lines(many), strict=True):
        for key in ("loss", "grad_norm", "reward", "reward_std", "entropy", "kl", "num_tokens", "sampler/logp_diff_max"):
            assert a[key] == pytest.approx(b[key], rel=1e-4, abs=1e-5), key

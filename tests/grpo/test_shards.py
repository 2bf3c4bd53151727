"""Processes that share a model train what one process trains: the same completions, and weights but for rounding."""

from signal import SIGKILL, SIGTERM

import pytest
import torch
from making import refused, write_chat_checkpoint, write_rows
from running import Processes
from safetensors.torch import load_file
from test_policy import configured

from grpo.engine.device.distributed import Ranks
from grpo.engine.model.weights import read_model_config
from grpo.engine.parallel.shard import Shard
from grpo.engine.parallel.shared_decoder import own_shape

KEYS = {"reward_funcs": ["fakes:mixed"], "save_steps": 3, "max_steps": 5, "max_completion_length": 6}
FULL = {**KEYS, "lora_r": 0, "learning_rate": 1e-3, "weight_decay": 0.1}
COLD = {**KEYS, "max_steps": 2, "save_steps": 0, "torch_dtype": "float64", "base_weights": "int8"}
COLD |= {"lora_dropout": 0.3, "gradient_checkpointing": "mlp", "top_p": 0.5}  # which drops all tokens of some shards
MODELS = {
    "qwen2": {"family": "qwen2"},
    "qwen3": {"family": "qwen3", "tie_word_embeddings": True},
    "smollm2": {"family": "llama", "tie_word_embeddings": True, "num_attention_heads": 9, "num_key_value_heads": 3}
    | {"hidden_size": 72, "attention_bias": True, "mlp_bias": True},  # SmolLM2-135M has these heads, and no biases
}
# name: (model, keys, replicas, shards)
RUNS = {
    "lora": ("qwen2", KEYS, 1, 1),
    "lora_2x2": ("qwen2", KEYS, 2, 2),
    "norms": ("qwen3", KEYS, 1, 1),
    "norms_1x2": ("qwen3", KEYS, 1, 2),
    "full": ("qwen3", FULL, 1, 1),
    "full_2x1": ("qwen3", FULL, 2, 1),
    "cold": ("smollm2", COLD, 1, 1),
    "cold_1x3": ("smollm2", COLD, 1, 3),
}
CONVERSATIONS = [
    [{"role": "user", "content": f"What is {n} + 1?"}, {"role": "assistant", "content": f"It is {n + 1}."}]
    for n in range(16)
]


def write_stage1(folder, name):
    """Write the config of a cold start of four steps, for whatever model stage 2 names."""
    rows = write_rows(folder / "conversations.jsonl", [{"messages": turns} for turns in CONVERSATIONS])
    path = folder / f"{name}.yaml"
    path.write_text(
        f"dataset_id_or_path: {rows}\noutput_dir: {folder / name}\nmax_steps: 4\nsave_steps: 0\nlora_r: 4\n"
        "torch_dtype: float64\nbase_weights: int8\nlearning_rate: 5e-3\nreport_to: none\ndisable_tqdm: true\n"
    )
    return path


def start(run, replicas, shards, *overrides, **more):
    """Start all processes of a run."""
    layout = f"per_device_train_batch_size={16 // replicas}", f"tensor_parallel_size={shards}"
    return run.start_ranks(*layout, *overrides, world=replicas * shards, **more)


def finish(children, code=0):
    for child in children:
        child.ends(code)


@pytest.fixture(scope="module")
def make_run(tmp_path_factory):
    """Make a run of these keys, with one of the models; all lie side by side in one folder."""
    folder = tmp_path_factory.mktemp("shards")
    models = {name: write_chat_checkpoint(folder / "models" / name, **model) for name, model in MODELS.items()}
    with Processes(folder, models["qwen2"]) as processes:
        yield lambda name, model, **keys: processes.run(folder, models[model], name, **keys)


@pytest.fixture(scope="module")
def finished(make_run):
    """The runs above."""
    runs, started = {}, []
    for name, (model, keys, replicas, shards) in RUNS.items():
        runs[name] = make_run(name, model, **keys)
        if keys is COLD:
            cold_start = str(write_stage1(runs[name].folder.parent, f"{name}_stage1"))
            runs[name] = make_run(name, model, **keys, cold_start=cold_start)
        started += start(runs[name], replicas, shards)
    finish(started)  # together: each waits much of its time for the others of its run
    return runs


def files_of(run):
    """Return all tensors of final/ and of the last checkpoint's state."""
    found = {}
    last = run.folder / run.state["last_checkpoint"]
    for path in (*run.folder.glob("final/*.safetensors"), last / "state.safetensors"):
        found |= {f"{path.stem}.{name}": tensor for name, tensor in load_file(path).items()}
    return found


def assert_same_files(one, many, tolerance=1e-5):
    """tolerance: of weights and moments; final/ is float32 whatever they are."""
    first, second = files_of(one), files_of(many)
    assert {key: tensor.shape for key, tensor in first.items()} == {key: tensor.shape for key, tensor in second.items()}
    for key, tensor in first.items():
        most = tolerance if key.startswith("state.") else 1e-5
        torch.testing.assert_close(second[key], tensor, rtol=0, atol=most, msg=lambda text, key=key: f"{key}: {text}")


def completions_of(run):
    """Return what was sampled in each step, whoever sampled it."""
    return [sorted(row["completion"] for row in run.rows(step)) for step in run.steps]


METRICS = "loss grad_norm reward reward_std entropy kl num_tokens sampler/logp_diff_max".split()


@pytest.mark.parametrize("name", [name for name, (_, _, replicas, shards) in RUNS.items() if replicas * shards > 1])
def test_any_layout_trains_what_one_process_trains(finished, name):
    """The same completions; weights, moments, files and metrics that differ by rounding. Also from a cold start, with
    biases, dropout and a vocabulary that three do not divide, in float64: AdamW's first update is lr g / (|g| + ε).
    Where |g| is about ε = 1e-8, an error of 1e-10 in g moves the weight by up to 1e-2 lr, so in float32 no bound on
    weights holds there."""
    one, many = finished[name.rpartition("_")[0]], finished[name]
    assert completions_of(one) == completions_of(many)
    assert_same_files(one, many, 1e-10 if RUNS[name][1] is COLD else 1e-5)
    for a, b in zip(one.lines, many.lines, strict=True):
        for key in METRICS:
            assert a[key] == pytest.approx(b[key], rel=1e-4, abs=1e-5), key


def test_a_run_goes_on_with_another_layout(finished, make_run):
    """Saved by two shards, resumed by two replicas; but not with another batch."""
    wanted = f"resume_from_checkpoint={finished['norms_1x2'].checkpoint(3)}"
    run = make_run("resumed", "qwen3", **KEYS)
    finish(start(run, 2, 1, wanted))
    assert_same_files(finished["norms"], run)
    (child,) = start(make_run("other", "qwen3", **KEYS), 1, 1, wanted, "gradient_accumulation_steps=2")
    assert "allow_changes=per_device_train_batch_size" in child.ends(2).stderr


def test_a_signal_stops_all_shards_in_the_middle_of_a_rollout(finished, make_run, tmp_path):
    """It comes to one of them while they decode, and they save what was there before the step."""
    run, generating = make_run("stopped", "qwen2", **{**KEYS, "save_steps": 0}), tmp_path / "generating"
    children = start(run, 1, 2, setup="endless_decoding", GENERATING=str(generating))
    children[0].until(generating.exists)
    children[1].signal(SIGTERM)
    finish(children, 143)
    assert run.saved_step(exit_code=143) == 3
    finish(start(run, 1, 1, "resume_from_checkpoint=true"))
    assert_same_files(finished["lora"], run)


def test_a_killed_shard_ends_the_others_and_all_can_be_started_again(finished, make_run, tmp_path):
    """The first one is killed in the second step. Started as torchrun does it, they end as if undisturbed."""
    run = make_run("killed", "qwen2", **{**KEYS, "reward_funcs": ["fakes:dies_once"], "save_steps": 1})
    environment = {"DIES": "0", "DIES_AT": "6", "DIED": str(tmp_path / "died")}
    killed, other = start(run, 1, 2, **environment)
    killed.ends(-SIGKILL)
    assert "another process of this run has ended" in other.ends(1).stderr
    again = start(run, 1, 2, **environment, TORCHELASTIC_RESTART_COUNT="1")
    finish(again)
    assert again[0].stderr.count("resuming from") == 1
    assert_same_files(finished["lora"], run)


# --- without processes ---------------------------------------------------------------------------------------------


def test_what_cannot_be_shared_is_refused(monkeypatch, checkpoint):
    refused(lambda: configured("m", lora_r=0, tensor_parallel_size=2), "tensor_parallel_size", "lora_r", exit_code=2)
    config = read_model_config(checkpoint)  # 4 heads, 2 key-value heads
    error = refused(lambda: own_shape(config, 4), "tensor_parallel_size is 4", "num_kv_heads 2")
    assert error.fix == "set tensor_parallel_size to one of 1, 2"
    for world, size in (("1", 2), ("4", 3)):
        monkeypatch.setenv("WORLD_SIZE", world)
        refused(lambda size=size: Ranks(torch.device("cpu"), size), f"size is {size}", "--nproc-per-node", exit_code=2)


def test_terms_are_added_in_float32_whatever_the_number_of_rows():
    shard, terms = Shard(1, 4), torch.randn(4, 9, 300).bfloat16()
    shard.stack = lambda tensor: terms[:, : len(tensor)]
    total = shard.add_up(terms[1])
    assert torch.equal(total, (((terms[0].float() + terms[1]) + terms[2]) + terms[3]).bfloat16())
    assert torch.equal(shard.add_up(terms[1, :1]), total[:1])

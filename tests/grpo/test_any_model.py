"""Models of transformers under our attention, cache and LoRA: tiny random ones of all families, from their configs.

transformers computes much in float32 whatever the weights are. `exact` keeps that in float64, so that bounds are tight.
"""

import json
from dataclasses import replace
from itertools import chain
from pathlib import Path
from shutil import copytree

import pytest
import torch
from making import (
    GROUPS,
    TEMPLATE,
    error_of_gradients,
    from_transformers,
    groups_of,
    kept_by_autograd,
    logits_of,
    randomise_adapter,
    refused,
    scored,
    scored_by_rows,
    write_chat_checkpoint,
    write_checkpoint,
    write_rows,
)
from safetensors.torch import load_file, save_file
from test_minimal import make_trainer, train, trained_weights
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoTokenizer

from grpo.algorithm.schema import Layout
from grpo.base.errors import MEMORY
from grpo.config.load import load_config
from grpo.config.options import TrainConfig
from grpo.doctor.__main__ import main as doctor
from grpo.engine.attention.choice import packed_attention
from grpo.engine.attention.special import Special
from grpo.engine.device.draw import SamplingParams
from grpo.engine.device.quantised import FORMATS
from grpo.engine.model import decoder, transformers_model
from grpo.engine.model.adapter import save_adapter, trained_adapter
from grpo.engine.model.build import Build, LoraSpec
from grpo.engine.model.weights import load_decoder, save_checkpoint
from grpo.engine.parallel.shard import Shard
from grpo.engine.sampling import check
from grpo.engine.sampling.check import check_model, router_changes
from grpo.engine.sampling.prefill import prefill
from grpo.engine.sampling.sampler import Sampler
from grpo.export import export
from grpo.generate import Chat
from grpo.policy import load_for_inference
from grpo.train import train as run

FAMILIES = """
    afmoe apertus arcee biogpt bitnet codegen cohere cohere2 cwm deepseek_v2 deepseek_v3 dots1 ernie4_5 exaone4 gemma
    gemma2 gemma3 gemma3_text gemma3n_text gemma4_text glm glm4 glm4_moe gpt2 gpt_bigcode gpt_neox gpt_oss gptj granite
    granite_swa granitemoe helium hunyuan_v1_dense llama minicpm3 minimax_m2 ministral ministral3 mistral mixtral
    nanochat nemotron olmo olmo2 olmo3 olmoe opt persimmon phi phi3 phimoe qwen2 qwen2_moe qwen3 qwen3_moe seed_oss
    smollm3 stablelm starcoder2 vaultgemma youtu
""".split()
CPU = torch.device("cpu")
SPARSE = {"gpt_oss", "granitemoe", "mixtral", "olmoe", "phimoe", "qwen2_moe", "qwen3_moe"}
SIZES = {  # windows shorter than a prompt, heads whose widths are no divisors, keys and values that layers share
    1: "n_group topk_group first_k_dense_replace n_shared_experts bos_token_id",
    2: "num_key_value_heads num_experts_per_tok moe_k eos_token_id num_kv_shared_layers max_window_layers",
    4: "num_hidden_layers n_layer num_attention_heads n_head num_experts moe_num_experts num_local_experts "
    "n_routed_experts qk_rope_head_dim rotary_dim",
    6: "sliding_window qk_nope_head_dim v_head_dim",
    8: "laurel_rank",
    10: "head_dim",
    16: "hidden_size_per_layer_input kv_lora_rank q_lora_rank",
    32: "hidden_size n_embd word_embed_proj_dim moe_intermediate_size shared_expert_intermediate_size",
    48: "intermediate_size ffn_dim",
    97: "vocab_size vocab_size_per_layer_input",
    256: "max_position_embeddings n_positions",
    None: "pad_token_id",
}
SHAPE = {name: size for size, names in SIZES.items() for name in names.split()} | {"use_sliding_window": True}


def write_tiny(folder: Path, family: str, **changes) -> Path:
    """A small random checkpoint of a family. Biases and norms vary too, so that a test notices if one is left out."""
    if family not in CONFIG_MAPPING:
        pytest.skip(f"the installed transformers has no {family}")
    kind = CONFIG_MAPPING[family]
    empty = kind() if family == "gemma3" else kind(per_layer_config={})
    sizes = {name: value for name, value in SHAPE.items() if hasattr(empty, name)}
    if "kv_lora_rank" in sizes:  # latent attention: all heads have keys of their own, wider than values
        sizes["num_key_value_heads"] = 4
        sizes.pop("head_dim", None)
    if family == "helium":  # whose class has no other
        sizes["head_dim"] = 8
    if family == "gemma4_text":  # whose layers have heads of different widths and numbers
        sizes |= {"global_head_dim": 14, "num_global_key_value_heads": 1, "attention_k_eq_v": True}
        sizes["layer_types"] = ["sliding_attention", "full_attention"] * 2
    if family == "gemma3":  # with images
        vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
        sizes = {"text_config": SHAPE, "vision_config": vision | {"image_size": 28, "patch_size": 14}}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(kind(**sizes | changes), dtype=torch.float32)
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    return folder


def build(dtype=torch.float64, rank: int = 4, **keys) -> Build:
    return Build(LoraSpec(rank, 2 * rank) if rank else None, not rank, dtype, "cpu", backend="transformers", **keys)


def eager(folder: Path):
    """transformers' own model, in float64."""
    how = {"attn_implementation": "eager", "experts_implementation": "eager"}
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, **how).eval()


@pytest.fixture()
def exact(monkeypatch):
    """Nothing is rounded to float32 on the way."""
    to, softmax = torch.Tensor.to, torch.nn.functional.softmax

    def stay(tensor, *args, **named):
        wants_less = torch.float32 in args or named.get("dtype") == torch.float32
        return tensor if tensor.dtype == torch.float64 and wants_less else to(tensor, *args, **named)

    monkeypatch.setattr(torch.Tensor, "to", stay)
    monkeypatch.setattr(torch.Tensor, "float", lambda tensor: stay(tensor, torch.float32))
    monkeypatch.setattr(torch.nn.functional, "softmax", lambda x, dim=None, dtype=None, **_: softmax(x, dim))


@pytest.mark.parametrize("family", FAMILIES)
def test_log_probs_and_gradients_are_those_of_transformers_and_peft(tmp_path, exact, family):
    """Packed with shared prompts against rows, in float64: log-probs and every adapter's gradient to 1e-9. The check at
    load has compared decoding by then."""
    peft = pytest.importorskip("peft")
    write_tiny(tmp_path / "base", family)
    ours = load_decoder(tmp_path / "base", build())
    check_model(ours)
    randomise_adapter(ours)
    for linear in ours.lora_linears():  # files hold them in float32
        for part in linear.rank_slices:
            for half in linear.adapter(part):
                half.copy_(torch.tensor(half.numpy().astype("float32")))
        linear.refresh()
    save_adapter(trained_adapter(ours, None, str(tmp_path / "base")), tmp_path / "adapter", lora_alpha=8)
    logp, weights = scored(ours)

    theirs = peft.PeftModel.from_pretrained(eager(tmp_path / "base"), tmp_path / "adapter", is_trainable=True).eval()
    for parameter in theirs.parameters():
        parameter.data = parameter.data.double()
    has_float32 = any(weight.value.dtype == torch.float32 for weight in ours.others.values())  # some routers have
    bound = 1e-6 if has_float32 else 1e-9
    assert (logp - scored_by_rows(theirs, weights)).abs().max() <= bound
    assert error_of_gradients(ours, theirs) <= bound
    assert all(part in linear.rank_slices for linear, part in ours.projections().values())


@pytest.mark.parametrize("family", ["gemma2", "gpt_oss", "olmo3", "phi3"])
def test_the_sampler_draws_from_the_distribution_that_is_trained(tmp_path, family):
    """In float32, several slots and lengths past the window; the vocabulary is larger than any tokenizer's."""
    model = load_decoder(write_tiny(tmp_path, family), build(torch.float32))
    randomise_adapter(model)
    prompts = [[5, 9, 6, 11, 3, 8, 1, 90], [7, 95]]
    answers = Sampler(model, range(0, 96, 5), max_slots=3).sample(prompts, 2, SamplingParams(12, 1.3), [1, 2, 3, 4])
    logp, _ = scored(model, groups_of(prompts, answers), 1.3)
    drawn = [logp for group in answers for one in group for logp in one.logps]
    assert logp.tolist() == pytest.approx(drawn, abs=2e-5)
    assert len({len(one.ids) for one in chain(*answers)}) > 1


@pytest.mark.parametrize(("family", "lora_r"), [("llama", 4), ("qwen2", 0)])
def test_three_steps_are_those_of_the_hand_written_decoder(tmp_path, exact, monkeypatch, family, lora_r):
    """The same answers, and in float64 the same weights to 1e-9 of what they moved. (transformers turns positions in
    float32 whatever the dtype, so here both do.)"""
    tables = decoder.cos_sin_tables
    monkeypatch.setattr(
        decoder, "cos_sin_tables", lambda *given: [x.double() for x in tables(*given[:3], torch.float32, given[4])]
    )
    checkpoint = write_chat_checkpoint(tmp_path / "base", 0.3, family, tie_word_embeddings=True)
    (checkpoint / "generation_config.json").write_text(json.dumps({"eos_token_id": list(range(0, 300, 5))}))
    steps = {}
    for backend in ("auto", "transformers"):
        (tmp_path / backend).mkdir()
        keys = {"model_backend": backend, "lora_r": lora_r, "beta": 0.05, "adam_epsilon": 1e-3}
        keys |= {"gradient_checkpointing": backend != "auto"}
        with make_trainer(tmp_path / backend, checkpoint, **keys) as trainer:
            start = trained_weights(trainer)
            steps[backend] = list(train(trainer))
    for (ours, weights, _), (other, others, _) in zip(*steps.values(), strict=True):
        assert ours[1] == other[1] and len(set(map(len, ours[1]))) > 1
        assert weights.keys() == others.keys()
        for name, weight in weights.items():
            moved, error = ((weight - there).abs().max() for there in (start[name], others[name]))
            assert error <= 1e-9 * moved, (name, moved, error)


def configure(folder: Path, checkpoint: Path, more: str = "max_steps=2") -> list[str]:
    rows = write_rows(folder / "rows.jsonl", [{"question": f"{number} + 1", "answer": "1"} for number in range(12)])
    keys = f"model_name_or_path={checkpoint} dataset_id_or_path={rows} output_dir={folder / 'run'} {more}"
    keys += " reward_funcs=reward_functions:early_letters num_generations=2 per_device_train_batch_size=4"
    keys += " max_completion_length=6 learning_rate=1e-2 report_to=none disable_tqdm=true"
    return keys.split()


def write_chat(folder: Path, family: str, template: str) -> Path:
    """Two end tokens, and more embeddings than its tokenizer has tokens."""
    write_chat_checkpoint(folder, 0.1, family)
    write_checkpoint(folder, family, spread=0.1, vocab_size=512, pad_token_id=0, bos_token_id=1)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 7]}))
    (folder / "chat_template.jinja").write_text(template)
    return folder


@pytest.fixture(scope="module")
def chat_phi3(tmp_path_factory) -> Path:
    return write_chat(tmp_path_factory.mktemp("phi3"), "phi3", TEMPLATE)  # fused projections


def test_a_chat_has_the_familys_system_prompt_its_switch_for_thoughts_and_its_end_tokens(tmp_path):
    """The answer is transformers' own, given what its tokenizer renders."""
    template = "{% if messages[0].role != 'system' %}<|im_start|>system\nI am SmolLM.<|im_end|>\n{% endif %}" + TEMPLATE
    template += "{% if add_generation_prompt and not enable_thinking | default(true) %}<think>\n\n{% endif %}"
    folder = write_chat(tmp_path, "smollm3", template)
    asked, prompts = [{"role": "user", "content": "What is 3 + 4?"}], []
    for thinks in (True, False):
        config = TrainConfig(model_name_or_path=str(folder), chat_template_kwargs={"enable_thinking": thinks})
        policy = load_for_inference(config, CPU)
        chat = Chat(policy, SamplingParams(8, 0.0), 0)
        how = {"add_generation_prompt": True, "enable_thinking": thinks, "return_tensors": "pt", "return_dict": False}
        ids = AutoTokenizer.from_pretrained(folder).apply_chat_template(asked, **how)
        prompts.append(policy.tokenizer.decode(ids[0]))
        assert chat.fit(asked).ids == tuple(ids[0].tolist())
        theirs = AutoModelForCausalLM.from_pretrained(folder).generate(ids, max_new_tokens=8, do_sample=False)
        ((answer,),) = chat.sampler.sample(ids.tolist(), 1, chat.sampling, [0])
        assert answer.ids == theirs[0, ids.shape[1] :].tolist()
        assert policy.eos_ids == (2, 7)
        assert policy.model.config.vocab_size == 512 > len(policy.tokenizer)
    assert "I am SmolLM." in prompts[0] and prompts[1] == prompts[0] + "<think>\n\n"


def test_a_run_resumes_bit_for_bit_and_its_exports_are_read_by_others(tmp_path, chat_phi3):
    """A run of two steps, and one of a step with another after it; transformers and PEFT read what comes out."""
    peft = pytest.importorskip("peft")
    parts = "max_steps=1 save_steps=1", "max_steps=2 resume_from_checkpoint=true"
    adapters = []
    for name, all_keys in (("whole", ["max_steps=2"]), ("parts", parts)):
        (tmp_path / name).mkdir()
        for keys in all_keys:
            run(*load_config(None, configure(tmp_path / name, chat_phi3, keys)))
        adapters.append(load_file(tmp_path / name / "run" / "final" / "adapter_model.safetensors"))
    assert all(torch.equal(tensor, adapters[1][name]) for name, tensor in adapters[0].items())
    assert {name.split(".")[-3] for name in adapters[0]} == {"qkv_proj", "o_proj", "gate_up_proj", "down_proj"}

    final = tmp_path / "whole" / "run" / "final"
    export(final, tmp_path / "merged", True, "float32")
    export(final, tmp_path / "adapter", False)
    ids = torch.tensor([[5, 6, 7, 8, 9]])
    theirs = peft.PeftModel.from_pretrained(from_transformers(chat_phi3), tmp_path / "adapter")
    ours = logits_of(load_for_inference(TrainConfig(model_name_or_path=str(final)), CPU).model, ids[0])
    for model in (from_transformers(tmp_path / "merged"), theirs):
        assert (model(ids).logits[0] - ours).abs().max() <= 1e-5


REFUSED = {
    "qwen3_next": "keeps more than keys and values, or attends in another way: linear_attention",
    "mamba": "keeps more than keys and values",
    "llama4_text": "chunked_attention",
    "bloom": "attends by functions of its own",
    "falcon": "attends by functions of its own",
    "gpt_neo": "attends by functions of its own",
    "doge": "cannot be computed here",
    "ctrl": "none of its layers has a linear part",
    "t5": "no causal language model",
    "llava": "save its text part",
}


@pytest.mark.parametrize("family", REFUSED)
def test_what_cannot_be_computed_is_refused_by_name(tmp_path, family):
    if family in ("t5", "llava", "falcon", "gpt_neo"):
        parts = {"text_config": {}} if family == "llava" else {}
        (tmp_path / "config.json").write_text(json.dumps({"model_type": family} | parts))
    else:
        write_tiny(tmp_path, family)
    error = refused(lambda: check_model(load_decoder(tmp_path, build(torch.float32))), REFUSED[family])
    assert family in str(error)


def test_why_loading_failed_is_told(chat_phi3, monkeypatch):
    """Memory that ran out is no fault of the checkpoint, nor is a transformers that has other inner parts."""
    shapes = replace(build(torch.float32), device="meta")
    monkeypatch.delattr("transformers.modeling_utils.LoadStateDictConfig")
    refused(lambda: load_decoder(chat_phi3, shapes), "transformers cannot load", "or transformers 5.24")
    monkeypatch.setattr(transformers_model, "read_net", lambda *_: torch.empty(1 << 60))
    config = TrainConfig(model_name_or_path=str(chat_phi3))
    refused(lambda: load_for_inference(config, CPU), "out of memory while the model was loaded", exit_code=MEMORY)


def test_no_sequence_is_so_long_that_it_changes_how_others_are_turned(tmp_path):
    """longrope turns all positions of a pass by other frequencies once one of them is past the original ones."""
    rope = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [9.0] * 4, "rope_theta": 10000.0}
    keys = {"rope_parameters": rope, "original_max_position_embeddings": 64}
    model = load_decoder(write_tiny(tmp_path, "phi3", **keys), build(torch.float32))
    check_model(model)
    assert model.config.max_positions == 64


@pytest.mark.parametrize("family", ["gemma3n_text", "gpt_oss", "gpt2"])
def test_gradients_of_all_weights_are_those_of_transformers(tmp_path, exact, family):
    """Of norms, embeddings, sinks and all that is not the weight of a linear layer; experts have none."""
    model, theirs = load_decoder(write_tiny(tmp_path, family), build(rank=0)), eager(tmp_path)
    _, weights = scored(model)
    scored_by_rows(theirs, weights)
    trained = {name: weight for name, weight in model.others.items() if weight.master is not None}
    assert len(trained) > 8
    for name, weight in trained.items():
        assert (weight.master.grad - theirs.get_parameter(name).grad).abs().max() <= 1e-9, name


def test_what_a_router_adds_is_written_too(tmp_path):
    """It is no parameter, and a router has more digits. Without it another program would choose other experts."""
    folder = write_tiny(tmp_path / "model", "glm4_moe")
    net = AutoModelForCausalLM.from_pretrained(folder)
    added = {name: buffer.normal_() for name, buffer in net.named_buffers() if name in net.state_dict()}
    added |= {name: tensor for name, tensor in net.state_dict().items() if name.endswith("gate.weight")}
    net.save_pretrained(folder)
    model = load_decoder(folder, build(torch.bfloat16))
    save_checkpoint(model, tmp_path / "written")
    written = AutoModelForCausalLM.from_pretrained(tmp_path / "written", dtype=torch.bfloat16).state_dict()
    assert len(added) == 6 and all(torch.equal(written[name], tensor) for name, tensor in added.items())


def test_other_arithmetic_is_refused(tmp_path, monkeypatch):
    """As if a family had a window that we do not see."""
    model = load_decoder(write_tiny(tmp_path, "gemma3_text"), build(torch.float32))
    causal = property(lambda special: lambda _, __, query, key: key <= query, lambda special, sees: None)
    monkeypatch.setattr(Special, "sees", causal, raising=False)
    refused(lambda: check_model(model), "differently here", "64 tokens")


def test_what_this_backend_does_not_have_is_refused(tmp_path):
    folder = write_tiny(tmp_path, "gemma")
    for key, how in (
        ("base_weights", {"quantised": FORMATS["int8"]}),
        ("tensor_parallel_size", {"shard": Shard(0, 2)}),
    ):
        refused(lambda how=how: load_decoder(folder, build(torch.float32, **how)), key, "transformers")


@pytest.mark.parametrize("family", sorted(SPARSE))
def test_routers_and_experts_stay_frozen(tmp_path, family):
    """With adapters and, where all weights are trained, without."""
    write_tiny(tmp_path, family)
    adapted = load_decoder(tmp_path, build(torch.float32))
    assert {name.rpartition(".")[2] for name in adapted.projections()} == {"q_proj", "k_proj", "v_proj", "o_proj"}
    whole_model = load_decoder(tmp_path, build(torch.float32, rank=0))
    frozen = {name for name, weight in whole_model.others.items() if weight.master is None}
    assert frozen and all("mlp" in name or "block_sparse_moe" in name for name in frozen)
    assert router_changes(adapted, GROUPS[0]) == {"router_changed_frac": 0.0}
    assert len(adapted.experts) == 4
    with pytest.MonkeyPatch.context() as patch:  # as if decoding attended to something else
        patch.setattr(check, "prefill", lambda model, rows: [10 * torch.randn_like(kv) for kv in prefill(model, rows)])
        assert router_changes(adapted, GROUPS[0])["router_changed_frac"] > 0


def test_all_weights_are_trained_in_half_precision(tmp_path):
    """By float32 masters, also those of norms and embeddings, which transformers' modules read."""
    model = load_decoder(write_tiny(tmp_path, "gemma2"), build(torch.bfloat16, rank=0))
    check_model(model)
    before, _ = scored(model)
    for parameter in model.parameters():
        assert parameter.dtype == torch.float32 and parameter.grad.abs().max() > 0
        parameter.data -= 0.05 * parameter.grad
    model.refresh()
    assert (scored(model)[0] - before).abs().max() > 0.1


@pytest.mark.parametrize("recompute", ["none", "all"])
def test_measured_memory_is_what_autograd_keeps(tmp_path, recompute):
    """The doctor's model has shapes alone, and counts no less than the real one, by half at most."""
    folder = write_tiny(tmp_path, "olmo2")
    model = load_decoder(folder, build(torch.float32))
    model.recompute = recompute
    kept = kept_by_autograd(model, packed_attention(model, Layout.of((128, ()))), 128)
    shapes = load_decoder(folder, replace(build(torch.float32), device="meta"))
    assert kept <= model.activation_bytes(recompute) <= shapes.activation_bytes(recompute) <= 2.5 * kept + 20_000


def test_what_cannot_be_measured_is_not_counted(tmp_path, monkeypatch):
    model = load_decoder(write_tiny(tmp_path, "olmo2"), build(torch.float32))
    monkeypatch.setattr(type(model), "forward", lambda *_: model.absent)
    assert model.activation_bytes("none") is None


def test_the_doctor_plans_and_samples_and_compares_headers(tmp_path, chat_phi3, capsys):
    assert doctor(configure(tmp_path, chat_phi3)) == 0
    out = capsys.readouterr().out
    assert "phi3" in out and "micro-batches" in out and "lora" not in out.lower().partition("sample")[2]
    assert doctor([*configure(tmp_path, chat_phi3), "lora_target_modules=q_proj"]) == 2
    assert "projections that can have adapters are o_proj, qkv_proj" in " ".join(capsys.readouterr().out.split())
    damaged = copytree(chat_phi3, tmp_path / "damaged")
    tensors = load_file(damaged / "model.safetensors")
    tensors["model.layers.0.mlp.other"] = tensors.pop("model.layers.0.mlp.down_proj.weight")
    save_file(tensors, damaged / "model.safetensors")
    shapes = replace(build(torch.float32), device="meta")
    refused(lambda: load_decoder(damaged, shapes), "missing model.layers.0.mlp.down_proj.weight", "unexpected")

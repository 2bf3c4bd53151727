"""The policy with all that belongs to it: what it starts from, what its reference is, what it saves."""

import json
import shutil

import pytest
import torch
from making import edit_json, from_transformers, hidden_states, load, randomise_adapter, refused, write_checkpoint

from grpo.algorithm.schema import POLICY, REFERENCE
from grpo.config.load import load_config
from grpo.engine.model.adapter import load_adapter, save_adapter, trained_adapter
from grpo.engine.model.build import ALL_PROJECTIONS
from grpo.policy import (
    choose_dtype,
    find_folders,
    load_for_inference,
    load_policy,
    load_reference,
    lora_spec,
)

CPU, IDS = torch.device("cpu"), torch.tensor([5, 9, 6, 40, 41, 2, 7])


def configured(model, **keys):
    keys = {"dataset_id_or_path": "d", "output_dir": "o", "reward_funcs": "[exact]", "lora_r": 4, **keys}
    return load_config(None, [f"model_name_or_path={model}", *(f"{name}={value}" for name, value in keys.items())])[0]


def hidden(model, mode=POLICY):
    with torch.no_grad():
        return hidden_states(model, IDS, mode)


@pytest.fixture(scope="module")
def adapter(chat_checkpoint, tmp_path_factory):
    """An adapter of the chat checkpoint that changes a lot."""
    folder, model = tmp_path_factory.mktemp("adapter"), load(chat_checkpoint, rank=2)
    save_adapter(trained_adapter(model, None, str(chat_checkpoint)), folder)
    return folder


@pytest.mark.parametrize("keys", [{}, {"lora_r": 0}], ids=["adapter", "all weights"])
@pytest.mark.parametrize("named", ["apart", "as the model"])
def test_what_starts_from_an_adapter_starts_with_it_merged_and_so_does_its_reference(
    chat_checkpoint, adapter, keys, named
):
    model = {"adapter_name_or_path": adapter, "model": chat_checkpoint} if named == "apart" else {"model": adapter}
    config = configured(**model, **keys)
    policy = load_policy(config, CPU)
    reference = load_reference(config, policy)
    started, plain = hidden(policy.model), hidden(load(chat_checkpoint))
    assert (started - plain).abs().max() > 0.01 and policy.base == (str(chat_checkpoint), "main")
    assert torch.allclose(hidden(reference, REFERENCE), started, atol=1e-6)
    for parameter in policy.model.parameters():  # the policy moves, its reference does not
        parameter.data += 0.05
    policy.model.refresh()
    assert (hidden(policy.model) - started).abs().max() > 0.01
    assert torch.allclose(hidden(reference, REFERENCE), started, atol=1e-6)
    assert not [parameter for parameter in reference.parameters() if reference is not policy.model]


def test_trained_weights_and_their_reference_are_the_same_numbers(tmp_path, chat_checkpoint, adapter):
    """W + B A of a float32 file, rounded once to bfloat16: so the KL penalty of step 0 is exactly 0."""
    config = configured(chat_checkpoint, adapter_name_or_path=adapter, lora_r=0, torch_dtype="bfloat16", beta=0.1)
    policy = load_policy(config, CPU)
    reference = load_reference(config, policy)
    assert torch.equal(hidden(policy.model), hidden(reference))
    assert torch.equal(policy.model.head(), reference.head())


def test_what_is_saved_applies_to_the_checkpoint_on_disk(chat_checkpoint, adapter, tmp_path):
    """The new adapter alone, with its alpha; or both stacked; or all weights."""
    for name, keys in {
        "new": {"model": chat_checkpoint, "lora_alpha": 12, "lora_dropout": 0.25},
        "stacked": {"model": adapter},
        "weights": {"model": adapter, "lora_r": 0},
    }.items():
        policy = load_policy(configured(**keys), CPU)
        if policy.model.build.lora:
            randomise_adapter(policy.model, seed=5)
        policy.save(tmp_path / name)
        again = load_for_inference(configured(tmp_path / name), CPU)
        assert torch.allclose(hidden(again.model), hidden(policy.model), atol=1e-5), name
        assert not list(again.model.parameters()) and again.eos_ids == policy.eos_ids
    new, stacked = (json.loads((tmp_path / name / "adapter_config.json").read_text()) for name in ("new", "stacked"))
    assert (new["r"], new["lora_alpha"], stacked["r"], stacked["lora_alpha"]) == (4, 12, 6, 6)
    assert new["lora_dropout"] == 0.25
    assert load_adapter(tmp_path / "stacked").base_model == str(chat_checkpoint)


def test_a_merged_checkpoint_names_the_end_of_a_turn_for_other_tools(chat_checkpoint, tmp_path):
    """A base model's config.json names another end token than its template, and other tools go by the files."""
    shutil.copytree(chat_checkpoint, tmp_path / "base")
    edit_json(tmp_path / "base" / "config.json", eos_token_id=0)
    policy = load_policy(configured(tmp_path / "base", lora_r=0), CPU)
    policy.save(tmp_path / "saved")
    theirs = from_transformers(tmp_path / "saved").generation_config.eos_token_id
    assert theirs == [0, policy.tokenizer.convert_tokens_to_ids("<|im_end|>")]


def test_a_new_adapter_depends_on_the_seed_alone(chat_checkpoint):
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(len(drawn))
        policy = load_policy(configured(chat_checkpoint, seed=seed), CPU)
        drawn.append([layer.A.stored.clone() for layer in policy.model.lora_linears()])
    first, again, other = drawn
    assert all(map(torch.equal, first, again)) and not any(map(torch.equal, first, other))
    assert not any(map(torch.equal, first, first[1:])), "each layer goes on drawing"


def test_two_adapters_or_one_without_a_base_are_refused(chat_checkpoint, adapter, tmp_path):
    base = chat_checkpoint
    for name, start, wanted in ((base, "null", None), (base, adapter, adapter), (adapter, "null", adapter)):
        parts = find_folders(configured(name, adapter_name_or_path=start))
        assert (parts.model, parts.adapter, parts.tokenizer, parts.base) == (base, wanted, base, (str(base), "main"))
    refused(lambda: find_folders(configured(adapter, adapter_name_or_path=adapter)), "two adapters")
    save_adapter(trained_adapter(load(chat_checkpoint, rank=2), None, None), tmp_path)
    refused(lambda: find_folders(configured(tmp_path)), "does not name its base")


def test_which_projections_get_an_adapter(chat_checkpoint):
    found = dict.fromkeys(("all", "all-linear", "null"), ALL_PROJECTIONS) | {
        "q_proj,down_proj": ("q_proj", "down_proj")
    }
    for text, targets in found.items():
        spec = lora_spec(configured("m", lora_target_modules=text, lora_r=8, lora_alpha=12, lora_dropout=0.1))
        assert (spec.rank, spec.alpha, spec.dropout, spec.targets, spec.scale) == (8, 12, 0.1, targets, 1.5)
    assert lora_spec(configured("m", lora_r=0)) is None
    wrong = configured(chat_checkpoint, lora_target_modules="q_proj,lm_head")
    refused(lambda: load_policy(wrong, CPU), "lora_target_modules names lm_head", exit_code=2)


def test_dtypes():
    assert choose_dtype("auto", CPU) == torch.float32
    assert choose_dtype("auto", torch.device("cuda")) == torch.bfloat16
    assert choose_dtype("float16", CPU) == torch.float16


def test_a_policy_has_an_embedding_for_every_token(chat_checkpoint, tmp_path):
    """One row is missing."""
    shutil.copytree(chat_checkpoint, tmp_path / "model")
    num_tokens = len(load_policy(configured(chat_checkpoint), CPU).tokenizer)
    write_checkpoint(tmp_path / "model", vocab_size=num_tokens - 1)
    refused(lambda: load_policy(configured(tmp_path / "model"), CPU), "does not belong to the model")

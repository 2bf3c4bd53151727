"""What tests are made of: small checkpoints written by transformers, a tokenizer with a chat template, data files.

Every checkpoint has random weights and is made here; nothing is downloaded.
"""

import json
from pathlib import Path

import pytest
import torch

from grpo.model.lora import Build, LoraSpec
from grpo.model.weights import load_decoder

SHARED = (
    Path(__file__).resolve().parents[2] / "shared" / "data"
)  # real data, where somebody has put it beside the checkout
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def real_data(name: str) -> Path:
    """A real data file; the test is skipped where it is absent."""
    if not (SHARED / name).exists():
        pytest.skip(f"needs real data that is not part of the project: {name}")
    return SHARED / name


def write_checkpoint(
    folder: Path, family: str = "qwen2", seed: int = 0, spread: float = 0.1, dtype=torch.float32, **changes
) -> Path:
    """A small random checkpoint of transformers' own class. spread: standard deviation of the weights; norms and biases
    vary too, so that a test notices if one is left out."""
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

    configs = {
        "qwen2": (Qwen2Config, Qwen2ForCausalLM),
        "qwen3": (Qwen3Config, Qwen3ForCausalLM),
        "llama": (LlamaConfig, LlamaForCausalLM),
    }
    shape = {
        "vocab_size": 96,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "bos_token_id": None,
        "eos_token_id": 2,
        "pad_token_id": None,
    }
    if family == "qwen3":
        shape["head_dim"] = 16
    config_class, model_class = configs[family]
    torch.manual_seed(seed)
    model = model_class(config_class(**{**shape, **changes})).to(dtype)
    for name, parameter in model.named_parameters():
        parameter.data.normal_(1.0 if "norm" in name else 0.0, spread)
    model.save_pretrained(folder)
    return folder


def load(folder: Path, rank: int = 0, dtype=torch.float32, train_weights: bool = False, **lora):
    """Our decoder for a checkpoint, with an adapter of the given rank."""
    spec = LoraSpec(rank, lora.pop("alpha", 2 * rank), **lora) if rank else None
    return load_decoder(folder, Build(spec, train_weights, dtype, "cpu"))


def kept_by_autograd(model, attend, num_tokens: int) -> float:
    """Bytes per token of one packed row, weights apart."""
    kept, weights = {}, {tensor.untyped_storage().data_ptr() for tensor in [*model.parameters(), *model.buffers()]}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = tensor, storage.nbytes()  # the tensor, so that its address is not used twice
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        hidden = model(torch.zeros(num_tokens, dtype=torch.int64), torch.arange(num_tokens), attend)
    assert hidden.requires_grad
    return sum(size for _, size in kept.values()) / num_tokens


def randomise_adapter(model, seed: int = 0, spread: float = 0.1) -> None:
    """An adapter that is not zero, so that it matters."""
    generator = torch.Generator().manual_seed(seed)
    for layer in model.lora_layers():
        for part in layer.rank_slices:
            for half in layer.adapter(part):
                half.copy_(torch.randn(half.shape, generator=generator) * spread)
    model.refresh()


def make_tokenizer(texts: list[str], folder: Path, vocab_size: int = 400):
    """A byte-level BPE tokenizer with ChatML's special tokens, trained on the texts and saved."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["system\nuser\nassistant\n", *texts], trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
    )
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    return fast


def write_chat_checkpoint(folder: Path, spread: float = 0.1) -> Path:
    """A Qwen2 checkpoint with a tokenizer and a chat template."""
    texts = [
        f"What is {a} + {b}? The answer is \\boxed{{{a + b}}}. <think> <answer>"
        for a in range(30)
        for b in range(0, 30, 3)
    ]
    tokenizer = make_tokenizer(texts, folder)
    write_checkpoint(
        folder,
        vocab_size=len(tokenizer),
        eos_token_id=tokenizer.eos_token_id,
        max_position_embeddings=1024,
        spread=spread,
    )
    tokenizer.save_pretrained(folder)
    return folder


def write_rows(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path

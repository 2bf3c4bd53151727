"""Make Qwen2 checkpoints with random weights, written by transformers itself, so that all sides load the same files.

They come with a tokenizer whose vocabulary has the model's size, and they never end a completion: one component of the
residual stream is constant, and the end token has a large negative weight on it, which puts its probability below
e^-50. So all completions reach the length that was asked for, on any engine, without a change to how it generates.
With a `mean_length` that weight is set so that the end token comes after about so many tokens.
"""

import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from grpo.attention.select import packed_attention
from grpo.model.decoder import Decoder, ModelConfig, RMSNorm
from grpo.model.lora import REFERENCE, Build, LoraSpec
from grpo.model.weights import load_decoder
from grpo.schema import Layout

END, PAD, TURN, TURN_END = "<|end|>", "<|endoftext|>", "<|im_start|>", "<|im_end|>"
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONSTANT = 0.2  # the constant component of the residual stream
NEVER = -1000.0  # the end token's weight on it
MAX_POSITIONS = 4096


@dataclass(frozen=True)
class Shape:
    """The sizes of a Qwen2. A tied model uses its embedding as its head."""

    hidden: int
    mlp: int
    layers: int
    heads: int
    kv_heads: int
    vocab: int
    tied: bool = True

    @property
    def parameters(self) -> int:
        kv = self.hidden // self.heads * self.kv_heads
        weights = self.hidden * (2 * self.hidden + 2 * kv + 3 * self.mlp)
        biases = self.hidden + 2 * kv
        norms = 2 * self.hidden
        embeddings = self.vocab * self.hidden * (1 if self.tied else 2)
        return self.layers * (weights + biases + norms) + self.hidden + embeddings

    def hf_config(self) -> dict:
        """Return the keys of config.json that describe the architecture."""
        return {
            "model_type": "qwen2",
            "vocab_size": self.vocab,
            "hidden_size": self.hidden,
            "intermediate_size": self.mlp,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "tie_word_embeddings": self.tied,
            "max_position_embeddings": MAX_POSITIONS,
        }


SHAPES = {
    "tiny": Shape(64, 128, 2, 4, 2, 512),  # for --smoke
    "4m": Shape(256, 688, 4, 4, 2, 4096),
    "27m": Shape(512, 1408, 8, 8, 2, 8192),
    "31m": Shape(512, 1408, 8, 8, 2, 16384),
    "54m": Shape(640, 1728, 10, 10, 2, 16384),
    "0.5b": Shape(896, 4864, 24, 14, 2, 151936),
    "1.5b": Shape(1536, 8960, 28, 12, 2, 151936),
    "7b": Shape(3584, 18944, 28, 28, 4, 152064, tied=False),
}


@contextmanager
def temporary_model(name: str, options, mean_length: float | None = None) -> Iterator[Path]:
    """Write a checkpoint of that shape to a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        yield write_model(name, Path(folder), getattr(torch, options.dtype), options.device, mean_length)


def write_model(
    name: str,
    folder: Path,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    mean_length: float | None = None,
) -> Path:
    """Write a checkpoint of that shape with its tokenizer, and return its path."""
    from transformers import Qwen2Config, Qwen2ForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    shape, path = SHAPES[name], folder / name
    tokenizer = write_tokenizer(shape.vocab, path)
    config = Qwen2Config(
        **shape.hf_config(),
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        initializer_range=0.8 / shape.hidden**0.5,
        dtype=dtype,
    )
    torch.manual_seed(0)
    with torch.device(device):
        model = Qwen2ForCausalLM(config).to(dtype)
    set_end_token(model, tokenizer.eos_token_id, mean_length)
    model.save_pretrained(path)
    return path


@torch.no_grad()
def set_end_token(model, end_id: int, mean_length: float | None) -> None:
    """Make the end token impossible, or make it end a completion after about `mean_length` tokens."""
    model.model.embed_tokens.weight[:, 0] = CONSTANT
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight[0] = 0.0
        layer.mlp.down_proj.weight[0] = 0.0
    end_D = model.lm_head.weight[end_id]
    end_D[0] = NEVER
    if mean_length:
        ids = torch.arange(4, 132, device=end_D.device)
        hidden_TD = model.model(ids[None]).last_hidden_state[0]
        log_mass = model.lm_head(hidden_TD).float().logsumexp(-1).mean()
        end_D[:] = 0.0
        end_D[0] = (log_mass - math.log(mean_length)) / hidden_TD[:, 0].float().mean()


@torch.no_grad()
def end_after(model: Decoder, end_id: int, mean_length: float) -> None:
    """Make the end token end a completion of our decoder after about `mean_length` tokens, as `set_end_token` does."""
    model.embedding.source[:, 0] = CONSTANT
    for block in model.blocks:
        block.attention.o.base("o_proj")[0][0] = 0.0
        block.mlp.down.base("down_proj")[0][0] = 0.0
    head_VD = (model.untied_head or model.embedding).source
    head_VD[end_id] = 0.0
    ids_T = torch.arange(4, 132, device=head_VD.device)
    layout = Layout.of((len(ids_T), ()))
    hidden_TD = model(ids_T, torch.arange(len(ids_T), device=ids_T.device), packed_attention(model, layout), REFERENCE)
    log_mass = (hidden_TD @ head_VD.T).float().logsumexp(-1).mean()
    head_VD[end_id, 0] = (log_mass - math.log(mean_length)) / hidden_TD[:, 0].float().mean()


def write_tokenizer(vocab_size: int, folder: Path):
    """Write a byte-level BPE tokenizer without merges.

    The rest of the vocabulary are words that can be decoded but that no text is split into.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = [END, PAD, TURN, TURN_END]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [f"w{number}" for number in range(vocab_size - len(special) - len(letters))]
    vocab = {token: number for number, token in enumerate([*special, *letters, *words])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=PAD, additional_special_tokens=[TURN, TURN_END]
    )
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    return fast


def build_of(dtype: torch.dtype, device: str, rank: int = 0) -> Build:
    """Describe how to build a decoder; a rank of 0 means no adapter."""
    return Build(LoraSpec(rank, 2 * rank) if rank else None, False, dtype, device)


def ours(path: Path, dtype: torch.dtype, device: str, rank: int = 0) -> Decoder:
    """Load our decoder of a checkpoint; with a rank, it has an adapter that is not zero on all projections."""
    model = load_decoder(path, build_of(dtype, device, rank))
    generator = torch.Generator().manual_seed(1)
    for layer in model.lora_layers():
        layer.reset(generator)
        for part in layer.rank_slices:
            _, B = layer.adapter(part)
            B.copy_(torch.randn(B.shape, generator=generator) * 0.01)
    model.refresh()
    return model


def random_decoder(name: str, dtype: torch.dtype, device: str, rank: int = 0) -> Decoder:
    """Make our decoder of that shape with random weights, on the device that will use it."""
    config = ModelConfig.from_hf({**SHAPES[name].hf_config(), "rope_theta": 1e6})
    return fill(Decoder(config, build_of(dtype, device, rank)))


@torch.no_grad()
def fill(model: Decoder) -> Decoder:
    """Fill all weights of a decoder with random numbers."""
    std = 0.8 / model.config.hidden_size**0.5
    for layer in model.linears():
        for part in layer.out_slices:
            layer.base(part)[0].normal_(0, std)
    model.embedding.source.normal_(0, std)
    if model.untied_head:
        model.untied_head.source.normal_(0, std)
    for module in model.modules():
        if isinstance(module, RMSNorm):
            module.weight.source.fill_(1)
    generator = torch.Generator().manual_seed(1)
    for layer in model.lora_layers():
        layer.reset(generator)
        for part in layer.rank_slices:
            _, B = layer.adapter(part)
            B.normal_(0, 0.01)
    model.refresh()
    return model


def theirs(path: Path, dtype: torch.dtype, device: str):
    """Load transformers' model of the same checkpoint, with its fastest attention."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(path, dtype=dtype, attn_implementation="sdpa").to(device).eval()

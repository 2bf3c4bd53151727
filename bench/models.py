"""Qwen2 checkpoints with random weights, written by transformers itself, so that every side of a comparison loads the
same files.

They come with a tokenizer whose vocabulary has the model's size, and they never end by themselves: one component of the
residual stream is kept constant, and the end token alone has a large opposite weight there, which puts its probability
below e^-50. So all completions have the length that was asked for, on any engine, without a change to how it generates.
With a `mean_length` that weight is set so that the end token comes after about so many tokens.
"""

import math
import random
from dataclasses import dataclass
from pathlib import Path

import torch

from grpo.model.decoder import Decoder
from grpo.model.lora import Build, LoraSpec
from grpo.model.weights import load_decoder

END, PAD, TURN, TURN_END = "<|end|>", "<|endoftext|>", "<|im_start|>", "<|im_end|>"
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONSTANT, NEVER = 0.2, -1000.0  # the constant component, and the end token's weight on it


@dataclass(frozen=True)
class Shape:
    """A Qwen2: width, MLP width, layers, heads, key-value heads, vocabulary; whether the head is the embedding."""

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
        layer = self.hidden * (2 * self.hidden + 2 * kv + 3 * self.mlp) + self.hidden + 2 * kv + 2 * self.hidden
        return self.layers * layer + self.hidden + self.vocab * self.hidden * (1 if self.tied else 2)


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


def default_sizes(options, cpu: tuple[str, ...], cuda: tuple[str, ...]) -> list[str]:
    """The models a benchmark uses if none is named."""
    return ["tiny"] if options.smoke else list(cuda if options.device == "cuda" else cpu)


def write_model(
    name: str,
    folder: Path,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    mean_length: float | None = None,
    max_positions: int = 4096,
) -> Path:
    """A checkpoint of that shape with its tokenizer."""
    from transformers import Qwen2Config, Qwen2ForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    shape, path = SHAPES[name], folder / name
    tokenizer = write_tokenizer(shape.vocab, path)
    config = Qwen2Config(
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        intermediate_size=shape.mlp,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=max_positions,
        tie_word_embeddings=shape.tied,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        initializer_range=0.8 / shape.hidden**0.5,
        dtype=dtype,
    )
    torch.manual_seed(0)
    with torch.device(device):
        model = Qwen2ForCausalLM(config).to(dtype)
    with torch.no_grad():
        model.model.embed_tokens.weight[:, 0] = CONSTANT
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight[0] = 0.0
            layer.mlp.down_proj.weight[0] = 0.0
        model.lm_head.weight[tokenizer.eos_token_id, 0] = NEVER
        if mean_length:
            hidden_TD = model.model(torch.arange(4, 132, device=device)[None]).last_hidden_state[0]
            mass = model.lm_head(hidden_TD).float().logsumexp(-1).mean()
            model.lm_head.weight[tokenizer.eos_token_id] = 0.0
            model.lm_head.weight[tokenizer.eos_token_id, 0] = (mass - math.log(mean_length)) / hidden_TD[
                :, 0
            ].float().mean()
    model.save_pretrained(path)
    return path


def write_tokenizer(vocab_size: int, folder: Path):
    """Byte-level BPE without merges; the rest of the vocabulary are words that text is never split into but that
    decode."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = [END, PAD, TURN, TURN_END]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [f"w{number}" for number in range(vocab_size - len(special) - len(letters))]
    tokenizer = Tokenizer(
        models.BPE(vocab={token: number for number, token in enumerate([*special, *letters, *words])}, merges=[])
    )
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=PAD, additional_special_tokens=[TURN, TURN_END]
    )
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    return fast


def ours(path: Path, dtype: torch.dtype, device: str, rank: int = 0) -> Decoder:
    """Our decoder of a checkpoint; with a rank, an adapter that is not zero on all projections."""
    model = load_decoder(path, Build(LoraSpec(rank, 2 * rank) if rank else None, False, dtype, device))
    generator = torch.Generator().manual_seed(1)
    for layer in model.lora_layers():
        layer.reset(generator)
        for part in layer.rank_slices:
            _, B = layer.adapter(part)
            B.copy_(torch.randn(B.shape, generator=generator) * 0.01)
    model.refresh()
    return model


def theirs(path: Path, dtype: torch.dtype, device: str):
    """transformers' model of the same checkpoint, with its fastest attention."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(path, dtype=dtype, attn_implementation="sdpa").to(device).eval()


def random_prompts(number: int, shortest: int, longest: int, vocab: int, seed: int = 0) -> list[tuple[int, ...]]:
    """Token ids without special ones."""
    rng = random.Random(seed)
    return [tuple(rng.randrange(4, vocab) for _ in range(rng.randint(shortest, longest))) for _ in range(number)]

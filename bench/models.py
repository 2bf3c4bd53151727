"""Make Qwen2 checkpoints with random weights, from which all sides load the same files.

They come with a tokenizer whose vocabulary has the model's size, and they never end a completion: one component of the
residual stream is constant, and the end token has a large negative weight on it, which puts its probability below
e^-50. So all completions reach the length that was asked for, on any engine, without a change to how it generates.
With a `mean_length` that weight is set so that the end token comes after about so many tokens.
"""

import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import torch

from bench.workload import NUM_SPECIAL
from grpo import policy
from grpo.algorithm.schema import REFERENCE, Layout
from grpo.base.storage import write_json
from grpo.data.worlds.model import CHAT_TEMPLATE, TURN, TURN_END
from grpo.engine.attention.choice import packed_attention
from grpo.engine.model.build import Build, LoraSpec
from grpo.engine.model.decoder import Decoder, OwnDecoder
from grpo.engine.model.model_config import ModelConfig
from grpo.engine.model.weights import load_decoder, save_checkpoint
from grpo.run import run

END, PAD = "<|end|>", "<|endoftext|>"
END_ID = 0  # of END
CONSTANT = 0.2  # the constant component of the residual stream
NEVER = -1000.0  # the end token's weight on it
MAX_POSITIONS = 4096
TRIAL_TOKENS = 128  # over which the head's mean probability mass is measured


def qwen2(hidden: int, mlp: int, layers: int, heads: int, kv_heads: int, vocab: int, tied: bool = True) -> dict:
    """Return config.json of a Qwen2 with these sizes. A tied model uses its embedding as its head."""
    return {
        "model_type": "qwen2",
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": mlp,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "tie_word_embeddings": tied,
        "max_position_embeddings": MAX_POSITIONS,
        "rope_theta": 1e6,
        "eos_token_id": END_ID,
    }


SHAPES = {
    "tiny": qwen2(64, 128, 2, 4, 2, 512),  # for --smoke
    "4m": qwen2(256, 688, 4, 4, 2, 4096),
    "31m": qwen2(512, 1408, 8, 8, 2, 16384),
    "smollm2": qwen2(576, 1536, 30, 9, 3, 49152),  # the sizes of SmolLM2-135M
    "0.5b": qwen2(896, 4864, 24, 14, 2, 151936),
    "1.5b": qwen2(1536, 8960, 28, 12, 2, 151936),
    "7b": qwen2(3584, 18944, 28, 28, 4, 152064, tied=False),
}
SIZES_31M = SHAPES["31m"] | {"head_dim": 64, "pad_token_id": 1}
SHAPES |= {  # of families that run by transformers' modules
    "gemma3": SIZES_31M | {"model_type": "gemma3_text"},
    "phi3": SIZES_31M | {"model_type": "phi3"},
    "qwen3_moe": SIZES_31M | {"model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2},
}
SHAPES["qwen3_moe"] |= {"moe_intermediate_size": 192, "intermediate_size": 384}  # of all experts that a token has


def build_of(options, rank: int = 0, dtype: str = "") -> Build:
    """Describe how to build a decoder. dtype: if it is not that of the options. A rank of 0 means no adapter."""
    return Build(
        lora=LoraSpec(rank, alpha=2 * rank) if rank else None,
        train_weights=False,
        dtype=getattr(torch, dtype or options.dtype),
        device=options.device,
    )


@contextmanager
def temporary_model(name: str, options) -> Iterator[Path]:
    """Write a checkpoint of that shape, with its tokenizer, to a temporary folder."""
    with temporary_folder(name) as path:
        if SHAPES[name]["model_type"] == "qwen2":
            save_checkpoint(random_decoder(name, build_of(options)), path)
        else:
            write_random(path)
        yield path


def write_random(path: Path) -> None:
    """Write the weights that transformers draws. The end token then has a probability of about 1 / V."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(path)).save_pretrained(path)


@contextmanager
def made_on_device(name: str, mean_length: float | None) -> Iterator[Path]:
    """Write a checkpoint without weights to a temporary folder; where it is loaded, they are made on the device.

    So the checks of a run's start are left out: they would miss the weights.
    """

    def load(path: Path, build: Build, adapter: None = None) -> Decoder:
        return random_decoder(name, build, mean_length)

    made = mock.patch.object(policy, "load_decoder", load)
    unchecked = mock.patch.object(run, "check_start")
    with temporary_folder(name) as path, made, unchecked:
        yield path


@contextmanager
def temporary_folder(name: str) -> Iterator[Path]:
    """Write a checkpoint of that shape without its weights to a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        write_tokenizer(SHAPES[name]["vocab_size"], path)
        write_json(path / "config.json", SHAPES[name])
        yield path


@torch.no_grad()
def end_after(model: Decoder, mean_length: float | None) -> None:
    """Make the end token end a completion after about `mean_length` tokens; None: never."""
    model.embedding.stored[:, 0] = CONSTANT
    for block in model.blocks:
        block.attention.o.base("o_proj")[0][0] = 0.0
        block.mlp.down.base("down_proj")[0][0] = 0.0
    head_VD = (model.untied_head or model.embedding).stored
    head_VD[END_ID] = 0.0
    head_VD[END_ID, 0] = NEVER
    if not mean_length:
        return
    position_T = torch.arange(TRIAL_TOKENS, device=head_VD.device)
    attend = packed_attention(model, Layout.of((TRIAL_TOKENS, ())))
    hidden_TD = model(position_T + NUM_SPECIAL, position_T, attend, REFERENCE)
    log_mass_T = (hidden_TD @ head_VD.T).float().logsumexp(-1)
    end_logit = log_mass_T.mean() - math.log(mean_length)
    head_VD[END_ID, 0] = end_logit / hidden_TD[:, 0].float().mean()


def write_tokenizer(vocab_size: int, folder: Path) -> None:
    """Write a byte-level BPE tokenizer without merges.

    The rest of the vocabulary are words that can be decoded, but no text is split into them.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = [END, PAD, TURN, TURN_END, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    words += [f"w{number}" for number in range(vocab_size - len(words))]
    vocab = {word: place for place, word in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=PAD, additional_special_tokens=[TURN, TURN_END]
    )
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(folder)


def ours(path: Path, build: Build) -> Decoder:
    """Load our decoder of a checkpoint. Its adapters, if it has any, are not zero."""
    return fill_adapters(load_decoder(path, build))


@torch.no_grad()
def random_decoder(name: str, build: Build, mean_length: float | None = None) -> Decoder:
    """Make our decoder of that shape, with random weights, where it will be used. mean_length: see `end_after`."""
    torch.manual_seed(0)
    model = OwnDecoder(ModelConfig.from_hf(SHAPES[name]), build)
    for name, tensor in model.named_tensors().items():
        if name.endswith("norm.weight"):
            tensor.fill_(1)
        elif name.endswith(".weight"):
            tensor.normal_(0, 0.8 / model.config.hidden_size**0.5)
    end_after(model, mean_length)
    return fill_adapters(model)


@torch.no_grad()
def fill_adapters(model: Decoder) -> Decoder:
    """Fill the adapters of a decoder, if it has any, with random numbers, drawn where they are."""
    generator = torch.Generator(model.build.device).manual_seed(1)
    for layer in model.lora_linears():
        for part in layer.rank_slices:
            A, B = layer.adapter(part)
            limit = A.shape[1] ** -0.5  # PEFT's
            A.uniform_(-limit, limit, generator=generator)
            B.normal_(0, 0.01, generator=generator)
    model.refresh()
    return model

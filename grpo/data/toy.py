"""Toy worlds: a model, a tokenizer and data made from scratch, so that the program runs without a download.

arithmetic     the remainder when a sum of six numbers is divided by two (grpo/data/sums.py)
encyclopedia   people who do not exist (knowledge/world.py): the cold start teaches some of them well and others
               hardly at all; GRPO with KnowRL's reward has to discover where the model's knowledge ends
library        the same; where it would decline, the cold start searches the encyclopedia
almanac        facts about the real world (knowledge/almanac.py), for a real model, which writes its own cold start;
               with tools this searches instead of declining, and nine subjects in ten have an article
atlas          the same with several facts about each country, of which the model recalls some in its reasoning
sums           sums of five numbers (grpo/data/sums.py), for a real model, which adds two well and five badly
"""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from grpo.base.errors import CONFIG, UserError
from grpo.base.storage import save_tensors, write_atomically, write_json, write_lines
from grpo.config.options import LIBRARY, OF_FACTS, PEOPLE, SUMS, WITH_KNOWLEDGE, AnyConfig, TrainConfig
from grpo.data.almanac import own_answers
from grpo.data.sums import PLAIN, REMAINDERS, make_sums
from grpo.engine.device.distributed import Ranks
from grpo.engine.model.build import Build
from grpo.engine.model.decoder import Decoder
from grpo.engine.model.model_config import ModelConfig
from grpo.engine.model.weights import named_tensors
from knowledge import almanac, world
from knowledge.almanac import Fact
from knowledge.world import World

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
END, TURN, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
VERSION = 5  # of the generated files; a world of another version is replaced
KINDS_OF_SUMS = {"arithmetic": REMAINDERS, SUMS: PLAIN}
MODELS = {  # worlds with a model of their own -> its sizes
    "arithmetic": {},
    **{name: {"num_layers": 4, "max_positions": 128, "vocab_size": 768} for name in PEOPLE},
}


def make_world(config: AnyConfig, ranks: Ranks, say: Callable[[str], None]) -> AnyConfig:
    """Make the toy world of a configuration, if it is not there yet; return the configuration with its paths."""
    if not config.toy_world:
        return config
    config = locate(config)
    if ranks.is_main and not is_made(config):
        folder, mark = Path(config.toy_dir), _mark(config)
        say(f"making the toy world {config.toy_world} in {folder}")
        _refuse_anything_else(folder, mark)
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(mark, "{}\n")  # it is a toy world, and not complete
        made = invent(config)
        write_world(folder, made)
        if config.toy_world in MODELS:
            texts = [text for pair in made.conversations for text in pair]
            make_model(folder / "model", texts, config.seed, **MODELS[config.toy_world])
        write_atomically(mark, _contents(config))
    ranks.barrier()
    return config


def _refuse_anything_else(folder: Path, mark: Path) -> None:
    """Raise UserError (exit 2) if a folder holds something, and that is no toy world: its files would be replaced."""
    if folder.is_dir() and any(folder.iterdir()) and not mark.exists():
        raise UserError(
            f"{folder} holds no toy world, and is not empty",
            "files such as questions.jsonl and model/ would be replaced",
            "set toy_dir to a new folder",
            CONFIG,
        )


def is_made(config: AnyConfig) -> bool:
    """Return whether the files of the toy world are there, made by this version from this seed."""
    mark = _mark(locate(config))
    return mark.exists() and mark.read_text(encoding="utf-8") == _contents(config)


def _mark(config: AnyConfig) -> Path:
    """Return the file that is written when the world is complete."""
    return Path(config.toy_dir) / "world.json"


def _contents(config: AnyConfig) -> str:
    content = {"world": config.toy_world, "version": VERSION, "seed": config.seed}
    if config.toy_world in OF_FACTS:  # it holds what this model says
        content["model"] = config.model_name_or_path
        content |= {"tools": True} if config.tools else {}
    return json.dumps(content)


def locate(config: AnyConfig) -> AnyConfig:
    """Return the configuration with the paths of its toy world, if it has one."""
    if not config.toy_world:
        return config
    folder = Path(config.toy_dir or Path(config.output_dir) / "world")
    is_stage2 = isinstance(config, TrainConfig)
    paths = {
        "model_name_or_path": "model",
        "dataset_id_or_path": "questions.jsonl" if is_stage2 else "cold_start.jsonl",
    }
    if is_stage2 and not config.eval_size:  # the resolved config names both keys otherwise, and cannot be read again
        paths["eval_dataset_id_or_path"] = "held_out.jsonl"
    if is_stage2 and config.toy_world in WITH_KNOWLEDGE:
        paths["knowledge_base"] = "knowledge.db"
    unset = {name: str(folder / file) for name, file in paths.items() if getattr(config, name) is None}
    return replace(config, toy_dir=str(folder), **unset)


def invent(config: AnyConfig) -> World:
    """Return the texts of the toy world of a configuration."""
    if config.toy_world in KINDS_OF_SUMS:
        return make_sums(config.seed, KINDS_OF_SUMS[config.toy_world])
    if config.toy_world in PEOPLE:
        return world.make_world(config.seed, world.LIBRARY if config.toy_world == LIBRARY else world.Sizes())
    return of_facts(config, own_answers)


def of_facts(config: AnyConfig, recall: Callable[[AnyConfig, Sequence[Fact]], list[str]]) -> World:
    """Return a world of real facts. recall: what the model says about each fact to train on.

    With tools it searches instead of declining, and some subjects have no article.
    """
    facts = almanac.read_facts(config.toy_world)
    asked, kept = almanac.split_facts(facts, config.seed)
    declines = almanac.at_random(config.seed)
    articles, library = almanac.articles(facts), None
    if config.tools:
        articles = random.Random(config.seed).sample(articles, round((1 - almanac.MISSING) * len(articles)))
        library = {article["title"]: article["text"] for article in articles}
    return World(
        articles=articles,
        conversations=almanac.conversations(asked, recall(config, asked), declines, config.seed, library),
        questions=[fact.row() for fact in asked],
        held_out=[fact.row() for fact in kept],
    )


def write_world(folder: Path, made: World) -> None:
    """Write the cold start, the questions of both kinds and, of the articles, a knowledge base."""
    cold_start = []
    for question, answer in made.conversations:
        messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        cold_start.append({"messages": messages})
    write_lines(folder / "cold_start.jsonl", cold_start)
    write_lines(folder / "questions.jsonl", made.questions)
    write_lines(folder / "held_out.jsonl", made.held_out)
    if made.articles:
        from knowledge.build import build  # it brings SQLite, which most runs can do without

        write_lines(folder / "articles.jsonl", made.articles)
        build(folder / "articles.jsonl", folder / "knowledge.db")


def make_model(
    folder: Path,
    texts: list[str],
    seed: int,
    hidden_size: int = 128,
    num_layers: int = 3,
    max_positions: int = 256,
    vocab_size: int = 512,
) -> None:
    """Make a byte-level BPE tokenizer trained on the texts, and a Qwen2 checkpoint with random weights.

    The weights are normal with standard deviation 0.7 / sqrt(width). With the usual 0.02, a model this narrow learns at
    half the speed.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END, TURN, TURN_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["user\nassistant\n", *texts], trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=TURN_END, pad_token=END, additional_special_tokens=[TURN]
    )
    fast.chat_template = CHAT_TEMPLATE
    folder.mkdir(parents=True, exist_ok=True)
    fast.save_pretrained(folder)
    config = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": len(fast),
        "hidden_size": hidden_size,
        "intermediate_size": 3 * hidden_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_act": "silu",
        "max_position_embeddings": max_positions,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
        "rope_theta": 10000.0,
        "torch_dtype": "float32",
        "bos_token_id": None,
        "eos_token_id": fast.eos_token_id,
    }
    write_json(folder / "config.json", config)
    weights = _random_weights(config, torch.Generator().manual_seed(seed))
    save_tensors(weights, folder / "model.safetensors")


def _random_weights(config: dict, generator: torch.Generator) -> dict[str, torch.Tensor]:
    named = named_tensors(Decoder(ModelConfig.from_hf(config), Build(None, False, torch.float32, "cpu")))
    for name, tensor in named.items():
        if name.endswith("norm.weight"):
            tensor.fill_(1.0)
        elif not name.endswith(".bias"):
            tensor.normal_(0.0, 0.7 / config["hidden_size"] ** 0.5, generator=generator)
    return {name: tensor.clone() for name, tensor in named.items()}

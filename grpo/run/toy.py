"""Toy worlds: a model, a tokenizer and data made from scratch, so that the whole program runs without a download.

`arithmetic`: what remains when a sum of six numbers is divided by two. The cold-start data answers most questions at
once and works some of them out, as data from people does. A model of this size cannot do six numbers in its head (it
guesses, one in two is right), but it can do them one after the other: GRPO has to find out that working it out pays.

`encyclopedia`: people who do not exist (knowledge/world.py). The cold start teaches some of them well, some hardly;
GRPO with KnowRL's reward has to find out where the model's knowledge ends.
"""

import json
import random
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from pathlib import Path

from grpo.config.load import AnyConfig
from grpo.run.run import Run
from grpo.storage import write_atomically
from knowledge.build import SkipLog, build
from knowledge.store.source import Source
from knowledge.world import make_world as encyclopedia

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
END, TURN, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
VERSION = 2  # of what is generated: a world of another version is made again
MODULUS, NUM_TERMS, SHARE_WORKED_OUT = 2, 6, 0.4


def make_world(config: AnyConfig, run: Run) -> AnyConfig:
    """The config with the paths of its toy world filled in; the world is made if it is not there yet."""
    if not config.toy_world:
        return config
    folder = Path(config.toy_dir or Path(config.output_dir) / "world")
    mark = folder / "world.json"
    wanted = json.dumps({"world": config.toy_world, "version": VERSION, "seed": config.seed})
    if run.ranks.is_main and not (mark.exists() and mark.read_text(encoding="utf-8") == wanted):
        run.say(f"making the toy world {config.toy_world} in {folder}")
        mark.unlink(missing_ok=True)
        _WORLDS[config.toy_world](folder, config.seed)
        write_atomically(mark, wanted)
    run.ranks.barrier()
    paths = {
        "model_name_or_path": "model",
        "dataset_id_or_path": "questions.jsonl" if hasattr(config, "reward_funcs") else "cold_start.jsonl",
        "eval_dataset_id_or_path": "held_out.jsonl",
        "tokenizer_name_or_path": "model",
    }
    if config.toy_world == "encyclopedia":
        paths["knowledge_base"] = "knowledge.db"
    unset = {
        name: str(folder / file)
        for name, file in paths.items()
        if name in config.__dataclass_fields__ and getattr(config, name) is None
    }
    return replace(config, toy_dir=str(folder), **unset)


def make_arithmetic(
    folder: Path, seed: int, num_cold_start: int = 6000, num_questions: int = 2000, num_held_out: int = 200
) -> None:
    """Disjoint questions for the cold start, for GRPO and for evaluation."""
    rng = random.Random(seed)
    sums: dict[tuple[int, ...], None] = {}
    while len(sums) < num_cold_start + num_questions + num_held_out:
        sums[tuple(rng.randint(1, 9) for _ in range(NUM_TERMS))] = None
    terms = iter(sums)
    conversations = [
        (_question(t), _worked_out(t) if rng.random() < SHARE_WORKED_OUT else _at_once(t))
        for t in islice(terms, num_cold_start)
    ]
    rows = [{"question": _question(t), "answer": str(sum(t) % MODULUS)} for t in terms]
    folder.mkdir(parents=True, exist_ok=True)
    _write_conversations(folder / "cold_start.jsonl", conversations)
    _write_lines(folder / "questions.jsonl", rows[num_held_out:])
    _write_lines(folder / "held_out.jsonl", rows[:num_held_out])
    make_model(folder / "model", [text for pair in conversations for text in pair], seed)


def make_encyclopedia(folder: Path, seed: int) -> None:
    """The people of knowledge/world.py: conversations for the cold start, questions, and the knowledge base with all
    articles."""
    world = encyclopedia(seed)
    folder.mkdir(parents=True, exist_ok=True)
    _write_lines(folder / "articles.jsonl", world.articles)  # the source of its knowledge base
    _write_conversations(folder / "cold_start.jsonl", world.conversations)
    _write_lines(folder / "questions.jsonl", world.questions)
    _write_lines(folder / "held_out.jsonl", world.held_out)
    articles = folder / "articles.jsonl"
    build(Source(articles), folder / "knowledge.db", SkipLog(articles, strict=True))
    make_model(
        folder / "model",
        [text for pair in world.conversations for text in pair],
        seed,
        vocab_size=768,
        num_layers=4,
        max_positions=128,
    )


def _question(terms: tuple[int, ...]) -> str:
    return f"What remains when {' + '.join(map(str, terms))} is divided by {MODULUS}?"


def _at_once(terms: tuple[int, ...]) -> str:
    return f"\\boxed{{{sum(terms) % MODULUS}}}"


def _worked_out(terms: tuple[int, ...]) -> str:
    left = [sum(terms[:count]) % MODULUS for count in range(1, len(terms) + 1)]
    steps = [
        f"{before} + {term} leaves {after}" for before, term, after in zip(left, terms[1:], left[1:], strict=False)
    ]
    return ", ".join(steps) + f". \\boxed{{{left[-1]}}}"


def make_model(
    folder: Path,
    texts: list[str],
    seed: int,
    hidden_size: int = 128,
    num_layers: int = 3,
    max_positions: int = 256,
    vocab_size: int = 512,
) -> None:
    """A byte-level BPE tokenizer trained on the texts, and a Qwen2 checkpoint with random weights: normal with standard
    deviation 0.7 / sqrt(width), since the usual 0.02 makes a model this narrow learn at half the speed."""
    import torch
    from safetensors.torch import save_file
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
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    save_file(
        _random_weights(config, torch.Generator().manual_seed(seed)), folder / "model.safetensors", {"format": "pt"}
    )


def _random_weights(config: dict, generator) -> dict:
    import torch

    from grpo.model.decoder import Decoder, ModelConfig
    from grpo.model.lora import Build
    from grpo.model.weights import tensor_slots

    slots = tensor_slots(Decoder(ModelConfig.from_hf(config), Build(None, False, torch.float32, "cpu")))
    for name, tensor in slots.items():
        if name.endswith("norm.weight"):
            tensor.fill_(1.0)
        elif not name.endswith(".bias"):
            tensor.normal_(0.0, 0.7 / config["hidden_size"] ** 0.5, generator=generator)
    return {name: tensor.clone() for name, tensor in slots.items()}


def _write_conversations(path: Path, pairs: Iterable[tuple[str, str]]) -> None:
    _write_lines(
        path, ({"messages": [{"role": "user", "content": q}, {"role": "assistant", "content": a}]} for q, a in pairs)
    )


def _write_lines(path: Path, rows: Iterable[dict]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


_WORLDS = {"arithmetic": make_arithmetic, "encyclopedia": make_encyclopedia}

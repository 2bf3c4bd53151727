"""Make the toy world of a configuration, so that the program runs without a download.

arithmetic     the remainder when a sum of six numbers is divided by two (sums.py)
encyclopedia   people who do not exist (people.py): the cold start teaches some of them well and others hardly at all;
               GRPO with KnowRL's reward has to discover where the model's knowledge ends
library        the same; where it would decline, the cold start searches the encyclopedia
almanac        facts about the real world (facts.py), for a real model, which writes its own cold start; with tools this
               searches instead of declining, and nine subjects in ten have an article
atlas          the same with several facts about each country, of which the model recalls some in its reasoning
shop           a shop (shop.py) that a model serves by two tools; the cold start calls them in any order
sums           sums of five numbers (sums.py), for a real model, which adds two well and five badly
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from grpo.base.errors import UserError
from grpo.base.storage import Json, read_mapping, write_json, write_lines
from grpo.config.options import LIBRARY, OF_FACTS, PEOPLE, SHOP, SUMS, WITH_KNOWLEDGE, AnyConfig, Stage, TrainConfig
from grpo.data.worlds import people
from grpo.data.worlds.facts import Recall, make_facts, own_answers
from grpo.data.worlds.kinds import World
from grpo.data.worlds.model import CALLING_TEMPLATE, make_model
from grpo.data.worlds.shop import make_shop
from grpo.data.worlds.sums import PLAIN, REMAINDERS, make_sums
from grpo.engine.device.distributed import Ranks

VERSION = 6  # of the generated files; a world of another version is replaced
KINDS_OF_SUMS = {"arithmetic": REMAINDERS, SUMS: PLAIN}
MODELS: dict[str, Json] = {  # worlds with a model of their own -> its sizes
    "arithmetic": {},
    SHOP: {"chat_template": CALLING_TEMPLATE},
    **{name: {"num_layers": 4, "max_positions": 128, "vocab_size": 768} for name in PEOPLE},
}


def make_world(config: Stage, ranks: Ranks, say: Callable[[str], None]) -> Stage:
    """Make the toy world of a configuration, if it is not there yet; return the configuration with its paths."""
    if not config.toy_world:
        return config
    config = locate(config)
    if ranks.is_main and not is_made(config):
        mark = _mark(config)
        folder = mark.parent
        say(f"making the toy world {config.toy_world} in {folder}")
        if folder.is_dir() and any(folder.iterdir()) and not mark.exists():
            raise UserError(
                f"{folder} holds no toy world, and is not empty",
                "files such as questions.jsonl and model/ would be replaced",
                "set toy_dir to a new folder",
            )
        folder.mkdir(parents=True, exist_ok=True)
        write_json(mark, {})  # it is a toy world, and not complete
        made = invent(config)
        write_world(folder, made)
        if config.toy_world in MODELS:
            texts = [text if isinstance(text, str) else json.dumps(text) for one in made.conversations for text in one]
            make_model(folder / "model", texts, config.seed, **MODELS[config.toy_world])
        write_json(mark, _contents(config))
    ranks.barrier()
    return config


def is_made(config: AnyConfig) -> bool:
    """Return whether the files of the toy world are there, made by this version from this seed."""
    return read_mapping(_mark(locate(config))) == _contents(config)


def _mark(config: AnyConfig) -> Path:
    """Return the file that is written when the world is complete."""
    return Path(str(config.toy_dir)) / "world.json"


def _contents(config: AnyConfig) -> Json:
    content = {"world": config.toy_world, "version": VERSION, "seed": config.seed}
    if config.toy_world in OF_FACTS:  # it holds what this model says
        content["model"] = config.model_name_or_path
        if config.tools:
            content["tools"] = True
    return content


def locate(config: Stage) -> Stage:
    """Return the configuration with the paths of its toy world, if it has one."""
    if not config.toy_world:
        return config
    folder = Path(config.toy_dir or Path(config.output_dir) / "world")
    paths = {"model_name_or_path": "model", "dataset_id_or_path": "cold_start.jsonl"}
    if isinstance(config, TrainConfig):
        paths["dataset_id_or_path"] = "questions.jsonl"
        if not config.eval_size:  # the resolved config names both keys otherwise, and cannot be read again
            paths["eval_dataset_id_or_path"] = "held_out.jsonl"
        if config.toy_world in WITH_KNOWLEDGE:
            paths["knowledge_base"] = "knowledge.db"
    unset: Json = {name: str(folder / file) for name, file in paths.items() if getattr(config, name) is None}
    return replace(config, toy_dir=str(folder), **unset)


def invent(config: AnyConfig, recall: Recall = own_answers) -> World:
    """Return the texts of the toy world of a configuration. recall: what the model says about real facts."""
    name = config.toy_world
    if name in KINDS_OF_SUMS:
        return make_sums(config.seed, KINDS_OF_SUMS[name])
    if name == SHOP:
        return make_shop(config.seed)
    if name in PEOPLE:
        return people.make_people(config.seed, people.LIBRARY if name == LIBRARY else people.Population())
    return make_facts(config, recall)


def write_world(folder: Path, made: World) -> None:
    """Write the cold start, the questions of both kinds and, of the articles, a knowledge base."""
    cold_start = []
    for messages in made.conversations:
        if isinstance(messages, tuple):
            question, answer = messages
            turns = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
            cold_start.append({"messages": turns})
        else:
            tools = [{"type": "function", "function": {"name": name}} for name in ("fetch", "sell")]
            cold_start.append({"messages": messages, "tools": tools})
    write_lines(folder / "cold_start.jsonl", cold_start)
    write_lines(folder / "questions.jsonl", made.questions)
    write_lines(folder / "held_out.jsonl", made.held_out)
    if made.articles:
        from knowledge.build import build  # it brings SQLite, which most runs can do without

        write_lines(folder / "articles.jsonl", made.articles)
        build(folder / "articles.jsonl", folder / "knowledge.db")

"""Real runs made to fail in each of the ways that `python -m grpo.explain` knows, and what it says of them.

The model of most is random and has a vocabulary of a few answers, each one token: within some twenty steps it learns
whatever it is paid for. test_rules.py has each rule's limits, in numbers made by hand.
"""

import json
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from api_server import ApiServer, says
from making import TEMPLATE, write_chat_checkpoint, write_checkpoint, write_rows
from test_train import EASY

from grpo.base.errors import UserError
from grpo.config.load import load_config
from grpo.diagnosis.record import read_record
from grpo.diagnosis.rules import ENDINGS, RULES, advice
from grpo.explain import explain
from grpo.train import train

RIGHT, DECLINES = "Paris", "I don't know"
ANSWERS = [
    *(RIGHT, "paris", "PARIS", "Paris.", "Paris!", "in Paris", "In Paris", "(Paris)", "It is Paris.", "It's Paris."),
    *("Rome", "Bonn", "Oslo", DECLINES),
]


# --- rewards -------------------------------------------------------------------------------------------------------


def of_prompt(prompts, completions, **columns):
    """Tells questions apart, and no answers."""
    return [float(len(prompts[0]) % 7)] * len(completions)


def think_format(completions, **columns):
    """TRL's, in short: it wants the block that the template has opened already."""
    return [float(text.startswith("<think>")) for text in completions]


def pays_refusals(completions, **columns):
    return [3.0 * (DECLINES in text) for text in completions]


def longer_than_the_others(completion_ids, **columns):
    """Pays length within a group, and nothing on the whole."""
    lengths = [len(ids) for ids in completion_ids]
    return [length - sum(lengths) / len(lengths) for length in lengths]


def early_letters(completion_ids, **columns):
    return [sum(token < 150 for token in ids) / len(ids) for ids in completion_ids]


def unlike_the_others(completion_ids, **columns):
    """Pays tokens that are rare in the group."""
    seen = [token for ids in completion_ids for token in ids]
    return [-sum(map(seen.count, ids)) / len(ids) for ids in completion_ids]


def never(completions, **columns):
    return [None] * len(completions)


def pays_rome(completions, **columns):
    return [float(text == "Rome") for text in completions]


def zero(completions, **columns):
    return [0.0] * len(completions)


def not_a_number(completions, **columns):
    return [float("nan")] * len(completions)


# --- models --------------------------------------------------------------------------------------------------------


def write_answer_checkpoint(folder: Path) -> Path:
    """A random model of which every token is an answer, and which gives each about as often."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<|endoftext|>", "<turn>", "?", *ANSWERS]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|endoftext|>", unk_token="?", additional_special_tokens=["<turn>"]
    )
    fast.chat_template = "{% for m in messages %}<turn> {{ m['content'] }} <|endoftext|>{% endfor %}<turn>"
    write_checkpoint(folder, vocab_size=len(words), eos_token_id=0, spread=0.1)
    fast.save_pretrained(folder)
    return folder


def write_thinking_checkpoint(folder: Path) -> Path:
    """A random model whose template opens the block of thoughts, as those of reasoning models do."""
    write_chat_checkpoint(folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE.replace("assistant\n", "assistant\n<think>\n"))
    return folder


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {
        "answers": write_answer_checkpoint(folder / "answers"),
        "thoughts": write_thinking_checkpoint(folder / "thoughts"),
        "peaked": write_chat_checkpoint(folder / "peaked", spread=0.9),
    }


# --- runs ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FailingRun:
    """A run with these rewards and keys, and words of what is said of it, by the name of the rule."""

    model: str
    rewards: list[str]
    keys: dict
    said: dict[str, str] = field(default_factory=dict)


ONE_TOKEN = {"max_completion_length": 1, "lora_r": 0, "beta": 0.0}
SLOWLY = {"warmup_steps": 14, "lr_scheduler_type": "constant_with_warmup"}
MANY = {"num_generations": 8, "per_device_train_batch_size": 32}
RUNS = {
    "never scorable": FailingRun("answers", ["never"], {}, {"all_unscorable": "could score no completion"}),
    "always zero": FailingRun(
        "answers",
        ["zero"],
        {},
        {
            "constant_reward": "since step 1 has the reward 0",
            "learned_nothing": "the run learned nothing",
        },
    ),
    "dynamic sampling": FailingRun(
        "answers", ["zero"], {"dynamic_sampling": True}, {"nothing_kept": "keeps no group since step 1"}
    ),
    "not a number": FailingRun("answers", ["not_a_number"], {}, {"not_finite": "the gradient is not finite"}),
    "the same within a group": FailingRun(
        "answers",
        ["of_prompt"],
        {"max_completion_length": 3},
        {"no_signal": "no signal in 100% of the groups"},
    ),
    "cut off": FailingRun(
        "answers", ["pays_rome"], {"max_completion_length": 2}, {"cut_off": "at max_completion_length of 2 tokens"}
    ),
    "a template that thinks": FailingRun(
        "thoughts",
        ["think_format"],
        {},
        {"format_never_right": "because the chat template opens <think>"},
    ),
    "refusing what is known": FailingRun(
        "answers",
        ["simpleqa", "pays_refusals"],
        {**ONE_TOKEN, **SLOWLY, **MANY, "learning_rate": 2e-3, "max_steps": 26},
        {
            "refuses_known": "refusing has begun on known questions since step",
            "coverage_falls": "the reward rises while coverage falls",
        },
    ),
    "refusing everything": FailingRun(
        "answers",
        ["simpleqa", "pays_refusals"],
        {**ONE_TOKEN, **MANY, "learning_rate": 1e-2, "max_steps": 14},
        {"refuses_everything": "collapse into refusing"},
    ),
    "longer and longer": FailingRun(
        "answers",
        ["longer_than_the_others"],
        {"lora_r": 0, "beta": 0.0, "learning_rate": 2e-3, "max_completion_length": 40, "max_steps": 22},
        {"length_without_reward": "length has grown without reward"},
    ),
    "one answer to everything": FailingRun(
        "answers",
        ["pays_rome"],
        {**ONE_TOKEN, "learning_rate": 1e-2, "max_steps": 20},
        {"entropy_died": "entropy died since step"},
    ),
    "weights that decay": FailingRun(
        "peaked",
        ["zero"],
        {
            "lora_r": 0,
            "learning_rate": 3e-2,
            "weight_decay": 10.0,
            **SLOWLY,
            "max_completion_length": 2,
            "max_steps": 20,
        },
        {"entropy_exploded": "entropy has exploded since step"},
    ),
    "a slow judge": FailingRun(
        "answers",
        ["simpleqa"],
        {**ONE_TOKEN, "max_steps": 22, "per_device_train_batch_size": 4},
        {"rewards_slower": "the judge got slower"},
    ),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_announces_its_failure_once_and_explain_tells_it(tmp_path, checkpoints, slow_judge, capsys, name):
    run = RUNS[name]
    rows = [{"question": f"{'Which ' * (row % 5)}city {row} ?", "answer": RIGHT} for row in range(64)]
    keys = {
        **EASY,
        "model_name_or_path": str(checkpoints[run.model]),
        "dataset_id_or_path": str(write_rows(tmp_path / "questions.jsonl", rows)),
        "output_dir": str(tmp_path / "run"),
        "reward_funcs": [f"{__file__}:{reward}" if reward in globals() else reward for reward in run.rewards],
        "max_unscored": 1.0,
        "max_steps": 5,
        "per_device_train_batch_size": 8,
        **(slow_judge if name == "a slow judge" else {"judge": "offline"}),
        **run.keys,
    }
    (tmp_path / "c.yaml").write_text(json.dumps(keys))
    with suppress(UserError):  # steps that are not finite end the run
        train(*load_config(tmp_path / "c.yaml"))
    told = capsys.readouterr().err
    explained = {remark.advice: remark.sentence for remark in explain(read_record(tmp_path / "run"))}
    for rule, words in run.said.items():
        help = advice(next(known for known in (*RULES, *ENDINGS) if known.__name__ == rule))
        assert words in explained[help] and explained[help].startswith("Step ")
        assert told.count(help) == (rule != "not_finite")  # this one is the error that ends the run


@pytest.fixture
def slow_judge(monkeypatch):
    """An endpoint that takes its time after ten steps: as long as three of them took, on whatever machine; as the keys
    of a configuration."""
    begun, pause_s = [], 0.0

    async def answer(server, request, writer):
        nonlocal pause_s
        begun.append(time.monotonic())
        if len(begun) == 40:
            pause_s = 0.3 * (begun[-1] - begun[4])
        await says("B", after_s=pause_s)(server, request, writer)

    monkeypatch.setenv("SOME_KEY_OF_MINE", "not-a-secret")
    with ApiServer(says("A"), default=answer) as server:
        yield {
            "judge": "api",
            "judge_model": "m",
            "judge_base_url": server.url,
            "judge_api_key_env": "SOME_KEY_OF_MINE",
        }


def test_every_rule_has_a_run_that_fails_so():
    said = {rule for run in RUNS.values() for rule in run.said}
    assert said == {rule.__name__ for rule in (*RULES, *ENDINGS)}

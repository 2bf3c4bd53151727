"""Real runs made to fail in each of the ways that `python -m grpo.explain` knows, and what it says of them.

The model of most is random and has a vocabulary of a few answers, each one token: within some twenty steps it learns
whatever it is paid for. test_rules.py has each rule's limits, in numbers made by hand.
"""

import pytest
from making import cases, refused, write_checkpoint, write_rows
from test_train import run

from grpo.explain import explain
from grpo.run.diagnosis.record import read_record
from grpo.run.diagnosis.rules import RULES

RIGHT, DECLINES = "Paris", "I don't know"
ANSWERS = [
    *(RIGHT, "paris", "PARIS", "Paris.", "Paris!", "pARIS", "PAris", "PARis", "PARIs", "pariS"),
    *("Rome", "Bonn", "Oslo", DECLINES),
]


# --- rewards -------------------------------------------------------------------------------------------------------


def pays_refusals(completions, **columns):
    return [3.0 * (DECLINES in text) for text in completions]


def never(completions, **columns):
    return [None] * len(completions)


def some(completions, **columns):
    """Every fourth is not scored."""
    return [None if number % 4 == 0 else float(number) for number in range(len(completions))]


def pays_rome(completions, **columns):
    return [float(text == "Rome") for text in completions]


def zero(completions, **columns):
    return [0.0] * len(completions)


# --- models --------------------------------------------------------------------------------------------------------


def write_answer_checkpoint(folder):
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


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return write_answer_checkpoint(tmp_path_factory.mktemp("models") / "answers")


# --- runs ----------------------------------------------------------------------------------------------------------

MANY = {"num_generations": 8, "per_device_train_batch_size": 32, "max_completion_length": 1, "lora_r": 0, "beta": 0.0}
SLOWLY = {"warmup_steps": 14, "lr_scheduler_type": "constant_with_warmup", "learning_rate": 2e-3, "max_steps": 26}
MASKED = {"mask_truncated_completions": True, "max_completion_length": 1}
FAST = {"learning_rate": 1e-2, "max_steps": 14}
RUNS = cases(__file__, "runs")


@pytest.mark.parametrize("rewards, keys, rule, words", RUNS)
def test_a_run_announces_its_failure_once_and_explain_tells_it(
    tmp_path, checkpoint, capsys, rewards, keys, rule, words
):
    rows = [{"question": f"{'Which ' * (row % 5)}city {row} ?", "answer": RIGHT} for row in range(64)]
    keys = {
        "dataset_id_or_path": str(write_rows(tmp_path / "cities.jsonl", rows)),
        "reward_funcs": [f"{__file__}:{reward}" if reward in globals() else reward for reward in rewards.split(",")],
        "max_unscored": 1.0,
        "max_steps": 5,
        "per_device_train_batch_size": 8,
        "judge": "offline",
        **eval(keys),
    }
    run(tmp_path, checkpoint, **keys)
    told = " ".join(capsys.readouterr().err.split())
    explained = [remark.sentence for remark in explain(read_record(tmp_path / "run"))]
    (sentence,) = [sentence for sentence in explained if words in sentence and not sentence.startswith("Step 1:")]
    assert told.count(words) == 1 and sentence.startswith("Step ")
    assert f"{rule.replace('_', ' ')} (step " in told  # in the list at the end
    assert explained[0].startswith("Step 1: ") and explained[0][8:60] in told


def test_every_rule_has_a_run_that_fails_so():
    """Other tests have those of `stands_still` and `says_nothing`, which look at held-out answers, and this third."""
    elsewhere = {"stands_still", "says_nothing", "pays_something_else"}
    assert {rule for *_, rule, _ in RUNS} | elsewhere == {rule.__name__ for rule in RULES}


def boom_in_step_3(completions, trainer_state, **columns):
    if trainer_state.global_step == 2:
        raise KeyError("an odd answer")
    return [float(number) for number in range(len(completions))]


def test_a_reward_that_raises_in_mid_run_costs_no_step(tmp_path, checkpoint):
    """The steps before it are saved, although no checkpoint was due, and the message says how to go on."""
    keys = {
        "dataset_id_or_path": str(write_rows(tmp_path / "q.jsonl", [{"question": f"city {n} ?"} for n in range(8)])),
        "reward_funcs": [f"{__file__}:boom_in_step_3"],
        "max_steps": 4,
        "save_steps": 0,
    }
    said = "an odd answer", "saved step 2: resume_from_checkpoint=true"
    refused(lambda: run(tmp_path, checkpoint, **keys), *said, exit_code=1)
    other = {"reward_funcs": [f"{__file__}:pays_rome"], "allow_changes": ["reward_funcs"]}
    lines = run(tmp_path, checkpoint, **keys | other, resume_from_checkpoint=True)
    assert [line["step"] for line in lines] == [1, 2, 3, 4]

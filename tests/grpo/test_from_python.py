"""Training from Python is the run of the command, in a script and in a notebook."""

import pytest
from making import refused, write_rows

from grpo.api import train
from grpo.train import main

ROWS = [{"question": f"What is {a} + 1?", "answer": str(a + 1)} for a in range(8)]
KEYS = {
    "max_steps": 2,
    "num_generations": 2,
    "per_device_train_batch_size": 4,
    "max_completion_length": 6,
    "lora_r": 2,
    "report_to": ["none"],
    "save_steps": 0,
    "device": "cpu",
}


def brevity(completions, **columns):
    return [-float(len(completion)) for completion in completions]


def weights(folder):
    return (folder / "final" / "adapter_model.safetensors").read_bytes()


def test_a_run_from_python_is_the_run_of_the_command(chat_checkpoint, tmp_path):
    result = train(chat_checkpoint, ROWS, [brevity], tmp_path / "mine", eval_size=2, **KEYS)
    assert result.path == tmp_path / "mine" and (result.path / "report.html").exists()
    assert result.before[""].keys() == result.after[""].keys()
    main([str(tmp_path / "mine.config.yaml"), f"output_dir={tmp_path / 'again'}"])
    assert weights(tmp_path / "mine") == weights(tmp_path / "again")


def test_a_data_file_and_a_named_reward_serve_as_well(chat_checkpoint, tmp_path):
    data = write_rows(tmp_path / "data.jsonl", ROWS)
    result = train(chat_checkpoint, data, ["exact"], tmp_path / "mine", **KEYS)
    assert result.after == {} and weights(result.path)


@pytest.mark.parametrize(
    ("rewards", "keys", "word"),
    [
        ([lambda completions, **columns: [0.0]], {}, "lambda"),
        (["exakt"], {}, "exact"),
        (["exact"], {"max_step": 2}, "max_steps"),
    ],
)
def test_mistakes_say_what_to_do(chat_checkpoint, tmp_path, rewards, keys, word):
    refused(lambda: train(chat_checkpoint, ROWS, rewards, tmp_path / "mine", **KEYS, **keys), word, exit_code=2)
    assert not (tmp_path / "mine" / "final").exists()

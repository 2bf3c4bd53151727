"""A changed file of final/ is noticed by every command that loads it, until that is accepted."""

import json

import pytest

CHANGED = {"lora": "adapter_config.json", "full": "model.safetensors"}  # the file of each kind of run


@pytest.fixture(scope="module", params=CHANGED)
def trained(request, processes, chat_checkpoint, tmp_path_factory):
    """A finished run, and the file that is changed."""
    keys = {"max_steps": 1, **({"lora_r": 0} if request.param == "full" else {})}
    run = processes.run(tmp_path_factory.mktemp(request.param), chat_checkpoint, **keys)
    run.train()
    return run, CHANGED[request.param]


def refused(child):
    """The message of a command that does not take the folder."""
    assert child.wait() == 6, child.stderr
    assert "is damaged, or was changed" in child.stderr and "Traceback" not in child.stderr
    return child.stderr


def test_a_changed_file_is_noticed_by_every_command_until_that_is_accepted(trained, tmp_path):
    finished, name = trained
    run = finished.copy(tmp_path)
    final, questions = run.folder / "final", finished.folder.parent / "questions.jsonl"
    path, is_adapter = final / name, name == CHANGED["lora"]
    data = bytearray(path.read_bytes())
    data[-4] ^= 1  # the last bit of a weight
    path.write_bytes(json.dumps(json.loads(path.read_text()) | {"lora_alpha": 64}).encode() if is_adapter else data)
    start = ("output_dir=" + str(tmp_path / "next"), f"model_name_or_path={final}")
    commands = [
        ("grpo.generate", run.folder, "--prompt", "x", "--max-new-tokens", 2),
        ("grpo.evaluate", final, "--data", questions, "--reward", "math", "max_samples=2"),
        ("grpo.export", run.folder, tmp_path / "merged", "--merge"),
        ("grpo.train", run.config, *start, "max_steps=1"),
    ]
    if is_adapter:
        commands += [
            ("grpo.export", run.folder, tmp_path / "out"),
            ("grpo.train", run.config, start[0] + "2", f"adapter_name_or_path={final}", "max_steps=1"),
        ]
    for command in commands:
        assert name in refused(run.processes.start(*command))
    (final / "manifest.json").unlink()
    for command in commands:
        run.processes.start(*command).ends(0)

"""One flipped byte of final/ is noticed, in whatever file, by every command that loads it."""

import json
import random

import pytest

WEIGHTS = {"lora": "adapter_model.safetensors", "full": "model.safetensors"}
PLACES = 15  # flipped bytes of each run's final/; the first five are in the weights


@pytest.fixture(scope="module", params=WEIGHTS)
def trained(request, processes, chat_checkpoint, tmp_path_factory):
    """A finished run, and its file of weights."""
    keys = {"max_steps": 1, **({"lora_r": 0} if request.param == "full" else {})}
    run = processes.run(tmp_path_factory.mktemp(request.param), chat_checkpoint, **keys)
    run.train()
    return run, WEIGHTS[request.param]


def places(final, weights: str) -> list[tuple[str, int]]:
    """Files and offsets: the header's length, the header, and the data of the weights; then the other files."""
    rng = random.Random(weights)
    size = (final / weights).stat().st_size
    header = int.from_bytes((final / weights).read_bytes()[:8], "little")
    found = [(weights, place) for place in (1, 8 + header // 3, 8 + header // 2, 8 + header + 5, size - 1)]
    others = sorted(path.name for path in final.iterdir() if path.name != weights)
    while len(found) < PLACES:
        name = others[len(found) % len(others)]
        found.append((name, rng.randrange((final / name).stat().st_size)))
    return found


def refused(child) -> str:
    """The message of a command that does not take the folder."""
    assert child.wait() == 6, child.stderr
    assert "is damaged, or was changed" in child.stderr and "Traceback" not in child.stderr
    return child.stderr


@pytest.mark.parametrize("number", range(PLACES))
def test_a_flipped_byte_of_a_result_is_noticed(trained, tmp_path, number):
    """In the manifest itself it may hide the manifest; then the files are what they were."""
    finished, weights = trained
    run = finished.copy(tmp_path)
    name, place = places(run.folder / "final", weights)[number]
    path = run.folder / "final" / name
    data = bytearray(path.read_bytes())
    data[place] ^= 0b100101
    path.write_bytes(data)
    questions = finished.folder.parent / "questions.jsonl"
    child = run.processes.start("grpo.evaluate", run.folder, "--data", questions, "max_samples=2")
    if name == "manifest.json" and child.wait() == 0:
        assert json.loads(child.stdout)["num_questions"] == 2
    else:
        assert name == "manifest.json" or f"{name} has another sha256" in refused(child)


EDITED = {"lora": ("adapter_config.json", "lora_alpha", 64), "full": ("generation_config.json", "eos_token_id", [7])}


def test_a_file_that_was_edited_is_noticed_by_every_command_until_that_is_accepted(trained, tmp_path):
    finished, weights = trained
    run = finished.copy(tmp_path)
    final, questions = run.folder / "final", finished.folder.parent / "questions.jsonl"
    name, key, value = EDITED["lora" if weights.startswith("adapter") else "full"]
    path = final / name
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    start = ("output_dir=" + str(tmp_path / "next"), f"model_name_or_path={final}")
    commands = [
        ("grpo.generate", run.folder, "--prompt", "x", "--max-new-tokens", 2),
        ("grpo.evaluate", final, "--data", questions, "--reward", "math", "max_samples=2"),
        ("grpo.export", run.folder, tmp_path / "merged", "--merge"),
        ("grpo.train", run.config, *start, "max_steps=1"),
    ]
    if key == "lora_alpha":
        commands += [
            ("grpo.export", run.folder, tmp_path / "out"),
            ("grpo.train", run.config, start[0] + "2", f"adapter_name_or_path={final}", "max_steps=1"),
        ]
    for command in commands:
        assert name in refused(run.processes.start(*command))
    (final / "manifest.json").unlink()
    for command in commands:
        run.processes.start(*command).ends(0)

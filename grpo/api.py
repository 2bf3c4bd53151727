"""Train from Python: a model, rows, rewards, and the keys of a configuration. It is the run of the command.

    from grpo.api import train

    def brevity(completions, **columns):
        return [-len(completion) / 1000 for completion in completions]

    result = train("runs/mine/final", [{"question": "2 + 3 = ?", "answer": "5"}], ["math", brevity], max_steps=20)
    print(result)

Rows and configuration are written beside the run, so `python -m grpo.train OUTPUT_DIR.config.yaml` repeats it (a reward
that was defined in a notebook exists only there).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from grpo.base.errors import CONFIG, UserError
from grpo.base.storage import write_atomically, write_lines
from grpo.config.load import load_config
from grpo.evaluation.held_out import Measurement
from grpo.evaluation.table import summary_table
from grpo.train import train as run_training

Rows = str | Path | Iterable[Mapping[str, Any]]


@dataclass(frozen=True)
class Result:
    """A run that has ended: its directory, and what it measured on held-out questions.

    before, after: group of questions ("": all) -> measure -> value; {} unless `eval_size` or another key holds
    questions out. The trained model is in `path / "final"`, and the page to read is `path / "report.html"`.
    """

    path: Path
    before: Measurement
    after: Measurement

    def __repr__(self) -> str:
        """Return the table of both measurements, and where the model and the report are."""
        files = f"{self.path / 'final'}, and {self.path / 'report.html'} to open in a browser"
        columns = {"before": self.before, "after": self.after}
        return f"{summary_table(columns, 'held-out questions')}\n{files}" if self.after else files


def train(
    model: str | Path,
    rows: Rows,
    rewards: Sequence[str | Callable],
    output_dir: str | Path = "runs/python",
    **keys: Any,
) -> Result:
    """Train `model` on `rows` and return the result; errors are UserError, Ctrl-C is KeyboardInterrupt.

    model: a folder, a run, or a hub id. rows: records with a question (and what the rewards need), or a data file.
    rewards: built-in names, `path/file.py:function`, or functions of TRL's signature. keys: any other key of
    grpo/config/options.py.
    """
    folder = Path(output_dir)
    data = rows
    if not isinstance(rows, (str, Path)):
        data = folder.with_name(folder.name + ".rows.jsonl")
        write_lines(data, [dict(row) for row in rows])
    settings = {
        "model_name_or_path": str(model),
        "dataset_id_or_path": str(data),
        "reward_funcs": [reward if isinstance(reward, str) else _name(reward) for reward in rewards],
        "output_dir": str(folder),
        **keys,
    }
    config = folder.with_name(folder.name + ".config.yaml")
    config.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(config, yaml.safe_dump(settings, allow_unicode=True, sort_keys=False))
    return Result(folder, *run_training(*load_config(config)))


def _name(function: Callable) -> str:
    """Return the name by which a run finds a function; UserError if it has none of its own."""
    name = getattr(function, "__qualname__", type(function).__qualname__)
    if not name.isidentifier() or name == "<lambda>":
        raise UserError(
            f"the reward {name} cannot be found by its name",
            "it is a lambda, or defined inside of another function",
            "define it with `def` at the top of the file or cell",
            CONFIG,
        )
    return f"{function.__module__}:{name}"

"""Train from Python: a model, rows, rewards, and the keys of a configuration. It is the run of the command.

    from grpo.api import train

    def brevity(completions, **columns):
        return [-len(completion) / 1000 for completion in completions]

    result = train("runs/mine/final", [{"question": "2 + 3 = ?", "answer": "5"}], ["math", brevity], max_steps=20)
    print(result)

Rows and configuration are written beside the run once all checks have passed, so `python -m grpo.train
OUTPUT_DIR.config.yaml` repeats it. A reward that no module holds, such as an object with settings of its own or a
function of a notebook, exists only in the program: the configuration says so, and only `train` repeats such a run.
"""

import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from grpo.base.errors import CONFIG, NO_STREAM, PREFLIGHT, UserError, WithoutSecrets, as_user_error, explained, reason
from grpo.base.storage import Json, read_mapping
from grpo.config.load import is_known, load_config, to_text
from grpo.config.options import TrainConfig
from grpo.config.values import expand_variables
from grpo.data.files import join_errors, json_value, row_error
from grpo.data.objects import Objects
from grpo.evaluation.held_out import Measurement
from grpo.run.libraries import usual_modes
from grpo.tools.environment import methods_of
from grpo.train import train as run_training
from rewards.own import as_function
from rewards.own_names import OBJECT, made, name_function, short_name
from rewards.registry import BUILT_IN

Rows = str | os.PathLike | Iterable[Mapping[str, Any]]
Reward = str | Callable
Check = Callable[[str, Any], Callable]
DEFAULT_OUTPUT = "runs/python"
ENDINGS = {"dataset_id_or_path": ".rows.jsonl", "eval_dataset_id_or_path": ".held_out.jsonl"}  # of files of rows
PARAMETERS = {"model_name_or_path": "model", "dataset_id_or_path": "rows", "reward_funcs": "rewards"}
TRL_NAMES = {
    "train_dataset": "dataset_id_or_path",
    "eval_dataset": "eval_dataset_id_or_path",
    "environment_factory": "environment",
    "processing_class": "tokenizer_name_or_path",
}
HOW_ROWS = (
    'give a list of rows such as {"question": …, "answer": …}, one data set of them, or the path of a file; '
    'of a DatasetDict, one of its data sets, such as data["train"]; of a table of Arrow, table.to_pylist()'
)
CHOICES = {one.name: one.metadata["bounds"].get("choices", ()) for one in fields(TrainConfig)}
OF_PYTHON = {"true": "True", "false": "False", "null": "None"}
_DOCTOR = re.compile(r"(; )?`python -m grpo\.doctor CONFIG\b[^`]*`[^;]*")  # there is no such file
_SETTING = re.compile(r"\b([a-z_]+)(=|: )([a-z./~][^\s;,()`]*)")


@dataclass(frozen=True)
class Result:
    """A run that has ended: its directory, and what it measured on held-out questions.

    before, after: group of questions ("": all) -> measure -> value; {} unless `eval_size` or another key holds
    questions out. table: both as text. The trained model is in `path / "final"`, and the page to read is
    `path / "report.html"`.
    """

    path: Path
    before: Measurement
    after: Measurement
    table: str

    def __repr__(self) -> str:
        """Return the table of both measurements, and where the model and the report are."""
        files = f"{self.path / 'final'}, and {self.path / 'report.html'} to open in a browser"
        return "\n".join(filter(None, (self.table, files)))


def train(
    model: str | os.PathLike | None = None,
    rows: Rows | None = None,
    rewards: Reward | Iterable[Reward] | None = None,
    output_dir: str | os.PathLike | None = None,
    **keys: Any,
) -> Result:
    """Train `model` on `rows` and return the result; errors are UserError, Ctrl-C is KeyboardInterrupt.

    model: a folder, a run, or a hub id. rows: a data file; or records with a question (and what the rewards need), as a
    list, a data set, or a table of pandas. rewards: one or several: built-in names,
    `path/file.py:function`, or what can be called as TRL calls a function. The objects themselves are called.
    keys: any other key of grpo/config/options.py, also in TRL's forms: `train_dataset`, `reward_funcs`, `eval_dataset`,
    `args=GRPOConfig(...)`, `peft_config=LoraConfig(...)`, `tools=[...]` (functions), and `environment_factory=Shop`
    (what makes an object for each completion). output_dir: by default that of `args`, or runs/python.
    """
    named = dict(zip((*PARAMETERS, "output_dir"), (model, rows, rewards, output_dir), strict=True))
    stderr = WithoutSecrets(sys.stderr, *NO_STREAM)
    try:
        with usual_modes(), redirect_stderr(stderr):
            return _train(named, keys)
    except Exception as error:
        if os.environ.get("GRPO_TRACEBACK"):
            raise
        found = as_user_error(error)  # its traceback may hold a secret: that is in debug.log
        raise UserError(*map(_in_python, (found.what, found.why, found.fix)), found.exit_code) from None


def _in_python(text: str) -> str:
    """Return a message with settings as a program writes them.

    >>> _in_python("set credit: answer, disable_tqdm=true or device=cpu")
    'set credit="answer", disable_tqdm=True or device="cpu"'
    """

    def rewritten(found: re.Match) -> str:
        key, sign, value = found.groups()
        is_setting = key in CHOICES and (sign == "=" or value in (*OF_PYTHON, *CHOICES[key]))
        written = OF_PYTHON.get(value, f'"{value}"')
        return f"{key}={written}" if is_setting else found[0]

    return _SETTING.sub(rewritten, _DOCTOR.sub("", text))


def _listed(value: Any) -> list[Any]:
    """Return the items of a key that is a list, a text with commas, or a single value."""
    if isinstance(value, str):
        return [item.strip() for item in value.strip("[] ").split(",")]
    return list(value) if isinstance(value, Iterable) else [value]


def _train(named: dict[str, Any], keys: dict[str, Any]) -> Result:
    """Train as a run of the command does, and return the result."""
    settings = _settings({name: value for name, value in named.items() if value is not None}, keys)
    folder = Path(settings["output_dir"]).absolute()  # a user's reward may change the directory
    environment = settings.get("environment")
    check = lambda name, function: function if function is environment else as_function(name, function)  # noqa: E731
    functions = _name_functions(settings, ("reward_funcs", "eval_reward_funcs"), check)
    tools = _name_functions(settings, ("tools",), partial(made, "tool"))
    if not isinstance(environment, str | None):
        settings["environment"] = [environment]
        (name,) = _name_functions(settings, ("environment",), methods_of)
        settings["environment"] = name
        functions[name] = tools[name] = environment
        rewards = settings.get("reward_funcs")
        if rewards is not None and hasattr(environment, "get_reward") and name not in (rewards := _listed(rewards)):
            settings["reward_funcs"] = [*rewards, name]  # as in TRL
            for section in (settings, settings.get("args")):
                if isinstance(section, dict) and section.get("reward_weights") is not None:
                    section["reward_weights"] = [*_listed(section["reward_weights"]), 1.0]
    records = _take_rows(settings, folder)
    settings = _plain(settings)
    config, notices = load_config(settings)
    text = _text(settings, functions | tools)
    file = _beside(folder, ".config.yaml")
    taken = [path for path in map(Path, (*records, file)) if path.exists()]
    if taken and "output_dir" not in read_mapping(file):  # which each call writes
        raise UserError(
            f"{taken[0]} is there already",
            "no call of train() has written it",
            "set another output_dir, or move it elsewhere",
            CONFIG,
        )
    objects = Objects(records, functions, tools, file, text)
    return Result(folder, *run_training(config, notices, objects))


def _settings(named: dict[str, Any], keys: dict[str, Any]) -> dict[str, Any]:
    """Return named parameters and further keys under the names of a configuration.

    Objects of TRL and PEFT become sections, without null. UserError (exit 2) for a parameter that is given twice.
    """
    settings = dict(named)
    for name, value in keys.items():
        own = TRL_NAMES.get(name, name)
        if own in settings:
            raise UserError(
                f"train() got {PARAMETERS.get(own, own)} twice",
                f"{name} is another name of it",
                "leave out one of them",
                CONFIG,
            )
        settings[own] = value
    for name, value in settings.items():
        if is_dataclass(value) and hasattr(value, "to_dict"):
            usual = {one.name: one.default for one in fields(value)}
            said = {key: part for key, part in value.to_dict().items() if is_known(key) or part != usual.get(key)}
            settings[name] = {key: part for key, part in said.items() if part is not None and key not in settings}
    args = settings.get("args")
    theirs = args.pop("output_dir", None) if isinstance(args, dict) else None
    folder = settings.get("output_dir") or theirs or DEFAULT_OUTPUT
    with explained((TypeError, ValueError), f"output_dir is {folder!r:.80}", "give the path of a folder", CONFIG):
        settings["output_dir"] = expand_variables(os.fspath(folder))
    return settings


def _name_functions(settings: dict[str, Any], keys: Sequence[str], check: Check) -> dict[str, Callable]:
    """Replace functions among the values of keys by names, and return the functions by these names.

    check: takes a function by its name, and returns it as a run can call it.
    """
    taken = {OBJECT + name: None for name in BUILT_IN}
    functions: dict[str, Callable] = {}
    for key in keys:
        given = settings.get(key)
        if callable(given):
            given = [given]
        if given is None or isinstance(given, str):
            continue
        with explained(TypeError, f"{key} is {given!r:.80}", "give a name, a function, or a list of them", CONFIG):
            given = list(given)
        for place, function in enumerate(given):
            if not isinstance(function, str):
                given[place] = name = name_function(function, taken)
                taken[name], functions[name] = function, check(short_name(name), function)
        settings[key] = given
    return functions


def _take_rows(settings: dict[str, Any], folder: Path) -> dict[str, list[Json]]:
    """Replace rows by the file that will hold them, and return the rows by this file."""
    taken = {}
    for key, ending in ENDINGS.items():
        rows = settings.get(key)
        if rows is not None and not isinstance(rows, str | os.PathLike):
            file = settings[key] = str(_beside(folder, ending))
            taken[file] = _records(rows, Path(file))
    return taken


def _records(rows: Any, path: Path) -> list[Json]:
    """Return rows as a file holds them: records of what JSON knows. UserError (exit 3) names wrong ones."""
    if hasattr(rows, "iterrows"):  # a table of pandas
        rows = rows.to_dict("records")
    with explained(TypeError, f"the rows are a {type(rows).__name__}", HOW_ROWS):
        rows = list(rows)
    records = []
    bad = {}
    for number, row in enumerate(rows, 1):
        if not isinstance(row, Mapping):
            bad[number] = row_error(path, number, "is no record", f"it is a {type(row).__name__}", HOW_ROWS)
            continue
        try:
            records.append(json_value(row))
        except (TypeError, ValueError, RecursionError) as error:
            bad[number] = row_error(path, number, "cannot be written", reason(error), "leave out the column")
    if bad:
        raise join_errors(bad)
    if not records:
        raise UserError("there are no rows", f"they are an empty {type(rows).__name__}", HOW_ROWS, PREFLIGHT)
    return records


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys with values that a file can hold. UserError (exit 2) names those that have none."""
    values = {}
    refused = {}
    for name, value in settings.items():
        try:
            values[name] = str(value).removeprefix("torch.") if isinstance(value, torch.dtype) else json_value(value)
        except (TypeError, ValueError, RecursionError):
            refused[name] = type(value).__name__
    if refused:
        raise UserError(
            f"train() cannot use the objects given as {', '.join(PARAMETERS.get(name, name) for name in refused)}",
            f"a run can be repeated from files, and no file holds a {' or a '.join(dict.fromkeys(refused.values()))}",
            "save a model or a tokenizer with save_pretrained(FOLDER), and give model=FOLDER or "
            "tokenizer_name_or_path=FOLDER; leave out callbacks and other objects: keys are texts, numbers, lists and "
            "mappings",
            CONFIG,
        )
    return values


def _text(settings: Mapping[str, Any], functions: Mapping[str, Callable]) -> str:
    """Return the file that repeats the run, or says why it cannot."""
    base = {"base": os.path.abspath(settings["base"])} if "base" in settings else {}
    only_here = [name for name in functions if name.startswith(OBJECT)]
    note = "# No command can repeat this run: only the program that called grpo.api.train has"
    return (f"{note} {', '.join(only_here)}\n" if only_here else "") + to_text({**settings, **base})


def _beside(folder: Path, ending: str) -> Path:
    """Return a file beside a folder. UserError (exit 2) if nothing is beside it."""
    folder = folder.resolve() if folder.name in ("", "..") else folder
    if not folder.name:
        raise UserError("output_dir is the root of the disk", "files are written beside it", "name a folder", CONFIG)
    return folder.with_name(folder.name + ending)

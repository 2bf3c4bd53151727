"""Find a user's own reward by its name, name one that a program passes as an object, and check its parameters."""

import importlib
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import reduce
from importlib.machinery import PathFinder
from itertools import count
from os import sep
from pathlib import Path
from sysconfig import get_path
from typing import Any

from grpo.base.errors import CONFIG, UserError, redact
from knowledge.text import encodable

UserFunction = Callable[..., Iterable[float | None] | Awaitable[Iterable[float | None]]]

PASSED = tuple("prompts completions completion_ids trainer_state log_extra log_metric".split())  # with the columns
NOT_PASSED = ("prompt", "completion")  # columns that TRL holds back, as they have a plural above
OUR_PACKAGES = ("grpo", "knowledge", "rewards")  # users like these names for files of their own
OBJECT = "<python>:"  # before the name of a reward that a program passes as an object, and that no file holds
FORM = "define it as f(prompts, completions, **columns)"
# Files that are no place of a user's mistake, unless they are in one of the folders in the second row.
NOT_THEIRS = (
    *(f"{Path(__file__).parents[1] / name}{sep}" for name in OUR_PACKAGES),
    get_path("stdlib") + sep,
    "<frozen ",
)
THEIRS = (str(Path(__file__).with_name("examples")), get_path("purelib"), get_path("platlib"))
MAX_SHOWN = 80  # characters of a user's value in a message
Parameters = Mapping[str, inspect.Parameter]
VAR_POSITIONAL, VAR_KEYWORD = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD


# --- names to functions -------------------------------------------------------------------------------------------


def find_function(name: str) -> UserFunction:
    """Return the function `package.module:function` or `path/file.py:function`; UserError (exit 2) if not found."""
    return as_function(name, find_object(name))


def find_object(name: str, what: str = "reward") -> Any:
    """Return what `package.module:name` or `path/file.py:name` names; UserError (exit 2) if it is not found."""
    if name.startswith(OBJECT):
        raise UserError(
            f"the {what} {name} is in no file",
            "a program passed it to grpo.api.train as an object, and only such a program can pass it again",
            "call grpo.api.train with that object; or write it into a file, and name it path/to/file.py:function",
            CONFIG,
        )
    where, _, attributes = name.rpartition(":")
    if where in OUR_PACKAGES and Path(f"{where}.py").is_file():
        where += ".py"
    try:
        module = _load_file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
        return reduce(getattr, attributes.split("."), module)
    except (UserError, KeyboardInterrupt):
        raise
    except BaseException as error:  # the file is the user's and may raise anything
        fix = "correct it; for a file anywhere, name it path/to/file.py:function; "
        fix += "for a module, run from the folder that holds it, or install it"
        raise UserError(f"cannot import the {what} {name}", describe_failure(error), fix, CONFIG) from error


def as_function(name: str, found: Any) -> UserFunction:
    """Return a user's object if it can be called as a reward, or else raise UserError (exit 2).

    An object with `__call__` counts as a function, and so does a class that makes one without arguments.
    """
    function = made("reward", name, found)
    _check_parameters(name, function)
    return function


def made(what: str, name: str, found: Any) -> Any:
    """Return what a user's name stands for: of a class, the object that it makes; UserError (exit 2) if it fails."""
    if not isinstance(found, type):
        return found
    try:
        return found()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        fix = "give its parameters defaults, or name an object of the class"
        raise UserError(f"cannot make the {what} {name}", describe_failure(error), fix, CONFIG) from error


def short_name(name: str) -> str:
    """Return the name of a reward in metrics and logs: that of a file without its folder and ending."""
    where, _, attributes = name.rpartition(":")
    short = f"{Path(where).stem}:{attributes}" if where.endswith(".py") else name.removeprefix(OBJECT)
    return without_secrets(short)


def tag_of(tool: str) -> str:
    """Return the tag of a tool by its name in the configuration: the function's own name.

    >>> tag_of("./mine.py:Tools.calculator")
    'calculator'
    """
    return tool.rpartition(":")[2].rpartition(".")[2]


def without_secrets(text: Any) -> str:
    """Return the name of a metric or column as files can hold it."""
    return encodable(redact(str(text)))


def _load_file(path: Path) -> Any:
    """Import a file under its path, which no other module has, so that it may bear any name. It runs once."""
    name = str(path.resolve())
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        sys.path.append(str(path.resolve().parent))  # for what it imports from its own folder
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


# --- functions to names -------------------------------------------------------------------------------------------


def name_function(function: Any, taken: Mapping[str, Any]) -> str:
    """Return the name of a function in a configuration. taken: names that other functions have.

    It is `module:function` where every program finds this very object. Elsewhere it is OBJECT and the function's own
    name, or that of its class, and a number if another one has that name.
    """
    if name := _name_in_module(function):
        return name
    base = getattr(function, "func", function)  # of a partial
    own = re.sub(r"\W+", "_", str(getattr(base, "__name__", type(base).__name__))).strip("_") or "reward"
    names = (f"{OBJECT}{own}" if number == 1 else f"{OBJECT}{own}_{number}" for number in count(1))
    return next(name for name in names if taken.get(name, function) is function)


def _name_in_module(function: Any) -> str:
    """Return the name under which a module that any program can import holds this very object; "" if none does."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not (isinstance(module, str) and isinstance(name, str)) or module == "__main__":
        return ""
    if not PathFinder.find_spec(module.partition(".")[0]):
        return ""
    try:
        found = reduce(getattr, name.split("."), sys.modules[module])
    except (KeyError, AttributeError):  # it was made inside another function, for one
        return ""
    return f"{module}:{name}" if found is function else ""


# --- parameters ---------------------------------------------------------------------------------------------------


def needed_columns(function: UserFunction) -> tuple[str, ...]:
    """Return the columns of the data that a function cannot do without."""
    parameters = _parameters(function)
    if [parameter.kind for parameter in parameters.values()] == [VAR_POSITIONAL, VAR_KEYWORD]:
        behind = inspect.signature(function).parameters  # of the function to which a decorator passes everything on
        parameters = parameters if _problem(behind) else behind
    return tuple(name for name in _required(parameters) if name not in PASSED)


def is_async(function: UserFunction) -> bool:
    """Tell whether a call waits without keeping a thread busy."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def _parameters(function: UserFunction) -> Parameters:
    """Return the parameters of what is called, which may be a decorator's function."""
    return inspect.signature(function, follow_wrapped=False).parameters


def _required(parameters: Parameters) -> list[str]:
    required = []
    for name, parameter in parameters.items():
        if parameter.default is parameter.empty and parameter.kind not in (VAR_KEYWORD, VAR_POSITIONAL):
            required.append(name)
    return required


def _problem(parameters: Parameters) -> tuple[str, str, str] | None:
    """Say why a function with these parameters cannot be called as TRL does: what, why, fix; None if it can."""
    kinds = {parameter.kind for parameter in parameters.values()}
    shown = f"its parameters are {', '.join(map(str, parameters.values()))}"
    if VAR_KEYWORD not in kinds or inspect.Parameter.POSITIONAL_ONLY in kinds:
        return "takes no **kwargs", f"{shown}; all columns of the data are passed, by name", FORM
    for name in NOT_PASSED:
        if name in _required(parameters):
            return f"asks for {name}", f"{shown}; a function sees a whole group", f"use {name}s"
    return None


def _check_parameters(name: str, function: Any) -> None:
    if not callable(function):
        raise UserError(f"the reward {name} is no function", f"it is {shown(function)}", FORM, CONFIG)
    try:
        problem = _problem(_parameters(function))
    except Exception as error:  # functions written in C do not tell their parameters
        problem = "does not tell its parameters", describe_failure(error), FORM
    if problem:
        what, why, fix = problem
        raise UserError(f"the reward {name} {what}", why, fix, CONFIG)


# --- messages -----------------------------------------------------------------------------------------------------


def shown(value: Any) -> str:
    """Return the beginning of a user's value as text."""
    return _text_of(value)[:MAX_SHOWN]


def _text_of(value: Any) -> str:
    """Return a user's value as text, whatever its own `__str__` does."""
    try:
        return str(value)
    except BaseException:
        return f"a {type(value).__name__}"


def describe_failure(error: BaseException) -> str:
    """Describe an exception, with the file and line in the user's code where it came from, if that is known."""
    frames = traceback.extract_tb(error.__traceback__)
    frames = [one for one in frames if one.filename.startswith(THEIRS) or not one.filename.startswith(NOT_THEIRS)]
    own = [frame for frame in frames if frame.filename == frames[0].filename]
    place = f" ({own[-1].filename}:{own[-1].lineno} in {own[-1].name})" if own else ""
    if isinstance(error, SyntaxError) and error.filename:
        place = f" ({error.filename}:{error.lineno})"
    return f"{type(error).__name__}: {_text_of(error)}".removesuffix(": ") + place

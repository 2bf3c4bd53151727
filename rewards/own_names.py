"""Users' own functions by name: what a name stands for, which name a function has, and where it failed."""

import importlib
import importlib.util
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from functools import reduce
from importlib.machinery import PathFinder
from itertools import count
from os import sep
from pathlib import Path
from sysconfig import get_path
from types import ModuleType
from typing import Any, TypeVar

from grpo.base.errors import UserError, redact
from grpo.base.text import encodable

OUR_PACKAGES = ("grpo", "knowledge", "rewards")  # users like these names for files of their own
OBJECT = "<python>:"  # before the name of a reward that a program passes as an object, and that no file holds
# Files that are no place of a user's mistake, unless they are in one of the folders in the second row.
NOT_THEIRS = (
    *(f"{Path(__file__).parents[1] / name}{sep}" for name in OUR_PACKAGES),
    get_path("stdlib") + sep,
    "<frozen ",
)
THEIRS = (str(Path(__file__).with_name("examples")), get_path("purelib"), get_path("platlib"))
MAX_SHOWN = 80  # characters of a user's value in a message
T = TypeVar("T")
_files: dict[Path, ModuleType] = {}  # modules that a path names


def find_object(name: str, what: str = "reward") -> Any:
    """Return what `package.module:name` or `path/file.py:name` names; UserError (exit 2) if it is not found."""
    if name.startswith(OBJECT):
        raise UserError(
            f"the {what} {name} is in no file",
            "a program passed it to grpo.api.train as an object, and only such a program can pass it again",
            "call grpo.api.train with that object; or write it into a file, and name it path/to/file.py:function",
        )
    where, _, attributes = name.rpartition(":")
    if where in OUR_PACKAGES and Path(f"{where}.py").is_file():
        where += ".py"

    def load() -> Any:
        module = _load_file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
        return reduce(getattr, attributes.split("."), module)

    fix = "correct it; for a file anywhere, name it path/to/file.py:function; "
    fix += "for a module, run from the folder that holds it, or install it"
    return result_of(load, f"cannot import the {what} {name}", fix)


def made(what: str, name: str, found: Any) -> Any:
    """Return what a user's name stands for: of a class, the object that it makes; UserError (exit 2) if it fails."""
    if not isinstance(found, type):
        return found
    return result_of(found, f"cannot make the {what} {name}", "give its parameters defaults, or name an object of it")


def result_of(work: Callable[[], T], problem: str, fix: str) -> T:
    """Return what a user's code returns. Whatever it raises is a UserError (exit 2) with its place."""
    try:
        return work()
    except (UserError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise UserError(problem, describe_failure(error), fix) from error


def short_name(name: str) -> str:
    """Return the name of a reward in metrics and logs: that of a file without its folder and ending."""
    where, _, attributes = name.rpartition(":")
    short = f"{Path(where).stem}:{attributes}" if where.endswith(".py") else name.removeprefix(OBJECT)
    return without_secrets(short)


def without_secrets(text: object) -> str:
    """Return the name of a metric or column as files can hold it."""
    return encodable(redact(str(text)))


def _load_file(path: Path) -> ModuleType:
    """Import a file, whatever its name. It runs once.

    Its module is named like the file if that is how other processes find it, for they import what they are sent. Where
    another module has that name, only forked processes know the file's own.
    """
    path = path.resolve()
    if path not in _files:
        sys.path.append(str(path.parent))  # for what it imports from its own folder
        name = path.stem
        found = PathFinder.find_spec(path.stem)
        if name in sys.modules or found is None or found.origin != str(path):
            name = re.sub(r"\W", "_", str(path))
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec and spec.loader
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        _files[path] = module
    return _files[path]


# --- functions to names -------------------------------------------------------------------------------------------


def name_function(function: object, taken: Mapping[str, object]) -> str:
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


def _name_in_module(function: object) -> str:
    """Return the name under which a module that any program can import holds this very object; "" if none does."""
    module = getattr(function, "__module__", None)
    name = getattr(function, "__qualname__", None)
    if not (isinstance(module, str) and isinstance(name, str)) or module == "__main__":
        return ""
    if not PathFinder.find_spec(module.partition(".")[0]):
        return ""
    try:
        found = reduce(getattr, name.split("."), sys.modules[module])
    except (KeyError, AttributeError):  # it was made inside another function, for one
        return ""
    return f"{module}:{name}" if found is function else ""


# --- messages -----------------------------------------------------------------------------------------------------


def shown(value: object) -> str:
    """Return the beginning of a user's value as text."""
    return _text_of(value)[:MAX_SHOWN]


def _text_of(value: object) -> str:
    """Return a user's value as text, whatever its own `__str__` does."""
    try:
        return str(value)
    except BaseException:
        return f"a {type(value).__name__}"


def describe_failure(error: BaseException) -> str:
    """Describe an exception, with the file and line in the user's code where it came from, if that is known."""
    found = traceback.extract_tb(error.__traceback__)
    frames = [one for one in found if one.filename.startswith(THEIRS) or not one.filename.startswith(NOT_THEIRS)]
    own = [frame for frame in frames if frame.filename == frames[0].filename]
    place = f" ({own[-1].filename}:{own[-1].lineno} in {own[-1].name})" if own else ""
    if isinstance(error, SyntaxError) and error.filename:
        place = f" ({error.filename}:{error.lineno})"
    return f"{type(error).__name__}: {_text_of(error)}".removesuffix(": ") + place

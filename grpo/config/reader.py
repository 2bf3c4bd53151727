"""Read the entries of files and command lines into the keys of one stage.

An entry is a key and its value as they were written. Its name may have sections, or be that of another tool
(other_words.py); its value is converted and checked (values.py). What cannot be read is a problem, and reading goes on.
"""

import re
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import yaml

from grpo.base.errors import CONFIG, UserError, explained
from grpo.base.storage import PlainLoader
from grpo.base.text import closest
from grpo.config.options import FORM, SftConfig, TrainConfig
from grpo.config.other_words import (
    ALIASES,
    HARMLESS,
    IGNORED,
    NEUTRAL,
    OPTION,
    OPTIONS,
    REFUSED,
    SECTIONS,
    SWITCH_NAMES,
    SWITCHES,
    find_match,
    is_section,
    readings,
)
from grpo.config.values import (
    BOOLEANS,
    NULLS,
    Values,
    Written,
    as_written,
    check_bounds,
    check_variable,
    coerce,
    expand_variables,
    types_of,
)

COMMAND_LINE, CALL = "command line", "train()"  # sources that are no files
NO_FILE = (
    "give the path of a YAML file, such as configs/tiny_math.yaml; "
    "a model and data are keys: model_name_or_path=MODEL dataset_id_or_path=FILE"
)
UNSAID = (None, "auto")  # values that leave the choice to another name of the same key
SHARE = re.compile(r"0?\.\d*[1-9]\d*")
_NEXT_OPTION = re.compile(r"--|[\w.-]+=")  # an argument that begins so is not the value of the flag before it


def join_flags(arguments: Sequence[str]) -> list[str]:
    """Rewrite flags as `key=value`: `--key value`, `--key=value`, and `--key`, which means true.

    >>> join_flags(["run.yaml", "--max-samples", "10", "--bf16", "beta=0.1"])
    ['run.yaml', 'max_samples=10', 'bf16=true', 'beta=0.1']
    """
    joined = []
    waiting = list(arguments)
    while waiting:
        argument = waiting.pop(0)
        if not argument.startswith("--"):
            joined.append(argument)
            continue
        name, equals, value = argument.removeprefix("--").partition("=")
        if not equals:
            has_value = waiting and not _NEXT_OPTION.match(waiting[0])
            value = waiting.pop(0) if has_value else "true"
        joined.append(f"{name.replace('-', '_')}={value}")
    return joined


@dataclass(frozen=True)
class Entry:
    """A key and its value, as they were written.

    name: with the names of its sections, such as `model.path`. value: see values.py. source: a file's path or the
    command line. line: of a file.
    """

    name: str
    value: Written
    source: str
    line: int = 0

    @property
    def where(self) -> str:
        return f"{self.source}:{self.line}" if self.line and self.source != CALL else self.source


def _entries(node: yaml.MappingNode, source: str, section: str = "") -> Iterator[Entry]:
    """Yield the keys of a mapping and of the sections inside it. `section` ends with a dot, or is ""."""
    for key_node, value_node in node.value:
        name = f"{section}{as_written(key_node)}"
        if isinstance(value_node, yaml.MappingNode) and is_section(name):
            yield from _entries(value_node, source, f"{name}.")
        else:
            yield Entry(name, as_written(value_node), source, key_node.start_mark.line + 1)


def _find_base(bases: list[Entry], chain: tuple[Path, ...]) -> Path:
    """Return the file that a file names as its base. ValueError says why it cannot be used.

    chain: the files that are based on each other, the naming one last.
    """
    if len(bases) > 1:
        raise ValueError(f"it was set at {bases[0].where} already")
    path = chain[-1].parent / coerce(expand_variables(bases[0].value), str)
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    if path.resolve() in [file.resolve() for file in chain]:
        raise ValueError(f"a file cannot be based on itself: {' -> '.join(map(str, [*chain, path]))}")
    return path


def _find_beside(name: str, entry: Entry) -> str:
    """Return the path of a file that a config names: from the current folder, or else from its own and those above.

    A name that is nowhere stays as it is.
    """
    if entry.source == COMMAND_LINE or Path(name).is_file():
        return name
    folder = Path(entry.source).parent
    found = [place / name for place in (folder, *folder.resolve().parents) if (place / name).is_file()]
    return str(found[0]) if found else name


class Reader:
    """Reads sources into the keys of one stage. Later sources win; a file may set a key only once.

    values: key -> value, without the keys that are null where null is no value. problems: messages about all mistakes.
    doubtful: keys whose intended value is not known. is_torn: whether a file could not be read.
    names: as the files have them. unused: what happens instead -> keys that are not used.
    """

    def __init__(self, kind: type):
        self.keys = {field.name: field for field in fields(kind)}
        self.hints = typing.get_type_hints(kind)
        self.values: Values = {}
        self.problems: list[str] = []
        self.set_by: dict[str, Entry] = {}
        self.doubtful: set[str] = set()
        self.is_torn = False
        self.names: set[str] = set()
        self.unused: dict[str, dict[str, Entry]] = {}

    def notices(self) -> Iterator[str]:
        """Yield what happens instead of what unused keys ask for."""
        for instead, unused in self.unused.items():
            verb = "is" if len(unused) == 1 else "are"
            yield f"{next(iter(unused.values())).where}: {', '.join(unused)} {verb} not used: {instead}"

    def read_overrides(self, overrides: Sequence[str]) -> None:
        """Read `key=value` arguments, or flags."""
        for argument in join_flags(overrides):
            name, equals, text = argument.partition("=")
            if not equals:
                self.problems.append(f"{COMMAND_LINE}: {argument!r} is not key=value")
            elif name == "base":
                self.problems.append(f"{COMMAND_LINE}: base can be set only in a file")
            else:
                self.read(Entry(name, None if text in NULLS else text, COMMAND_LINE))

    def read_file(self, path: Path, chain: tuple[Path, ...]) -> None:
        """Read a file after its base, whose keys it may set again. chain: the files that are based on it."""
        if path.suffix in (".jsonl", ".csv", ".parquet", ".gz"):
            raise UserError(f"{path} is not a config", "its name is that of a file of data", NO_FILE, CONFIG)
        with explained((OSError, UnicodeDecodeError), f"cannot read the config {path}", NO_FILE, CONFIG):
            text = path.read_text(encoding="utf-8-sig")
        self.read_text(text, (*chain, path))

    def read_text(self, text: str, chain: tuple[Path, ...]) -> None:
        """Read a text of YAML, its base first. chain: the files that are based on each other, its own last."""
        source = str(chain[-1])
        entries: list[Entry] = []
        try:
            root = yaml.compose(text, Loader=PlainLoader)
            if root is not None and not isinstance(root, yaml.MappingNode):
                raise yaml.YAMLError("the file must hold `key: value` lines")
            entries = list(_entries(root, source)) if root else []
        except Exception as error:
            mark = getattr(error, "problem_mark", None)
            where = f"{source}:{mark.line + 1}" if mark else source
            self._tear(f"{where}: not valid YAML: {getattr(error, 'problem', None) or error}")
        bases = [entry for entry in entries if entry.name == "base"]
        try:
            if bases:
                self.read_file(_find_base(bases, chain), chain)
        except ValueError as error:
            self._tear(f"{bases[-1].where}: base: {error}")
        for entry in entries:
            if entry.name != "base":
                self.read(entry)

    def _tear(self, problem: str) -> None:
        self.problems.append(problem)
        self.is_torn = True

    def read(self, entry: Entry) -> None:
        """Read one entry into `values`, `unused` or `problems`."""
        name = entry.name.rstrip(": ")  # KnowRL's grpo.yaml has `swanlab_experiment_name::`
        known = [*self.keys, *ALIASES, *SWITCH_NAMES, *REFUSED, *IGNORED]
        name = next((reading for reading in readings(name) if find_match(known, reading)), name)
        self.names.add(name)
        word = str(entry.value).lower()
        word = str(BOOLEANS.get(word, word)).lower()  # yes is true
        ours, value = self._in_our_words(name, word, entry.value)
        if option := OPTION.fullmatch(entry.name):
            self._set(entry, OPTIONS, f"{{{option[1] or option[2]}: {'null' if entry.value is None else entry.value}}}")
        elif ours in self.keys:
            self._set(entry, ours, value)
        elif refused := find_match(REFUSED, name):
            if word and word not in HARMLESS.get(refused, NEUTRAL).split():
                self.problems.append(f"{entry.where}: {name}: {entry.value} is not available here: {REFUSED[refused]}")
        elif ignored := find_match(IGNORED, name):
            self._note_unused(IGNORED[ignored], name, entry)
        elif name not in SWITCH_NAMES and not (name in SECTIONS and entry.value is None):  # `bf16: false` says nothing
            self.problems.append(f"{entry.where}: unknown key {entry.name}{self._hint(name)}")

    def _in_our_words(self, name: str, word: str, written: Written) -> tuple[str, Written]:
        """Return the key that an entry of this name sets, "" if it sets none, and to what. word: what was written."""
        ours, value = SWITCHES.get(f"{name}:{word}", (name, written))
        if ours not in self.keys:
            ours = ALIASES.get(name, "")
        if ours == "warmup_steps" and SHARE.fullmatch(word):  # as in transformers
            ours = "warmup_ratio"
        return ours, value

    def _note_unused(self, instead: str, name: str, entry: Entry) -> None:
        self.unused.setdefault(instead, {}).setdefault(name, entry)

    def _set(self, entry: Entry, name: str, written: Written) -> None:
        """Set a key to a value, or report why that is a mistake."""
        hint = self.hints[name]
        try:
            expanded = expand_variables(written)
            value = None if expanded is None else coerce(expanded, hint)
            if value is not None:
                check_bounds(value, self.keys[name].metadata["bounds"])
                if name.endswith("_api_key_env"):
                    check_variable(value)
            if name == "cold_start" and value not in (None, FORM):
                value = _find_beside(value, entry)
        except (ValueError, OverflowError) as error:
            advice = "; write how many steps, not a share of them" if name.endswith("_steps") else ""
            self.problems.append(f"{entry.where}: {entry.name}: {error}{advice}")
            self.doubtful.add(name)
            return
        if value is not None and OPTION.fullmatch(entry.name):  # one of them; the others stay
            self.values[OPTIONS] = {**(self.values.get(OPTIONS) or {}), **value}
            return
        before = self.set_by.get(name)
        if before and before.source == entry.source != COMMAND_LINE:
            value = self._join(name, value, entry, before)
        self.set_by[name] = entry
        if value is None and type(None) not in types_of(hint):
            self.values.pop(name, None)
        else:
            self.values[name] = value

    def _join(self, name: str, value: object, entry: Entry, before: Entry) -> object:
        """Return the value of a key that one file sets twice: under two names it may, if these agree."""
        earlier = self.values.get(name)
        if before.name != entry.name:
            if value in UNSAID:
                return earlier
            if earlier in UNSAID:
                return value
            if name == "report_to" and isinstance(value, tuple):
                return tuple(item for item in dict.fromkeys((*earlier, *value)) if item != "none")
            if name == "lora_r" and 0 in (earlier, value):  # use_peft: false
                return 0
            labels = [one for one in (before, entry) if one.name.endswith("name")]
            if name.endswith("_name_or_path") and len(labels) == 1:  # model: {name: Qwen, path: models/qwen}
                self._note_unused("the path beside it is", labels[0].name, labels[0])
                return earlier if labels[0] is entry else value
        if before.name == entry.name or earlier != value:
            self.problems.append(f"{entry.where}: {entry.name} was set at {before.where} already, as {before.name}")
        return value

    def _hint(self, name: str) -> str:
        """Return the end of a message about an unknown key: where it belongs, or what it resembles."""
        stages = {SftConfig: "stage 1 (python -m grpo.sft)", TrainConfig: "stage 2 (python -m grpo.train)"}
        for kind, stage in stages.items():
            if {name, ALIASES.get(name)} & {field.name for field in fields(kind)}:
                return f": it belongs to {stage}"
        own_aliases = [alias for alias, key in ALIASES.items() if key in self.keys]
        close = closest(name.rpartition(".")[2], [*self.keys, *own_aliases])
        self.doubtful.add(ALIASES.get(close, close))
        return f"; did you mean {close}?" if close else "; remove it"

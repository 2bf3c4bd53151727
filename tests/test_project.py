"""The project against its own word: equations, keys, metrics, files, and what the README says."""

import ast
import functools
import io
import re
import tokenize
from collections import Counter
from dataclasses import fields
from graphlib import TopologicalSorter
from pathlib import Path

import mutants.__main__ as mutants
import pytest
from commands import ROOT, python, source_files

from grpo.base import errors
from grpo.config.options import SftConfig, TrainConfig
from grpo.run.diagnosis.glossary import GLOSSARY
from rewards.api.client import COUNTS
from rewards.registry import BUILT_IN

PACKAGES = ("grpo", "rewards", "knowledge", "kernels", "bench")
SOURCES = source_files(*PACKAGES)
TEXT = {path: path.read_text(encoding="utf-8") for path in SOURCES}
MATH = (ROOT / "grpo" / "algorithm" / "MATH.md").read_text(encoding="utf-8")
MINIMAL = ROOT / "grpo" / "minimal.py"  # it repeats equations of the files that it stands for
ALGORITHM = [path for path in SOURCES if path.relative_to(ROOT).parts[0] in ("grpo", "rewards") and path != MINIMAL]


@functools.cache
def tree(path):
    return ast.parse(TEXT[path])


def nodes():
    """Every piece of the program's syntax, and the file that it is in."""
    return ((path, node) for path in SOURCES for node in ast.walk(tree(path)))


def comments(text):
    """Line number -> its comment, and whether code stands on that line."""
    tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    layout = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.STRING}
    code = {token.start[0] for token in tokens if token.type not in layout}
    return {t.start[0]: (t.string, t.start[0] in code) for t in tokens if t.type == tokenize.COMMENT}


def equations(comment):
    """The numbers in "Eq. 3", "Eq. 1, 2" and "Eq. 4 to 7, 9 to 11"."""
    found = set()
    for group in re.findall(r"Eq\. ((?:\d+(?:, | to )?)+)", comment):
        for part in group.split(", "):
            first, _, last = part.strip().partition(" to ")
            if first:
                found |= set(range(int(first), int(last or first) + 1))
    return found


def test_every_equation_of_math_md_stands_on_a_line_of_code_and_the_other_way_round():
    in_text = {int(number) for number in re.findall(r"\*\*Eq\. (\d+)\*\*", MATH)}
    in_code = set()
    for path in ALGORITHM:
        for comment, is_beside_code in comments(TEXT[path]).values():
            if is_beside_code:
                in_code |= equations(comment)
    assert in_text == in_code
    repeated = [equations(comment) for comment, _ in comments(TEXT[MINIMAL]).values()]
    assert {3, 4, 5, 6, 7, 8} <= set().union(*repeated) <= in_text


def test_the_symbols_of_math_md_are_names_in_the_code():
    table = MATH.partition("## Symbols")[2].partition("## ")[0]
    names = set(re.findall(r"`(\w+)`", table))
    code = "\n".join(TEXT[path] for path in ALGORITHM)
    assert len(names) > 15
    assert not {name for name in names if not re.search(rf"\b{name}\b", code)}


NAMED_TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def is_there(file, test):
    """Tell whether a file has this test."""
    return f"def {test.partition('[')[0]}(" in (ROOT / file).read_text(encoding="utf-8")


def test_every_exercise_of_math_md_names_a_test_that_exists():
    exercises = MATH.partition("## Exercises")[2]
    named = NAMED_TEST.findall(exercises)
    assert len(named) == len(re.findall(r"^\d+\.", exercises, re.MULTILINE)) >= 12
    assert not [test for test in named if not is_there(*test)]


SCHEMA = ast.get_docstring(ast.parse(TEXT[ROOT / "grpo" / "algorithm" / "schema.py"]))
LEGEND = set(re.findall(r"(?:^|  )([A-Z1])  \w", SCHEMA, re.MULTILINE))


def test_shape_suffixes_use_the_letters_of_the_legend():
    """`logp_C`, `kv_L2BKSE`: after the last underscore, one letter or digit per axis."""
    assert {"T", "C", "B", "V", "X"} <= LEGEND
    wrong = set()
    for path, node in nodes():
        name = getattr(node, "id", None) or getattr(node, "arg", None) or getattr(node, "attr", None) or ""
        match = re.fullmatch(r"[a-z][a-z0-9_]*_([A-Z0-9]+)", name)
        if match and not match[1].isdigit() and not set(match[1]) <= LEGEND | set("23456789"):
            wrong.add(f"{path.relative_to(ROOT)}: {name}")
    assert not wrong


# The rooms from the ground up. Each imports only from those above it in this list, and from itself; in the algorithm,
# only the two files that meet the engine know it. A module is in the room whose longest name it begins with.
ROOMS = {
    "base": "grpo grpo.base grpo.algorithm.schema",
    "kernels": "grpo.kernels",
    "engine": "grpo.engine",
    "algorithm": "grpo.algorithm",
    "given": "grpo.config grpo.data grpo.tools grpo.policy knowledge rewards",
    "run": "grpo.run grpo.trainer grpo.evaluation grpo.report grpo.explain",
    "commands": "grpo.train grpo.sft grpo.evaluate grpo.generate grpo.export grpo.api grpo.doctor grpo.replay "
    "grpo.minimal grpo.__main__ rewards.score rewards.audit",
}
ROOM_OF = {name: room for room, names in ROOMS.items() for name in names.split()}
MEET_THE_ENGINE = {
    "grpo.algorithm.logprobs": "device attention model.decoder",
    "grpo.algorithm.optimizer": "model.flat",
}


def room(module):
    """The room of a module; None if it is no part of the program."""
    fitting = [name for name in ROOM_OF if module == name or (module.startswith(name + ".") and name != "grpo")]
    return ROOM_OF[max(fitting, key=len)] if fitting else None


def imported_modules(path, also_for_types=False):
    """What a file imports when it runs; what it needs for annotations alone counts only if asked for."""
    tree = ast.parse(TEXT[path])
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test) and not also_for_types:
            node.body = []
    modules = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            modules |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
    return modules


def module_name(path):
    """Return the name by which a file is imported."""
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    return name.replace("kernels.", "grpo.kernels.", 1) if name.startswith("kernels.") else name


def test_imports_go_one_way():
    """Also those for annotations alone. bench/ may import everything."""
    order, wrong = list(ROOMS), []
    for path in [path for path in SOURCES if path.relative_to(ROOT).parts[0] != "bench"]:
        name = module_name(path)
        own = order.index(room(name))
        for module in imported_modules(path, also_for_types=True):
            if room(module) and order.index(room(module)) > own:
                wrong.append(f"{name} imports {module}")
            allowed = tuple(f"grpo.engine.{part}" for part in MEET_THE_ENGINE.get(name, "").split())
            if room(name) == "algorithm" and room(module) in ("kernels", "engine") and not module.startswith(allowed):
                wrong.append(f"{name} imports {module}")
    assert not wrong


def test_the_textbook_is_short_and_its_step_needs_few_files():
    """A reader can have it in an evening: below 2,000 lines. To import the step loads no more than 25 files of ours."""
    files = [path for path in SOURCES if path.is_relative_to(ROOT / "grpo" / "algorithm")]
    assert sum(len(TEXT[path].splitlines()) for path in files) < 2000
    loaded = loaded_by("grpo.algorithm.step")
    assert 15 < len(loaded) <= 25, sorted(loaded)


def loaded_by(module):
    """Return the files of ours that are loaded when a module is imported."""
    code = f"import sys, {module}; print(*(getattr(m, '__file__', None) for m in sys.modules.values()))"
    return {Path(path) for path in python("-c", code).stdout.split() if Path(path).is_relative_to(ROOT)}


def test_a_run_loads_only_what_it_uses():
    """What few runs use is imported where it enters: stage 1, tools, toy worlds, models of other families, users' own
    rewards, the report. The rest has at most 100,000 tokens."""
    loaded = loaded_by("grpo.train")
    assert 60_000 < sum(map(num_tokens, loaded)) <= 100_000, sorted(loaded)


def test_no_file_imports_itself_by_way_of_others():
    """The algorithm not even by way of what annotations need."""
    names = {module_name(path) for path in SOURCES}
    for lower in (False, True):
        graph = {}
        for path in SOURCES:
            name = module_name(path)
            if not lower or room(name) in ("base", "algorithm"):
                graph[name] = (imported_modules(path, also_for_types=lower) & names) - {name}
        for package in [name for name in names if any(other.startswith(name + ".") for other in names)]:
            for name in graph:  # `from package import file` needs the file, not the package
                files = {found for found in graph[name] if found.startswith(package + ".")}
                graph[name] -= {package} if files else set()
        assert set(TopologicalSorter(graph).static_order()) >= set(graph)  # CycleError names the files


def test_each_variant_is_a_block_that_can_be_taken_out():
    """No block of variants.py uses another, and each has a row in the table at its top."""
    text = TEXT[ROOT / "grpo" / "algorithm" / "variants.py"]
    head, *blocks = re.split(r"^# --- .*$", text, flags=re.MULTILINE)
    names = [set(re.findall(r"^(?:def )?(\w+)(?= = |\()", block, re.MULTILINE)) for block in blocks]
    assert len(blocks) == 8 and all(names) and len(re.findall(r"^\| (?!-|variant)", head, re.MULTILINE)) >= 10
    for block, own in zip(blocks, names, strict=True):
        assert not (set().union(*names) - own) & set(re.findall(r"\w+", block)), block


def test_kernels_are_chosen_and_run_in_one_place_each():
    users = {path.name for path in ALGORITHM if any("grpo.kernels" in name for name in imported_modules(path))}
    assert users == {"ops.py", "kernel_choice.py"}


def test_the_formatter_has_nothing_to_do():
    pytest.importorskip("ruff")
    for command in (["format", "--check"], ["check"]):
        done = python("-m", "ruff", *command, ".")
        assert done.returncode == 0, done.stdout[-3000:]


def test_the_types_fit():
    """Of the textbook, the engine, the keys, and a run: .mypy.ini."""
    pytest.importorskip("mypy")
    done = python("-m", "mypy")
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]


def test_every_configuration_key_is_read_somewhere():
    """A key that is declared and never read would be a promise without effect."""
    code = "\n".join(TEXT.values())
    read = set(re.findall(r"\b(?:config|c|stage1|settings)\.(\w+)", code))
    read |= set(re.findall(r'options\["(\w+)"\]', code))
    for ending in re.findall(r'options\[f"{name}(\w+)"\]', code):  # of a service
        read |= {f"judge{ending}", f"decomposer{ending}"}
    declared = {f.name for kind in (TrainConfig, SftConfig) for f in fields(kind)}
    assert not declared - read


def test_every_metric_of_the_glossary_is_logged_somewhere():
    code = "\n".join(text for path, text in TEXT.items() if path.name != "glossary.py")
    missing = [name for name in GLOSSARY if not _is_made(name, code)]
    assert not missing


def _is_made(name, code):
    if name.startswith("eval/"):
        return f'"{name.removeprefix("eval/")}"' in code
    if name.startswith("<service>/"):
        return name.partition("/")[2] in COUNTS
    if "<" in name:
        return re.search(re.sub("<[a-z]+>", r"{[^}]+}", re.escape(name)), code) is not None
    return re.search(rf'["\s]{re.escape(name)}["\s]', code) is not None


def test_functions_keep_their_size():
    """Functions have at most 80 lines, docstring included."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    functions = [(path, node) for path, node in nodes() if isinstance(node, kinds)]
    assert not [(path, node.name) for path, node in functions if node.end_lineno - node.lineno >= 80]


# How large each folder may be, in tokens of Python (names, operators, numbers); strings, C and tables of text are not
# counted, so a table of text is worth it only where it reads as one. A file counts for the longest name that it begins
# with. Who needs more raises a line in the same commit, and says there what that buys.
BUDGETS = {
    "grpo/algorithm": 10_750,
    "grpo/minimal.py": 2_500,
    "grpo/engine": 40_600,
    "kernels": 14_000,
    "grpo": 19_500,
    "grpo/config": 9_500,
    "grpo/run": 21_750,
    "grpo/doctor": 3_500,
    "grpo/data": 16_500,
    "grpo/evaluation": 5_750,
    "grpo/report": 2_750,
    "grpo/replay": 4_500,
    "grpo/tools": 8_000,
    "knowledge": 11_500,
    "rewards": 24_600,
    "rewards/mathematics": 17_250,
    "bench": 15_250,
    "tests": 223_250,
}
COUNTED = {tokenize.NAME, tokenize.OP, tokenize.NUMBER}


def sizes():
    """The tokens of each folder of BUDGETS."""
    found: Counter[str] = Counter()
    for path in source_files(*PACKAGES, "tests"):
        name = path.relative_to(ROOT).as_posix()
        folder = max((folder for folder in BUDGETS if name.startswith(folder)), key=len)
        found[folder] += num_tokens(path)
    return found


def num_tokens(path):
    """Count the names, operators and numbers of a file."""
    with path.open(encoding="utf-8") as file:
        return sum(token.type in COUNTED for token in tokenize.generate_tokens(file.readline))


def test_no_folder_outgrows_its_line():
    over = {
        folder: f"{number:,} of {BUDGETS[folder]:,}" for folder, number in sizes().items() if number > BUDGETS[folder]
    }
    assert not over, "cut something there; or raise its line, and say in the commit what that buys"


def test_every_module_says_what_it_is():
    assert not [path for path in SOURCES if not ast.get_docstring(tree(path))]


FORBIDDEN_CALLS = {"eval", "exec", "torch.load", "yaml.load", "np.load", "numpy.load", "os.system", "os.popen"}
UNSAFE = {"trust_remote_code", "shell", "allow_pickle"}  # options that are not to be True
FORBIDDEN = {"pickle", "marshal", "shelve", "sympy", "socketserver", "http"}


def test_nothing_that_runs_loads_code_or_pickles_or_starts_a_program():
    """But for a compiler, without a shell, on a file of ours; and what bench measures."""
    wrong = []
    for path in SOURCES:
        starts_some = path.name == "cpu.py" or path.is_relative_to(ROOT / "bench")
        imported = {module.partition(".")[0] for module in imported_modules(path)}
        wrong += [(path, name) for name in imported & (FORBIDDEN if starts_some else FORBIDDEN | {"subprocess"})]
    for path, node in nodes():
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            unsafe = {keyword.arg for keyword in node.keywords if ast.unparse(keyword.value) == "True"}
            if unsafe & UNSAFE or called in FORBIDDEN_CALLS or called.endswith(".listen"):
                wrong.append((path, node.lineno))
    assert not wrong


def test_the_program_does_not_import_what_it_replaces():
    modules = {name for path in SOURCES if path.parts[len(ROOT.parts)] != "bench" for name in imported_modules(path)}
    assert not modules & {"trl", "peft", "accelerate", "vllm", "unsloth", "datasets"}


FIRST = (ROOT / "README.md").read_text(encoding="utf-8")
OTHERS = [path for folder in (*PACKAGES, "configs", "tests") for path in (ROOT / folder).rglob("README.md")]
READMES = {path: path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *OTHERS)}
README = "\n".join(READMES.values())


def test_the_readmes_tell_of_every_command_and_of_no_other():
    told = set(re.findall(r"python -m ([\w.]+)", README)) - {"pytest", "ruff", "mypy"}
    files = {module_name(path).removesuffix(".__main__"): path for path in (*SOURCES, *source_files("tests"))}
    commands = {name for name, path in files.items() if "run_main(main)" in TEXT.get(path, "")}
    assert len(commands) > 12 and commands - {"grpo"} <= told <= files.keys()


def test_every_exit_code_is_explained():
    text = READMES[ROOT / "grpo" / "doctor" / "README.md"]
    told = {int(code) for cell in re.findall(r"^\| ([\d, ]+) \|", text, re.MULTILINE) for code in cell.split(", ")}
    names = "INTERNAL CONFIG PREFLIGHT SERVICE NON_FINITE STORAGE BUSY MEMORY SIGHUP SIGINT SIGTERM".split()
    assert told == {0, *(getattr(errors, name) for name in names)}


def test_the_readmes_links_lead_somewhere():
    """Also to a heading, by the name that GitHub gives to it."""
    for path, text in READMES.items():
        for target in re.findall(r"\]\(([^)]+)\)", text):
            name, _, heading = target.partition("#")
            file = path.parent / name if name else path
            assert target.startswith("https://") or file.exists(), (path, target)
            assert not heading or heading in headings(READMES[file.resolve()]), (path, target)


def headings(text):
    """Return the names of the headings of a page, as links take them."""
    lines = re.findall(r"^#+ (.+)", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in lines}


def test_the_first_page_is_short_and_leads_to_all_others():
    linked = {(ROOT / target).resolve() for target in re.findall(r"\]\(([^)#]+)", FIRST)}
    assert len(FIRST.splitlines()) <= 220 and len(OTHERS) > 7 and not set(OTHERS) - linked
    files = {path.name for path in (ROOT / "grpo" / "algorithm").glob("*.py")} - {"__init__.py"}
    assert not [name for name in files if name not in FIRST]
    assert not {name for name in BUILT_IN if f"`{name}`" not in READMES[ROOT / "rewards" / "README.md"]}


NAMED_FILE = re.compile(
    rf"(?<![\w/.-])((?:{'|'.join(PACKAGES)}|tests|configs|algorithm|engine)/[\w/]*\w\.(?:py|md|yaml|sh))\b"
)


def test_the_files_that_the_program_names_exist():
    """In docstrings, comments and messages, also relative to grpo/. (The log of experiments speaks of older ones.)"""
    texts = TEXT | READMES | {path: path.read_text(encoding="utf-8") for path in (ROOT / "configs").glob("*.yaml")}
    del texts[ROOT / "tests" / "README.md"]  # its recipes name files that are to be made
    found = {(path.name, name) for path, text in texts.items() for name in NAMED_FILE.findall(text)}
    assert len(found) > 100
    assert not [(path, name) for path, name in found if not ((ROOT / name).exists() or (ROOT / "grpo" / name).exists())]


def test_the_tests_that_the_readmes_name_exist():
    named = NAMED_TEST.findall(FIRST)
    assert len(named) >= 3 and not [test for test in named if not is_there(*test)]
    promises = READMES[ROOT / "tests" / "README.md"].partition("## Promises")[2]
    assert not set(re.findall(r"test_\w+\.py", promises)) - {path.name for path in source_files("tests")}


def test_every_mutant_fits_the_code_and_names_tests_that_are_there(monkeypatch):
    monkeypatch.setattr(mutants, "_tokens", functools.cache(mutants._tokens))
    for mutant in mutants.read_mutants(ROOT / "tests" / "mutants"):
        assert mutants.mutate((ROOT / mutant.path).read_text(), mutant.before, mutant.after), mutant.effect
        for named in mutant.tests:
            file, _, test = named.partition("::")
            assert not test or is_there(file, test), named

"""The checks of a start: all that can be known before a service is asked or weights are fetched, in seconds.

`check_start` makes them for every run, so that one that cannot start says at once everything that it lacks; the doctor
makes them first. Of a model on the hub they fetch its config and its tokenizer.

A check takes a `Case` and returns a text, or raises the error that the run would end with.
"""

import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from grpo.base.errors import CONFIG, PREFLIGHT, STORAGE, UserError
from grpo.config.load import replicas_of
from grpo.config.options import FORM, SEARCH, AnyConfig, SftConfig
from grpo.data.count import RowCount
from grpo.data.messages import with_system
from grpo.data.objects import NO_OBJECTS, Objects
from grpo.data.prompts import eos_ids, turn_end
from grpo.data.questions import QuestionData, Questions
from grpo.data.rows import Row
from grpo.engine.device import kernel_choice
from grpo.engine.device.products import slow_dtype
from grpo.engine.model import memory
from grpo.engine.model.adapter import check_safe, read_settings
from grpo.engine.model.tensor_files import read_tensors
from grpo.policy import check_vocabulary, load_encoder
from grpo.run.case import (
    Case,
    Check,
    NotChecked,
    account_of,
    draft,
    lacks_a_gpu,
    need,
    num_weights,
    rounded,
    sketch,
)
from grpo.run.checkpoint import POLICIES, check_disk, continues_a_run, existing_part, find_checkpoint
from grpo.run.provenance import check_changes
from grpo.run.run_dir import check_free, is_in_use
from grpo.run.saved import start_of
from grpo.run.trackers import check_trackers
from rewards.registry import Reward, build_rewards, built_in

INPUTS = [f"{name}_name_or_path" for name in ("model", "adapter", "tokenizer")]
INPUTS += ["dataset_id_or_path", "eval_dataset_id_or_path"]
MAX_SHOWN = 3  # examples of duplicates
DOCTOR = "`python -m grpo.doctor CONFIG` checks everything at once"


def check_start(config: AnyConfig, is_restart: bool = False, objects: Objects = NO_OBJECTS) -> None:
    """Make all checks of a start. UserError names every fault with its fix; the first one gives the exit code."""
    case = Case(config, is_restart=is_restart, objects=objects)
    faults: list[tuple[str, UserError]] = []
    for name, check in start_checks(case):
        try:
            check(case)
        except NotChecked:
            pass
        except UserError as fault:
            faults.append((name, fault))
    if not faults:
        return
    only = faults[0][1]
    code = only.exit_code
    if len(faults) == 1:
        raise UserError(only.what, only.why, f"{only.fix}; {DOCTOR}", code)
    texts = []
    for number, (name, error) in enumerate(faults, 1):
        texts.append(f"{number}. {name}: {error.what}\n       why: {error.why}\n       fix: {error.fix}")
    raise UserError(
        f"{len(faults)} things keep this run from starting", "\n     ".join(texts), f"correct these; {DOCTOR}", code
    )


def start_checks(case: Case, is_doctor: bool = False) -> Iterator[tuple[str, Check]]:
    """Yield the checks of a start, in order. is_doctor: without those that the doctor makes thoroughly later."""
    config = case.config
    stage2 = case.stage2
    has_data = not case.makes_its_data
    if stage2 and stage2.cold_start:
        yield "stage 1", stage1
    yield "machine", machine
    yield "output", output
    yield "trackers", lambda case: check_trackers(case.config)
    if config.resume_from_checkpoint:
        yield "resume", resume
    if stage2 and has_data:
        yield "data", partial(questions, use="train")
        if Questions.held_out(stage2):
            yield "held-out data", partial(questions, use="eval")
    if stage2 and (stage2.tools or stage2.environment):
        yield "tools", tools
    if has_data or config.model_name_or_path:
        yield "model", model
        yield "tokenizer", tokenizer
        if not is_doctor:
            yield "memory", loaded
    if isinstance(case.start, SftConfig) and has_data and not is_doctor:
        yield "stage 1 data" if stage2 else "data", conversations
    for name in case.reward_names if has_data else ():
        yield name, partial(reward, name=name)
    if not is_doctor and (has_data or not config.toy_world):
        yield from ((name, partial(service, name=name)) for name in services_used(case))


# --- the machine and the run's directory -------------------------------------------------------------------------


def machine(case: Case) -> str:
    """Describe the device. UserError (exit 3) if a large model would have to be trained on a CPU."""
    if lacks_a_gpu(case):
        number = num_weights(case)
        free = memory.free_bytes(case.device) / 1e9
        raise UserError(
            f"no GPU: torch finds none, and the model has {number / 1e9:.1f} billion weights",
            f"they take {2 * number / 1e9:.1f} GB in bfloat16 on a GPU and {4 * number / 1e9:.1f} GB in float32; "
            f"{free:.1f} GB are free here, and a step on a CPU takes hours",
            f"run it where nvidia-smi shows a GPU, with a torch for it (this is {torch.__version__}; Resources in "
            "configs/README.md); `python -m grpo.doctor CONFIG --memory-gb 80` counts for one of 80 GB; or name a "
            f"smaller model_name_or_path{', or device=cpu to use the CPU anyway' * (4 * number / 1e9 < free)}",
            PREFLIGHT,
        )
    if case.device.type == "cuda" and not case.memory_gb:
        device = kernel_choice.describe(case.device)
    else:
        device = f"{torch.get_num_threads()} CPU threads, {kernel_choice.describe('cpu')}"
    return f"Python {sys.version.split()[0]}, torch {torch.__version__}, {device}"


def output(case: Case) -> str:
    path = Path(need(case.config.output_dir, "output_dir"))
    goes_on = case.is_restart or continues_a_run(case.config)
    if not (goes_on or is_in_use(path)):  # the run itself says by whom
        _check_inputs_stay(case.config, path.resolve())
        check_free(path, case.config.overwrite_output_dir)
    existing = _writable(path, f"the output directory {path}", "set output_dir to a folder that can be written")
    if cache := getattr(case.config, "api_cache", None):
        _writable(Path(cache).parent, f"the reply cache {cache}", "set api_cache to a file that can be written")
    disk = shutil.disk_usage(existing)
    return f"{path}: {disk.free / 1e9:.1f} GB free" if disk.total else f"{path}: its file system tells no size"


def _check_inputs_stay(config: AnyConfig, folder: Path) -> None:
    """Raise UserError (exit 2) if the run would write into a folder that it reads, or overwrite a model there."""
    for key in INPUTS:
        given = Path(getattr(config, key, None) or os.devnull).resolve()
        parts = given.relative_to(folder).parts if given.is_relative_to(folder) else (".",)
        is_overwritten = config.overwrite_output_dir and parts and parts[0].startswith((*POLICIES, "checkpoint-"))
        if not parts or is_overwritten:
            raise UserError(
                f"the output directory {folder} holds what the run reads",
                f"{key} is {given}",
                "set another output_dir",
                CONFIG,
            )


def _writable(folder: Path, what: str, fix: str) -> Path:
    """Return the part of a folder's path that exists; UserError (exit 6) if nothing can be written there."""
    existing = existing_part(folder)
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise UserError(
            f"cannot use {what}",
            f"{existing} is {'not writable' if existing.is_dir() else 'not a folder'}",
            fix,
            STORAGE,
        )
    return existing


def resume(case: Case) -> str:
    """Find the checkpoint to resume from, and compare its run with this one."""
    config = case.config
    wanted = config.resume_from_checkpoint
    if wanted is True:
        need(config.output_dir, "output_dir")
    folder, notices = find_checkpoint(Path(config.output_dir or ""), wanted)
    if folder is None:
        return "; ".join(notices)
    now = case.start if isinstance(case.start, type(config)) else config  # what the run itself compares
    changes = check_changes(folder, now, replicas_of(config))
    return "; ".join([f"resumes from {folder}", *notices, *changes])


def stage1(case: Case) -> str:
    """Check the stage 1 that the config names, and find the model that it makes or has made."""
    from grpo.run.stage1 import is_done, load_stage1, start_from  # most runs have no stage 1

    config = case.stage2
    assert config is not None
    first, _, problems = load_stage1(config)
    if problems:
        case.start = first
        raise UserError(
            f"{config.cold_start} is not a configuration of stage 1",
            "\n     ".join(problems),
            "correct or remove these keys; `python -m grpo.sft -h` lists every key",
        )
    case.start = start_of(first)
    if is_done(first, config):
        case.start = start_from(first, config)
        return f"done: {case.start.model_name_or_path}"
    return f"{config.cold_start} runs first, from {first.model_name_or_path or 'scratch'} into {first.output_dir}"


# --- data ----------------------------------------------------------------------------------------------------------


def questions(case: Case, use: str) -> str:
    """Read the questions to train on, or the held-out ones, and look for those that are in both."""
    config = case.stage2
    chosen = config and (Questions.to_train(config) if use == "train" else Questions.held_out(config))
    assert config and chosen
    need(chosen.name, "dataset_id_or_path")
    if chosen.name in case.unread:
        need(None, "the data")
    case.data = case.data or QuestionData(config, objects=case.objects)
    case.unread.add(chosen.name)
    rows, count = case.data.load(chosen)
    case.unread.remove(chosen.name)
    case.rows[use] = rows
    found = [f"{len(rows)} questions in {count}", _duplicates(rows)]
    if use == "eval" and "train" in case.rows:
        trained = set(map(_normal, case.rows["train"]))
        known = [row for row in rows if _normal(row) in trained]
        if known:
            found.append(f"warning: {len(known)} of them are trained on as well, such as {_shown(known)}")
    return "; ".join(found)


def _duplicates(rows: Sequence[Row]) -> str:
    """Return a text on how many questions are repetitions."""
    count = Counter(map(_normal, rows))
    repeated = {_normal(row): row for row in rows if count[_normal(row)] > 1}
    surplus = len(rows) - len(count)
    return f"warning: {surplus} are repetitions: {_shown([*repeated.values()])}" if surplus else "none of them twice"


def _normal(row: Row) -> str:
    return " ".join(row.question.casefold().split())


def _shown(rows: Sequence[Row]) -> str:
    return ", ".join(repr(row.question[:60]) for row in rows[:MAX_SHOWN])


def need_written(case: Case) -> None:
    """Raise NotChecked if the data of stage 1 is yet to be written."""
    if case.stage2 and case.stage2.cold_start == FORM:
        raise NotChecked("not checked: the model writes it, when the run begins")


def conversations(case: Case) -> str:
    """Read stage 1's data, without encoding it."""
    from grpo.data.conversations import read_conversations  # of stage 1 alone
    from grpo.data.registry import find_sources  # likewise

    config = case.start
    assert isinstance(config, SftConfig)
    need_written(case)
    need(config.dataset_id_or_path, "dataset_id_or_path")
    count = RowCount(config.dataset_id_or_path, skips_bad=config.skip_bad_rows)
    try:
        for source in find_sources(config):
            for _ in read_conversations(source.read(count.bad)[: config.max_samples or None], source.path, count):
                pass
    except UserError as error:
        where = f"; {case.stage2.cold_start} names this data" if case.stage2 else ""
        fix = error.fix.replace("dataset_id_or_path=FILE", "`dataset_id_or_path: FILE`") if where else error.fix
        raise UserError(error.what, error.why, f"{fix}{where}", error.exit_code) from None
    return str(count)


# --- the model, by its config and its tokenizer ----------------------------------------------------------------------


def model(case: Case) -> str:
    """Read the model's config, and check that checkpoints fit on the disk. UserError (exit 3) if there is no model."""
    need(case.start.model_name_or_path, "model_name_or_path")
    for name in filter(None, (case.start.model_name_or_path, case.start.adapter_name_or_path)):
        check_safe(Path(name))  # whether or not its base is there
    draft(case, torch.device("cpu"))
    if case.folders.adapter:
        read_settings(case.folders.adapter)
    if Path(case.folders.base[0]).exists():  # of a hub's model, the weights come later
        next(read_tensors(case.folders.model), None)
    case.folder = case.folders.model
    decoder = need(sketch(case), "a device")
    checkpoint_bytes = check_disk(decoder, case.config, case.folders.adapter)
    num_trained = sum(parameter.numel() for parameter in decoder.parameters())
    all_weights = num_weights(case) + (num_trained if decoder.build.lora else 0)
    trained = f"{rounded(num_trained)} trained ({num_trained / all_weights:.2%})"
    found = [
        f"{decoder.config.family}, {rounded(num_weights(case))} weights, {trained}",
        f"a checkpoint takes {checkpoint_bytes / 1e9:.2f} GB",
        slow_dtype(decoder.build.dtype, case.device),
    ]
    return "; ".join(filter(None, found))


def tokenizer(case: Case) -> str:
    """Make a prompt; return which tokens end an answer, the chat template's first."""
    decoder = need(sketch(case), "the model")
    encoder = load_encoder(case.start)
    case.tokenizer = encoder.tokenizer
    check_vocabulary(case.tokenizer, decoder)
    template = getattr(case.config, "prompt_template", "{question}")
    encoder.prompt(with_system([{"role": "user", "content": template}], case.config.system_prompt))
    first = turn_end(case.tokenizer)
    ends = sorted(eos_ids(case.folders.model, case.tokenizer), key=lambda token: token != first)
    names = case.tokenizer.convert_ids_to_tokens(ends)
    opened = "; its template opens <think> in the prompt, and rewards count that" if encoder.opens_think else ""
    return f"{len(case.tokenizer)} tokens; an answer ends with {' or '.join(map(str, names))}{opened}"


def loaded(case: Case) -> str:
    """Count what model and optimizer take once they are loaded. UserError (exit 3) if that is more than is free."""
    if lacks_a_gpu(case):
        raise NotChecked("not checked: this needs a GPU")
    needed = account_of(case)
    free = memory.free_bytes(case.device)
    if needed.total > free:
        raise UserError(
            "the model does not fit into memory",
            f"its weights take {needed.weights / 1e9:.1f} GB and what is trained {needed.training / 1e9:.1f} GB with "
            f"gradient and moments; {free / 1e9:.1f} GB are free ({case.device.type})",
            memory.LARGER,
            PREFLIGHT,
        )
    return f"{needed.total / 1e9:.2f} GB"


# --- rewards and their services --------------------------------------------------------------------------------------


def reward(case: Case, name: str) -> str:
    """Check that the columns are there that a reward needs. A function of the user's own is imported for that."""
    built = Reward(name, needs=built_in(name).needs)
    if ":" in name:
        (built,) = build_rewards([name], case.options, case.objects.rewards)
        case.functions.append(built)
    if not built.needs:
        return "needs nothing"
    found: list[str] = []
    for use, chosen in (("train", Questions.to_train), ("eval", Questions.held_out)):
        if case.stage2 and name in case.rewards_of(use) and (wanted := chosen(case.stage2)):
            rows = need(case.rows.get(use), "the data")
            data = need(case.data, "the data")
            _, count = data.load(wanted, [built])
            found += [f"warning: {number} {text}" for text, number in count.notes.items()]
            empty = sum(any(row.columns.get(column) in (None, "") for column in built.needs) for row in rows)
            found += [f"warning: {empty} of {len(rows)} rows lack one"] if empty else []
    return "; ".join([f"needs {' and '.join(built.needs)}", *found])


def tools(case: Case) -> str:
    """Find the tools, and count the tokens that their results may take in a completion."""
    from grpo.tools.functions import check_tools  # with SQLite, as below

    config = case.stage2
    assert config is not None
    named = [name for name in config.tools if name != SEARCH or not case.makes_its_data]
    check_tools(replace(config, tools=tuple(named)), case.objects.tools)
    most = config.max_tool_calls * config.max_tool_result_tokens
    limit = config.max_completion_length
    names = ", ".join(filter(None, (*config.tools, config.environment)))
    text = f"{names}: {config.max_tool_calls} results of {config.max_tool_result_tokens} tokens"
    text += f" and their tags take {most} and more of the {limit} tokens of a completion, at most"
    return text if most < limit else f"{text}; warning: they can leave no room for an answer"


def services_used(case: Case) -> list[str]:
    """Return the services that the run's rewards use."""
    from rewards.services import services_of  # with SQLite, which most runs can do without

    return services_of(case.reward_names)


def service(case: Case, name: str) -> str:
    """Check key, URL and model of a service, or that its file opens; nothing is asked."""
    from rewards.services import check_settings  # with SQLite, as above

    return check_settings(name, case.options)

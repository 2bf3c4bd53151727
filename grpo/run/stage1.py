"""The stage 1 that comes first in a run of stage 2, by `cold_start`: its configuration, and when its result is used.

A finished stage 1 is used again, where it lies, only if it would be made the same: origin.json in its final/ holds the
keys, and hashes of the data and of the base model, that it was made from.

`cold_start: form` is a stage 1 that a model writes for itself. It teaches the form of an answer and nothing else. The
model answers the run's questions as it likes, and says each answer again in a few words. Both go into the tags that the
rewards read:

    <think>The capital of Peru is Cuzco, which lies in the Andes.</think>
    <answer>Cuzco</answer>

Nobody looks at whether that is right, so no fact is taught. If a reward pays for declining, some of the answers are "I
don't know", drawn at random. Then most groups hold both kinds, and GRPO finds out when to decline.
"""

import hashlib
import json
import random
import re
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from functools import partial
from math import ceil
from pathlib import Path

from grpo.algorithm.schema import Prompt, completions_of
from grpo.base.errors import CONFIG, PREFLIGHT, UserError
from grpo.base.storage import Json, read_mapping, write_lines
from grpo.config.load import examine_config
from grpo.config.options import FORM, LoraKeys, ModelKeys, SftConfig, TrainConfig, keys_that
from grpo.data.files import files_of
from grpo.data.prompts import ChatEncoder, make_prompts
from grpo.data.questions import QuestionData, Questions
from grpo.data.registry import find_sources
from grpo.data.rows import Row, digest
from grpo.data.worlds.kinds import DECLINED, SHARE_DECLINED
from grpo.data.worlds.world import locate
from grpo.engine.device.distributed import choose_device
from grpo.engine.device.draw import SamplingParams
from grpo.engine.model.adapter import is_adapter
from grpo.engine.sampling.sampler import Sampler
from grpo.evaluation.answers import generate_groups
from grpo.policy import find_folders, load_for_inference
from grpo.run.provenance import differences, file_hash
from knowledge.store.passages import sentences
from rewards.format import TAGS
from rewards.prompts import BOXED, with_tools
from rewards.registry import built_in, expand

ORIGIN_FILE = "origin.json"  # in the final/ of a stage 1
LENGTH = {"max_steps", "num_train_epochs"}  # free for a resumed run, but they decide what a finished one has learned
NUM_EXAMPLES = 160
EXAMPLES_PER_STEP = 16
NUM_STEPS = 20
RATE, RATE_OF_ALL_WEIGHTS = 5e-4, 1e-5  # of adapters, and without them
TEMPERATURE = 0.7  # several answers to one question should differ, and still make sense
STEM = "\nThe answer is:"  # after an answer, it asks for a shorter one
MAX_SHORT_TOKENS = 16
MAX_SEQUENCES = 64
MAX_WORDS = 3  # that a short answer may share with a text hardly longer than itself
_ENDS = re.compile(r"[.,;:!?](?=\s|$)|[。，；：！？\n(\"]")  # of a short answer
_MARKUP = re.compile("|".join([*TAGS, r"\\boxed", r"[{}$*]"]))


def load_stage1(config: TrainConfig) -> tuple[SftConfig, list[str], list[str]]:
    """Load the stage 1 config that a stage 2 config names, or make that of `form`; and its notices and mistakes."""
    if config.cold_start == FORM:
        return form_stage1(config), [], []
    if not (config.cold_start and Path(config.cold_start).is_file()):
        raise UserError(
            f"cold_start: there is no file {config.cold_start}",
            f"it was sought in {Path.cwd()}, and in the folder of the config that names it and those above",
            "set cold_start=FILE, or cold_start=null model_name_or_path=MODEL to start without a stage 1",
        )
    return examine_config(config.cold_start, stage1_overrides(config), SftConfig)


def stage1_overrides(config: TrainConfig) -> list[str]:
    """Return the keys of stage 1 that the stage 2 config sets, as on a command line.

    What the stage 2 config says about the model is meant for stage 1, which comes first. Both stages run in the same
    processes, so as many of them share the model. In a toy world stage 1 belongs to the run: it lies in the run's
    directory and shares its seed.
    """
    overrides = [f"disable_tqdm={config.disable_tqdm}", f"tensor_parallel_size={config.tensor_parallel_size}"]
    if config.toy_world:
        output_dir = Path(config.output_dir) / "cold_start"
        overrides += [f"output_dir={output_dir}", f"toy_dir={config.toy_dir}", f"seed={config.seed}"]
    if config.model_name_or_path and is_adapter(Path(config.model_name_or_path)):
        raise UserError(
            "model_name_or_path is an adapter, and cold_start names a stage 1",
            f"{config.model_name_or_path} looks like the result of a stage 1 already",
            "set cold_start=null to start from it; or give the base model, from which stage 1 starts",
        )
    for name in keys_that("model"):
        value = getattr(config, name)
        if value != getattr(SftConfig, name):
            overrides.append(f"{name}={json.dumps(value) if isinstance(value, dict) else value}")
    return overrides


def is_done(stage1: SftConfig, config: TrainConfig) -> bool:
    """Return whether a stage 1 is finished. UserError (exit 2) says what differs if its result is another one's."""
    final = final_of(stage1)
    if not final.exists():
        return False
    made = read_mapping(final / ORIGIN_FILE)
    wanted = origin_of(locate(stage1))
    changes = [f"{name}: {before} -> {now}" for name, (before, now) in differences(made, wanted).items()]
    if "data" not in made:
        changes = [f"it does not say what it was made from ({ORIGIN_FILE})"]
    if changes:
        raise UserError(
            f"the finished stage 1 in {final} is not what {config.cold_start} makes now",
            "; ".join(changes),
            f"to make it again, remove {final.parent}, or set another output_dir in {config.cold_start}; "
            f"to use it nevertheless, set cold_start=null model_name_or_path={final}",
            CONFIG,
        )
    return True


def origin_of(config: SftConfig) -> Json:
    """Return what a stage 1 is made from, as JSON: its keys, and hashes of its data and of its base model."""
    folders = find_folders(config)
    places = (folders.model, folders.adapter, folders.tokenizer)
    base = [path for place in places if place for path in sorted(place.glob("*.*"))]
    base += [Path(config.chat_template)] if config.chat_template else []
    data = []
    for source in find_sources(config):
        layout = dict(source.layout)
        data += [(hashlib.sha256(file.read_bytes()).hexdigest(), layout) for file in files_of(source.path)]
    left_out = {*keys_that("free"), *keys_that("local")} - LENGTH
    origin = {name: value for name, value in asdict(config).items() if name not in left_out}
    origin["data"] = digest(data)
    origin["base model"] = digest([path.name, file_hash(path)] for path in base if path.is_file())
    return json.loads(json.dumps(origin))


def final_of(stage1: SftConfig) -> Path:
    """Return the folder of the model that a stage 1 makes."""
    return Path(stage1.output_dir) / "final"


def start_from(stage1: SftConfig, config: TrainConfig) -> TrainConfig:
    """Return the configuration of a stage 2 that starts from the result of stage 1."""
    return replace(config, model_name_or_path=str(final_of(stage1)), adapter_name_or_path=None, cold_start=None)


# --- the form ----------------------------------------------------------------------------------------------------


def form_stage1(config: TrainConfig) -> SftConfig:
    """Return the configuration of the form: the model, adapters and prompt of stage 2, and steps of its own."""
    folder = Path(config.output_dir)
    names = [entry.name for entry in (*fields(ModelKeys), *fields(LoraKeys))]
    same = {name: getattr(config, name) for name in names}
    return SftConfig(
        **same,
        dataset_id_or_path=str(folder / "world" / "form.jsonl"),
        output_dir=str(folder / "cold_start"),
        system_prompt=config.system_prompt,
        max_length=config.max_prompt_length + config.max_completion_length,
        per_device_train_batch_size=EXAMPLES_PER_STEP,
        max_steps=NUM_STEPS,
        learning_rate=RATE if config.lora_r else RATE_OF_ALL_WEIGHTS,
        warmup_steps=3,
        save_steps=0,
        seed=config.seed,
        report_to=("none",),
        disable_tqdm=config.disable_tqdm,
    )


def write_examples(config: TrainConfig) -> None:
    """Let the model of a configuration answer its questions, and write stage 1's data. UserError if it says nothing."""
    policy = load_for_inference(config, choose_device(config.device))
    encoder = ChatEncoder(policy.tokenizer)
    limit = min(config.max_prompt_length, policy.model.config.max_positions - config.max_completion_length)
    rows, count = QuestionData(config).load(Questions.to_train(config))
    rows = random.Random(config.seed).sample(rows, min(len(rows), NUM_EXAMPLES))
    asked = make_prompts(rows, encoder, own_system_prompt(config), config.prompt_template, limit, count)
    answer = partial(generate_groups, policy, Sampler(policy.model, policy.eos_ids, MAX_SEQUENCES), seed=config.seed)
    half = max(config.max_completion_length // 2, 1)  # of the tokens that an answer has; tags and answer take the rest
    groups = answer(asked, n=ceil(NUM_EXAMPLES / len(asked)), sampling=SamplingParams(half, TEMPERATURE))
    prompts = [group.prompt for group in groups for _ in group.completions]
    thoughts = [complete_sentences(plain(completion.text)) for completion in completions_of(groups)]
    again = []
    for prompt, text in zip(prompts, thoughts, strict=True):
        again.append(replace(prompt, ids=(*prompt.ids, *encoder.after(prompt.text, text + STEM))))
    said_shortly = answer(again, n=1, sampling=SamplingParams(MAX_SHORT_TOKENS, temperature=0.0))
    answers = [first_words(plain(completion.text)) for completion in completions_of(said_shortly)]
    examples = make_examples(config, rows, prompts, thoughts, answers)
    if not examples:
        raise UserError(
            "cold_start: form found no answer to learn the form from",
            f"the model answers none of {len(rows)} questions in words",
            "name a config of stage 1 instead: cold_start=CONFIG",
            PREFLIGHT,
        )
    write_lines(Path(form_stage1(config).dataset_id_or_path), examples)


def own_system_prompt(config: TrainConfig) -> str | None:
    """Return the system prompt without the one that rewards supply: that asks for the form, which is added here."""
    supplied = {BOXED, *(built_in(name).prompt for name in config.reward_funcs)}
    told = {with_tools(prompt, config.tools) for prompt in ("", *supplied)} if config.tools else set()
    return None if config.system_prompt in supplied | told else config.system_prompt


def make_examples(
    config: TrainConfig, rows: Sequence[Row], prompts: Sequence[Prompt], thoughts: Sequence[str], answers: Sequence[str]
) -> list[dict]:
    """Return the examples, without those whose short answer is missing or only repeats what was said.

    prompts: of these rows, some several times.
    """
    rng = random.Random(config.seed)
    by_index = {row.index: row for row in rows}
    examples = []
    is_paid = any(built_in(name).pays_refusals for name in config.reward_funcs)
    can_decline = is_paid or config.refusal_target is not None
    for prompt, thought, answer in zip(prompts, thoughts, answers, strict=True):
        is_repetition = len(answer.split()) > MAX_WORDS and 2 * len(answer) > len(thought)
        if thought and answer and not is_repetition:
            declines = can_decline and rng.random() < SHARE_DECLINED
            completion = in_form(config.reward_funcs, thought, DECLINED if declines else answer, rng)
            messages = by_index[prompt.row].messages(config.prompt_template, None)
            examples.append({"prompt": messages, "completion": completion})
    return examples


def in_form(reward_funcs: Sequence[str], thought: str, answer: str, rng: random.Random) -> str:
    r"""Put an answer into the form that the rewards read: tags, a box, or both; a confidence is drawn at random.

    >>> in_form(["math"], "3 and 4 is 7.", "7", random.Random(0))
    '3 and 4 is 7.\nThe answer is \\boxed{7}.'
    """
    names = set(expand(reward_funcs))
    if "math" in names:
        answer = f"\\boxed{{{answer}}}"
        if not names & {"format", "tag_count"}:
            return f"{thought}\nThe answer is {answer}."
    confidence = f"\n<confidence>{rng.randint(1, 9) / 10}</confidence>" if "rlcr" in names else ""
    return f"<think>{thought}</think>\n<answer>{answer}</answer>{confidence}"


def plain(text: str) -> str:
    """Return a text on one line, without the markup that the form adds."""
    return " ".join(_MARKUP.sub("", text).split())


def complete_sentences(text: str) -> str:
    """Return a text without a last sentence that was cut off; all of it if it has no other.

    >>> complete_sentences("The capital is Lima. It lies at the")
    'The capital is Lima.'
    """
    if text.endswith((".", "!", "?", "。")):
        return text.strip()
    *whole, last = sentences(text or " ")
    return "".join(whole).strip() or last.strip()


def first_words(text: str) -> str:
    """Return what stands before the first end of a short answer.

    >>> first_words("Lima, the largest city of Peru")
    'Lima'
    """
    return _ENDS.split(text.strip(' "'), maxsplit=1)[0].strip()

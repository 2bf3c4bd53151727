"""The data of both stages: questions, conversations, their duplicates, and how a prompt is rendered."""

from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace

from grpo.config.options import FORM, SftConfig
from grpo.data.conversations import read_conversations
from grpo.data.count import RowCount
from grpo.data.prompts import ChatEncoder
from grpo.data.questions import QuestionData, Questions, load_prompts
from grpo.data.registry import find_sources
from grpo.data.rows import Row
from grpo.doctor.case import Case, NotChecked, need
from grpo.sft import load_examples

MAX_SHOWN = 3  # examples of duplicates


def questions(case: Case) -> str:
    """Read the questions to train on."""
    config = case.config
    need(config.dataset_id_or_path, "dataset_id_or_path")
    case.data = QuestionData(config)
    case.rows, count = case.data.load(Questions.to_train(config))
    return f"{len(case.rows)} questions in {count}; {_duplicates(case.rows)}"


def held_out(case: Case) -> str:
    """Read the held-out questions, and look for those that are trained on as well."""
    if not case.config.eval_dataset_id_or_path:
        need(case.config.dataset_id_or_path, "dataset_id_or_path")
    case.data = case.data or QuestionData(case.config)
    rows, count = case.data.load(Questions.held_out(case.config))
    case.num_held_out = len(rows)
    found = [f"{len(rows)} questions in {count}", _duplicates(rows)]
    if case.rows is not None:
        trained = {_normal(row) for row in case.rows}
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


def prompts(case: Case) -> str:
    """Render and encode all prompts."""
    config = case.config
    shape, tokenizer = need(case.shape, "the model"), need(case.tokenizer, "the tokenizer")
    need(case.rows, "the data")
    policy = SimpleNamespace(model=SimpleNamespace(config=shape), tokenizer=tokenizer)
    loaded = load_prompts(case.data, policy, Questions.to_train(config))
    case.prompts = loaded.prompts
    lengths = sorted(len(prompt.ids) for prompt in case.prompts)
    median = lengths[len(lengths) // 2]
    case.longest = lengths[-1] + config.max_completion_length
    found = f"{len(lengths)} prompts of {lengths[0]} to {lengths[-1]} tokens, half of them up to {median}"
    return f"{found}; {loaded.count}"


def prompt(case: Case) -> str:
    """Show the first prompt as the model sees it."""
    first = need(case.prompts, "the prompts")[0]
    return f"of row {first.row + 1}, {len(first.ids)} tokens:\n{first.text}"


def conversations(case: Case) -> str:
    """Read and encode stage 1's data: that of its own config, or of the stage 1 that runs first."""
    config = case.start
    need(config.dataset_id_or_path, "dataset_id_or_path")
    if getattr(case.config, "cold_start", None) == FORM:
        raise NotChecked("not checked: the model writes it, when the run begins")
    if case.tokenizer is None or case.shape is None:  # the data can be read, but not encoded
        for source in find_sources(config.dataset_id_or_path, config.dataset_split, config.dataset_dir):
            for _ in read_conversations(source.read(), source.path, RowCount(source.path.name)):
                pass
    shape, tokenizer = need(case.shape, "the model"), need(case.tokenizer, "the tokenizer")
    max_length = min(config.max_length, shape.max_positions)
    examples, count = load_examples(config, ChatEncoder(tokenizer), max_length)
    lengths = sorted(len(group.prompt.ids) + len(group.completions[0].ids) for group in examples)
    texts = Counter((group.prompt.text, group.completions[0].text) for group in examples)
    case.num_examples = len(examples)
    if isinstance(case.config, SftConfig):
        case.longest, case.prompts = lengths[-1], [group.prompt for group in examples]
    surplus = len(examples) - len(texts)
    twice = f"warning: {surplus} are repetitions" if surplus else "none of them twice"
    return f"{len(examples)} answers in {count}; with their prompts {lengths[0]} to {lengths[-1]} tokens; {twice}"

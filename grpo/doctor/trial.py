"""The thorough checks of the doctor: of weights, all prompts and examples, services, memory and a few tokens."""

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

from grpo.base.errors import PREFLIGHT, UserError
from grpo.data.prompts import ChatEncoder
from grpo.data.questions import Questions, load_prompts, longest_sequence
from grpo.doctor.estimate import check_room, load_trainer
from grpo.engine.device.draw import SamplingParams
from grpo.engine.model import memory
from grpo.engine.model.adapter import load_adapter
from grpo.engine.model.weights import load_decoder
from grpo.engine.sampling.sampler import Sampler
from grpo.evaluation.answers import generate_groups
from grpo.policy import find_folders
from grpo.run.case import Case, Check, NotChecked, need, share_of, sketch_reference
from grpo.run.start import conversations, need_written, services_used
from grpo.sft import load_examples
from knowledge.store.base import KnowledgeBase
from rewards.audit import audit
from rewards.knowrl.fact_checker import say_coverage
from rewards.scorer import Scorer
from rewards.services import SERVICES, knowledge_base_path

SAMPLE_TOKENS = 8
AUDIT_CALLS = 20


def weights(case: Case) -> str:
    """Fetch the weights, and check by the headers of their files that they fit the model's config."""
    need(case.folder, "the model")
    build = case.decoder.build
    folders = find_folders(case.start)
    adapter = load_adapter(folders.adapter) if folders.adapter else None
    load_decoder(folders.model, build, adapter)
    return f"those in {folders.model} fit its config.json"


def examples(case: Case) -> str:
    """Read and encode stage 1's data: that of its own config, or of the stage 1 that runs first."""
    config = case.start
    need_written(case)
    if case.tokenizer is None:  # the data can be read, but not encoded
        return conversations(case)
    max_length = min(config.max_length, case.decoder.config.max_positions)
    groups, count = load_examples(config, ChatEncoder(case.tokenizer), max_length)
    lengths = sorted(len(group.prompt.ids) + len(group.completions[0].ids) for group in groups)
    texts = Counter((group.prompt.text, group.completions[0].text) for group in groups)
    case.num_examples = len(groups)
    if not case.stage2:
        case.longest = lengths[-1]
        case.prompts = [group.prompt for group in groups]
    surplus = len(groups) - len(texts)
    twice = f"warning: {surplus} are repetitions" if surplus else "none of them twice"
    return f"{len(groups)} answers in {count}; with their prompts {lengths[0]} to {lengths[-1]} tokens; {twice}"


def prompts(case: Case) -> str:
    """Render and encode all prompts."""
    config = case.config
    decoder = need(case.decoder, "the model")
    tokenizer = need(case.tokenizer, "the tokenizer")
    need(case.rows.get("train"), "the data")
    policy = SimpleNamespace(model=decoder, tokenizer=tokenizer)
    loaded = load_prompts(case.data, policy, Questions.to_train(config))
    case.prompts = loaded.prompts
    lengths = sorted(len(prompt.ids) for prompt in case.prompts)
    median = lengths[len(lengths) // 2]
    if Questions.held_out(config) and "eval" not in case.rows:  # they have a fault, which is told by itself
        case.longest = lengths[-1] + config.max_completion_length
    else:
        case.longest = longest_sequence(case.data, policy, case.prompts)
    found = f"{len(lengths)} prompts of {lengths[0]} to {lengths[-1]} tokens, half of them up to {median}"
    return f"{found}; {loaded.count}"


def prompt(case: Case) -> str:
    """Show the first prompt as the model sees it."""
    first = need(case.prompts, "the prompts")[0]
    return f"of row {first.row + 1}, {len(first.ids)} tokens:\n{first.text}"


def service_checks(case: Case) -> Iterator[tuple[str, Check]]:
    """Yield a check for each service: it is asked, loaded or read."""
    for name in services_used(case):
        yield name, partial(service, name=name)
        if name == "knowledge base":
            yield "titles", titles


def service(case: Case, name: str) -> str:
    case.checkups[name] = SERVICES[name](case.options)
    return case.checkups[name].text


def titles(case: Case) -> str:
    """Look up all titles of the data."""
    rows = need(case.rows.get("train"), "the data")
    need(case.checkups.get("knowledge base"), "the knowledge base")
    said: list[str] = []
    with KnowledgeBase(knowledge_base_path(case.options)) as base:
        say_coverage(base, [row.columns for row in rows], case.options, said.append)
    return "; ".join(said)


def short_audit(case: Case) -> str:
    """Try dishonest answers to one question on the rewards; judges and decomposers are asked AUDIT_CALLS times at most.

    What is paid is a warning: the run could begin.
    """
    rows = need(case.rows.get("train"), "the data")
    for name in services_used(case):
        need(case.checkups.get(name), f"the {name}")
    config = replace(case.config, api_cache=case.options["api_cache"])
    try:
        found = audit(config, num_rows=1, num_calls=AUDIT_CALLS, rows=rows)
    except UserError as error:
        raise NotChecked(f"not checked: {error.what}") from None
    asked = f"; services were asked {found.num_asked} of at most {AUDIT_CALLS} questions" if found.num_asked else ""
    warning = "warning: " if found.findings else ""
    return f"{warning}{found}{asked}; `python -m rewards.audit CONFIG` tries more, and shows the texts"


def memory_plan(case: Case) -> str:
    """Plan memory as the run does. UserError (exit 3) if it does not fit."""
    config = case.config
    longest = need(case.longest, "the prompts")
    num_shards = config.tensor_parallel_size
    loaded = memory.Loaded(share_of(case), sketch_reference(case))
    size = int(case.memory_gb * 1e9) if case.memory_gb else memory.free_bytes(case.device)
    plan = memory.make_plan(loaded, config, longest, size, case.device.type)
    case.needed_bytes = plan.needed.total
    if not plan.fits:
        fix = "lower max_completion_length, max_num_seqs or lora_r, or share the model: raise tensor_parallel_size"
        if config.lora_r and not config.base_weights:
            fix += ", or set base_weights=int8 or nf4"
        raise UserError("the run does not fit into memory", str(plan), fix, PREFLIGHT)
    each = f"each of the {num_shards} processes that share the model: " if num_shards > 1 else ""
    return f"{each}{plan}"


def sample(case: Case) -> str:
    """Load the weights, generate a few tokens, and grade them with the user's own functions."""
    first = need(case.prompts, "the prompts")[0]
    check_room(case)
    case.trainer = load_trainer(case)
    policy = case.trainer.policy
    sampling = SamplingParams(SAMPLE_TOKENS, temperature=0.0)
    groups = generate_groups(policy, Sampler(policy.model, policy.eos_ids, 1), [first], 1, sampling, seed=0)
    with closing(Scorer(case.functions)) as scorer:  # the user's own functions, which may give what is no number
        scorer.grade(groups)
        scorer.check_numbers()
    (completion,) = groups[0].completions
    found = [f"{name} gives {score.value}" for name, score in completion.scores.items()]
    return "; ".join([f"{len(completion.ids)} tokens: {completion.text!r}", *found])

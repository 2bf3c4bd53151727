"""Checks of the model, from the headers of its files alone: does it fit together, onto the disk, into memory?"""

from collections.abc import Iterator
from dataclasses import replace

from grpo.algorithm.schema import Completion, Group, Prompt
from grpo.base.errors import PREFLIGHT, UserError
from grpo.config.load import examine_config
from grpo.config.options import FORM, SftConfig, keys_that
from grpo.data import form
from grpo.data.prompts import eos_ids, turn_end
from grpo.doctor.case import Case, NotChecked, need
from grpo.doctor.rehearsal import GrpoRehearsal, Rehearsal, SftRehearsal
from grpo.engine.device.draw import SamplingParams, hash_seed
from grpo.engine.device.products import slow_dtype
from grpo.engine.device.shard import Shard
from grpo.engine.model import memory
from grpo.engine.model.adapter import load_adapter
from grpo.engine.model.build import Build
from grpo.engine.model.decoder import Decoder
from grpo.engine.model.policy import check_vocabulary, choose_dtype, find_parts, load_encoder, lora_spec
from grpo.engine.model.weights import load_decoder, named_tensors, read_model_config
from grpo.engine.sampling.sampler import Sampler, check_finite
from grpo.run.checkpoint import check_disk
from grpo.sft import after_stage1, stage1_overrides
from rewards.scorer import Scorer

SAMPLE_TOKENS = 8
UNITS = ((1e9, "B"), (1e6, "M"))


def stage1(case: Case) -> str:
    """Check the stage 1 that the config names, and find the model that it makes or has made."""
    config = case.config
    overrides, first, problems = stage1_overrides(config), form.stage1(config), []
    if config.cold_start != FORM:
        first, _, problems = examine_config(config.cold_start, overrides, SftConfig)
    if problems:
        case.start = first
        raise UserError(f"{config.cold_start} is not a configuration of stage 1", "\n     ".join(problems))
    case.start = after_stage1(first, config) or first
    if case.start is not first:
        return f"done: {case.start.model_name_or_path}"
    return f"{config.cold_start} runs first, from {first.model_name_or_path or 'scratch'} into {first.output_dir}"


def model(case: Case) -> str:
    """Check that the weights fit the model's config, and that checkpoints fit on the disk."""
    config = case.config
    need(case.start.model_name_or_path, "model_name_or_path")
    template = config.chat_template or case.start.chat_template
    case.start = replace(case.start, chat_template=template, chat_template_kwargs=config.chat_template_kwargs)
    parts = find_parts(case.start)
    case.folder = parts.model
    case.shape = read_model_config(case.folder)
    lora, dtype = lora_spec(config), choose_dtype(config.torch_dtype, case.device)
    case.model = decoder = load_decoder(
        case.folder, Build(lora, lora is None, dtype, "meta", int8=config.base_weights == "int8")
    )
    if parts.adapter:
        load_adapter(parts.adapter)  # which checks it
    checkpoint_bytes = check_disk(decoder, config, parts.adapter)
    num_weights = sum(tensor.numel() for tensor in named_tensors(decoder).values())
    num_trained = sum(parameter.numel() for parameter in decoder.parameters())
    share = num_trained / (num_weights + num_trained) if lora else 1.0
    found = [
        f"{decoder.config.family}, {rounded(num_weights)} weights, {rounded(num_trained)} trained ({share:.2%})",
        f"a checkpoint takes {checkpoint_bytes / 1e9:.2f} GB",
        slow_dtype(dtype, case.device),
    ]
    return "; ".join(filter(None, found))


def rounded(number: float) -> str:
    """Write a large number in millions or billions, and a small one in full."""
    return next((f"{number / size:,.2f}{unit}" for size, unit in UNITS if number >= size / 10), f"{number:,.0f}")


def tokenizer(case: Case) -> str:
    """Load the tokenizer, and return which tokens end an answer, the chat template's first."""
    folder = need(case.folder, "the model")
    encoder = load_encoder(case.start)
    case.tokenizer = encoder.tokenizer
    if case.model is not None:
        check_vocabulary(case.tokenizer, case.model)
    first = turn_end(case.tokenizer)
    ends = sorted(eos_ids(folder, case.tokenizer), key=lambda token: token != first)
    names = case.tokenizer.convert_ids_to_tokens(ends)
    opened = "; its template opens <think> in the prompt, and rewards count that" if encoder.opens_think else ""
    return f"{len(case.tokenizer)} tokens; an answer ends with {' or '.join(map(str, names))}{opened}"


def memory_plan(case: Case) -> str:
    """Plan memory as the run does. UserError (exit 3) if it does not fit."""
    whole, config, longest = need(case.model, "the model"), case.config, need(case.longest, "the prompts")
    num_shards, reference = config.tensor_parallel_size, None
    build = replace(whole.build, shard=Shard(0, num_shards))
    decoder = Decoder(whole.config, build)
    if getattr(config, "beta", 0) and not config.lora_r:
        reference = Decoder(whole.config, replace(build, train_weights=False))
    size = int(case.memory_gb * 1e9) if case.memory_gb else memory.free_bytes(case.device)
    plan = memory.make_plan(decoder, config, longest, size, reference, case.device.type)
    case.needed_bytes = plan.needed.total
    if not plan.fits:
        fix = "lower max_completion_length, max_num_seqs or lora_r, or share the model: raise tensor_parallel_size"
        if config.lora_r and not config.base_weights:
            fix += ", or set base_weights=int8"
        raise UserError("the run does not fit into memory", str(plan), fix, PREFLIGHT)
    each = f"each of the {num_shards} processes that share the model: " if num_shards > 1 else ""
    return f"{each}{plan}"


def sample(case: Case) -> str:
    """Load the weights, and generate a few tokens."""
    first = need(case.prompts, "the prompts")[0]
    check_room(case)
    case.rehearsal = rehearse(case)
    policy = case.rehearsal.trainer.policy
    sampling = SamplingParams(SAMPLE_TOKENS, temperature=0.0)
    sampler = Sampler(policy.model, policy.eos_ids, 1)
    ((completion,),) = sampler.sample([first.ids], 1, sampling, [hash_seed(0)])
    check_finite(*completion.logps)
    completion.text = policy.decode(completion.ids)
    return "; ".join([f"{len(completion.ids)} tokens: {completion.text!r}", *_graded(case, first, completion)])


def _graded(case: Case, prompt: Prompt, completion: Completion) -> Iterator[str]:
    """Grade a completion with the user's own functions, and yield what each gives. UserError if it is no number."""
    scorer = Scorer(case.functions)
    try:
        scorer.grade([Group(prompt, [completion])])
        scorer.check_numbers()
    finally:
        scorer.close()
    yield from (f"{name} gives {score.value}" for name, score in completion.scores.items())


def check_room(case: Case) -> None:
    """Raise NotChecked if the run cannot be tried here."""
    if case.memory_gb:
        raise NotChecked("not checked: the GPU is not here")
    if case.config.tensor_parallel_size > 1:
        raise NotChecked(f"not checked: {case.config.tensor_parallel_size} processes share the model")
    needed, free = need(case.needed_bytes, "the memory"), memory.free_bytes(case.device)
    if needed > free:
        raise NotChecked(f"not checked: it takes {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are free")


def rehearse(case: Case) -> Rehearsal:
    """Load the trainer of a run. If stage 1 has to run first, stage 2 is tried with stage 1's model."""
    config, start = case.config, case.start
    if isinstance(config, SftConfig):
        return SftRehearsal(start)
    if isinstance(start, SftConfig):
        start = replace(config, **{name: getattr(start, name) for name in keys_that("model")})
    return GrpoRehearsal(start)

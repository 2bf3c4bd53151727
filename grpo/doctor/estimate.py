"""What a run will take: its steps, tokens, time, and calls of services.

The time is that of a small first step, made in memory by the run's own code, and scaled up by its tokens. All answers
of the complete step count as long as they may become, so it is an upper bound where they end early.
"""

from dataclasses import replace
from math import ceil
from statistics import fmean

import psutil

from grpo.algorithm.schema import Group, Score, completions_of
from grpo.base.text import show_duration
from grpo.config.options import SEARCH, SftConfig, TrainConfig, keys_that
from grpo.data.questions import num_steps
from grpo.engine.model import memory
from grpo.run.case import Case, NotChecked, need, rounded
from grpo.run.run import SilentRun
from grpo.sft import SftTrainer
from grpo.train import GrpoTrainer
from rewards.registry import Reward
from rewards.scorer import Scorer
from rewards.services import Checkup, services_of

CUT = 64  # tokens of the completions in the step that is made
FEW = 8  # examples of stage 1 in it
PHASES = {"time/generate": "generating", "time/reference": "reference", "time/train": "training"}
NO_REWARD = Reward("nothing", lambda text, row: Score(0.0))


def time_step(trainer: GrpoTrainer | SftTrainer) -> tuple[dict[str, float], str]:
    """Make a small first step of a run twice, and scale the second one up.

    Returns the seconds of a complete step by phase, and what was measured.
    """
    config = trainer.config
    rows = trainer.training_data.rows
    if isinstance(config, SftConfig):
        few = min(FEW, config.completions_per_replica)
        trainer.config = replace(config, per_device_train_batch_size=few, gradient_accumulation_steps=1)
        tokens = config.completions_per_replica * fmean(map(num_packed, rows))
        longest = max(len(example.completions[0].ids) for example in rows)
        measured = f"{few} answers"
    else:
        number = config.completions_per_replica // config.num_generations
        longest = config.max_completion_length
        trainer.config = replace(config, max_completion_length=min(CUT, longest))
        tokens = number * (fmean(len(prompt.ids) for prompt in rows) + config.num_generations * longest)
        measured = f"{number} questions, answers of at most {min(CUT, longest)} tokens"
    load, cores = psutil.getloadavg()[0], psutil.cpu_count()
    busy = f", beside other work: a load of {load:.1f} on {cores} cores" if load > cores else ""
    for _ in range(2):  # the first one warms up
        trainer.start_at()
        trainer.run_step()
    groups = trainer.learned.groups
    times = trainer.clock.result()
    made = max(len(completion.ids) for completion in completions_of(groups))
    scale = tokens / sum(map(num_packed, groups))
    scales = {"time/generate": longest / made}  # it takes as many passes as the longest answer has tokens
    phases = {name: times[phase] * scales.get(phase, scale) for phase, name in PHASES.items() if times[phase]}
    return phases, f"{measured}, scaled up by tokens{busy}"


def num_packed(group: Group) -> int:
    """Count the tokens of a group, whose prompt is computed once."""
    return len(group.prompt.ids) + sum(len(completion.ids) for completion in group.completions)


def check_room(case: Case) -> None:
    """Raise NotChecked if the run cannot be tried here."""
    if case.memory_gb:
        raise NotChecked("not checked: the GPU is not here")
    if case.config.tensor_parallel_size > 1:
        raise NotChecked(f"not checked: {case.config.tensor_parallel_size} processes share the model")
    needed = need(case.needed_bytes, "the memory")
    free = memory.free_bytes(case.device)
    if needed > free:
        raise NotChecked(f"not checked: it takes {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are free")


def load_trainer(case: Case) -> GrpoTrainer | SftTrainer:
    """Load the trainer of a run that writes nothing. If stage 1 has to run first, stage 2 starts from its model."""
    config = case.config
    start = case.start
    if isinstance(config, SftConfig):
        return SftTrainer(start, SilentRun(start))
    if isinstance(start, SftConfig):
        start = replace(config, **{name: getattr(start, name) for name in keys_that("model")})
    if "eval" not in case.rows:  # there is no such data, or it has a fault, which is told by itself
        start = replace(start, eval_dataset_id_or_path=None)
    tools = tuple(name for name in start.tools if name != SEARCH)  # prompts may describe them
    ungraded = replace(start, dynamic_sampling=False, knowledge_base=None, tools=tools)
    trainer = GrpoTrainer(ungraded, SilentRun(ungraded), Scorer([NO_REWARD]))
    trainer.sampler.tools = None  # no tool is called before a run
    return trainer


# --- estimates -------------------------------------------------------------------------------------------------------


def steps(case: Case) -> str:
    """Count steps and tokens, on one device."""
    config = case.config
    longest = need(case.longest, "the data")
    rows = config.completions_per_replica
    number = steps_of(case)
    if isinstance(config, SftConfig):
        return f"{number:,} steps of {rows} answers on one device, of {rows * longest:,} tokens at most"
    longest = max(len(prompt.ids) for prompt in case.prompts) + config.max_completion_length
    groups = rows // config.num_generations
    generated = rows * config.max_completion_length
    found = [
        f"{number:,} steps of {rows} completions on one device ({groups} questions x {config.num_generations})",
        f"the largest has {rows * longest:,} tokens, of which {generated:,} are generated",
        f"all of them {rounded(number * generated)} at most",
    ]
    epochs = number * groups / len(case.prompts)
    return "; ".join([*found, f"each question {epochs:.1f} times"])


def steps_of(case: Case) -> int:
    """Return the number of steps of the run on one device."""
    config = case.config
    if isinstance(config, SftConfig):
        return num_steps(config, case.num_examples, config.completions_per_replica)
    return num_steps(config, len(case.prompts), config.completions_per_replica // config.num_generations)


def evaluations_of(case: Case) -> int:
    """Return how often the run answers the held-out questions: before, after, and every eval_steps."""
    if "eval" not in case.rows:
        return 0
    every = case.config.eval_steps
    return 2 + (steps_of(case) // every if every else 0)


def duration(case: Case) -> str:
    """Estimate the time of a run from a step that is made here, and from the latency of services."""
    trainer, case.trainer = need(case.trainer, "the sample"), None
    phases, measured = time_step(trainer)
    number = steps_of(case)
    notes = [measured]
    if isinstance(case.config, TrainConfig):
        for name, checkup in asked(case).items():
            in_turn = ceil(case.config.completions_per_replica / case.config.api_max_concurrency)
            phases[f"{name} (at most)"] = in_turn * checkup.seconds
        for name in services_of(case.reward_names):
            if name not in case.checkups:
                notes.append(f"without the {name}")
        if case.config.dynamic_sampling:
            most = case.config.dynamic_sampling_max_rollouts
            notes.append(f"dynamic_sampling generates up to {most} times as much")
    seconds = sum(phases.values())
    terms = " + ".join(f"{name} {seconds:,.2f}" for name, seconds in phases.items())
    found = [f"{seconds:,.2f} s a step: {terms}", f"{number:,} steps take {show_duration(number * seconds)}"]
    evaluations = evaluations_of(case)
    if evaluations:
        of_answers = seconds - phases["training"] - phases.get("reference", 0)
        of_one = of_answers / case.config.completions_per_replica
        total = show_duration(evaluations * len(case.rows["eval"]) * of_one)
        found.append(f"{evaluations} evaluations take {total}")
    return "; ".join([*found, f"measured here: {', '.join(notes)}"])


def stage1_duration(case: Case) -> str:
    """Estimate the time of the stage 1 that runs first."""
    config = case.start
    number = num_steps(config, need(case.num_examples, "the data of stage 1"), config.completions_per_replica)
    check_room(case)
    phases, measured = time_step(SftTrainer(config, SilentRun(config)))
    seconds = sum(phases.values())
    total = show_duration(number * seconds)
    return f"{seconds:,.2f} s a step; {number:,} steps take {total}; measured here: {measured}"


def asked(case: Case) -> dict[str, Checkup]:
    """Return the services that were asked over a network, with the tokens of a call as a run will make it."""
    found = {name: checkup for name, checkup in case.checkups.items() if checkup.seconds}
    if "decomposer" in found:  # it reads thoughts, and repeats facts
        checkup = found["decomposer"]
        more = case.config.max_completion_length
        longer = tuple(tokens + more for tokens in checkup.tokens)
        found["decomposer"] = replace(checkup, tokens=longer)
    return found


def cost(case: Case) -> str:
    """Estimate calls and tokens of the services that are asked over a network, from one question to each."""
    for name in services_of(case.reward_names):
        need(case.checkups.get(name), f"the {name}")
    if not asked(case):
        return "no service is asked over a network"
    need(case.prompts, "the prompts")
    number = steps_of(case) * case.config.completions_per_replica
    number += evaluations_of(case) * len(case.rows.get("eval", ()))
    found = []
    for name, checkup in asked(case).items():
        prompts, replies = (rounded(tokens * number) for tokens in checkup.tokens)
        found.append(f"{name}: {number:,} calls at most, {prompts} tokens of prompts and {replies} of replies")
    return "\n".join([*found, f"an item is given up after api_deadline_s = {case.config.api_deadline_s:g} s"])

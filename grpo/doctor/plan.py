"""Estimates for a run: steps, tokens, time, calls of services."""

from dataclasses import replace
from math import ceil

from grpo.base.text import show_duration
from grpo.config.options import SftConfig, TrainConfig
from grpo.data.questions import num_steps
from grpo.doctor.case import Case, need
from grpo.doctor.model import check_room, rounded
from grpo.doctor.rehearsal import SftRehearsal
from rewards.services import Checkup, services_of


def steps(case: Case) -> str:
    """Count steps and tokens, on one device."""
    config = case.config
    longest = need(case.longest, "the data")
    rows, number = rows_per_step(config), steps_of(case)
    if isinstance(config, SftConfig):
        return f"{number:,} steps of {rows} answers on one device, of {rows * longest:,} tokens at most"
    groups = rows // config.num_generations
    generated = rows * config.max_completion_length
    found = [
        f"{number:,} steps of {rows} completions on one device ({groups} questions x {config.num_generations})",
        f"the largest has {rows * longest:,} tokens, of which {generated:,} are generated",
        f"all of them {rounded(number * generated)} at most",
    ]
    epochs = number * groups / len(case.prompts)
    return "; ".join([*found, f"each question {epochs:.1f} times"])


def rows_per_step(config: TrainConfig | SftConfig) -> int:
    """Return the completions, or the examples, of a step on one device."""
    return config.per_device_train_batch_size * config.gradient_accumulation_steps


def steps_of(case: Case) -> int:
    """Return the number of steps of the run on one device."""
    config = case.config
    if isinstance(config, SftConfig):
        return num_steps(config, case.num_examples, rows_per_step(config))
    return num_steps(config, len(case.prompts), rows_per_step(config) // config.num_generations)


def evaluations_of(case: Case) -> int:
    """Return how often the run answers the held-out questions: before, after, and every eval_steps."""
    if not case.num_held_out:
        return 0
    return 2 + (steps_of(case) // case.config.eval_steps if case.config.eval_steps else 0)


def duration(case: Case) -> str:
    """Estimate the time of a run from a step that is made here, and from the latency of services."""
    rehearsal, case.rehearsal = need(case.rehearsal, "the sample"), None
    step, number = rehearsal.time_step(), steps_of(case)
    phases, notes = dict(step.phases), [step.measured]
    if isinstance(case.config, TrainConfig):
        phases |= {f"{name} (at most)": seconds_of_calls(case.config, c) for name, c in asked(case).items()}
        notes += [f"without the {name}" for name in services_of(case.reward_names) if name not in case.checkups]
        if case.config.dynamic_sampling:
            most = case.config.dynamic_sampling_max_rollouts
            notes.append(f"dynamic_sampling generates up to {most} times as much")
    seconds = sum(phases.values())
    terms = " + ".join(f"{name} {seconds:,.2f}" for name, seconds in phases.items())
    found = [f"{seconds:,.2f} s a step: {terms}", f"{number:,} steps take {show_duration(number * seconds)}"]
    evaluations = evaluations_of(case)
    if evaluations:
        of_answer = (seconds - phases["training"] - phases.get("reference", 0)) / rows_per_step(case.config)
        found.append(f"{evaluations} evaluations take {show_duration(evaluations * case.num_held_out * of_answer)}")
    return "; ".join([*found, f"measured here: {', '.join(notes)}"])


def stage1_duration(case: Case) -> str:
    """Estimate the time of the stage 1 that runs first."""
    config = case.start
    number = num_steps(config, need(case.num_examples, "the data of stage 1"), rows_per_step(config))
    check_room(case)
    step = SftRehearsal(config).time_step()
    seconds = sum(step.phases.values())
    total = show_duration(number * seconds)
    return f"{seconds:,.2f} s a step; {number:,} steps take {total}; measured here: {step.measured}"


def asked(case: Case) -> dict[str, Checkup]:
    """Return the services that were asked over a network, with the tokens of a call as a run will make it."""
    found = {name: checkup for name, checkup in case.checkups.items() if checkup.seconds}
    if "decomposer" in found:  # it reads thoughts, and repeats facts
        longer = tuple(tokens + case.config.max_completion_length for tokens in found["decomposer"].tokens)
        found["decomposer"] = replace(found["decomposer"], tokens=longer)
    return found


def cost(case: Case) -> str:
    """Estimate calls and tokens of the services that are asked over a network, from one question to each."""
    for name in services_of(case.reward_names):
        need(case.checkups.get(name), f"the {name}")
    if not asked(case):
        return "no service is asked over a network"
    need(case.prompts, "the prompts")
    number = steps_of(case) * rows_per_step(case.config) + evaluations_of(case) * case.num_held_out
    found = []
    for name, checkup in asked(case).items():
        prompts, replies = (rounded(tokens * number) for tokens in checkup.tokens)
        found.append(f"{name}: {number:,} calls at most, {prompts} tokens of prompts and {replies} of replies")
    return "\n".join([*found, f"an item is given up after api_deadline_s = {case.config.api_deadline_s:g} s"])


def seconds_of_calls(config: TrainConfig, checkup: Checkup) -> float:
    """Return the seconds of a step's calls, one per completion, as many at once as the configuration allows."""
    return ceil(rows_per_step(config) / config.api_max_concurrency) * checkup.seconds

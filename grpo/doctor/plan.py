"""Estimates for a run: steps, tokens, time, calls of services and their price."""

from dataclasses import dataclass
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
        phases |= {f"{calls.name} (at most)": calls.seconds for calls in calls_of(case)}
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


@dataclass(frozen=True)
class Calls:
    """The calls of a service over a network: tokens of each call, and the seconds of all calls in a step."""

    name: str
    checkup: Checkup
    prompt_tokens: int
    reply_tokens: int
    seconds: float


def calls_of(case: Case) -> list[Calls]:
    """Count the calls of each service that was asked over a network: at most one per completion."""
    found = []
    for name, checkup in case.checkups.items():
        if not checkup.seconds:
            continue
        added = case.config.max_completion_length if name == "decomposer" else 0  # it reads thoughts, and repeats facts
        prompt_tokens, reply_tokens = (tokens + added for tokens in checkup.tokens)
        seconds = _seconds_per_step(case.config, checkup.seconds)
        found.append(Calls(name, checkup, prompt_tokens, reply_tokens, seconds))
    return found


def cost(case: Case) -> str:
    """Estimate calls and price of the services that are asked over a network, from one question to each."""
    for name in services_of(case.reward_names):
        need(case.checkups.get(name), f"the {name}")
    asked = calls_of(case)
    if not asked:
        return "no service is asked over a network"
    need(case.prompts, "the prompts")
    number = steps_of(case) * rows_per_step(case.config) + evaluations_of(case) * case.num_held_out
    found = []
    for calls in asked:
        prompt_price, reply_price = calls.checkup.prices
        price = number * (calls.prompt_tokens * prompt_price + calls.reply_tokens * reply_price) / 1e6
        money = f"${price:,.2f}" if prompt_price or reply_price else f"set {calls.name}_prices for its price"
        tokens = f"{rounded(calls.prompt_tokens * number)} + {rounded(calls.reply_tokens * number)}"
        found.append(f"{calls.name}: {number:,} calls at most, {tokens} tokens, {money}")
    if "decomposer" in [calls.name for calls in asked] and "factuality" not in case.reward_names:
        found.append("only wrong answers need the decomposer")
    return "\n".join([*found, f"an item is given up after api_deadline_s = {case.config.api_deadline_s:g} s"])


def _seconds_per_step(config: TrainConfig, seconds_per_call: float) -> float:
    """Return the seconds of all calls in a step, as limited by concurrency and requests per minute."""
    calls = rows_per_step(config)
    times = [ceil(calls / config.api_max_concurrency) * seconds_per_call]
    if config.api_requests_per_minute:
        times.append(calls / config.api_requests_per_minute * 60)
    return max(times)

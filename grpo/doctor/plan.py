"""What a run will take: steps, tokens, the largest step, calls of services, their price and their time."""

from math import ceil

from grpo.config.options import SftConfig, TrainConfig
from grpo.doctor.case import Case, NotChecked, need
from rewards.services import services_of


def steps(case: Case) -> str:
    """Count steps and tokens, on one device."""
    config = case.config
    longest = need(case.longest, "the data")
    rows = config.per_device_train_batch_size * config.gradient_accumulation_steps
    if isinstance(config, SftConfig):
        number = num_steps(config, case.num_examples, rows)
        return f"{number:,} steps of {rows} answers on one device, of {rows * longest:,} tokens at most"
    groups = rows // config.num_generations
    number = num_steps(config, len(case.prompts), groups)
    generated = rows * config.max_completion_length
    found = [
        f"{number:,} steps of {rows} completions on one device ({groups} questions x {config.num_generations})",
        f"the largest has {rows * longest:,} tokens, of which {generated:,} are generated",
        f"all of them {number * generated / 1e6:,.1f}M at most",
    ]
    epochs = number * groups / len(case.prompts)
    return "; ".join([*found, f"each question {epochs:.1f} times"])


def num_steps(config: TrainConfig | SftConfig, num_rows: int, rows_per_step: int) -> int:
    """Return the number of steps of a run, as the trainer counts it."""
    return config.max_steps if config.max_steps > 0 else ceil(config.num_train_epochs * num_rows / rows_per_step)


def generation(case: Case) -> str:
    """Estimate the time of generation from tokens generated here. How long training takes, only a step can tell."""
    config, seconds_per_token = case.config, case.seconds_per_token
    if seconds_per_token is None:
        raise NotChecked("unknown: no token was generated here; run it where the model and its device are")
    rows = config.per_device_train_batch_size * config.gradient_accumulation_steps
    number = num_steps(config, len(case.prompts), rows // config.num_generations)
    rounds = ceil(rows / case.num_sequences)
    seconds = rounds * config.max_completion_length * seconds_per_token
    return (
        f"at most {seconds:,.1f} s a step, {number * seconds / 3600:,.1f} h in all: measured here, "
        f"{case.num_sequences} completions grow by a token in {seconds_per_token * 1e3:,.1f} ms; what training takes "
        "is unknown before a step: run with max_steps=2, and metrics.jsonl has time/train"
    )


def cost(case: Case) -> str:
    """Estimate calls, price and time of the services that are asked over a network, from one question to each."""
    for name in services_of(case.reward_names):
        need(case.checkups.get(name), f"the {name}")
    asked = {name: checkup for name, checkup in case.checkups.items() if checkup.seconds}
    if not asked:
        return "no service is asked over a network"
    config = case.config
    prompts = need(case.prompts, "the prompts")
    per_step = config.per_device_train_batch_size * config.gradient_accumulation_steps
    number = num_steps(config, len(prompts), per_step // config.num_generations)
    measurements = 2 + (number // config.eval_steps if config.eval_steps else 0)  # of the held-out questions
    calls = number * per_step + measurements * case.num_held_out
    found = []
    for name, checkup in asked.items():
        prompt_tokens, reply_tokens = checkup.tokens
        if name == "decomposer":  # it reads the thoughts of a completion, and repeats their facts
            prompt_tokens, reply_tokens = (tokens + config.max_completion_length for tokens in checkup.tokens)
        price = (prompt_tokens * checkup.prices[0] + reply_tokens * checkup.prices[1]) * calls / 1e6
        money = f"${price:,.2f}" if any(checkup.prices) else f"set {name}_prices for its price"
        seconds = _seconds_per_step(config, checkup.seconds, prompt_tokens + reply_tokens)
        millions = f"{prompt_tokens * calls / 1e6:,.1f}M + {reply_tokens * calls / 1e6:,.1f}M"
        time = f"{seconds:,.0f} s a step, {number * seconds / 3600:,.1f} h in all"
        found.append(f"{name}: {calls:,} calls at most, {millions} tokens, {money}, {time}")
    if "decomposer" in asked and "factuality" not in case.reward_names:
        found.append("only wrong answers need the decomposer")
    return "\n".join([*found, f"an item is given up after api_deadline_s = {config.api_deadline_s:g} s"])


def _seconds_per_step(config: TrainConfig, seconds_per_call: float, tokens_per_call: int) -> float:
    """Return how long the calls of a step take: by the requests at once, and by the limits per minute."""
    calls = config.per_device_train_batch_size * config.gradient_accumulation_steps
    times = [ceil(calls / config.api_max_concurrency) * seconds_per_call]
    if config.api_requests_per_minute:
        times.append(calls / config.api_requests_per_minute * 60)
    if config.api_tokens_per_minute:
        times.append(calls * tokens_per_call / config.api_tokens_per_minute * 60)
    return max(times)

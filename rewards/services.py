"""Check each service that rewards use by itself, so that no fault hides another. The doctor calls these checks.

    for name in services_of(["knowrl"]):         # judge, knowledge base, decomposer, verifier
        print(name, SERVICES[name](options).text)

A check costs one question at most. It raises UserError as the run would: exit 2 or 3, with what to correct.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from knowledge.verify import verify
from rewards.knowrl import fact_checker
from rewards.outcome.judge import build_judge
from rewards.registry import Options, built_in, expand

if TYPE_CHECKING:
    from rewards.api.client import ApiClient


@dataclass(frozen=True)
class Checkup:
    """What a check found: a text for people and, where a service has a price, what one question took.

    tokens: of the prompt and of the reply. prices: US dollars per million of these.
    """

    text: str
    seconds: float = 0.0
    tokens: tuple[int, int] = (0, 0)
    prices: tuple[float, float] = (0.0, 0.0)


OFFLINE = Checkup("rules, offline: for tests and toy worlds")


def services_of(rewards: Sequence[str]) -> list[str]:
    """Return the names of the services that rewards or presets of these names use."""
    used = [built_in(name) for name in expand(rewards)]
    services = ["judge"] if any(reward.asks_judge for reward in used) else []
    of_facts = ["knowledge base", "decomposer", "verifier"]
    return services + (of_facts if any(reward.checks_facts for reward in used) else [])


def check_judge(options: Options) -> Checkup:
    """Let the judge grade a known answer."""
    if options["judge"] == "offline":
        return OFFLINE
    judge = build_judge(options)

    def grade() -> str:
        judge.check_sync()
        return "it grades a right answer as correct"

    return _asked(judge.client, grade)


def check_decomposer(options: Options) -> Checkup:
    """Let the decomposer take a known text apart."""
    client = fact_checker.decomposer_client(options)
    if client is None:
        return OFFLINE

    def take_apart() -> str:
        claims = fact_checker.check_decomposer(client, options["decomposer_max_tokens"])
        return f"of {fact_checker.KNOWN_TEXT[0]!r} it makes: {'; '.join(claim.fact for claim in claims.facts)}"

    return _asked(client, take_apart)


def _asked(client: "ApiClient", ask: Callable[[], str]) -> Checkup:
    """Let `ask` ask a client one question, describe that, and close the client."""
    started = time.perf_counter()
    try:
        result = ask()
    finally:
        client.close()
    endpoint, metrics = client.endpoint, client.metrics()
    count = {name.partition("/")[2]: int(number) for name, number in metrics.items()}
    calls = max(count["calls"], 1)
    seconds = (time.perf_counter() - started) / calls
    text = f"{endpoint.model} at {endpoint.base_url}, {seconds:.1f} s a call; {result}"
    tokens = count["prompt_tokens"] // calls, count["completion_tokens"] // calls
    return Checkup(text, seconds, tokens, endpoint.prices)


def check_verifier(options: Options) -> Checkup:
    """Load the entailment model."""
    if options["verifier"] == "lexical":
        return OFFLINE
    started = time.perf_counter()
    verifier = fact_checker.build_verifier(options, weigh_contradiction=True)
    where = f"{options['nli_model']} on {verifier.device}"
    return Checkup(f"{where}; loaded in {time.perf_counter() - started:.1f} s")


def check_knowledge_base(options: Options) -> Checkup:
    """Read every byte of the knowledge base."""
    path = fact_checker.knowledge_base_path(options)
    return Checkup(f"{path}: {verify(path)}; sound")


SERVICES: dict[str, Callable[[Options], Checkup]] = {
    "judge": check_judge,
    "knowledge base": check_knowledge_base,
    "decomposer": check_decomposer,
    "verifier": check_verifier,
}

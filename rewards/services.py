"""Check each service that rewards use by itself, so that no fault hides another. The doctor calls these checks.

    for name in services_of(["knowrl"]):         # judge, knowledge base, decomposer, verifier
        print(name, SERVICES[name](options).text)

A check costs one question at most. It raises UserError as the run would: exit 2 or 3, with what to correct.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from grpo.base.errors import check_all
from rewards.api.endpoint import read_endpoint, read_key
from rewards.registry import Options, built_in, expand


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
    from rewards.outcome.judge import build_judge

    if options["judge"] == "api":
        _check_settings("judge", options)
    judge = build_judge(options)
    try:
        started = time.perf_counter()
        judge.check_sync()
        if options["judge"] == "offline":
            return OFFLINE
        return _checkup(judge.client, "it grades a right answer as correct", started)
    finally:
        judge.close()


def _check_settings(name: str, options: Options) -> None:
    """Check the URL, model, prices and key of a service; an error names all that is wrong with them."""
    check_all(lambda: read_endpoint(name, options), lambda: read_key(name, options[f"{name}_api_key_env"]))


def check_decomposer(options: Options) -> Checkup:
    """Let the decomposer take a known text apart."""
    from rewards.knowrl import fact_checker

    if options["decomposer"] == "api":
        _check_settings("decomposer", options)
    client = fact_checker.decomposer_client(options)
    if client is None:
        return OFFLINE
    try:
        started = time.perf_counter()
        claims = fact_checker.check_decomposer(client, options["decomposer_max_tokens"])
        facts = "; ".join(claim.fact for claim in claims.facts)
        return _checkup(client, f"of {fact_checker.KNOWN_TEXT[0]!r} it makes: {facts}", started)
    finally:
        client.close()


def check_verifier(options: Options) -> Checkup:
    """Load the entailment model."""
    from rewards.knowrl.fact_checker import build_verifier

    started = time.perf_counter()
    verifier = build_verifier({**options, "verdict_cache": None}, weigh_contradiction=True)
    if options["verifier"] == "lexical":
        return OFFLINE
    where = f"{options['nli_model']} on {verifier.device}"
    return Checkup(f"{where}; loaded in {time.perf_counter() - started:.1f} s")


def check_knowledge_base(options: Options) -> Checkup:
    """Read every byte of the knowledge base."""
    from knowledge.store.base import KnowledgeBase
    from knowledge.verify import verify
    from rewards.knowrl.fact_checker import knowledge_base_path

    path = knowledge_base_path(options)
    KnowledgeBase.open(path).close()
    return Checkup(f"{path}: {verify(path)}; sound")


SERVICES: dict[str, Callable[[Options], Checkup]] = {
    "judge": check_judge,
    "knowledge base": check_knowledge_base,
    "decomposer": check_decomposer,
    "verifier": check_verifier,
}


def _checkup(client: Any, result: str, started: float) -> Checkup:
    """Describe the one question that a client was asked."""
    endpoint, metrics = client.endpoint, client.metrics()
    count = {name.partition("/")[2]: int(number) for name, number in metrics.items()}
    calls = max(count["calls"], 1)
    seconds = (time.perf_counter() - started) / calls
    text = f"{endpoint.model} at {endpoint.base_url}, {seconds:.1f} s a call; {result}"
    tokens = count["prompt_tokens"] // calls, count["completion_tokens"] // calls
    return Checkup(text, seconds, tokens, endpoint.prices)

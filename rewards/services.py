"""Check the services that rewards use: judge, knowledge base, decomposer, verifier.

    for name in services_of(["knowrl"]):
        print(name, SERVICES[name](options).text)

SERVICES checks each service by itself, so that no fault hides another. The doctor calls these checks. A check costs one
question at most. It raises UserError as the run would: exit 2 or 3, with what to correct.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from grpo.data.hub import fetch_model
from grpo.engine.device.distributed import choose_device
from knowledge.store.base import KnowledgeBase
from knowledge.verify import verify
from rewards.api.client import ModelService
from rewards.api.endpoint import read_endpoint
from rewards.knowrl.fact_checker import build_decomposer, build_verifier, knowledge_base_path, without_any_model
from rewards.outcome.judge import build_judge
from rewards.registry import Options, Resource, built_in, expand


def services_of(rewards: Sequence[str]) -> list[str]:
    """Return the names of the services that rewards of these names use."""
    used = [built_in(name) for name in expand(rewards)]
    services = ["judge"] if any(reward.asks_judge for reward in used) else []
    of_facts = ["knowledge base", "decomposer", "verifier"]
    return services + (of_facts if any(reward.checks_facts for reward in used) else [])


def check_settings(name: str, options: Options) -> str:
    """Check what a service needs before it is asked or loaded, in no time: key, URL and model, or a file that opens.

    Return where it is. UserError as the run would raise it.
    """
    if name == "knowledge base":
        path = knowledge_base_path(options)
        KnowledgeBase(path).close()
        return str(path)
    if name == "verifier" and options["verifier"] == "nli":
        with without_any_model():
            return str(fetch_model(options["nli_model"], kind="entailment model", weights=False))
    if options[name] == "api":
        endpoint = read_endpoint(name, options)
        return f"{endpoint.model} at {endpoint.base_url}"
    return OFFLINE.text


@dataclass(frozen=True)
class Checkup:
    """What a check found: a text for people and, if a service was asked over a network, what one question took.

    tokens: of the prompt and of the reply.
    """

    text: str
    seconds: float = 0.0
    tokens: tuple[int, int] = (0, 0)


OFFLINE = Checkup("rules, offline: for tests and toy worlds")


def _knowledge_base(options: Options) -> Checkup:
    """Read every byte of the knowledge base."""
    path = knowledge_base_path(options)
    return Checkup(f"{path}: {verify(path)}; sound")


def _verifier(options: Options) -> Checkup:
    """Load the entailment model."""
    if options["verifier"] == "lexical":
        return OFFLINE
    started = time.perf_counter()
    build_verifier(options, weigh_contradiction=True)
    return Checkup(
        f"{options['nli_model']} on {choose_device(options['device'])}; loaded in {time.perf_counter() - started:.1f} s"
    )


def _model(build: Callable[[Options], Resource], options: Options) -> Checkup:
    """Ask a model about something known, if the configuration names one."""
    service = build(options)
    if not isinstance(service, ModelService):
        return OFFLINE
    client = service.client
    started = time.perf_counter()
    try:
        result = service.check()
    finally:
        service.close()
    count = client.counts
    calls = max(count["calls"], 1)
    seconds = (time.perf_counter() - started) / calls
    text = f"{client.endpoint.model} at {client.endpoint.base_url}, {seconds:.1f} s a call; {result}"
    return Checkup(text, seconds, (count["prompt_tokens"] // calls, count["completion_tokens"] // calls))


SERVICES: dict[str, Callable[[Options], Checkup]] = {
    "judge": partial(_model, build_judge),
    "knowledge base": _knowledge_base,
    "decomposer": partial(_model, build_decomposer),
    "verifier": _verifier,
}

"""Checks of the rewards of a run, and of each service that they use."""

from collections.abc import Iterator

from grpo.data.questions import check_columns
from grpo.doctor.case import Case, Check, need
from knowledge.store.base import KnowledgeBase
from rewards.knowrl.fact_checker import LOWEST_COVERAGE, joined_titles
from rewards.registry import build_rewards, built_in
from rewards.services import SERVICES, knowledge_base_path, services_of

MAX_SHOWN = 3  # titles in a message


def reward_checks(case: Case) -> Iterator[tuple[str, Check]]:
    """Yield a check for each reward and for each service."""
    for name in case.reward_names:
        yield name, lambda case, name=name: reward(case, name)
    for name in services_of(case.reward_names):
        yield name, lambda case, name=name: service(case, name)
        if name == "knowledge base":
            yield "titles", titles


def reward(case: Case, name: str) -> str:
    """Check that a reward's columns are there; build it first if only that tells which they are."""
    needs = built_in(name).needs
    if not needs:
        (built,) = build_rewards([name], case.options)
        needs = built.needs
        case.functions += [built] if ":" in name else []
    if not needs:
        return "needs nothing"
    rows = need(case.rows, "the data")
    needs = check_columns(name, needs, rows, case.config.dataset_id_or_path)
    empty = sum(any(row.columns.get(column) in (None, "") for column in needs) for row in rows)
    found = f"needs {' and '.join(needs)}"
    return f"{found}; warning: {empty} of {len(rows)} rows lack one" if empty else found


def service(case: Case, name: str) -> str:
    case.checkups[name] = SERVICES[name](case.options)
    return case.checkups[name].text


def titles(case: Case) -> str:
    """Look up all titles of the data."""
    rows = need(case.rows, "the data")
    need(case.checkups.get("knowledge base"), "the knowledge base")
    with KnowledgeBase(knowledge_base_path(case.options)) as base:
        may_guess = case.config.missing_title_policy == "search"
        found = base.coverage([joined_titles(row.columns.get("title")) for row in rows], may_guess)
    text = str(found)
    if found.missing:
        text += f", such as {', '.join(found.missing[:MAX_SHOWN])}"
    if found.found < LOWEST_COVERAGE:
        text = f"warning: missing_title_policy is {case.config.missing_title_policy}; {text}"
    return text

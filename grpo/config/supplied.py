"""Settings that are built into the programs of KnowRL and of the math guide, so that their files run here, too.

Each supplied setting is announced, and written to config.resolved.yaml, so that a resumed run has the same ones.
"""

import os

from grpo.config.values import Values
from rewards.api.endpoint import MODEL_VARIABLES, from_environment
from rewards.prompts import BOXED
from rewards.registry import built_in, expand

KNOWRL_MODEL = "gpt-4o-mini"  # judge and decomposer of KnowRL's code
TRLS = {"loss_type": "grpo", "temperature": 0.9}  # defaults of TRL 0.14, which KnowRL pins; its newer files set them
NO_REWARD = (
    "reward_funcs is not set. KnowRL's files do not set it, but have a knowledge base: set knowledge_base or the "
    "variable FACTSCORE_DB_PATH, and knowrl_v2 is used. The math guide's have reward_correct, and math is used. "
    "Otherwise set reward_funcs, such as reward_funcs=[math]"
)


def supply(values: Values) -> list[str]:
    """Set the keys that KnowRL's and the math guide's files leave out; return a notice for each."""
    notices = [_supply_rewards(values), _supply_prompt(values)]
    names = expand([*(values.get("reward_funcs") or ()), *(values.get("eval_reward_funcs") or ())])
    if any(built_in(name).asks_judge for name in names) and values.get("judge", "api") == "api":
        notices.append(_supply_model("judge", values))
    if any(built_in(name).checks_facts for name in names) and values.get("decomposer", "api") == "api":
        notices.append(_supply_model("decomposer", values))
    return [notice for notice in notices if notice]


def _supply_rewards(values: Values) -> str:
    """Set the rewards, which KnowRL's files and the math guide's do not name; return a notice, or ""."""
    if values.get("reward_funcs") is not None:
        return ""
    named = [name for name in values if name.startswith("math_reward_")]
    if values.get("knowledge_base") or (os.environ.get("FACTSCORE_DB_PATH") and not named):
        values["reward_funcs"] = ("knowrl_v2",)
        notice = "reward_funcs is not set, but a knowledge base is, as for KnowRL: using knowrl_v2"
        return notice + _supply_loss(values)
    if named:
        values["reward_funcs"] = ("math",)
        return f"reward_funcs is not set, but {named[0]} is, as in the math guide: using math"
    return ""


def _supply_loss(values: Values) -> str:
    """Set the loss, which KnowRL's grpo.yaml does not name (TRL 0.14 had only one); return the end of a notice."""
    if "loss_type" in values:
        return ""
    missing = {name: value for name, value in TRLS.items() if name not in values}
    values.update(missing)
    return "; and " + ", ".join(f"{name} {value}" for name, value in missing.items()) + ", as its TRL 0.14 does"


def _supply_prompt(values: Values) -> str:
    """Set the system prompt that the rewards need; return a notice, or "".

    KnowRL's files have none, because it is built into its program. Other rewards for knowing when to answer get the
    same prompt, since they grade the same blocks. rlcr needs another one, because it scores a stated confidence; format
    with math does, too, because the answer must be boxed. A toy world's model knows the format already.
    """
    is_asked = values.get("system_prompt") is not None or values.get("prompt_template", "{question}") != "{question}"
    if is_asked or values.get("toy_world"):
        return ""
    names = values.get("reward_funcs") or ()
    prompts = [(name, built_in(name).prompt) for name in sorted(names, key="rlcr".__ne__) if built_in(name).prompt]
    prompts += [("format", BOXED)] if {"format", "math"} <= set(names) else []
    if not prompts:
        return ""
    source, values["system_prompt"] = prompts[0]
    return f'{source} supplies the system prompt, as system_prompt is not set (system_prompt: "" for none)'


def _supply_model(service: str, values: Values) -> str:
    """Set the model of a service, from its environment variables or else as KnowRL's code; return a notice, or ""."""
    key = f"{service}_model"
    if values.get(key) is not None:
        return ""
    variables = MODEL_VARIABLES[service]
    found = from_environment(*variables)
    values[key] = found or KNOWRL_MODEL
    if found:
        return ""
    return f"{key} is not set, nor is {' or '.join(variables)}: using {KNOWRL_MODEL}, as KnowRL's code does"

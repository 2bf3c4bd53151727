"""Settings that a configuration leaves out, and that its other keys decide.

KnowRL's and the math guide's programs have rewards, a prompt and models built in; LLaMA-Factory has other defaults
(foreign.py), so their files mean the same here. Adapters need a larger learning rate than all weights. Each supplied
setting is announced, and written to config.resolved.yaml, so that a resumed run has the same ones.
"""

import os
from collections.abc import Iterator, Set

from grpo.config.foreign import KNOWRL, LLAMA_FACTORY, MATH_GUIDE
from grpo.config.options import SftConfig, TrainConfig
from grpo.config.values import Values
from grpo.data.benchmarks import STEP_BY_STEP
from rewards.api.endpoint import MODEL_VARIABLES, from_environment
from rewards.own import tag_of
from rewards.prompts import BOXED, with_tools
from rewards.registry import built_in, expand

RATES = {  # for all weights, TRL's defaults; for adapters, ten times as much ("LoRA Without Regret", 2025)
    TrainConfig: (1e-6, 1e-5),
    SftConfig: (2e-5, 2e-4),
}
OF_TAGS = {"format", "tag_count"}  # rewards that look for <think> and <answer>
NO_BOX = "no prompt asks for \\boxed{}, which the reward math reads; say so in system_prompt or prompt_template"
NO_REWARD = (
    "reward_funcs is not set. KnowRL's files do not set it, but have a knowledge base: set knowledge_base or the "
    "variable FACTSCORE_DB_PATH, and knowrl_v2 is used. The math guide's have reward_correct, and math is used. "
    "Otherwise set reward_funcs, such as reward_funcs=[math]"
)


def supply(values: Values, names: Set[str], kind: type) -> Iterator[str]:
    """Set the keys that files of other programs leave out or null, and yield a notice for each.

    values: without the keys that are null where null is no value. names: the keys in the files.
    """
    if kind is SftConfig and LLAMA_FACTORY.words & names:
        yield from _supply_llama_factory(values)
    yield from _supply_rate(values, kind)
    if kind is SftConfig:
        return
    yield from _supply_rewards(values)
    yield from _supply_prompt(values)
    chosen = [*(values.get("reward_funcs") or ()), *(values.get("eval_reward_funcs") or ())]
    rewards = [built_in(name) for name in expand(chosen)]
    checks_facts = any(reward.checks_facts for reward in rewards)
    if checks_facts and values.get("judge") == "offline":
        yield from _supply_offline(values)
    if any(reward.asks_judge for reward in rewards) and values.get("judge", "api") == "api":
        yield from _supply_model("judge", values)
    if checks_facts and values.get("decomposer", "api") == "api":
        yield from _supply_model("decomposer", values)


def _supply_llama_factory(values: Values) -> Iterator[str]:
    """Set what a file of LLaMA-Factory leaves to its defaults."""
    rank = values.get("lora_r", LLAMA_FACTORY.defaults["lora_r"])
    defaults = LLAMA_FACTORY.defaults | ({"lora_alpha": 2.0 * rank} if rank else {})
    missing = {name: value for name, value in defaults.items() if name not in values}
    values.update(missing)
    if missing:
        listed = ", ".join(f"{name} {value:g}" for name, value in missing.items())
        yield f"the keys are those of LLaMA-Factory, whose defaults (of 0.9.3) are used: {listed}"


def _supply_rate(values: Values, kind: type) -> Iterator[str]:
    """Set the learning rate by what is trained: adapters, or all weights."""
    if "learning_rate" in values:
        return
    of_all_weights, of_adapters = RATES[kind]
    values["learning_rate"] = of_all_weights
    if values.get("lora_r", kind.lora_r):
        values["learning_rate"] = of_adapters
        yield (
            f"learning_rate is not set: {of_adapters:g} is used, since TRL's default of {of_all_weights:g}, which is "
            "for all weights, is ten times too low for adapters"
        )


def _supply_rewards(values: Values) -> Iterator[str]:
    """Set the rewards, which KnowRL's files and the math guide's do not name."""
    if values.get("reward_funcs") is not None:
        return
    named = [name for name in values if name.startswith("math_reward_")]
    if values.get("knowledge_base") or (os.environ.get("FACTSCORE_DB_PATH") and not named):
        values["reward_funcs"] = KNOWRL.defaults["reward_funcs"]
        yield "reward_funcs is not set, but a knowledge base is, as for KnowRL: using knowrl_v2"
    elif named:
        values["reward_funcs"] = MATH_GUIDE.defaults["reward_funcs"]
        yield f"reward_funcs is not set, but {named[0]} is, as in the math guide: using math"


def _supply_prompt(values: Values) -> Iterator[str]:
    """Set the prompt that the rewards need.

    KnowRL's files have none, because it is built into its program. Other rewards for knowing when to answer get the
    same prompt, since they grade the same blocks. rlcr needs another one, because it scores a stated confidence; math
    needs one that asks for a box. A toy world's model knows the format already.
    """
    names = values.get("reward_funcs") or ()
    if values.get("toy_world"):
        return
    own = [values[key] for key in ("system_prompt", "prompt_template") if values.get(key) is not None]
    if own:
        if "math" in names and not any("boxed" in prompt for prompt in own):
            yield NO_BOX
        tags = [f"<{tag_of(tool)}>" for tool in values.get("tools") or ()]
        if untold := [tag for tag in tags if not any(tag in prompt for prompt in own)]:
            yield f"no prompt tells the model that {' and '.join(untold)} calls a tool; say so in system_prompt"
        return
    offered = [(name, built_in(name).prompt) for name in sorted(names, key="rlcr".__ne__)]
    if "math" in names:
        offered.append(("math", BOXED if OF_TAGS & set(names) else STEP_BY_STEP))
    source, prompt = next((offer for offer in offered if offer[1]), ("", ""))
    if prompt:
        key = "prompt_template" if "{question}" in prompt else "system_prompt"
        values[key] = prompt
        yield f'{source} supplies the {key.replace("_", " ")}, as no prompt is set (system_prompt: "" for none)'
    if tools := values.get("tools"):
        values["system_prompt"] = with_tools(values.get("system_prompt") or "", tools)
        yield "the system prompt tells how to call the tools, as no prompt is set"


def _supply_offline(values: Values) -> Iterator[str]:
    """With judge: offline, let facts be checked offline, too, unless something is said of these services."""
    offline = {}
    is_remote = values.get("decomposer_model") or values.get("decomposer_base_url")
    if "decomposer" not in values and not is_remote and not from_environment("OPENAI_BASE_URL_FACTSCORE"):
        offline["decomposer"] = "rules"
    if "verifier" not in values and "nli_model" not in values:
        offline["verifier"] = "lexical"
    values.update(offline)
    if offline:
        listed = ", ".join(f"{name}: {value}" for name, value in offline.items())
        yield f"judge is offline, so facts are checked offline, too: {listed}"


def _supply_model(service: str, values: Values) -> Iterator[str]:
    """Set the model of a service, from its environment variables or else as KnowRL's code."""
    key, variables = f"{service}_model", MODEL_VARIABLES[service]
    if values.get(key) is not None:
        return
    found = from_environment(*variables)
    values[key] = found or KNOWRL.defaults[key]
    if not found:
        yield f"{key} is not set, nor is {' or '.join(variables)}: using {values[key]}, as KnowRL's code does"

"""Settings that are built into other programs, so that their files mean the same here.

KnowRL's and the math guide's programs have rewards, a prompt and models built in; LLaMA-Factory has other defaults.
Each supplied setting is announced, and written to config.resolved.yaml, so that a resumed run has the same ones.
"""

import os
from collections.abc import Collection

from grpo.config.options import TrainConfig
from grpo.config.values import Values
from grpo.data.benchmarks import STEP_BY_STEP
from rewards.api.endpoint import MODEL_VARIABLES, from_environment
from rewards.prompts import BOXED
from rewards.registry import built_in, expand

KNOWRL_MODEL = "gpt-4o-mini"  # judge and decomposer of KnowRL's code
LLAMA_FACTORY = {  # defaults of 0.9.3 (src/llamafactory/hparams/) and of the TrainingArguments on which it is built
    "lora_r": 8,
    "max_length": 2048,
    "learning_rate": 5e-5,
}
ITS_WORDS = ("finetuning_type", "lora_rank", "lora_target", "cutoff_len", "template")  # no other tool has these keys
OF_TAGS = {"format", "tag_count"}  # rewards that look for <think> and <answer>
NO_BOX = "no prompt asks for \\boxed{}, which the reward math reads; say so in system_prompt or prompt_template"
NO_REWARD = (
    "reward_funcs is not set. KnowRL's files do not set it, but have a knowledge base: set knowledge_base or the "
    "variable FACTSCORE_DB_PATH, and knowrl_v2 is used. The math guide's have reward_correct, and math is used. "
    "Otherwise set reward_funcs, such as reward_funcs=[math]"
)


def supply(values: Values, names: Collection[str], kind: type) -> list[str]:
    """Set the keys that files of other programs leave out; return a notice for each. names: the keys in the files."""
    if kind is not TrainConfig:
        return _supply_llama_factory(values, names)
    notices = [_supply_rewards(values), _supply_prompt(values), _supply_offline(values)]
    rewards = _rewards_of(values)
    if any(built_in(name).asks_judge for name in rewards) and values.get("judge", "api") == "api":
        notices.append(_supply_model("judge", values))
    if any(built_in(name).checks_facts for name in rewards) and values.get("decomposer", "api") == "api":
        notices.append(_supply_model("decomposer", values))
    return [notice for notice in notices if notice]


def _rewards_of(values: Values) -> list[str]:
    return expand([*(values.get("reward_funcs") or ()), *(values.get("eval_reward_funcs") or ())])


def _supply_llama_factory(values: Values, names: Collection[str]) -> list[str]:
    """Set what a file of LLaMA-Factory leaves to its defaults; return a notice, if there is anything to set."""
    if not set(ITS_WORDS) & set(names):
        return []
    rank = values.get("lora_r", LLAMA_FACTORY["lora_r"])
    defaults = LLAMA_FACTORY | ({"lora_alpha": 2.0 * rank} if rank else {})
    missing = {name: value for name, value in defaults.items() if name not in values}
    values.update(missing)
    listed = ", ".join(f"{name} {value:g}" for name, value in missing.items())
    return [f"the keys are those of LLaMA-Factory, whose defaults (of 0.9.3) are used: {listed}"] if missing else []


def _supply_offline(values: Values) -> str:
    """With judge: offline, let facts be checked offline, too, unless something is said of these services."""
    if values.get("judge") != "offline" or not any(built_in(name).checks_facts for name in _rewards_of(values)):
        return ""
    offline = {}
    is_remote = "decomposer_model" in values or "decomposer_base_url" in values
    if "decomposer" not in values and not is_remote and not from_environment("OPENAI_BASE_URL_FACTSCORE"):
        offline["decomposer"] = "rules"
    if "verifier" not in values and "nli_model" not in values:
        offline["verifier"] = "lexical"
    values.update(offline)
    said = ", ".join(f"{name}: {value}" for name, value in offline.items())
    return f"judge is offline, so facts are checked offline, too: {said}" if said else ""


def _supply_rewards(values: Values) -> str:
    """Set the rewards, which KnowRL's files and the math guide's do not name; return a notice, or ""."""
    if values.get("reward_funcs") is not None:
        return ""
    named = [name for name in values if name.startswith("math_reward_")]
    if values.get("knowledge_base") or (os.environ.get("FACTSCORE_DB_PATH") and not named):
        values["reward_funcs"] = ("knowrl_v2",)
        return "reward_funcs is not set, but a knowledge base is, as for KnowRL: using knowrl_v2"
    if named:
        values["reward_funcs"] = ("math",)
        return f"reward_funcs is not set, but {named[0]} is, as in the math guide: using math"
    return ""


def _supply_prompt(values: Values) -> str:
    """Set the prompt that the rewards need; return a notice, or "".

    KnowRL's files have none, because it is built into its program. Other rewards for knowing when to answer get the
    same prompt, since they grade the same blocks. rlcr needs another one, because it scores a stated confidence; math
    needs one that asks for a box. A toy world's model knows the format already.
    """
    names = values.get("reward_funcs") or ()
    if values.get("toy_world"):
        return ""
    own = [values[key] for key in ("system_prompt", "prompt_template") if values.get(key) is not None]
    if own:
        return "" if "math" not in names or any("boxed" in prompt for prompt in own) else NO_BOX
    offered = [(name, built_in(name).prompt) for name in sorted(names, key="rlcr".__ne__)]
    if "math" in names:
        offered.append(("math", BOXED if OF_TAGS & set(names) else STEP_BY_STEP))
    source, prompt = next((offer for offer in offered if offer[1]), ("", ""))
    if not prompt:
        return ""
    key = "prompt_template" if "{question}" in prompt else "system_prompt"
    values[key] = prompt
    return f'{source} supplies the {key.replace("_", " ")}, as no prompt is set (system_prompt: "" for none)'


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

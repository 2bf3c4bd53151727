"""Every metric, defined once, under TRL's name where TRL has one. Logging any other name is an error.

<name> stands for the name of a reward, <service> for judge or decomposer. With several processes, kb/*, judge/*,
decomposer/*, log/*, the seconds of rewards, and the seconds of phases are those of rank 0.
"""

import re
from collections.abc import Iterable, Mapping

Metrics = Mapping[str, float]  # by the names below
GLOSSARY = {
    "step": "steps done; each generates answers and trains on them (stage 2), or is one update (stage 1)",
    "epoch": "passes over the data, as a fraction",
    "loss": "Eq. 7, summed over the step, mean over num_iterations; on-policy near 0, unless length goes with "
    "reward: see grad_norm for learning; stage 1: mean negative log-prob of the answer tokens",
    "learning_rate": "learning rate of this step",
    "grad_norm": "L2 norm of the gradient before clipping, of the last iteration",
    "num_tokens": "prompt and completion tokens since the start, all ranks; a prompt counts once per completion",
    "reward": "mean over scorable completions of the weighted sum of rewards",
    "reward_std": "standard deviation of that sum, over all groups",
    "frac_reward_zero_std": "share of groups whose rewards are all equal, or with fewer than two scorable; they teach "
    "nothing, unless Eq. 12, Eq. 14 or a bonus makes advantages differ (then see advantage_abs_mean)",
    "advantage_abs_mean": "mean |advantage| over completions; 0: nothing is learned",
    "credit/judged_frac": "share of tokens in sentences that the knowledge base supports or refutes (credit: sentence)",
    "credit/changed_frac": "share of tokens whose advantage got the other sign from their sentence (credit: sentence)",
    "accuracy": "share of completions whose answer is right, by the first reward that knows the outcome",
    "refusal_rate": "share of completions that decline to answer",
    "coverage": "share of questions that some completion of their group answers right: pass@k, k = num_generations",
    "refusal_shift": "what declining, or a call of a tool, earned more in this step than the rewards say (Eq. 14)",
    "refusal_rate_known": "share of completions that decline, among questions that their group knows: a quarter of its "
    "completions is right, and more are right than wrong",
    "rewards/<name>/mean": "mean over scorable completions",
    "rewards/<name>/std": "standard deviation over scorable completions",
    "rewards/<name>/unscored_frac": "share of completions that this reward could not score; or, if larger, "
    "of those that needed a service or the knowledge base, the share that got no answer",
    "log/<text>": "what a user's function has given to `log_metric` under this name, mean of the step's calls",
    "rewards/<name>/time": "seconds of all calls of a user's function; they overlap each other and the sampling",
    "kl": "mean k3 estimate (Eq. 6) per trained token, nats; absent with beta: 0, which has no reference",
    "entropy": "mean entropy per trained token of the distribution sampled from, nats",
    "clip_ratio/low_mean": "share of trained tokens whose ratio is below 1 - epsilon with a negative advantage",
    "clip_ratio/high_mean": "share whose ratio is above 1 + epsilon_high (cispo: epsilon_high), with a positive one",
    "clip_ratio/region_mean": "sum of the two",
    "completions/mean_length": "mean tokens per completion, the end token included; never those that tools gave",
    "completions/min_length": "tokens of the shortest completion",
    "completions/max_length": "tokens of the longest completion",
    "completions/mean_terminated_length": "mean tokens of completions that end with the end token",
    "completions/clipped_ratio": "share of completions that hit max_completion_length",
    "tools/call_frequency": "calls of tools per completion",
    "tools/called_frac": "share of completions that call a tool",
    "tools/failure_frequency": "share of calls that gave no result",
    "tools/mean_result_length": "mean tokens of a result, its tags included; they are read and not trained",
    "completions/trained_frac": "share of completion tokens that are trained, and have a gradient. Without a KL "
    "term (beta) a token of advantage 0 has none, and its log-prob is not computed. Means over no token are left out",
    "sampler/entropy": "minus the mean log-prob of all drawn tokens, nats: estimates their mean entropy, also in steps "
    "without a trained token",
    "sampler/logp_diff_mean": "mean |log-prob in sampling - log-prob in training| per trained token: rounding, nats",
    "sampler/logp_diff_max": "largest such difference, nats",
    "router_changed_frac": "share of choices of experts that differ between decoding and training, of 64 tokens of a "
    "completion (models with experts); rounding",
    "sampling/kept_frac": "share of generated groups that were trained on (dynamic_sampling)",
    "step_time": "seconds of the step",
    "time/generate": "seconds of sampling",
    "time/reference": "seconds of the reference policy's pass",
    "time/reward": "seconds in which the step waits for rewards: those that neither sampling nor the reference hides",
    "time/train": "seconds of forward, backward and update",
    "tokens_per_second": "completion tokens (stage 1: answer tokens) per second of the step, all ranks",
    "peak_memory_gb": "largest memory in use so far, GB: of the GPU, or of the process on a CPU",
    "micro_batches": "forward and backward passes per iteration, of the rank that has most",
    "skipped_steps": "updates skipped since the start because the gradient was not finite",
    "eval/accuracy": "share of held-out questions answered right",
    "eval/incorrect": "share of held-out questions answered wrong",
    "eval/not_attempted": "share of held-out questions that the policy declined",
    "eval/incorrect_given_attempted": "share of wrong answers among the held-out questions that were answered",
    "eval/reward": "mean reward on held-out questions",
    "eval/unscored_frac": "share of held-out answers that could not be scored",
    "eval/mean_length": "mean tokens of held-out answers",
    "eval/searched_frac": "share of held-out answers that call a tool",
    "eval/supported_frac": "share of the facts stated in held-out answers that the knowledge base supports; "
    "over all answers with the reward factuality (see eval_reward_funcs), over wrong ones alone without it",
    "eval/supported_facts": "facts per held-out answer that the knowledge base supports; of the same answers",
    "eval/refuted_facts": "facts per held-out answer that it contradicts; of the same answers",
    "kb/lookups_exact": "titles of this step that the knowledge base has",
    "kb/lookups_parts": "titles found by their parts between semicolons",
    "kb/lookups_search": "titles not found, for which full-text search guessed documents",
    "kb/lookups_missing": "titles not found at all",
    "kb/unscored": "completions whose factuality could not be determined",
    "kb/facts_per_completion": "facts per completion whose factuality was checked",
    "kb/supported_frac": "share of the checked facts that the knowledge base supports; KnowRL's rewards check those of "
    "wrong answers alone (knowrl_v1: of refusals, too), so it is no measure of all answers: see eval/supported_frac",
    "kb/refuted_frac": "share of the checked facts that it contradicts",
    "kb/unknown_frac": "share of the checked facts about which it says nothing",
    "<service>/calls": "requests to the judge or the decomposer, since the start like the others of a service",
    "<service>/retries": "requests that repeated an earlier one",
    "<service>/failures": "requests that failed",
    "<service>/unscorable": "items without a usable reply",
    "<service>/cache_hits": "items answered from the cache",
    "<service>/prompt_tokens": "tokens sent",
    "<service>/completion_tokens": "tokens received",
    "tokens": "stage 1: answer tokens trained on in this step",
}
_PATTERNS: dict[str, re.Pattern] = {}
for _entry in GLOSSARY:
    _pattern = re.escape(_entry).replace("<service>", "(judge|decomposer)")
    _PATTERNS[_entry] = re.compile(re.sub("<[a-z]+>", ".+", _pattern), re.DOTALL)


def meaning(name: str) -> str:
    """Return the entry of a metric; "" if it has none."""
    return next((GLOSSARY[entry] for entry, pattern in _PATTERNS.items() if pattern.fullmatch(name)), "")


def check_names(names: Iterable[str]) -> None:
    """Raise KeyError if a metric has no entry in the glossary."""
    unknown = [name for name in names if not meaning(name)]
    if unknown:
        raise KeyError(f"metrics without an entry in the glossary: {unknown}")

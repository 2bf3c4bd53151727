"""How good a model is on held-out questions.

python -m grpo.evaluate MODEL --data FILE --reward NAME [--n 8 --temperature 0.7] [--output F.json]
"""

import argparse
import json
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from grpo.config.load import load_config
from grpo.config.options import TrainConfig
from grpo.data.questions import load_prompts
from grpo.device.distributed import choose_device
from grpo.device.draw import SamplingParams, row_seed
from grpo.errors import UserError, run_main
from grpo.model.policy import Policy, load_for_inference
from grpo.rollout import Rollout
from grpo.run import memory
from grpo.run.log import completion_row
from grpo.run.metrics import outcome_of
from grpo.run.run import Run
from grpo.sampling.sampler import Sampler
from grpo.schema import Group, Prompt
from grpo.storage import write_atomically
from rewards.registry import build_rewards
from rewards.scorer import Scorer

Z95 = 1.959964
MAX_SEQUENCES = 256  # decoded together


def generate_groups(
    policy: Policy, sampler: Sampler, prompts: Sequence[Prompt], n: int, sampling: SamplingParams, seed: int
) -> list[Group]:
    """n completions of each prompt, decoded."""
    seeds = [row_seed(seed, prompt.row, index) for prompt in prompts for index in range(n)]
    groups = [
        Group(prompt, members)
        for prompt, members in zip(
            prompts, sampler.sample([prompt.ids for prompt in prompts], n, sampling, seeds), strict=True
        )
    ]
    for group in groups:
        for completion in group.completions:
            completion.text = policy.decode(completion)
    return groups


def summary(groups: Sequence[Group]) -> dict[str, float]:
    """Rates over all completions whose outcome is known.

    accuracy: right among all, with its 95 % interval; attempted_accuracy: right among answered; hallucination_rate:
    wrong among answered; wrong_rate: wrong among all; refusal_rate: refused among all; supported_frac: supported among
    the facts stated (if a reward checked them); pass@k: the chance that k draws hold a right one (2107.03374).
    """
    outcomes = [[outcome_of(completion.scores) for completion in group.completions] for group in groups]
    known = [[o for o in group if o] for group in outcomes]
    flat = [o for group in known for o in group]
    total, right, wrong = len(flat), flat.count("correct"), flat.count("wrong")
    lengths = [len(c.ids) for group in groups for c in group.completions]
    rewards = [c.reward for group in groups for c in group.completions if c.reward is not None]
    result = {
        "num_questions": len(groups),
        "num_answers": sum(map(len, outcomes)),
        "unscored_frac": 1 - total / max(sum(map(len, outcomes)), 1),
        "accuracy": right / max(total, 1),
        "attempted_accuracy": right / max(right + wrong, 1),
        "hallucination_rate": wrong / max(right + wrong, 1),
        "wrong_rate": wrong / max(total, 1),
        "refusal_rate": flat.count("refused") / max(total, 1),
        "mean_length": statistics.fmean(lengths),
        "reward": statistics.fmean(rewards) if rewards else float("nan"),
    }
    result["accuracy_low"], result["accuracy_high"] = _interval([group for group in known if group])
    details = [
        score.details
        for group in groups
        for completion in group.completions
        for score in completion.scores.values()
        if "facts" in score.details
    ]
    if details:
        result["supported_frac"] = sum(d["supported"] for d in details) / max(sum(d["facts"] for d in details), 1)
    n = min(map(len, known), default=0)
    for k in [2**i for i in range(n.bit_length()) if 2**i <= n]:
        result[f"pass@{k}"] = statistics.fmean(
            1 - math.comb(len(g) - g.count("correct"), k) / math.comb(len(g), k) for g in known
        )
    return result


def _interval(groups: Sequence[Sequence[str]]) -> tuple[float, float]:
    """95 % interval of the accuracy: Wilson's for one answer per question, else normal over the questions' means."""
    means = [group.count("correct") / len(group) for group in groups]
    if not means:
        return 0.0, 1.0
    p, n = statistics.fmean(means), len(means)
    if all(len(group) == 1 for group in groups):
        centre, spread = (p + Z95**2 / (2 * n)), Z95 * math.sqrt(p * (1 - p) / n + Z95**2 / (4 * n**2))
        return (centre - spread) / (1 + Z95**2 / n), (centre + spread) / (1 + Z95**2 / n)
    spread = Z95 * (statistics.stdev(means) if n > 1 else 0.0) / math.sqrt(n)
    return max(p - spread, 0.0), min(p + spread, 1.0)


class Evaluation:
    """The held-out questions of a training run, answered greedily; without any, every call does nothing."""

    SHOWN = ("accuracy", "hallucination_rate", "refusal_rate", "supported_frac", "reward", "mean_length")

    def __init__(self, config: TrainConfig, run: Run, policy: Policy, rollout: Rollout):
        self.config, self.run, self.policy, self.rollout = config, run, policy, rollout
        self.prompts: list[Prompt] = []
        if config.eval_dataset_id_or_path:
            self.scorer = (
                Scorer(build_rewards(config.eval_reward_funcs, asdict(config)))
                if config.eval_reward_funcs
                else rollout.scorer
            )
            self.prompts, _ = load_prompts(
                config, policy, self.scorer.rewards, config.eval_dataset_id_or_path, config.eval_max_samples, run.say
            )

    def measure(self) -> dict[str, dict[str, float]]:
        """`summary` of all held-out answers under "", and of each value of eval_group_field."""
        if not self.prompts:
            return {}
        ranks, sampling = self.run.ranks, SamplingParams(self.config.max_completion_length, temperature=0.0)
        mine = generate_groups(
            self.policy, self.rollout.sampler, self.prompts[ranks.rank :: ranks.world], 1, sampling, self.config.seed
        )
        self.scorer.grade(mine)
        self.scorer.metrics()  # its look-ups belong to no step
        groups = [group for rank in ranks.gather(mine) for group in rank]
        parts: dict[str, list[Group]] = {"": groups}
        if self.config.eval_group_field:
            for group in groups:
                parts.setdefault(str(group.prompt.columns.get(self.config.eval_group_field)), []).append(group)
        return {name: summary(part) for name, part in parts.items()}

    def before(self, step: int) -> dict[str, dict[str, float]]:
        """`measure` of the policy that training begins with: a resumed run reads what was written then."""
        path, ranks = self.run.path / "evaluation.json", self.run.ranks
        written = (
            json.loads(path.read_text(encoding="utf-8"))["before"] if ranks.is_main and step and path.exists() else None
        )
        found = ranks.gather(written)[0] or self.measure()
        if ranks.is_main:
            self.write(found, None)
        return found

    def metrics(self, measured: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
        return {
            f"eval/{name}": measured[""][name]
            for name in (*self.SHOWN, "unscored_frac")
            if name in measured.get("", {})
        }

    def comparison(self, before: Mapping[str, Mapping[str, float]], after: Mapping[str, Mapping[str, float]]) -> str:
        """The table that ends a run."""
        if not after:
            return "done (set eval_dataset_id_or_path to see accuracy before and after)"
        lines = [f"{'':<34}{'before':>8}{'after':>10}"]
        for part, last in after.items():
            lines.append(f"{part or 'held-out questions'}: {int(last['num_questions'])}")
            names = [
                name
                for name in (self.SHOWN if not part else ("accuracy", "wrong_rate", "refusal_rate", "supported_frac"))
                if name in last
            ]
            for name in names:
                scale, unit = (100, " %") if name not in ("reward", "mean_length") else (1, "")
                lines.append(
                    f"  {name:<30}{before[part][name] * scale:>8.1f}{unit:<2}{last[name] * scale:>8.1f}{unit:<2}".rstrip()
                )
        return "\n".join(lines)

    def write(self, before: Mapping[str, Mapping[str, float]], after: Mapping[str, Mapping[str, float]] | None) -> None:
        """evaluation.json: both summaries, of all held-out questions and of each part; after: None while there is
        none."""
        if before:
            text = json.dumps({"before": before, "after": after}, indent=2)
            write_atomically(self.run.path / "evaluation.json", text + "\n")

    def close(self) -> None:
        if self.prompts and self.scorer is not self.rollout.scorer:
            self.scorer.close()


def evaluate(config: TrainConfig, n: int, temperature: float) -> tuple[dict[str, float], list[Group]]:
    """Loads a model and answers the questions of `config.dataset_id_or_path` n times each."""
    device = choose_device(config.device)
    policy = load_for_inference(config, device)
    scorer = Scorer(build_rewards(config.reward_funcs, asdict(config)), config.reward_weights)
    prompts, _ = load_prompts(
        config,
        policy,
        scorer.rewards,
        config.dataset_id_or_path,
        config.max_samples,
        lambda text: print(text, file=sys.stderr),
    )
    positions = max(len(prompt.ids) for prompt in prompts) + config.max_completion_length
    slots = memory.choose_num_sequences(policy.model, MAX_SEQUENCES, positions, memory.free_bytes(device))
    sampling = SamplingParams(config.max_completion_length, temperature, config.top_p, config.top_k)
    groups = generate_groups(policy, Sampler(policy.model, policy.eos_ids, slots), prompts, n, sampling, config.seed)
    scorer.grade(groups)
    scorer.close()
    return summary(groups), groups


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m grpo.evaluate", description=__doc__.splitlines()[0])
    parser.add_argument("model", help="a checkpoint, an adapter such as a run's final/, or a hub id")
    parser.add_argument("--data", required=True, help="questions: JSON, JSONL or CSV")
    parser.add_argument(
        "--reward", required=True, help="a reward that can tell right from wrong, such as math or exact"
    )
    parser.add_argument("--config", help="take prompt, lengths and reward settings from this training config")
    parser.add_argument("--n", type=int, default=1, help="answers per question")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--max-samples", type=int, default=0)
    parser.add_argument("--output", help="summary as JSON; the answers go beside it as .jsonl")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="any key of a training config")
    arguments = parser.parse_intermixed_args(argv)
    if arguments.n > 1 and arguments.temperature == 0:
        raise UserError(
            f"--n {arguments.n} at temperature 0",
            "greedy answers to a question are all the same",
            "add --temperature 0.7, for example",
        )
    keys = {
        "model_name_or_path": arguments.model,
        "dataset_id_or_path": arguments.data,
        "reward_funcs": arguments.reward,
        "reward_weights": "null",
        "max_samples": arguments.max_samples,
        "output_dir": ".",
    }
    config, _ = load_config(arguments.config, [f"{name}={value}" for name, value in keys.items()] + arguments.overrides)
    result, groups = evaluate(config, arguments.n, arguments.temperature)
    print(json.dumps(result, indent=2))
    if arguments.output:
        output = Path(arguments.output)
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
        rows = [completion_row(group.prompt, completion) for group in groups for completion in group.completions]
        output.with_suffix(".jsonl").write_text(
            "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8"
        )


if __name__ == "__main__":
    run_main(main)

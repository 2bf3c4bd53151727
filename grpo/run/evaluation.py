"""The evaluation of a training run on held-out questions, before, during and after training."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from grpo.config.options import TrainConfig
from grpo.data.questions import Questions, load_prompts
from grpo.device.draw import SamplingParams, hash_seed
from grpo.model.policy import Policy
from grpo.run.run import Run
from grpo.run.summary import SHOWN, Summary, comparison_table, summary
from grpo.sampling.sampler import Sampler
from grpo.schema import Group, Prompt
from grpo.storage import write_atomically
from rewards.registry import build_rewards
from rewards.scorer import Scorer

if TYPE_CHECKING:
    from grpo.rollout import Rollout


def generate_groups(
    policy: Policy, sampler: Sampler, prompts: Sequence[Prompt], n: int, sampling: SamplingParams, seed: int
) -> list[Group]:
    """Generate and decode n completions of each prompt."""
    seeds = [hash_seed(seed, prompt.row, index) for prompt in prompts for index in range(n)]
    answers = sampler.sample([prompt.ids for prompt in prompts], n, sampling, seeds)
    groups = [Group(prompt, completions) for prompt, completions in zip(prompts, answers, strict=True)]
    for group in groups:
        for completion in group.completions:
            completion.text = policy.decode(completion)
    return groups


class Evaluation:
    """Answers the held-out questions greedily. Without such questions, every call does nothing.

    A measurement is a dictionary of summaries: of all questions under "", and of each value of eval_group_field.
    """

    def __init__(self, config: TrainConfig, run: Run, policy: Policy, rollout: "Rollout"):
        self.config, self.run, self.policy, self.rollout = config, run, policy, rollout
        self.prompts: list[Prompt] = []
        questions = Questions.held_out(config)
        if not questions:
            return
        self.scorer = rollout.scorer
        if config.eval_reward_funcs:
            self.scorer = Scorer(build_rewards(config.eval_reward_funcs, asdict(config)))
        self.prompts, _ = load_prompts(config, policy, self.scorer.rewards, questions, run.say)

    def measure(self) -> dict[str, dict[str, float]]:
        """Answer all held-out questions, each rank its share, and summarise the answers."""
        if not self.prompts:
            return {}
        ranks = self.run.ranks
        sampling = SamplingParams(self.config.max_completion_length, temperature=0.0)
        mine = self.prompts[ranks.rank :: ranks.world]
        groups = generate_groups(self.policy, self.rollout.sampler, mine, 1, sampling, self.config.seed)
        self.scorer.grade(groups)
        self.scorer.metrics()  # discards the counts, which belong to no step
        groups = [group for of_rank in ranks.gather(groups) for group in of_rank]
        parts: dict[str, list[Group]] = {"": groups}
        if self.config.eval_group_field:
            for group in groups:
                value = str(group.prompt.columns.get(self.config.eval_group_field))
                parts.setdefault(value, []).append(group)
        return {name: summary(part) for name, part in parts.items()}

    def before(self, step: int) -> dict[str, dict[str, float]]:
        """Measure the policy that training begins with. A resumed run (step > 0) reads what was written then."""
        ranks, path = self.run.ranks, self.run.path / "evaluation.json"
        written = None
        if ranks.is_main and step and path.exists():
            written = json.loads(path.read_text(encoding="utf-8"))["before"]
        measured = ranks.gather(written)[0] or self.measure()
        if ranks.is_main:
            self.write(measured, None)
        return measured

    def metrics(self, measured: Mapping[str, Summary]) -> dict[str, float]:
        """Return the metrics eval/* of a measurement."""
        everything = measured.get("", {})
        names = [name for name in (*SHOWN, "unscored_frac") if name in everything]
        return {f"eval/{name}": everything[name] for name in names}

    def comparison(self, before: Mapping[str, Summary], after: Mapping[str, Summary]) -> str:
        """Return the text that ends a run: a table of both measurements."""
        if not after:
            return "done (set eval_dataset_id_or_path or eval_size to see accuracy before and after)"
        return comparison_table(before, after)

    def write(self, before: Mapping[str, Summary], after: Mapping[str, Summary] | None) -> None:
        """Write both measurements to evaluation.json. `after` is None until the end of the run."""
        if before:
            text = json.dumps({"before": before, "after": after}, indent=2)
            write_atomically(self.run.path / "evaluation.json", text + "\n")

    def close(self) -> None:
        """Free the rewards, unless they are those of the training."""
        if self.prompts and self.scorer is not self.rollout.scorer:
            self.scorer.close()

"""The first half of a step: prompts to groups of completions, graded while the others are still being generated."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict

from grpo.advantages import group_advantages
from grpo.data.hub import fetch_data
from grpo.data.prompts import ChatEncoder, make_prompts
from grpo.data.rows import Order, Row, fingerprint, read_rows
from grpo.errors import PREFLIGHT, UserError
from grpo.model.policy import Policy
from grpo.run import memory, metrics
from grpo.run.options import TrainConfig
from grpo.run.run import Run
from grpo.sampling.draw import Sampling, row_seed
from grpo.sampling.sampler import Sampler
from grpo.schema import Completion, Group, Prompt
from rewards.registry import Reward, build_rewards
from rewards.scorer import Scorer

POLL_SECONDS = 0.005


class Rollout:
    """The prompts of a run, their order, the sampler and the scorer."""

    def __init__(self, config: TrainConfig, run: Run, policy: Policy, scorer: Scorer):
        self.config, self.run, self.policy, self.scorer = config, run, policy, scorer
        self.prompts, self.data_hash = load_prompts(
            config, policy, scorer.rewards, config.dataset_id_or_path, config.max_samples, run.say
        )
        self.order = Order(len(self.prompts), config.seed, config.shuffle_dataset)
        self.groups_per_rank = (
            config.per_device_train_batch_size * config.gradient_accumulation_steps // config.num_generations
        )
        self.sampling = Sampling(config.max_completion_length, config.temperature, config.top_p, config.top_k)
        self.longest = max(len(prompt.ids) for prompt in self.prompts) + config.max_completion_length
        slots = config.max_num_seqs or memory.choose_num_sequences(
            policy.model, self.groups_per_rank * config.num_generations, self.longest, memory.free_bytes(run.device)
        )
        self.sampler = Sampler(policy.model, policy.eos_ids, slots)
        self.sampler.prepare(
            slots, self.longest, config.max_completion_length
        )  # on a GPU its memory is taken now, before what is left is shared out

    def sample(self, step: int) -> tuple[list[Group], list[Group]]:
        """The groups to train on, and all that were generated.

        With dynamic sampling (DAPO) groups that are all right or all wrong are replaced by new ones, for a limited
        number of batches; then the step takes what there is.
        """
        self.scorer.begin()
        if not self.config.dynamic_sampling:
            groups = self._generate(step, 0, 0)
            return groups, groups
        kept, generated = [], []
        for batch in range(self.config.dynamic_sampling_max_rollouts):
            fresh = self._generate(step, batch, len(generated))
            for number, group in enumerate(fresh, len(generated)):
                self.scorer.collect(number, group)
                group.advantages = [0.0] * len(group.completions)
            generated += fresh
            kept += [group for group in fresh if metrics.is_mixed(group)]
            if self.run.ranks.max(self.groups_per_rank - len(kept)) <= 0:  # every rank has enough
                break
        return kept[: self.groups_per_rank], generated

    def _generate(self, step: int, batch: int, first_group: int) -> list[Group]:
        """This rank's share of the next prompts, num_generations completions each; each goes to the scorer as it
        ends."""
        G, ranks = self.config.num_generations, self.run.ranks
        prompts = [
            self.prompts[row] for row in self.order.take(self.groups_per_rank * ranks.world)[ranks.rank :: ranks.world]
        ]
        places = [
            (ranks.rank + group * ranks.world) * G + member for group in range(len(prompts)) for member in range(G)
        ]  # over all ranks
        seeds = [row_seed(self.config.seed, step, batch, 0, place) for place in places]

        def submit(number: int, completion: Completion) -> None:
            prompt = prompts[number // G]
            completion.text = self.policy.decode(completion)
            self.scorer.submit(first_group + number // G, number % G, G, prompt.text, completion, prompt.columns)

        completions = self.sampler.sample([prompt.ids for prompt in prompts], G, self.sampling, seeds, submit)
        return [Group(prompt, members) for prompt, members in zip(prompts, completions, strict=True)]

    def first_ready(self, batches: Sequence[Sequence[int]], groups: Sequence[Group]) -> int:
        """Which of some micro-batches (given by their groups) to train next: the first, or, if a reward is slow, the
        first whose rewards have all arrived."""
        c = self.config
        if not self.scorer.slow or c.full_determinism or c.scale_rewards == "batch":
            return 0
        while True:
            for index, numbers in enumerate(batches):
                if all(groups[n].rewards or self.scorer.ready(n, len(groups[n].completions)) for n in numbers):
                    return index
            time.sleep(POLL_SECONDS)

    def finish(self, groups: Sequence[Group], numbers: Sequence[int]) -> Sequence[int]:
        """Waits for the rewards of these groups and fills in their advantages (Eq. 1, 2); all groups', where they
        depend on one another. Returns which."""
        scale = {True: "group", False: "none"}.get(self.config.scale_rewards, self.config.scale_rewards)
        wanted = range(len(groups)) if scale == "batch" else numbers
        for number in wanted:
            if not groups[number].rewards:
                self.scorer.collect(number, groups[number])
        if scale == "batch":
            everyone = self.run.ranks.gather([group.rewards for group in groups])
            advantages = group_advantages([rewards for rank in everyone for rewards in rank], scale)
            start = sum(len(rank) for rank in everyone[: self.run.ranks.rank])
        else:
            advantages, start = group_advantages([groups[number].rewards for number in numbers], scale), 0
        for offset, number in enumerate(wanted):
            groups[number].advantages = advantages[start + offset]
        return wanted


def load_rows(config: TrainConfig, rewards: Sequence[Reward], name: str, max_samples: int) -> list[Row]:
    """A data set; exit 3 if a reward lacks its column."""
    rows = read_rows(
        fetch_data(name, config.dataset_split),
        config.question_field,
        config.answer_field,
        config.title_field,
        max_samples,
    )
    held = dict.fromkeys(column for row in rows for column, value in row.columns.items() if value is not None)
    for reward in rewards:
        if missing := [column for column in reward.needs if column not in held]:
            raise UserError(
                f"the reward {reward.name} needs the column {missing[0]}",
                f"the columns of {name} are {', '.join(held)}",
                f"set {missing[0]}_field",
                PREFLIGHT,
            )
    return rows


def prepare_rewards(config: TrainConfig, say: Callable[[str], None]) -> Scorer:
    """The rewards, ready to grade: their data, services and knowledge base are there."""
    scorer = Scorer(build_rewards(config.reward_funcs, asdict(config)), config.reward_weights)
    try:
        scorer.prepare(
            [row.columns for row in load_rows(config, scorer.rewards, config.dataset_id_or_path, config.max_samples)],
            say,
        )
    except BaseException:
        scorer.close()
        raise
    return scorer


def load_prompts(
    config: TrainConfig,
    policy: Policy,
    rewards: Sequence[Reward],
    name: str,
    max_samples: int,
    say: Callable[[str], None],
) -> tuple[list[Prompt], str]:
    """The prompts of a data set and a hash of its content; exit 3 if a reward lacks its column or nothing fits."""
    rows = load_rows(config, rewards, name, max_samples)
    positions = policy.model.config.max_positions
    limit = min(config.max_prompt_length, positions - config.max_completion_length)
    if limit < 1:
        raise UserError(
            "max_completion_length leaves no room for a prompt",
            f"the model has {positions} positions",
            "lower max_completion_length",
            PREFLIGHT,
        )
    prompts, too_long = make_prompts(
        rows, ChatEncoder(policy.tokenizer), config.system_prompt, config.prompt_template, limit
    )
    if too_long:
        say(f"note: {too_long} of {len(rows)} prompts of {name} are longer than {limit} tokens and left out")
    return prompts, fingerprint(rows)

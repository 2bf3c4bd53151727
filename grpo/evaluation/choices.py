"""Score given choices by their log-probs, as TruthfulQA does (2109.07958): nothing is generated.

The score of a choice is the sum of the log-probs of its tokens (Eq. 3, temperature 1) as the beginning of the answer.
mc1: whether a right choice of `mc1_targets` scores higher than every wrong one. mc2: the probability of the right
choices of `mc2_targets` among all of them.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from grpo.base.errors import PREFLIGHT, UserError
from grpo.base.schema import Completion, Group, Prompt
from grpo.data.prompts import ChatEncoder
from grpo.evaluation.measures import wilson_interval
from grpo.logprobs import batch_logprobs
from grpo.model.policy import Policy
from grpo.packing import pack_batch, split_into_micro_batches

MICRO_BATCH_TOKENS = 8192
END_OF_THOUGHTS = "\n</think>\n\n"  # if the template opens a think block: a choice is an answer, not a thought


@dataclass(frozen=True)
class ScoredChoices:
    """A question, and the score of each of its choices, in nats."""

    prompt: Prompt
    scores: dict[str, float]

    @property
    def mc1(self) -> float:
        """Return 1 if a right choice scores higher than every wrong one, else 0 (also for a tie)."""
        right, wrong = self._split("mc1_targets")
        return float(max(right) > max(wrong))

    @property
    def mc2(self) -> float:
        """Return the share of the right choices in the probability of all choices."""
        right, wrong = self._split("mc2_targets")
        highest = max(*right, *wrong)  # subtracted, so that nothing underflows
        masses = [sum(math.exp(score - highest) for score in part) for part in (right, wrong)]
        return masses[0] / sum(masses)

    def record(self) -> dict:
        """Return the question's record in the file of answers."""
        outcome = "correct" if self.mc1 else "wrong"
        about = {"row": self.prompt.row, "question": self.prompt.columns.get("question"), "outcome": outcome}
        return about | {"mc1": self.mc1, "mc2": self.mc2, "scores": self.scores}

    def _split(self, targets: str) -> tuple[list[float], list[float]]:
        """Return the scores of the right and of the wrong choices."""
        choices = self.prompt.columns[targets]
        scores: tuple[list[float], list[float]] = ([], [])
        for choice, label in zip(choices["choices"], choices["labels"], strict=True):
            scores[not label].append(self.scores[choice])
        return scores


def score_choices(policy: Policy, prompts: Sequence[Prompt]) -> list[ScoredChoices]:
    """Score the choices of each question. UserError (exit 3) if it has none, or if one does not fit into the model."""
    groups = []
    encoder = ChatEncoder(policy.tokenizer)
    end_of_thoughts = policy.tokenizer.encode(END_OF_THOUGHTS, add_special_tokens=False) if encoder.opens_think else []
    for prompt in prompts:
        ids = (*prompt.ids, *end_of_thoughts)
        choices = _choices_of(prompt)
        completions = [Completion.given(encoder.plain(choice), "stop", choice, loss_weight=1.0) for choice in choices]
        _check_lengths(policy, prompt, len(ids), completions)
        groups.append(Group(Prompt(prompt.row, prompt.text, ids, prompt.columns), completions))
    sums = iter(sum_logprobs(policy, groups))
    return [
        ScoredChoices(prompt, {choice.text: next(sums) for choice in group.completions})
        for prompt, group in zip(prompts, groups, strict=True)
    ]


@torch.inference_mode()
def sum_logprobs(policy: Policy, groups: Sequence[Group]) -> list[float]:
    """Return the sum of the log-probs of each completion, in order."""
    sums = []
    for number, parts in enumerate(split_into_micro_batches(groups, MICRO_BATCH_TOKENS)):
        batch = pack_batch(parts, number, device=policy.model.build.device)
        logp_C, _ = batch_logprobs(policy.model, batch)  # Eq. 3
        sum_N = torch.zeros(len(batch.completions), dtype=torch.float64, device=logp_C.device)
        sums += sum_N.index_add_(0, batch.completion_C, logp_C.double()).tolist()
    return sums


def summarise_choices(scored: Sequence[ScoredChoices]) -> dict[str, float]:
    """Return mc1 with its 95 % interval (Wilson's), and mc2: means over questions."""
    mc1 = statistics.fmean(question.mc1 for question in scored)
    low, high = wilson_interval(mc1, len(scored))
    mc2 = statistics.fmean(question.mc2 for question in scored)
    return {"num_questions": len(scored), "mc1": mc1, "mc1_low": low, "mc1_high": high, "mc2": mc2}


def _choices_of(prompt: Prompt) -> list[str]:
    """Return all choices of a question, each once."""
    choices: dict[str, None] = {}
    for name in ("mc1_targets", "mc2_targets"):
        targets = prompt.columns.get(name)
        if not isinstance(targets, Mapping) or not {0, 1} <= set(targets.get("labels", ())):
            raise UserError(
                f"row {prompt.row + 1} has no choices to score",
                f'its {name} is not {{"choices": [text, ...], "labels": [1 or 0, ...]}} with right and wrong ones',
                "use a file of TruthfulQA or GPQA, or leave --choices out",
                PREFLIGHT,
            )
        choices |= dict.fromkeys(targets["choices"])
    return list(choices)


def _check_lengths(policy: Policy, prompt: Prompt, num_prompt_tokens: int, completions: Sequence[Completion]) -> None:
    longest = num_prompt_tokens + max(len(completion.ids) for completion in completions)
    if longest > policy.model.config.max_positions or not all(completion.ids for completion in completions):
        raise UserError(
            f"row {prompt.row + 1} cannot be scored",
            f"with its longest choice it has {longest} tokens, the model has {policy.model.config.max_positions} "
            "positions; a choice must not be empty",
            "leave the row out",
            PREFLIGHT,
        )

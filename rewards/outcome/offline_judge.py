"""Judge without a model: an answer is right if it equals a truth. For tests and toy worlds."""

from collections.abc import Sequence

from rewards.exact import equals_one
from rewards.outcome.judge import Judgement
from rewards.outcome.refusal import is_refusal


class OfflineJudge:
    """Compare the answer with the truths after normalisation. This judge has nothing to reach, to check or to close."""

    async def judge(
        self, question: str, answer: str, truths: Sequence[str], falsehoods: Sequence[str] = ()
    ) -> Judgement:
        """Always reach an outcome: no answer is unscorable. What equals no truth is wrong anyway."""
        if equals_one(answer, truths):
            return Judgement("correct", "equals the truth")
        if is_refusal(answer):
            return Judgement("refused", "declines to answer")
        return Judgement("wrong", f"is not {truths[0][:80]!r}")

    def check_sync(self) -> None:
        """Do nothing: rules always work."""

    def metrics(self) -> dict[str, float]:
        """Count nothing."""
        return {}

    def close(self) -> None:
        """Do nothing: rules hold nothing."""

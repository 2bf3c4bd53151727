"""Keep the best policy of a run in best/, by one measure of the held-out questions (keep_best)."""

from collections.abc import Callable, Mapping

from grpo.base.storage import Json, read_mapping
from grpo.config.options import HIGHER_IS_BETTER
from grpo.run.checkpoint import BEST_FILE
from grpo.run.diagnosis.glossary import Metrics
from grpo.run.run import Run


class Best:
    """Keeps the policy if its evaluation is better than all before it, including the one before training.

    A resumed run continues with the best value so far.
    """

    def __init__(self, name: str | None, run: Run, before: Metrics, step: int):
        self.name, self.run = name, run
        self.value = before.get(name)
        kept = read_mapping(run.path / "best" / BEST_FILE) if step else {}  # {} if it is damaged
        if kept and kept["metric"] == name and kept["step"] <= step:
            self.value = kept["value"]

    def offer(self, step: int, metrics: Metrics, save: Callable[[str, Mapping[str, Json]], None]) -> None:
        """`save` the policy if `metrics`, of its evaluation at this step, are the best so far."""
        value = metrics.get(self.name)
        if value is None or not self._is_better(value):
            return
        self.value = value
        about = {"metric": self.name, "step": step, "value": value}
        save("best", {BEST_FILE: about})
        found = f"step {step}: {self.name} is {value:.4g}, the best so far"
        self.run.say(f"{found}; this policy is in {self.run.path}/best")

    def _is_better(self, value: float) -> bool:
        if self.value is None:
            return True
        if self.name in HIGHER_IS_BETTER:
            return value > self.value
        return value < self.value

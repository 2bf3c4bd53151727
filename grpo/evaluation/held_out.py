"""The evaluation of a training run on held-out questions, before, during and after training; and its best policy.

evaluation.json holds both measurements, a hash of the held-out questions, and the step of the first measurement. This
step is 0, unless the run was resumed with other questions, or the file was damaged. Then the first measurement is
repeated, and the table names its step.
"""

from collections.abc import Callable, Iterable, Mapping

from grpo.algorithm.schema import Prompt
from grpo.base.storage import Json, read_mapping, write_json, write_lines
from grpo.config.options import HIGHER_IS_BETTER
from grpo.data.questions import QuestionData, Questions, load_prompts
from grpo.engine.device.draw import SamplingParams
from grpo.engine.sampling.sampler import Sampler
from grpo.policy import Policy
from grpo.run.checkpoint import BEST_FILE
from grpo.run.diagnosis.glossary import Metrics
from grpo.run.log import completion_records
from grpo.run.messages import tolerated
from grpo.run.run import Run
from rewards.scorer import Scorer

# "" (all questions) or a value of eval_group_field -> its summary
Measurement = Mapping[str, Mapping[str, float | None]]
LOGGED = """
    accuracy incorrect not_attempted incorrect_given_attempted supported_frac reward mean_length unscored_frac
    searched_frac supported_facts refuted_facts
""".split()  # as eval/*


class Evaluation:
    """Answers the held-out questions greedily. Without such questions, every call does nothing."""

    def __init__(self, data: QuestionData, run: Run, policy: Policy, sampler: Sampler, scorer: Scorer):
        """scorer: the rewards of these questions."""
        config = data.config
        self.config = config
        self.run = run
        self.policy = policy
        self.sampler = sampler
        self.scorer = scorer
        self.prompts: list[Prompt] = []
        self.data_hash = ""
        self.first_step = 0
        self.warned: set[str] = set()
        questions = Questions.held_out(config)
        if not questions:
            return
        loaded = load_prompts(data, policy, questions, scorer.rewards)
        run.report_data("held-out data", loaded.count)
        self.prompts = loaded.prompts
        self.data_hash = loaded.data_hash

    def measure(self, step: int) -> Measurement:
        """Answer all held-out questions, each replica its share; write the answers, and return their summaries."""
        if not self.prompts:
            return {}
        from grpo.evaluation.answers import generate_groups, split_into_parts  # now that there are questions
        from grpo.evaluation.measures import summary

        ranks = self.run.ranks
        replicas = ranks.replicas
        sampling = SamplingParams(self.config.max_completion_length, temperature=0.0)
        mine = self.prompts[replicas.rank :: replicas.world]
        groups = generate_groups(self.policy, self.sampler, mine, 1, sampling, self.config.seed)
        self.scorer.grade(groups)
        self.scorer.take_metrics()  # forget what is counted per step (kb/*); totals (judge/*) contain evaluations
        everyones = replicas.gather_lists(groups)
        if ranks.is_main and self.config.log_completions:
            self._write_lines(f"step-{step:06d}.jsonl", completion_records(everyones))
        parts = split_into_parts(everyones, self.config.eval_group_field)
        return {name: summary(part) for name, part in parts.items()}

    def _write_lines(self, name: str, records: Iterable[Mapping]) -> None:
        """Write a file of evaluation/. If the disk is full, its content is lost, and the run continues."""
        with tolerated("evaluation/", self.warned, say=self.run.say):
            write_lines(self.run.path / "evaluation" / name, records, for_people=True)

    def before(self, step: int) -> Measurement:
        """Measure the policy before training. A resumed run (step > 0) reads the measurement that was written then."""
        ranks = self.run.ranks
        written = ranks.of_first(self._read) if step else None
        self.first_step, measured = written or (step, self.measure(step))
        if ranks.is_main:
            self.write(measured, None)
        return measured

    def _read(self) -> tuple[int, Measurement] | None:
        """Return step and result of the first measurement; None if it is damaged, or of other questions."""
        written = read_mapping(self.run.path / "evaluation.json")
        return (written["step"], written["before"]) if written.get("data") == self.data_hash else None

    def metrics(self, measured: Measurement) -> dict[str, float]:
        """Return the metrics eval/* of a measurement, without unknown ones."""
        of_all = measured.get("", {})
        return {f"eval/{name}": of_all[name] for name in LOGGED if of_all.get(name) is not None}

    def before_after(self, before: Measurement, after: Measurement) -> str:
        """Return the last text that a run prints: a table of both measurements."""
        if not after:
            return "done (set eval_dataset_id_or_path or eval_size to see accuracy before and after)"
        from grpo.evaluation.table import summary_table  # as in `measure`

        head = f"step {self.first_step}" if self.first_step else "before"
        return summary_table({head: before, "after": after}, "held-out questions")

    def write(self, before: Measurement, after: Measurement | None) -> None:
        """Write both measurements to evaluation.json. `after` is None until the end of the run."""
        if before:
            write_json(
                self.run.path / "evaluation.json",
                {"data": self.data_hash, "step": self.first_step, "before": before, "after": after},
            )


class Best:
    """Keeps the policy in best/ if its evaluation is better than all before it, including the one before training.

    name: of the measure that decides (keep_best). A resumed run continues with the best value so far.
    """

    def __init__(self, name: str | None, run: Run, before: Metrics, step: int):
        self.name = name
        self.run = run
        self.value = before.get(name)
        best = read_mapping(run.path / "best" / BEST_FILE) if step else {}  # {} if it is damaged
        if best and best["metric"] == name and best["step"] <= step:
            self.value = best["value"]

    def offer(self, step: int, metrics: Metrics, save: Callable[[str, Mapping[str, Json]], None]) -> None:
        """`save` the policy if `metrics`, of its evaluation at this step, are the best so far."""
        value = metrics.get(self.name)
        sign = 1 if self.name in HIGHER_IS_BETTER else -1
        if value is None or not (self.value is None or sign * value > sign * self.value):
            return
        self.value = value
        save("best", {BEST_FILE: {"metric": self.name, "step": step, "value": value}})
        self.run.say(
            f"step {step}: {self.name} is {value:.4g}, the best so far; this policy is in {self.run.path}/best"
        )

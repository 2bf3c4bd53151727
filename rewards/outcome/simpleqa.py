"""Grade as SimpleQA does (2411.04368): the judge alone says correct, incorrect or not attempted; 1 for correct, else 0.

It asks for no format: without an answer block, the text after the thoughts is judged. KnowRL's `correctness` gives the
same three grades, but counts a completion without an answer block as wrong.
"""

from dataclasses import replace

from grpo.base.schema import Score
from rewards.format import final_text
from rewards.outcome import correctness
from rewards.outcome.judge import Judge
from rewards.registry import Columns, Options, Reward


def build(options: Options) -> Reward:
    """Build the reward `simpleqa`."""
    return correctness.judged_reward("simpleqa", options, _grader)


def _grader(judge: Judge) -> correctness.GradeAnswer:
    async def grade(completion: str, columns: Columns) -> Score:
        text = final_text(completion)
        if not text:
            return Score(0.0, "nothing follows the thoughts", "refused")
        case = correctness.read_case(text, columns)
        if isinstance(case, Score):
            return case
        judged = await correctness.ask(judge, case)
        value = None if judged.outcome is None else float(judged.outcome == "correct")
        return replace(judged, value=value)

    return grade

"""Measure how well a model answers a file of questions, or compare two.

  python -m grpo.evaluate MODEL [--data FILE] [--reward NAME] [--n 8 --temperature 0.7] [--output F.json] [key=value …]
  python -m grpo.evaluate MODEL --without-tools
  python -m grpo.evaluate --compare A B [--json]

MODEL is a checkpoint, an adapter, a GGUF file, a hub id, or the directory of a run. A run brings its own prompts, and
its held-out questions if there is no --data. Files of TruthfulQA, SimpleQA, Chinese SimpleQA, GPQA, AIME, MATH-500 and
GSM8K are recognised by their columns and need no --reward. Prints a table: the share of right answers with its
95 % interval, those of wrong and of declined ones, pass@k; all of it as JSON with --json, and in F.json. A and B are
the --output files of two evaluations, or a run's evaluation/step-N.jsonl.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from grpo.algorithm.schema import Completion, Group, completions_of
from grpo.base.errors import UserError, describe, run_main
from grpo.base.progress import check_output, command_parser, say_next
from grpo.base.storage import write_json, write_lines
from grpo.config.options import TrainConfig
from grpo.data.questions import load_prompts, prepare_rewards
from grpo.engine.device.distributed import choose_device
from grpo.engine.device.draw import SamplingParams
from grpo.engine.model import memory
from grpo.engine.sampling.sampler import Sampler
from grpo.evaluation.answers import decline, generate_groups, split_into_parts, ungraded_records, unused
from grpo.evaluation.compare import compare, comparison_text, read_answers
from grpo.evaluation.measures import Summary, note_on_unscored, risk_coverage, stated_claims, summary
from grpo.evaluation.table import summary_table
from grpo.evaluation.task import Task, make_task
from grpo.run.log import completion_records
from grpo.run.messages import tell
from grpo.run.saved import load_saved
from grpo.tools.functions import build_tools
from rewards.format import parse
from rewards.registry import built_in
from rewards.scorer import Scorer

Say = Callable[[str], None]
MANY = 0.2  # of the answers
MAX_SEQUENCES = 256  # decoded together
UNGRADED = Path("ungraded.jsonl")  # for answers that could not be graded, unless --output names another file


def evaluate(task: Task, n: int, temperature: float, rescue: Path, without_tools: bool = False) -> list[Group]:
    """Answer the questions n times each, and grade the answers.

    Checks first that the reward's services answer. Answers that they fail to grade later are written to `rescue`.
    without_tools: to call a tool is to decline.
    """
    scorer = prepare_rewards(task.data, tell, task.questions)
    tell(f"graded by {', '.join(reward.name for reward in scorer.rewards)}")
    try:
        groups = _generate(task, scorer, n, temperature, without_tools)
        asked_for_help = decline(groups) if without_tools else []
        _grade(scorer, groups, rescue, task.config.reward_funcs)
    finally:
        scorer.close()
    for completion, outcome in asked_for_help:
        completion.scores = {name: replace(score, outcome=outcome) for name, score in completion.scores.items()}
    return groups


def _generate(task: Task, scorer: Scorer, n: int, temperature: float, without_tools: bool) -> list[Group]:
    config = task.config
    device = choose_device(config.device)
    policy = load_saved(task.saved, config, device)
    loaded = load_prompts(task.data, policy, task.questions, scorer.rewards)
    tell(str(loaded.count))
    prompts = loaded.prompts
    positions = max(len(prompt.ids) for prompt in prompts) + config.max_completion_length
    num_slots = memory.choose_num_sequences(policy.model, MAX_SEQUENCES, positions, memory.free_bytes(device))
    tools = build_tools(config, policy.tokenizer, task.data.objects.tools, are_absent=without_tools)
    sampling = SamplingParams(config.max_completion_length, temperature, top_p=config.top_p, top_k=config.top_k)
    sampler = Sampler(policy.model, policy.eos_ids, num_slots, tools=tools)
    with closing(tools) if tools else nullcontext():
        return generate_groups(policy, sampler, prompts, n, sampling, config.seed)


def _grade(scorer: Scorer, groups: Sequence[Group], rescue: Path, rewards: Sequence[str]) -> None:
    """Grade the answers; save those whose grading fails, and say how to go on."""
    rescue = unused(rescue)
    how = f"they are in {rescue}: python -m rewards.score --reward {','.join(rewards)} {rescue}"
    try:
        scorer.grade(groups)
    except BaseException as error:
        write_lines(rescue, ungraded_records(groups))
        code, text = describe(error)
        raise UserError(
            "the answers could not be graded", text.replace("\n", "; "), f"correct that; {how}", code
        ) from error
    left = [
        # those about which a service was asked and gave no usable answer
        Group(group.prompt, [c for c in group.completions if not c.failure and _is_unanswered(c)])
        for group in groups
    ]
    if records := ungraded_records(left):
        write_lines(rescue, records)
        tell(f"warning: a service gave no usable answer about {len(records)} answers; {how}")


def _is_unanswered(completion: Completion) -> bool:
    return any(False in score.asked.values() for score in completion.scores.values())


def _summarise(config: TrainConfig, groups: Sequence[Group], say: Say) -> dict[str, Any]:
    """Return the measures over all questions and over each part of them; say them as a table."""
    columns = {name for group in groups for name in group.prompt.columns}
    split_by = next((name for name in (config.eval_group_field, "unanswerable") if name in columns), None)
    parts = {name: summary(part) for name, part in split_into_parts(groups, split_by).items()}
    say(summary_table({"": parts}))
    for note in _notes(config, parts[""], groups):
        tell(f"note: {note}")
    result = {**parts.pop(""), "parts": parts, "risk_coverage": risk_coverage(stated_claims(groups))}
    return {name: value for name, value in result.items() if value not in ({}, [])}


def _notes(config: TrainConfig, measured: Summary, groups: Sequence[Group]) -> Iterator[str]:
    """Yield warnings about the measures, for their reader."""
    if note := note_on_unscored(measured):
        yield note
    if measured["clipped_ratio"]:
        share = f"{measured['clipped_ratio']:.0%} of the answers were cut"
        yield f"{share} at max_completion_length={config.max_completion_length}; a higher one lets them end"
    texts = [completion.text for completion in completions_of(groups)]
    share = sum(parse(text).answer is None for text in texts) / len(texts)
    if share > MANY and any(built_in(name).prompt for name in config.reward_funcs):
        yield f"{share:.0%} of the answers have no <answer> block and count as wrong; --reward simpleqa needs none"


def compare_two(a: str, b: str, say: Say) -> dict[str, Any]:
    """Compare the answers in the files of two evaluations."""
    comparison = compare(*(read_answers(Path(name)) for name in (a, b)))
    say(comparison_text(comparison, a, b))
    return {"a": a, "b": b, **asdict(comparison)}


def evaluate_model(arguments: argparse.Namespace, say: Say) -> dict[str, Any]:
    """Evaluate a model; write the answers to a file next to `--output`."""
    task = make_task(arguments.model, arguments, tell)
    output = arguments.output
    rescue = output.with_suffix(".ungraded.jsonl") if output else UNGRADED
    if arguments.without_tools and (task.config.environment or not task.config.tools):
        why = "has an environment, which answers its turns" if task.config.environment else "has no tools"
        raise UserError("--without-tools", f"{arguments.model} {why}", "leave it out; it is for tools=[search]")
    groups = evaluate(task, arguments.n, arguments.temperature, rescue, arguments.without_tools)
    result = _summarise(task.config, groups, say)
    if output:
        write_lines(output.with_suffix(".jsonl"), completion_records(groups), for_people=True)
    return {"benchmark": task.benchmark.name, **result} if task.benchmark else result


def make_parser() -> argparse.ArgumentParser:
    parser = command_parser("grpo.evaluate", __doc__)
    parser.add_argument(
        "model", nargs="?", metavar="MODEL", help="a checkpoint, an adapter, a run's directory, or a hub id"
    )
    parser.add_argument("--compare", nargs=2, metavar=("A", "B"), help="the --output of two evaluations")
    parser.add_argument("--data", metavar="FILE", help="questions, as JSON, JSONL, CSV or Parquet")
    parser.add_argument(
        "--reward", metavar="NAME", help="reward that knows right from wrong, such as math, exact or simpleqa"
    )
    parser.add_argument("--n", type=int, default=1, help="answers per question (default: %(default)s)")
    parser.add_argument("--temperature", type=float, default=0.0, help="0: greedy (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print all measures as JSON")
    parser.add_argument("--without-tools", action="store_true", help="to call a tool is to decline")
    parser.add_argument(
        "--output", type=Path, metavar="F.json", help="write the result here, and all answers to F.jsonl"
    )
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="any key of a training config (python -m grpo.train -h)"
    )
    return parser


def check(arguments: argparse.Namespace) -> None:
    """Raise UserError (exit 2) if the arguments make no sense, before anything is loaded."""
    SamplingParams(1, arguments.temperature)  # refuses a temperature that does not exist
    if arguments.n < 1:
        raise UserError(f"--n is {arguments.n}", "it is the number of answers per question", "give 1 or more")
    if arguments.n > 1 and arguments.temperature == 0:
        raise UserError(
            f"--n {arguments.n} at temperature 0",
            "greedy answers to a question are all the same",
            "add --temperature 0.7, for example",
        )
    if arguments.output:
        check_output(arguments.output)
        if arguments.output.suffix == ".jsonl":  # the answers go there
            raise UserError(f"--output {arguments.output}", "it is the result's file, of JSON", "name it F.json")


def main(argv: list[str]) -> None:
    parser = make_parser()
    arguments = parser.parse_intermixed_args(argv)
    check(arguments)
    if bool(arguments.compare) == bool(arguments.model):
        parser.error("name a MODEL, or --compare A B")
    say = tell if arguments.json else print
    result = compare_two(*arguments.compare, say) if arguments.compare else evaluate_model(arguments, say)
    if arguments.output:
        write_json(arguments.output, result)
    if arguments.json:
        print(json.dumps(result, indent=2))
    where = arguments.output or "the lines above; --output F.json keeps all of it, with every answer"
    say_next(
        where, ["grpo.evaluate", "--compare", arguments.output or "F.json", "OTHER.json"], ["grpo.generate", "MODEL"]
    )


if __name__ == "__main__":
    run_main(main)

"""Measure how well a model answers a file of questions.

  python -m grpo.evaluate MODEL --data FILE --reward NAME [--n 8 --temperature 0.7] [--output F.json] [key=value ...]

Prints accuracy with its 95 % interval, refusal and hallucination rate, and pass@k as JSON.
"""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from grpo.config.load import load_config
from grpo.config.options import TrainConfig
from grpo.data.questions import Questions, load_prompts
from grpo.device.distributed import choose_device
from grpo.device.draw import SamplingParams
from grpo.errors import UserError, run_main
from grpo.model.policy import load_for_inference
from grpo.run import memory
from grpo.run.evaluation import generate_groups
from grpo.run.log import completion_record
from grpo.run.summary import summary
from grpo.sampling.sampler import Sampler
from grpo.schema import Group
from rewards.registry import build_rewards
from rewards.scorer import Scorer

MAX_SEQUENCES = 256  # decoded together


def evaluate(config: TrainConfig, n: int, temperature: float) -> tuple[dict[str, float], list[Group]]:
    """Load a model and answer the questions of `config.dataset_id_or_path` n times each."""
    device = choose_device(config.device)
    policy = load_for_inference(config, device)
    scorer = Scorer(build_rewards(config.reward_funcs, asdict(config)), config.reward_weights)
    questions = Questions(config.dataset_id_or_path, config.max_samples)
    prompts, _ = load_prompts(config, policy, scorer.rewards, questions, _print_on_stderr)
    positions = max(len(prompt.ids) for prompt in prompts) + config.max_completion_length
    num_slots = memory.choose_num_sequences(policy.model, MAX_SEQUENCES, positions, memory.free_bytes(device))
    sampler = Sampler(policy.model, policy.eos_ids, num_slots)
    sampling = SamplingParams(config.max_completion_length, temperature, config.top_p, config.top_k)
    groups = generate_groups(policy, sampler, prompts, n, sampling, config.seed)
    scorer.grade(groups)
    scorer.close()
    return summary(groups), groups


def _print_on_stderr(text: str) -> None:
    print(text, file=sys.stderr)


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m grpo.evaluate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", metavar="MODEL", help="a checkpoint, an adapter such as a run's final/, or a hub id")
    parser.add_argument("--data", required=True, metavar="FILE", help="questions, as JSON, JSONL or CSV")
    parser.add_argument(
        "--reward", required=True, metavar="NAME", help="reward that knows right from wrong, such as math or exact"
    )
    parser.add_argument("--n", type=int, default=1, help="answers per question (default: %(default)s)")
    parser.add_argument("--temperature", type=float, default=0.0, help="0: greedy (default: %(default)s)")
    parser.add_argument("--max-samples", type=int, default=0, metavar="N", help="use only the first N questions")
    parser.add_argument("--config", metavar="FILE", help="training config to take prompts, lengths and rewards from")
    parser.add_argument("--output", metavar="F.json", help="write the result here, and all answers to F.jsonl")
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="any key of a training config (python -m grpo.train -h)"
    )
    return parser


def main(argv: list[str]) -> None:
    arguments = make_parser().parse_intermixed_args(argv)
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
    overrides = [f"{name}={value}" for name, value in keys.items()]
    config, _ = load_config(arguments.config, overrides + arguments.overrides)
    result, groups = evaluate(config, arguments.n, arguments.temperature)
    text = json.dumps(result, indent=2)
    print(text)
    if arguments.output:
        output = Path(arguments.output)
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(text + "\n", encoding="utf-8")
        write_answers(output.with_suffix(".jsonl"), groups)


def write_answers(path: Path, groups: list[Group]) -> None:
    """Write one line per answer."""
    records = [completion_record(group.prompt, completion) for group in groups for completion in group.completions]
    lines = [json.dumps(record, ensure_ascii=False) + "\n" for record in records]
    path.write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    run_main(main)

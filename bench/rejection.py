"""python -m bench.rejection RUN [--rounds N] [--best]

Does fine-tuning on checked sentences do as well as GRPO? RUN is a finished run of configs/smollm2_knowrl.yaml. Its cold
start gives as many answers to the questions to train on as GRPO has sampled, at the same temperature. Of each answer
those sentences stay that the knowledge base supports, each fact once; an answer of which none stays is left out. On the
rest the cold start is fine-tuned: as many steps of as many answers, the same layers, the same learning rate. So both
learn from the same verdicts on as many answers (rejection sampling by sentences).

--rounds N splits answers and steps into N rounds. Each begins with the model that the one before has made.
--best keeps of the answers to a question only the one with the highest reward, as RAFT does (2304.06767).

The result is RUN-rejection, RUN-rejection-N or RUN-rejection-best, an arm: python -m bench.reasoning RUN RUN-rejection
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from bench.arm import REWARD
from bench.record import ROOT, plain_parser, run_experiment
from grpo import evaluate
from grpo.base.storage import write_lines
from grpo.config.load import load_config
from grpo.config.options import SftConfig, TrainConfig
from grpo.data.files import read_records
from grpo.sft import sft
from rewards.format import parse

SFT_CONFIG = ROOT / "configs" / "smollm2_knowrl_sft.yaml"
CHECKS = ("judge", "decomposer", "verifier", "knowledge_base", "max_completion_length", "system_prompt")  # as in GRPO
LEARNS = ("learning_rate", "lr_scheduler_type", "warmup_steps", "max_steps", "seed", "lora_layers_to_transform")
Row = Mapping[str, object]


def keys_of(config: TrainConfig, names: Sequence[str]) -> list[str]:
    """Return the values of some keys as a command line takes them."""
    values = {name: getattr(config, name) for name in names}
    return [f"{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in values.items()]


def asked(questions: Sequence[Row], number: int, start: int) -> list[Row]:
    """Return so many questions from a place on. After the last one comes the first one again."""
    return [questions[i % len(questions)] for i in range(start, start + number)]


def answer(model: Path, data: Path, number: int, temperature: float, config: TrainConfig, output: Path) -> list[Row]:
    """Answer the first questions of a file, each once, and return the answers with their facts and verdicts.

    They are written to the output, a .jsonl file, and not asked for again.
    """
    if not output.exists():
        keys = [*keys_of(config, CHECKS), f"max_samples={number}", f"seed={config.seed}"]
        options = ["--data", str(data), "--reward", json.dumps(config.eval_reward_funcs)]
        options += ["--temperature", str(temperature), "--output", str(output.with_suffix(".json"))]
        evaluate.main([str(model), *options, *keys])
    return read_records(output)


def best(records: Sequence[Row], weights: Mapping[str, float]) -> list[Row]:
    """Return of the answers to each question the first one with the highest reward."""

    def reward(record: Row) -> float:
        return sum(weight * record["rewards"][name] for name, weight in weights.items())

    of_question: dict[str, list[Row]] = {}
    for record in records:
        of_question.setdefault(record["question"], []).append(record)
    return [max(answers, key=reward) for answers in of_question.values()]


def supported(record: Row) -> str | None:
    """Return an answer without the facts that the knowledge base does not support; None if nothing is left."""
    facts = record["facts"].get(REWARD, [])
    said = dict.fromkeys(f"{fact['fact']}." for fact in facts if fact["verdict"] == "supported")
    final = parse(record["completion"]).answer
    return f"<think>{' '.join(said)}</think><answer>{final}</answer>" if said and final else None


def conversations(records: list[Row]) -> list[dict]:
    """Return the conversations to train on."""
    found = []
    for record in records:
        if text := supported(record):
            messages = [{"role": "user", "content": record["question"]}, {"role": "assistant", "content": text}]
            found.append({"messages": messages})
    return found


def fine_tune(config: TrainConfig, start: Path, data: Path, output: Path) -> None:
    """Go on with a model on the conversations of a file, for as many answers as GRPO has sampled in max_steps."""
    keys = [*keys_of(config, LEARNS), f"per_device_train_batch_size={config.per_device_train_batch_size}"]
    keys += [f"dataset_id_or_path={data}", f"model_name_or_path={start}", f"output_dir={output}", "toy_world=null"]
    sft(*load_config(SFT_CONFIG, keys, SftConfig))


def play_round(config: TrainConfig, model: Path, questions: list[Row], is_best: bool, output: Path) -> Path:
    """Let a model answer the questions, fine-tune it on what is supported, and return the path of the new one."""
    final = output / "sft" / "final"
    if final.exists():
        return final
    asking, learned = output / "questions.jsonl", output / "supported.jsonl"
    write_lines(asking, questions)
    answers = answer(model, asking, len(questions), config.temperature, config, output / "drawn.jsonl")
    if is_best:
        weights = dict(zip(config.reward_funcs, config.reward_weights, strict=True))
        answers = best(answers, weights)
    kept = conversations(answers)
    print(f"{len(kept)} of {len(answers)} answers have a supported fact")
    write_lines(learned, kept)
    fine_tune(config, model, learned, output / "sft")
    return final


def play(config: TrainConfig, start: Path, rounds: int, is_best: bool, output: Path) -> Path:
    """Play the rounds, each from where the last one ended, and return the path of the last model."""
    model = start
    questions = read_records(Path(config.dataset_id_or_path))
    steps = config.max_steps // rounds
    number = steps * config.per_device_train_batch_size
    for i in range(rounds):
        own = replace(config, max_steps=steps, seed=config.seed + i)
        model = play_round(own, model, asked(questions, number, i * number), is_best, output / f"round-{i + 1}")
    return model


def main(argv: list[str] | None = None) -> None:
    parser = plain_parser("bench.rejection", __doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="a finished run of configs/smollm2_knowrl.yaml")
    parser.add_argument("--rounds", type=int, default=1, metavar="N", help="answer and learn in N rounds (default: 1)")
    parser.add_argument("--best", action="store_true", help="learn from the best answer to each question alone")
    options = parser.parse_args(argv)
    run, rounds = options.run, options.rounds
    config, _ = load_config(run / "config.resolved.yaml", ["cold_start=null"])
    if rounds < 1 or config.max_steps % rounds:
        parser.error(f"--rounds {rounds} does not divide the {config.max_steps} steps of {run}")
    kind = f"-{rounds}" * (rounds > 1) + "-best" * options.best
    output = run.with_name(f"{run.name}-rejection{kind}")
    model = play(config, run / "cold_start" / "final", rounds, options.best, output)
    after = output / "evaluation" / f"step-{config.max_steps:06d}.jsonl"
    answer(model, Path(config.eval_dataset_id_or_path), config.eval_max_samples, 0.0, config, after)


if __name__ == "__main__":
    run_experiment(main)

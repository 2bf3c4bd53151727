"""python -m bench.rejection RUN

Does fine-tuning on checked sentences do as well as GRPO? RUN is a finished run of configs/smollm2_knowrl.yaml. Its cold
start gives as many answers to the questions to train on as GRPO has sampled, at the same temperature. Of each answer
those sentences stay that the knowledge base supports, each fact once; an answer of which none stays is left out. On the
rest the cold start is fine-tuned: as many steps of as many answers, the same layers, the same learning rate. So both
learn from the same verdicts on as many answers (rejection sampling, as RAFT, 2304.06767, but by sentences).

The result is RUN-rejection, an arm: python -m bench.reasoning RUN RUN-rejection
"""

import json
import math
from collections.abc import Mapping, Sequence
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


def how_often(number: int, questions: int) -> tuple[int, int]:
    """Return how many of the questions to ask, and how often each, for so many answers, or a few more."""
    times = math.ceil(number / questions)
    return math.ceil(number / times), times


def answer(model: Path, data: str, number: int, temperature: float, config: TrainConfig, output: Path) -> list[Row]:
    """Give so many answers to the questions of a file, and return them with their facts and verdicts.

    They are written to the output, a .jsonl file, and not asked for again.
    """
    if not output.exists():
        questions, times = how_often(number, len(read_records(Path(data))))
        keys = [*keys_of(config, CHECKS), f"max_samples={questions}", f"seed={config.seed}"]
        options = ["--data", data, "--reward", json.dumps(config.eval_reward_funcs), "--n", str(times)]
        options += ["--temperature", str(temperature), "--output", str(output.with_suffix(".json"))]
        evaluate.main([str(model), *options, *keys])
    return read_records(output)


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
    """Go on with the cold start on the conversations of a file, for as many answers as GRPO has sampled."""
    keys = [*keys_of(config, LEARNS), f"per_device_train_batch_size={config.per_device_train_batch_size}"]
    keys += [f"dataset_id_or_path={data}", f"model_name_or_path={start}", f"output_dir={output}", "toy_world=null"]
    sft(*load_config(SFT_CONFIG, keys, SftConfig))


def main(argv: list[str] | None = None) -> None:
    parser = plain_parser("bench.rejection", __doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="a finished run of configs/smollm2_knowrl.yaml")
    run = parser.parse_args(argv).run
    config, _ = load_config(run / "config.resolved.yaml", ["cold_start=null"])
    output, start = run.with_name(f"{run.name}-rejection"), run / "cold_start" / "final"
    number = config.max_steps * config.per_device_train_batch_size
    drawn = answer(start, config.dataset_id_or_path, number, config.temperature, config, output / "drawn.jsonl")
    kept = conversations(drawn)
    print(f"{len(kept)} of {len(drawn)} answers have a supported fact")
    write_lines(output / "supported.jsonl", kept)
    if not (output / "sft" / "final").exists():
        fine_tune(config, start, output / "supported.jsonl", output / "sft")
    after = output / "evaluation" / f"step-{config.max_steps:06d}.jsonl"
    answer(output / "sft" / "final", config.eval_dataset_id_or_path, config.eval_max_samples, 0.0, config, after)


if __name__ == "__main__":
    run_experiment(main)

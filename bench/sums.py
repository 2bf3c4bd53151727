"""python -m bench.sums RUN [--save]

Has a real model learned to add, or only to work sums out? RUN is a finished run of configs/smollm2_math.yaml. Its cold
start and its final model answer the held-out sums in three ways:

- sampled: one answer each at the temperature of the training
- greedy: the likeliest answer
- begun: the likeliest answer after "3 + 4 =", the first two numbers, so that every sum is worked out

If the cold start is as often right when begun as the final model is when it chooses, GRPO has found the form and
nothing else. Right: share of the held-out sums, with its 95 % interval by bootstrap. Worked out: more than a box.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from bench.record import experiment_parser, markdown_table
from grpo.algorithm.schema import Prompt
from grpo.base.storage import write_lines
from grpo.config.load import load_config
from grpo.config.options import TrainConfig
from grpo.data.questions import QuestionData, Questions, load_prompts
from grpo.engine.device.distributed import choose_device
from grpo.engine.device.draw import SamplingParams
from grpo.engine.model.policy import Policy, load_for_inference
from grpo.engine.sampling.sampler import Sampler
from grpo.evaluation.boundary import encode, interval
from rewards.boxed import verdict

MODELS = {"cold start": "cold_start/final", "GRPO": "final"}
COLUMNS = ["model", "answers", "right", "worked out", "tokens"]
MAX_SEQUENCES = 64  # decoded together
Row = Mapping[str, object]


def first_step(question: str) -> str:
    """Return how a sum begins to be worked out.

    >>> first_step("What is 3 + 4 + 8?")
    '3 + 4 ='
    """
    first, second, *_ = re.findall(r"\d+", question)
    return f"{first} + {second} ="


def answer(policy: Policy, config: TrainConfig, prompts: Sequence[Prompt], way: str) -> list[tuple[str, int]]:
    """Return the text of each answer, and its number of tokens."""
    begun = [first_step(prompt.columns["question"]) if way == "begun" else "" for prompt in prompts]
    ids = [encode(policy, prompt.text + text) for prompt, text in zip(prompts, begun, strict=True)]
    temperature = config.temperature if way == "sampled" else 0.0
    sampler = Sampler(policy.model, policy.eos_ids, MAX_SEQUENCES)
    sampling = SamplingParams(config.max_completion_length, temperature)
    answers = sampler.sample(ids, 1, sampling, range(len(ids)))
    found = []
    for (completion,), text in zip(answers, begun, strict=True):
        found.append((text + policy.decode(completion.ids), len(completion.ids)))
    return found


def measures(answers: Sequence[tuple[str, int]], prompts: Sequence[Prompt]) -> dict[str, object]:
    """Return the shares that are right and worked out, and the mean number of tokens."""
    graded = zip(answers, prompts, strict=True)
    right = np.array([verdict(text, prompt.columns["answer"])[0] == "correct" for (text, _), prompt in graded])
    return {
        "right": float(right.mean()),
        "right_interval": interval(lambda chosen: right[chosen].mean(), len(right)),
        "worked out": float(np.mean(["+" in text for text, _ in answers])),
        "tokens": float(np.mean([count for _, count in answers])),
    }


def table_row(row: Row) -> list[str]:
    low, high = row["right_interval"]
    right = f"{row['right']:.0%} [{low:.0%}, {high:.0%}]"
    return [row["model"], row["way"], right, f"{row['worked out']:.0%}", f"{row['tokens']:.0f}"]


def main(argv: list[str] | None = None) -> list[dict]:
    parser = experiment_parser("bench.sums", __doc__, "sums")
    parser.add_argument("run", type=Path, help="a finished run of configs/smollm2_math.yaml")
    options = parser.parse_args(argv)
    run = options.run
    rows = []
    for name, folder in MODELS.items():
        keys = ["cold_start=null", f"model_name_or_path={run / folder}"]
        config, _ = load_config(run / "config.resolved.yaml", keys)
        policy = load_for_inference(config, choose_device(config.device))
        prompts = load_prompts(QuestionData(config), policy, Questions.held_out(config)).prompts
        for way in ("sampled", "greedy", "begun"):
            answers = answer(policy, config, prompts, way)
            rows.append({"model": name, "way": way, "seed": config.seed, **measures(answers, prompts)})
    write_lines((options.save or run) / f"seed-{config.seed}.jsonl", rows)
    print(markdown_table(COLUMNS, [table_row(row) for row in rows]), end="\n\n")
    print(json.dumps(rows))
    return rows


if __name__ == "__main__":
    main()

"""Grade a file of completions with any rewards, as training would.

python -m rewards.score --reward NAME[,NAME] IN.jsonl [--output OUT.jsonl] [key=value ...]

Rows are {completion, question?, answer?, title?, ...}. A `prompt`, text or messages, is the prompt that rewards see.
Each row comes back with `predicted` (the completion's last box, or else its answer block), `expected` (the row's
answer), `rewards: {name: number or null}`, `reasons: {name: text}` and `facts: {name: facts, each with its verdict and
passage}`, and `extra: {name: what the function gave to log_extra}`. A table on stderr has the mean of each reward.
key=value sets what a reward takes from a training config, such as math_reward_wrong=0; model_name_or_path=MODEL names
the tokenizer, for a reward that counts tokens. To try it:

  python -m rewards.score --reward math rewards/examples/math.jsonl
  python -m knowledge.build rewards/examples/articles.jsonl knowledge.db
  python -m rewards.score --reward knowrl rewards/examples/knowrl.jsonl \\
    judge=offline decomposer=rules verifier=lexical knowledge_base=knowledge.db
"""

import json
import statistics
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, cast

from grpo.algorithm.schema import Call, Completion, Group, Prompt
from grpo.base.errors import PREFLIGHT, UserError, explained, run_main
from grpo.base.progress import check_output, command_parser, say_next
from grpo.base.storage import Json, write_atomically
from grpo.base.text import encodable
from grpo.config.load import load_config
from grpo.config.options import TrainConfig
from grpo.data.files import BadRows, join_errors, noting, read_records
from grpo.data.messages import CONVERSATION_FIELDS
from grpo.data.rows import FIELDS, USERS_TURN, check_answer, comparing, split_conversation
from rewards.format import parse
from rewards.mathematics.boxes import last_boxed
from rewards.own_words import CALLS
from rewards.registry import BUILT_IN, build_rewards
from rewards.scorer import Scorer

Encode = Callable[[str], list[int]]  # a completion's text to its token ids


@dataclass(eq=False)
class LazyIds(Sequence):
    """The token ids of a completion. load: gives the encoder; it is called if a reward looks at them."""

    text: str
    load: Callable[[], Encode]

    @cached_property
    def ids(self) -> Sequence[int]:
        return self.load()(self.text)

    def __getitem__(self, index: Any) -> Any:
        return self.ids[index]

    def __len__(self) -> int:
        return len(self.ids)


def score_rows(rows: list[Json], scorer: Scorer, encode: Encode, path: Path) -> list[Json]:
    """Return the rows with what they predict and should predict, their rewards, and the reasons for these.

    Each row is a group of its own. path: of the file that holds them.
    """
    groups: list[Group] = []
    bad: BadRows = {}
    needing = comparing(scorer.rewards)
    for number, row in enumerate(rows, 1):
        with noting(bad, number):
            group = _group(number, row, encode)
            check_answer(needing, group.prompt.columns["answer"], path, number)
            groups.append(group)
    if bad:
        raise join_errors(bad)
    scorer.grade(groups)
    scored = []
    for row, group in zip(rows, groups, strict=True):
        (completion,) = group.completions
        scores = completion.scores
        found = {
            "predicted": last_boxed(row["completion"]) or parse(row["completion"]).answer,
            "expected": group.prompt.columns["answer"],
            "rewards": {name: score.value for name, score in scores.items()},
            "reasons": {name: score.reason for name, score in scores.items()},
            "facts": {name: score.facts for name, score in scores.items() if score.facts},
            "extra": {name: score.details["extra"] for name, score in scores.items() if "extra" in score.details},
        }
        scored.append(row | found)
    return scored


def _group(number: int, row: Json, encode: Encode) -> Group:
    if not isinstance(row.get("completion"), str):
        raise UserError(
            f"row {number} has no completion",
            f"its columns are {', '.join(row)}",
            "each row needs the text of a completion",
            PREFLIGHT,
        )
    columns = {key: value for key, value in row.items() if key != "completion"}
    given = row.get("prompt")
    messages = []
    for name in ("prompt", *CONVERSATION_FIELDS):
        if isinstance(row.get(name), list):
            with explained(ValueError, f"row {number}: its {name} is no {USERS_TURN}", "correct or remove the row"):
                *messages, question, _ = split_conversation(row[name], name)
            columns["question"] = question  # as in training
            messages.append({"role": "user", "content": question})
    for name, fields in FIELDS.items():
        found = [row[field] for field in fields if field in row]
        columns.setdefault(name, found[0] if found else None)
    asked = given if isinstance(given, str) else str(columns["question"] or "")
    prompt = Prompt(number, asked, (), columns, tuple(messages))
    text = row["completion"]
    return Group(prompt, [Completion(encode(text), [], [], "stop", text, _calls(number, row))])


def _calls(number: int, row: Json) -> list[Call]:
    """Return the calls of tools that a record of completions/ names."""
    with explained((KeyError, TypeError, ValueError), f"row {number}: its {CALLS} are no calls", "remove the column"):
        return [
            Call(entry["tool"], "", "", 0, 0, (start, end), entry.get("failure") or "", entry.get("is_turn", False))
            for entry in row.get(CALLS) or []
            for start, end in [entry["span"]]
        ]


def encoder(config: TrainConfig) -> Encode:
    """Return the function that makes token ids of a completion. The tokenizer is loaded if a reward looks at them.

    UserError then, not 0 tokens, if the configuration names no model.
    """

    @cache
    def load() -> Encode:
        if config.model_name_or_path is None:
            raise UserError(
                "the reward looks at completion_ids, and there is no tokenizer",
                "the file holds texts, and how many tokens they are depends on the model",
                "add model_name_or_path=MODEL",
            )
        from grpo.data.prompts import load_tokenizer
        from grpo.policy import find_folders  # with the engine, which most rewards do without
        from grpo.run.saved import find_saved

        model = replace(config, model_name_or_path=find_saved(config.model_name_or_path).name)
        tokenizer = load_tokenizer(find_folders(model).tokenizer)
        return lambda text: tokenizer.encode(text, add_special_tokens=False)

    return lambda text: cast(list[int], LazyIds(text, load))


def means_table(rewards: list[dict[str, float | None]]) -> str:
    """Lay out how many rows each reward has scored, and their mean."""
    lines = [f"{'reward':24} {'scored':>12} {'mean':>8}"]
    for name in rewards[0]:
        values = [value for row in rewards if (value := row[name]) is not None]
        shown = f"{statistics.fmean(values):+8.3f}" if values else "no scorable row"
        lines.append(f"{name:24} {f'{len(values)} of {len(rewards)}':>12} {shown}")
    return "\n".join(lines)


def main(argv: list[str]) -> None:
    told = "\n".join(["built-in rewards:", *(f"  {name:25} {known.about}" for name, known in BUILT_IN.items())])
    parser = command_parser("rewards.score", __doc__, epilog=told)
    parser.add_argument(
        "--reward", required=True, help="names of built-in rewards, or package.module:function, separated by commas"
    )
    parser.add_argument("input", type=Path, help="JSONL or JSON array of {completion, question?, answer?, title?}")
    parser.add_argument("--output", type=Path, help="where the graded rows go; stdout if not given")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="reward settings of a training config")
    arguments = parser.parse_intermixed_args(argv)
    settings = [f"reward_funcs={arguments.reward}", *arguments.overrides]
    config, _ = load_config(None, settings, TrainConfig, is_run=False)
    if arguments.output:
        check_output(arguments.output)
    rewards = build_rewards(config.reward_funcs, asdict(config))
    scorer = Scorer(rewards)
    with redirect_stdout(sys.stderr):  # what a user's function prints is no row
        rows = score_rows(read_records(arguments.input), scorer, encoder(config), arguments.input)
    scorer.close()
    text = encodable("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    if arguments.output:
        write_atomically(arguments.output, text)
    else:
        sys.stdout.write(text)
    print(means_table([row["rewards"] for row in rows]), file=sys.stderr)
    say_next(
        arguments.output or "the rows above; --output FILE keeps them",
        ["grpo.doctor", "CONFIG", *settings],
        ["grpo.train", "CONFIG", *settings],
    )


if __name__ == "__main__":
    run_main(main)

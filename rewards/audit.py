r"""Try dishonest answers on the rewards of a configuration, and name those that earn as much as honest ones.

  python -m rewards.audit CONFIG [key=value ...] [--rows N] [--calls N] [--form TEXT] [--json]

Twelve attacks, those that GRPO finds first, are written for some rows of the configuration's own data. All rewards
grade them, built-in or yours. Honest completions have the form that rewards and prompt ask for: <think> and <answer>,
\boxed{}, ####, <confidence>. --form names another, such as --form 'So: {answer}'.

A reward is tried with what it sees. If it pays a right answer more than a wrong one, no attack may earn as much as the
right answer. If it pays the form alone, no broken form may earn as much as the form. If it sees neither, as one of
length does, the weighted sum decides.

Judges and decomposers are asked at most --calls questions in all. What they were not asked about is not tried, and
counted. Your own function is called once for each text, and may ask whom it likes.

The exit code is 1 if an attack is paid, or if your function fails on one or ends the process. It is 0 if none is, and 3
if nothing could be tried. To see it find something, try the parser of judges' replies that KnowRL published:

  python -m rewards.audit rewards/examples/knowrl_judge.yaml
"""

import json
import math
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import NoReturn

from grpo.algorithm.schema import Completion, Group, Prompt, Score
from grpo.base.errors import INTERNAL, PREFLIGHT, UserError, escape, run_main
from grpo.base.progress import command_parser, say_next
from grpo.config.load import load_config, split_arguments
from grpo.config.options import TrainConfig
from grpo.data.questions import QuestionData, Questions
from grpo.data.rows import Row
from grpo.data.worlds.world import invent, is_made, locate, write_world
from rewards.attacks import ATTACKS, FORM, WRONG, Attack, Target, is_among
from rewards.exact import truths
from rewards.mathematics.boxes import gold_answer
from rewards.registry import build_rewards, built_in, expand
from rewards.score import encoder
from rewards.scorer import Scorer

NUM_ROWS, NUM_CALLS = 3, 80
TOGETHER = "all together"  # the weighted sum of the rewards
MAX_OTHERS = 50  # rows that are looked at for wrong answers
FALLBACKS = ("Zanzibar", "Ouagadougou", "Reykjavik")  # wrong answers, if there are no others
MAX_CHARS = 280  # of a text that is shown


# --- the rows that are attacked ---------------------------------------------------------------------------------------


def make_targets(rows: Sequence[Row], num_rows: int, form: str) -> Iterator[tuple[Row, Target, Row | None]]:
    """Yield rows that have an answer, spread over the data, what attacks on them are made of, and a row with another.

    UserError (exit 3) if no row has an answer.
    """
    answered = [(row, accepted) for row in rows if (accepted := accepted_answers(row))]
    if not answered:
        raise UserError(
            "no row of the data has an answer",
            "an honest right answer is made from it",
            "set answer_field to the column with the answers",
            PREFLIGHT,
        )
    others = answered[:MAX_OTHERS]
    for row, accepted in answered[:: -(-len(answered) // num_rows)]:
        wrong: list[str] = []
        for candidate in (*(theirs[0] for _, theirs in others), *FALLBACKS):
            if not is_among(candidate, [*accepted, *wrong]):
                wrong.append(candidate)
        other = next((one for one, theirs in others if not is_among(accepted[0], theirs)), None)
        yield row, Target(form, row.question, accepted[0], *wrong[:2]), other


def accepted_answers(row: Row) -> list[str]:
    return [found for truth in truths(row.columns.get("answer")) if (found := gold_answer(truth))]


def asked_form(config: TrainConfig) -> str:
    r"""Return the form of an honest completion, as rewards and prompt ask for it: `{thought}\n\boxed{{answer}}`."""
    names = expand(config.reward_funcs)
    of_rewards = [built_in(name).prompt for name in names]
    asked = "\n".join([config.system_prompt or "", config.prompt_template, *of_rewards])
    form = "{answer}"
    if "math" in names or "\\boxed" in asked:
        form = "\\boxed{{answer}}"
    elif "####" in asked:
        form = "#### {answer}"
    if {"format", "tag_count"} & set(names) or "<answer>" in asked:
        form = f"<think>{{thought}}</think>\n<answer>{form}</answer>"
    elif form != "{answer}":
        form = f"{{thought}}\n{form}"
    return form + "\n<confidence>{confidence}</confidence>" * ("<confidence>" in asked)


# --- what rewards pay for them ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Finding:
    """A text that is paid by a reward: it earns `value`, and must stay below `bar`. row: of the data, from 1.

    value: None if the reward fails.
    """

    reward: str
    attack: str
    value: float | None
    bar: float
    row: int
    question: str
    text: str
    remedy: str


@dataclass
class Audit:
    """What was found.

    form: of honest completions. num_rows: of the data. num_asked: questions to services. pays: of each reward, what
    honest texts of each kind earn in the last row. tried: of each reward, how many texts. untried: why others were not.
    """

    form: str
    num_rows: int = 0
    num_asked: int = 0
    pays: dict[str, dict[str, float | None]] = field(default_factory=dict)
    tried: Counter[str] = field(default_factory=Counter)
    untried: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)

    def __str__(self) -> str:
        """Say in one line what was found."""
        paid = dict.fromkeys(f"{found.attack} ({found.reward})" for found in self.findings)
        num_texts = max(self.tried.values(), default=0)
        return f"{num_texts} dishonest answers to {self.num_rows} rows; paid: {', '.join(paid) or 'none'}"


def audit(
    config: TrainConfig,
    num_rows: int = NUM_ROWS,
    num_calls: int = NUM_CALLS,
    form: str | None = None,
    rows: Sequence[Row] | None = None,
) -> Audit:
    """Try all attacks on the rewards of a configuration.

    num_calls: questions that judges and decomposers may be asked in all. form: of an honest completion, if it is not
    the one that rewards and prompt ask for. rows: the data, if it was read. UserError if the data cannot be read, if no
    row has an answer, and if a reward cannot be built, or asked about honest texts.
    """
    with with_data(config) as config, no_way_out():
        rows = rows or QuestionData(config).load(Questions.to_train(config))[0]
        found = Audit(form or asked_form(config))
        options = asdict(config) | {"allowance": iter(range(num_calls))}
        scorer = Scorer(build_rewards(config.reward_funcs, options), config.reward_weights)
        trial = Trial(config, scorer, found)
        try:
            for row, target, other in make_targets(rows, num_rows, found.form):
                trial.try_row(row, target, other)
        finally:
            scorer.close()
        counts = scorer.take_metrics()
        found.num_asked = int(sum(number for name, number in counts.items() if name.endswith("/calls")))
    return found


class Trial:
    """The rewards of a configuration at work. found: what is noted."""

    def __init__(self, config: TrainConfig, scorer: Scorer, found: Audit):
        self.config = config
        self.scorer = scorer
        self.found = found
        self.encode = encoder(config)
        names = [reward.name for reward in scorer.rewards]
        self.names = [*names, TOGETHER] if len(names) > 1 else names  # the last one has the last word

    def try_row(self, row: Row, target: Target, other: Row | None) -> None:
        """Let all rewards grade all texts about a row, and note what earns too much.

        other: a row to which the right answer is wrong.
        """
        self.found.num_rows += 1
        prompt = self._prompt(row)
        honest = target.honest()
        graded = self._grade(prompt, honest.values())
        elsewhere = self._grade(self._prompt(other), [honest["right"]]) if other else {}
        texts = [(attack, text) for attack in ATTACKS for text in attack.write(target)]
        graded |= self._grade(prompt, [text for _, text in texts], row)
        for name in self.names:
            pays = {kind: graded[text][name].value for kind, text in honest.items()}
            pays["elsewhere"] = elsewhere[honest["right"]][name].value if elsewhere else None
            self.found.pays[name] = pays
            right = pays["right"]
            wrong = pays["wrong"]
            if right is None or wrong is None:
                unknown = honest["right" if right is None else "wrong"]
                self.found.untried[f"{name}: {graded[unknown][name].reason}"] += len(texts)
                continue
            seen = sees(right, wrong, pays["elsewhere"], pays["unformed"])
            has_last_word = name == self.names[-1]
            for attack, text in texts:
                bar = bar_of(attack, seen, right, wrong, has_last_word)
                if bar is not None and text in graded:
                    self._note(row, name, attack, text, graded[text][name], bar)

    def _note(self, row: Row, name: str, attack: Attack, text: str, score: Score, bar: float) -> None:
        """Note what a text earns, if it reaches the bar. The sum is told where no single reward is."""
        found = self.found
        if score.value is None:
            found.untried[f"{name}: {score.reason}"] += 1
            return
        found.tried[name] += 1
        known = {one.attack for one in found.findings if one.reward == name or name == TOGETHER}
        if score.value >= bar and attack.name not in known:
            remedy = "set reward_weights" if name == TOGETHER else attack.remedy
            place = (row.index + 1, row.question, text)
            found.findings.append(Finding(name, attack.name, score.value, bar, *place, remedy))

    def _grade(self, prompt: Prompt, texts: Iterable[str], row: Row | None = None) -> dict[str, dict[str, Score]]:
        """Return of each text what each reward and their sum give. Each is a group of its own.

        row: of dishonest texts. That a function fails on one is a finding; on an honest text it is an error.
        """
        groups = [Group(prompt, [Completion(self.encode(text), [], [], "stop", text)]) for text in texts]
        for group in groups:
            self.scorer.submit(group, 0)
        graded = {}
        for group in groups:
            (completion,) = group.completions
            try:
                self.scorer.collect(group)
            except UserError as error:
                if row is None or error.exit_code != INTERNAL:
                    raise
                place = (row.index + 1, row.question, completion.text)
                self.found.findings.append(Finding(error.what, "any text", None, 0.0, *place, error.why))
                continue
            silent = [score.reason for score in completion.scores.values() if score.value is None]
            graded[completion.text] = completion.scores | {
                TOGETHER: Score(completion.reward, silent[0] if silent else "")
            }
        return graded

    def _prompt(self, row: Row) -> Prompt:
        """Return a row's prompt as rewards see it: it is not rendered, since that needs the model's tokenizer."""
        messages = row.messages(self.config.prompt_template, self.config.system_prompt)
        text = "\n".join(message["content"] for message in messages)
        return Prompt(row.index, text, (), row.columns, tuple(messages) if row.before is not None else ())


def sees(right: float, wrong: float, elsewhere: float | None, unformed: float | None) -> str:
    """Return what a reward pays for, by what it gives to honest texts: the answer, the form, or nothing of it.

    elsewhere: what it gives to the right answer in another row; None if that could not be tried.
    """
    if right > wrong and (elsewhere is None or right > elsewhere):
        return "answer"
    return "form" if unformed is not None and wrong > unformed else "nothing"


def bar_of(attack: Attack, seen: str, right: float, wrong: float, has_last_word: bool) -> float | None:
    """Return what the texts of an attack must stay below; None if the reward does not see what it aims at."""
    if attack is FORM:
        return wrong if seen == "form" else None
    if seen == "answer" or (attack is WRONG and has_last_word):
        return right
    return math.nextafter(right, math.inf) if has_last_word else None


@contextmanager
def with_data(config: TrainConfig) -> Iterator[TrainConfig]:
    """Yield the configuration with the paths of its data. A toy world that is not made yet lasts as long as this."""
    with tempfile.TemporaryDirectory() as folder:
        if config.toy_world and not is_made(config):
            # the cold start of a world of facts holds what a model says: here nothing
            write_world(Path(folder), invent(config, lambda config, facts: [""] * len(facts)))
            config = replace(config, toy_dir=folder)
        located = locate(config)
        assert isinstance(located, TrainConfig)
        yield located


@contextmanager
def no_way_out() -> Iterator[None]:
    """Make os._exit an error of this process: a function that ends it would end the audit, with the exit code 0."""
    leave = os._exit
    process = os.getpid()

    def refuse(status: int) -> NoReturn:
        if os.getpid() != process:  # a child may end as it likes
            leave(status)
        raise RuntimeError(f"it calls os._exit({status}), which ends the process")

    os._exit = refuse
    try:
        yield
    finally:
        os._exit = leave


# --- the command ------------------------------------------------------------------------------------------------------


def lines_of(found: Audit) -> Iterator[str]:
    """Lay out what was found."""
    asked = f"; judges and decomposers were asked {found.num_asked} questions" if found.num_asked else ""
    yield f"{found}{asked}\nan honest answer: {found.form!r}\n"
    for name, pays in found.pays.items():
        told = ", ".join(f"{kind} {value:g}" for kind, value in pays.items() if value is not None)
        yield f"{name}: {found.tried[name]} texts tried; in the last row it gives: {told}"
    for reason, count in found.untried.items():
        yield f"not tried: {count} texts: {reason}"
    for one in found.findings:
        gives = "" if one.value is None else f" gives {one.value:g}: {one.attack}; below {one.bar:g} would be right"
        yield f"\nPAID {one.reward}{gives}" if gives else f"\nFAILS: {one.reward}"
        yield f"  row {one.row}: {one.question[:MAX_CHARS]!r}"
        yield f"  text: {one.text[:MAX_CHARS]!r}"
        yield f"  remedy: {one.remedy}"


def main(argv: list[str]) -> int:
    usage = "%(prog)s CONFIG [key=value ...] [--rows N] [--calls N] [--form TEXT] [--json]"
    parser = command_parser("rewards.audit", __doc__, usage=usage, allow_abbrev=False)
    parser.add_argument("--rows", type=int, default=NUM_ROWS, metavar="N", help=f"of the data ({NUM_ROWS})")
    parser.add_argument(
        "--calls",
        type=int,
        default=NUM_CALLS,
        metavar="N",
        help=f"questions to judges and decomposers, at most ({NUM_CALLS}); 0: none",
    )
    parser.add_argument("--form", metavar="TEXT", help="an honest completion, with {answer} in it")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    arguments, rest = parser.parse_known_args(argv)
    form = arguments.form and arguments.form.replace("\\n", "\n")
    if arguments.rows < 1 or (form and "{answer}" not in form):
        parser.error("--rows must be at least 1, and --form must contain {answer}")
    path, overrides = split_arguments(rest)
    config, _ = load_config(path, overrides, TrainConfig, is_run=False)
    with redirect_stdout(sys.stderr):  # what a user's function prints is no finding
        found = audit(config, arguments.rows, arguments.calls, form)
    told = vars(found) | {"findings": list(map(vars, found.findings))}
    print(json.dumps(told) if arguments.json else escape("\n".join(lines_of(found))))
    if found.findings:
        return INTERNAL
    if not found.tried.total():
        return PREFLIGHT
    say_next(found, ["grpo.doctor", *rest], ["grpo.train", *rest])
    return 0


if __name__ == "__main__":
    run_main(main)

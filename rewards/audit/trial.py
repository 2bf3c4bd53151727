"""What rewards say to attacks: `audit` tries all of them on the rewards of a configuration, and finds what is paid.

for finding in audit(config).findings:
    print(finding.headline)
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from grpo.algorithm.schema import Completion, Group, Prompt, Score
from grpo.base.errors import UserError
from grpo.config.options import TrainConfig
from grpo.data.messages import with_system
from grpo.data.questions import QuestionData, Questions
from grpo.data.rows import Row
from rewards.audit.attacks import ATTACKS, GROUPS, REFUSAL, THOUGHT, Attack, Case
from rewards.audit.cases import asked_form, make_cases, with_data
from rewards.audit.findings import FAILS, RIGHT, TOGETHER, Audit, Bars, Limit, Tried
from rewards.own import short_name
from rewards.registry import build_rewards, expand
from rewards.score import encoder
from rewards.scorer import Scorer, combine

NUM_ROWS, NUM_CALLS = 3, 80


def audit(
    config: TrainConfig,
    num_rows: int = NUM_ROWS,
    num_calls: int = NUM_CALLS,
    form: str | None = None,
    rows: Sequence[Row] | None = None,
) -> Audit:
    """Try all attacks on the rewards of a configuration.

    num_calls: questions that judges and decomposers may be asked in all. form: of an honest completion, if it is not
    the one that rewards and prompt ask for. rows: the data, if it was read. A reward that cannot be built or asked is
    not tried, with the reason. UserError (exit 2 or 3) if the data cannot be read, or if no row has an answer.
    """
    with with_data(config) as config:
        rows = rows or QuestionData(config).load(Questions.to_train(config))[0]
        form = form or asked_form(config)
        cases = make_cases(config, rows, num_rows, form)
        trial = Trial(config, num_calls)
        try:
            for row, case in cases:
                trial.try_row(row, case)
        finally:
            trial.close()
    return Audit(form, len(cases), trial.num_asked, list(trial.tried.values()))


class Trial:
    """The rewards of a configuration at work, each by itself, so that one that fails hides no other."""

    def __init__(self, config: TrainConfig, num_calls: int):
        self.config = config
        self.allowance = iter(range(num_calls))
        self.encode = encoder(config)
        self.at_work: dict[str, Scorer] = {}
        self.tried: dict[str, Tried] = {}
        self.clients: list[Any] = []
        names = expand(config.reward_funcs)
        for name in names:
            short = short_name(name)
            shown = name if short in self.tried else short
            self.tried[shown] = Tried(shown, is_last_word=len(names) == 1)
            self._start(name, shown)
        weights = config.reward_weights or [1.0] * len(names)
        self.weights = dict(zip(self.tried, weights, strict=True))
        if len(names) > 1:
            self.tried[TOGETHER] = Tried(TOGETHER, is_last_word=True)

    @property
    def num_asked(self) -> int:
        return sum(client.counts["calls"] for client in self.clients)

    def close(self) -> None:
        for scorer in self.at_work.values():
            scorer.close()

    def try_row(self, row: Row, case: Case) -> None:
        """Let all rewards grade all texts about a row, and note what earns too much."""
        prompt = _prompt(self.config, row)
        honest = honest_texts(case)
        attacks: list[tuple[Attack, str]] = []
        for attack in ATTACKS:
            different = dict.fromkeys(attack.write(case))
            attacks += [(attack, text) for text in different]
        dishonest = [text for _, text in attacks]
        texts = list(dict.fromkeys([*honest.values(), *dishonest]))
        paid: dict[str, dict[str, Score]] = {}
        for name, scores in self._grade(prompt, texts).items():
            paid[name] = dict(zip(texts, scores, strict=True))
        exchanged = replace(prompt, columns=case.with_wrong_truth(prompt.columns))
        elsewhere = {}
        if exchanged.columns != prompt.columns:
            elsewhere = self._grade(exchanged, [honest["right"], honest["wrong"]])
        bars: dict[str, Bars] = {}
        for name, of_text in paid.items():
            tried = self.tried[name]
            of_honest = {kind: of_text[text] for kind, text in honest.items()}
            value = elsewhere[name][0].value if name in elsewhere else None
            of_row = tried.learn(of_honest, value, len(attacks))
            if of_row is None:
                continue
            bars[name] = of_row
            for attack, text in attacks:
                if attack.aim in ("answer", *of_row.sees):
                    limits = of_row.limits(attack, tried.is_last_word)
                    tried.note(row, attack, text, of_text[text], limits)
        if any(map(_sees_groups, self.at_work.values())):
            for attack in GROUPS:
                self._try_group(row, case, attack, paid, bars)

    def _try_group(
        self, row: Row, case: Case, attack: Attack, paid: dict[str, dict[str, Score]], bars: dict[str, Bars]
    ) -> None:
        """Let the rewards that see a group grade one, and note what its dishonest text earns."""
        texts = attack.texts(case)
        dishonest = texts[0]
        graded = self._grade(_prompt(self.config, row), texts, paid)
        for name, scores in graded.items():
            is_blind = name in self.at_work and not _sees_groups(self.at_work[name])
            if name not in bars or is_blind:
                continue
            of_row, tried = bars[name], self.tried[name]
            others = []
            for score, text in zip(scores, texts, strict=True):
                if text != dishonest and score.value is not None:
                    others.append(score.value)
            best = max(others, default=of_row.right)
            sees_answer = "answer" in of_row.sees
            is_paid = (sees_answer or tried.is_last_word) and not attack.is_honest
            limit = Limit(RIGHT, best, is_paid, may_equal=not sees_answer)
            tried.note(row, attack, dishonest, scores[0], [limit])

    def _start(self, name: str, shown: str) -> None:
        """Build a reward, and limit what it may ask; if that fails, note why."""
        try:
            reward = build_rewards([name], asdict(self.config))[-1]
        except UserError as error:
            self.tried[shown].untried[_one_line(error)] += 1
            return
        self.at_work[shown] = Scorer([reward])
        for resource in reward.resources:
            for client in resource.clients:
                client.allowance = self.allowance
            self.clients += resource.clients

    def _grade(
        self, prompt: Prompt, texts: Sequence[str], known: Mapping[str, Mapping[str, Score]] | None = None
    ) -> dict[str, list[Score]]:
        """Return reward -> a score per text of a group, and their sum if all rewards are there.

        known: what rewards have paid already; one that sees no group pays it again. A reward that fails on everything
        is not tried any more.
        """
        graded: dict[str, list[Score]] = {}
        for name, scorer in list(self.at_work.items()):
            if known and name in known and not _sees_groups(scorer):
                graded[name] = [known[name][text] for text in texts]
                continue
            try:
                graded[name] = _scores_or_failures(scorer, self._group(prompt, texts))
            except UserError as error:
                self.tried[name].untried[_one_line(error)] += len(texts)
                self.at_work.pop(name).close()
        if TOGETHER in self.tried and graded.keys() == self.weights.keys():
            graded[TOGETHER] = self._together(graded)
        return graded

    def _together(self, graded: Mapping[str, Sequence[Score]]) -> list[Score]:
        """Return the sum of all rewards for each text, as the scorer of a run makes it."""
        applying = {name: weight for name, weight in self.weights.items() if graded[name][0].applies}
        weights = applying if any(applying.values()) else self.weights
        sums = []
        for of_text in zip(*graded.values(), strict=True):
            scores = dict(zip(graded, of_text, strict=True))
            sums.append(_sum(scores, weights))
        return sums

    def _group(self, prompt: Prompt, texts: Sequence[str]) -> Group:
        completions = []
        for text in texts:
            ids = self.encode(text)
            completions.append(Completion(ids, [], [], "stop", text))
        return Group(prompt, completions)


def honest_texts(case: Case) -> dict[str, str]:
    """Return the texts of which a reward's Bars are the values."""
    wrong = facts = case.write(case.wrong)
    if case.facts:
        facts = case.write(case.wrong, " ".join(case.facts))
    return {
        "right": case.write(case.truth),
        "refused": case.write(REFUSAL, confidence="0"),
        "wrong": wrong,
        "facts": facts,
        "unformed": wrong if case.form == "{answer}" else f"{THOUGHT} {case.wrong}",
    }


def _prompt(config: TrainConfig, row: Row) -> Prompt:
    """Return a row's prompt as far as rewards see it: it is not rendered, since that needs the model's tokenizer."""
    asked = config.prompt_template.replace("{question}", row.question)
    before = row.before or ()
    messages = with_system([*before, {"role": "user", "content": asked}], config.system_prompt)
    text = "\n".join(message["content"] for message in messages)
    is_conversation = row.before is not None
    return Prompt(row.index, text, (), row.columns, tuple(messages) if is_conversation else ())


def _sees_groups(scorer: Scorer) -> bool:
    return scorer.rewards[0].function is not None


def _scores_or_failures(scorer: Scorer, group: Group) -> list[Score]:
    """Grade a group; if a user's function fails, grade each completion by itself, and mark those on which it does.

    UserError if it fails on the first one, which is honest, or on none by itself; and if a service fails.
    """
    try:
        return _scores(scorer, group)
    except UserError as error:
        of_group = error
        if scorer.rewards[0].function is None or len(group.completions) == 1:
            raise
    scores = []
    for completion in group.completions:
        try:
            scores += _scores(scorer, Group(group.prompt, [completion]))
        except UserError as error:
            if not scores:
                raise
            scores.append(Score(None, error.why, details={FAILS: True}))
    if not any(FAILS in score.details for score in scores):
        raise of_group  # such as a list of another length
    return scores


def _scores(scorer: Scorer, group: Group) -> list[Score]:
    scorer.grade([group])
    name = scorer.rewards[0].name
    return [completion.scores[name] for completion in group.completions]


def _sum(scores: Mapping[str, Score], weights: Mapping[str, float]) -> Score:
    """Return what a completion is paid in all; like the reward that cannot tell, if one cannot."""
    value = combine(scores, weights)
    if value is not None:
        return Score(value)
    silent = (scores[name] for name in scores if name in weights and scores[name].value is None)
    return replace(next(silent), details={})


def _one_line(error: UserError) -> str:
    return ": ".join(filter(None, (error.what, error.why)))

"""Credit to the sentence: from verdicts over facts and sentences to tokens, with real tokenizers and a real base."""

import random
import re
from dataclasses import asdict

import pytest
from making import build_base, grade_groups, make_answers, make_completion, make_tokenizer, pieces_tokenizer

from grpo.algorithm.advantages import set_advantages
from grpo.algorithm.credit import judged_sentences, set_credit
from grpo.algorithm.schema import Call, Group, Prompt, Score, Sentence
from grpo.algorithm.step import rewards_of
from grpo.config.load import load_config
from grpo.engine.device.peers import Peers
from grpo.run.log import completion_record
from grpo.run.metrics import credit_metrics
from rewards.registry import Reward, build_rewards

ROW = {"question": "Where was Mira Tolan born?", "answer": "Velda", "title": "Mira Tolan"}
TRUE, FALSE = "Mira Tolan was born in Velda.", "Mira Tolan worked as a baker."
OPEN = "Mira Tolan played many games."
TEXTS = [
    'Mira Tolan (b. 3.5.1962, St. James St.) earned 1.5 million. "She is old." 她出生于维尔达。',
    "她是面包师🙂。你好世界 naïve",
    "<think> </think> <answer> I don't know It is so. Jon Orn was born in Orun. She worked as a baker!",
]


def bpe(folder, vocab_size=400):
    """Byte-level: a character of Chinese or an emoji is often several tokens."""
    return make_tokenizer(TEXTS, folder, vocab_size)


def words(_):
    return pieces_tokenizer(TEXTS)


@pytest.fixture(scope="module", params=[bpe, words], ids=["bpe", "pieces"])
def tokenizer(request, tmp_path_factory):
    return request.param(tmp_path_factory.mktemp("tokenizer"))


def text_of(tokenizer):
    """What Policy.decode does."""
    return lambda ids: tokenizer.decode(ids, skip_special_tokens=True)


def answer(tokenizer, text, facts=()):
    """A completion of this text. facts: pairs (verdict, sentences of it)."""
    ids = [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]
    completion = make_completion(ids, text=text_of(tokenizer)(ids))
    assert completion.text == text
    for verdict, *sentences in facts:
        places = [[text.index(said), text.index(said) + len(said)] for said in sentences]
        completion.facts.append({"verdict": verdict, "sentences": places})
    return completion


def slow_owners(tokenizer, ids, text):
    """The character that each token begins or goes on with, by counting bytes; None for the end token.

    White space stands for the character after it.
    """
    is_marked = "▁" in tokenizer.get_vocab()
    letters = [place for place, letter in enumerate(text) for _ in letter.encode()] + [len(text)]
    owners, done = [], -1 if is_marked else 0  # the mark before the first word is no space
    for token in ids:
        piece = tokenizer.convert_ids_to_tokens(token)
        place = letters[min(max(done, 0), len(letters) - 1)]
        while place < len(text) and text[place].isspace():
            place += 1
        owners.append(None if token == tokenizer.eos_token_id else place)
        if piece.startswith("<0x"):
            done += 1
        else:
            done += len(piece.replace("▁", " ").encode()) if is_marked else len(piece)
    return owners


SENTENCES = [
    "She was born in Velda.",
    "Mira Tolan (b. 3.5.1962, St. James St.) earned 1.5 million.",
    '"She is old!"',
    "她出生于维尔达。",
    "她是面包师🙂。",
    "🙂👩‍🚀",
    "naïve Ż",
    "A.",
]


def mixed_text(rng):
    """Some sentences with different white space between them, or none; and where they are."""
    text, spans = rng.choice(["", "<think>", "<think>\n"]), []
    for sentence in rng.choices(SENTENCES, k=rng.randint(1, 6)):
        text += rng.choice(["", " ", "\n\n", "  "]) if spans else ""
        spans.append((len(text), len(text) + len(sentence)))
        text += sentence
    return text + rng.choice(["", "</think> <answer>Velda</answer>", "\n"]), spans


@pytest.mark.parametrize("seed", range(40))
def test_every_token_belongs_to_the_sentence_in_which_it_begins(tokenizer, seed):
    """Held against a count of bytes; whole texts, ones that end in the middle of a character, and texts in pieces, as a
    sampled completion need not have the tokens that its text would be encoded to."""
    rng = random.Random(seed)
    text, spans = mixed_text(rng)
    width = len(text) if "▁" in tokenizer.get_vocab() else rng.randint(1, 40)
    parts = [text[start : start + width] for start in range(0, len(text), width)]
    ids = [token for part in parts for token in tokenizer.encode(part, add_special_tokens=False)]
    ids = ids[: rng.randint(1, len(ids))] if seed % 2 else [*ids, tokenizer.eos_token_id]
    completion = make_completion(ids, text=text_of(tokenizer)(ids))
    spans = [(start, end) for start, end in spans if end <= len(completion.text.rstrip("\ufffd"))]
    completion.facts = [{"verdict": rng.choice(["supported", "refuted"]), "sentences": [span]} for span in spans]
    found = judged_sentences(completion, text_of(tokenizer))
    owners = slow_owners(tokenizer, ids, completion.text)
    for sentence, fact, (start, end) in zip(found, completion.facts, spans, strict=True):
        wanted = [t for t, owner in enumerate(owners) if owner is not None and start <= owner < end]
        assert list(range(sentence.start, sentence.end)) == wanted
        assert sentence.text == completion.text[start:end]
        assert sentence.is_true == (fact["verdict"] == "supported")


def test_verdicts_and_what_has_none(tokenizer):
    """A refuted fact makes its sentence false, whatever else it states; unknown facts decide nothing; one that was
    stated nowhere is not judged. What is said twice is credited once if it is true, and twice if it is false."""
    text = f"{TRUE} {FALSE} {OPEN} She sang. She sang. She swam. She swam."
    facts = [("supported", TRUE), ("supported", FALSE), ("refuted", FALSE), ("unknown", OPEN), ("unknown", TRUE)]
    completion = answer(tokenizer, text, [*facts, ("refuted",)])
    for said, verdict in (("She sang.", "supported"), ("She swam.", "refuted")):
        places = [[found.start(), found.end()] for found in re.finditer(said, text)]
        completion.facts.append({"verdict": verdict, "sentences": places})
    found = [(sentence.text, sentence.is_true) for sentence in judged_sentences(completion, text_of(tokenizer))]
    assert found == [(TRUE, True), (FALSE, False), ("She sang.", True), ("She swam.", False), ("She swam.", False)]


def test_no_sentence_where_nothing_was_checked_or_the_text_is_another(tokenizer):
    completion = answer(tokenizer, TRUE, [("supported", TRUE)])
    assert judged_sentences(completion, text_of(tokenizer))
    assert judged_sentences(completion, lambda ids: "another " + text_of(tokenizer)(ids)) == []
    completion.facts = []
    assert judged_sentences(completion, text_of(tokenizer)) == []


@pytest.mark.parametrize(
    "checking, found",
    [("", []), ("factuality", ["factuality"]), ("binary_rar factuality", ["factuality"])],
)
def test_the_facts_of_a_completion_are_those_of_the_first_reward_that_checks_every_answer(checking, found):
    """The facts of knowrl are those of wrong answers alone."""
    rewards = []
    for name in ("knowrl", "factuality", "binary_rar"):
        score = Score(1.0, facts=[{"fact": name}])
        rewards.append(Reward(name, lambda *_, score=score: score, checks_every_answer=name in checking))
    group = make_answers(ROW, TRUE)
    grade_groups(rewards, group)
    assert [fact["fact"] for fact in group.completions[0].facts] == found


def test_which_rewards_check_every_answer(base):
    options = asdict(load_config(None, [*KEYS, "reward_funcs=factuality", f"knowledge_base={base}"])[0])
    built = build_rewards(["format", "correctness", "knowrl", "factuality", "binary_rar"], options)
    assert [reward.name for reward in built if reward.checks_every_answer] == ["factuality", "binary_rar"]


@pytest.mark.parametrize("advantage", [0.7, -0.7, 0.0, float("nan")])
def test_the_advantages_of_tokens(advantage):
    """One that is not a number stays none: then the step is skipped."""
    completion = make_completion(range(7), advantage=advantage)
    assert completion.token_advantages() == pytest.approx([advantage] * 7, nan_ok=True)
    completion.sentences = [Sentence("", 1, 3, True), Sentence("", 3, 4, False), Sentence("", 5, 5, False)]
    size = abs(advantage)
    wanted = [advantage, size, size, -size, advantage, advantage, advantage]
    assert completion.token_advantages() == pytest.approx(wanted, nan_ok=True)
    assert size or "-0.0" not in str(completion.token_advantages())


@pytest.fixture
def base(tmp_path):
    return build_base(tmp_path, {"Mira Tolan": "Mira Tolan was born in Velda. Mira Tolan worked as a weaver."})


KEYS = ["model_name_or_path=x", "dataset_id_or_path=x", "output_dir=x", "decomposer=rules", "verifier=lexical"]
KEYS += ["judge=offline", "credit=sentence", "num_generations=4", "per_device_train_batch_size=4"]


def graded(base, tokenizer, *keys):
    """A group of four completions, with the advantages that a step gives them."""
    rewards = "reward_funcs=[correctness, factuality]", "reward_weights=[1, 0]"
    config, _ = load_config(None, [*KEYS, *rewards, f"knowledge_base={base}", *keys])
    completions = [answer(tokenizer, text) for text in (RIGHT, WRONG, REFUSED, BARE)]
    group = Group(Prompt(0, "prompt", (5,), ROW), completions)
    grade_groups(build_rewards(config.reward_funcs, asdict(config)), group, weights=config.reward_weights)
    set_credit([group], config.credit, text_of(tokenizer))
    set_advantages([group], rewards_of([group], config, Peers())[0], config.scale_rewards, Peers())
    return group


def block(*sentences, answer):
    return f"<think>\n{' '.join(sentences)}\n</think>\n<answer>{answer}</answer>"


RIGHT, WRONG = block(TRUE, FALSE, OPEN, answer="Velda"), block(FALSE, TRUE, OPEN, answer="Orun")
REFUSED, BARE = block(FALSE, answer="I don't know"), "Mira Tolan was born in Velda."


@pytest.mark.parametrize(
    "keys",
    [
        "",
        "scale_rewards=batch",
        "scale_rewards=none",
        "multi_objective_aggregation=normalize_then_sum",
        "multi_objective_aggregation=normalize_then_sum reward_weights=[1,0.5]",
        "reward_funcs=[binary_rar,correctness] reward_weights=[0,1]",
    ],
)
def test_a_false_step_of_a_right_answer_and_a_true_step_of_a_wrong_one_are_told_apart(base, tokenizer, keys):
    """No verdict is about the rest. Without a think block, all of the text is checked."""
    right, wrong, refused, bare = graded(base, tokenizer, *keys.split()).completions
    assert right.advantage > 0 > wrong.advantage and bare.advantage < 0
    judged = {TRUE: True, FALSE: False, BARE: True}
    for completion, said in ((right, [TRUE, FALSE]), (wrong, [FALSE, TRUE]), (refused, [FALSE]), (bare, [BARE])):
        assert [(sentence.text, sentence.is_true) for sentence in completion.sentences] == [
            (s, judged[s]) for s in said
        ]
    assert bare.token_advantages()[:-1] == [-bare.advantage] * (len(bare.ids) - 1)


def test_the_answer_alone_is_credited_and_what_has_no_answer_block_whole(base, tokenizer):
    *blocks, bare = graded(base, tokenizer, "credit=answer").completions
    for completion in blocks:
        before, advantage = completion.credited_from, completion.advantage
        assert text_of(tokenizer)(completion.ids[before:]) == completion.text.partition("<answer>")[2]
        assert completion.token_advantages() == [0.0] * before + [advantage] * (len(completion.ids) - before)
        assert before and advantage
    assert bare.token_advantages() == [bare.advantage] * len(bare.ids)


CALL = f"<search>Mira Tolan</search><result>{FALSE}</result>"
END = "</think><answer>Velda</answer>"


@pytest.mark.parametrize("call", [CALL, ""])
@pytest.mark.parametrize("has_tools", [True, False])
def test_with_tools_the_decision_to_call_one_is_credited(tokenizer, call, has_tools):
    """From the first call on, or from the end of the thoughts: either is what was decided."""
    assert credited(tokenizer, call, END, has_tools) == ((call + END) if has_tools else "Velda</answer>")


def test_a_call_is_credited_where_the_answer_is_cut_off(tokenizer):
    assert credited(tokenizer, CALL, " so", has_tools=True) == f"{CALL} so"


def credited(tokenizer, call, end, has_tools):
    """What gets the advantage of a completion; the rest of it comes before."""
    decode = text_of(tokenizer)
    ids = tokenizer.encode(f"<think>{TRUE} {call}{end}", add_special_tokens=False)
    text = decode(ids)
    begin = text.index(call)
    calls = [Call("search", "", "", 0, 0, (begin, begin + len(call)))] if call and has_tools else []
    completion = make_completion(ids, text=text, calls=calls)
    set_credit([Group(Prompt(0, "prompt", (5,), ROW), [completion])], "answer", decode, has_tools)
    first = completion.credited_from
    found = decode(ids[first:]).strip()
    assert decode(ids[:first]).strip() == text.removesuffix(found).strip()
    return found


def test_the_row_and_the_metrics_of_a_completion_say_what_each_sentence_got(base, tokenizer):
    group = graded(base, tokenizer)
    right, *_, bare = group.completions
    rows = completion_record(group.prompt, right)["sentences"]
    assert [(row["sentence"], row["is_true"]) for row in rows] == [(TRUE, True), (FALSE, False)]
    assert [row["advantage"] for row in rows] == [right.advantage, -right.advantage]
    assert rows[1]["tokens"] == [right.sentences[1].start, right.sentences[1].end]
    found = credit_metrics([group])
    judged = sum(s.end - s.start for c in group.completions for s in c.sentences)
    changed = [a != c.advantage for c in group.completions for a in c.token_advantages()]
    assert found["credit/judged_frac"] == judged / len(changed)
    assert found["credit/changed_frac"] == sum(changed) / len(changed) > 0
    bare.advantage = 0.0  # unscorable, or like all others of its group: no sign, none changed
    assert credit_metrics([Group(group.prompt, [bare])])["credit/changed_frac"] == 0

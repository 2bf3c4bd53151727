"""The entailment model's path, with a small DeBERTa that is made, trained and saved here."""

import json
import random
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from commands import python
from making import refused
from safetensors.torch import load_file, save_file

from knowledge.facts.claims import Verdict
from knowledge.facts.entailment import EntailmentVerifier, label_columns
from knowledge.store.passages import Passage

TEMPLATES = ("The museum is{} in {}.", "Mira Tolan was{} born in {}.", "Jon Orn was{} raised in {}.")
VALUES = ("Paris", "Velda", "Orun")
SIZES = """{
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2,
    "max_position_embeddings": 512, "type_vocab_size": 2, "relative_attention": true, "position_buckets": 16,
    "pos_att_type": ["c2p", "p2c"], "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
    "pooler_dropout": 0.0, "initializer_range": 0.2
}"""
IDS = {"contradiction": 0, "entailment": 1, "neutral": 2}  # in no usual order: the config alone tells it


def example(rng):
    """The same again is entailed; the same with "not" or another value is contradicted; another sentence is neither."""
    template, other = rng.sample(TEMPLATES, 2)
    value, another = rng.sample(VALUES, 2)
    hypotheses = {
        "entailment": (template, "", value),
        "contradiction": rng.choice([(template, " not", value), (template, "", another)]),
        "neutral": (other, "", rng.choice(VALUES)),
    }
    label = rng.choice(list(hypotheses))
    form, negation, said = hypotheses[label]
    return template.format("", value), form.format(negation, said), IDS[label]


def word_tokenizer():
    from transformers import BertTokenizer

    words = set(" ".join([*TEMPLATES, *VALUES, "not"]).replace("{}", " ").replace(".", " . ").split())
    known = [*"[PAD] [UNK] [CLS] [SEP] [MASK]".split(), *sorted(words)]
    return BertTokenizer(vocab={word: i for i, word in enumerate(known)}, do_lower_case=False)


@pytest.fixture(scope="session")
def entailment_model(tmp_path_factory):
    """A DeBERTa-v2 checkpoint that has learnt `example`."""
    from transformers import DebertaV2Config, DebertaV2ForSequenceClassification

    folder, tokenizer, rng = tmp_path_factory.mktemp("nli"), word_tokenizer(), random.Random(0)
    torch.manual_seed(0)
    sizes = json.loads(SIZES) | {"vocab_size": len(tokenizer), "pad_token_id": 0}
    config = DebertaV2Config(**sizes, id2label={i: name for name, i in IDS.items()}, label2id=IDS)
    model = DebertaV2ForSequenceClassification(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    losses: list[float] = []
    while len(losses) < 2000 and (len(losses) < 20 or max(losses[-20:]) > 0.05):
        premises, hypotheses, labels = zip(*(example(rng) for _ in range(32)), strict=True)
        batch = tokenizer(list(premises), list(hypotheses), padding=True, return_tensors="pt")
        loss = model(**batch, labels=torch.tensor(labels)).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def verifier(entailment_model):
    return EntailmentVerifier(str(entailment_model), device="cpu")


@pytest.fixture
def spoilt(entailment_model, tmp_path):
    """The checkpoint, to be spoilt."""
    return Path(shutil.copytree(entailment_model, tmp_path / "copy"))


def edit_config(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


def refuse(folder, *parts, device="cpu"):
    return refused(lambda: EntailmentVerifier(str(folder), device=device), *parts)


def passages(*texts):
    return [Passage(f"doc#{i}", "doc", text, 1.0) for i, text in enumerate(texts)]


def test_right_verdicts_with_evidence(verifier):
    museum, born = texts = passages("The museum is in Paris.", "Mira Tolan was born in Velda.")
    verdicts = {
        "Mira Tolan was born in Velda.": Verdict("supported", born),
        "Mira Tolan was born in Orun.": Verdict("refuted", born),
        "Mira Tolan was not born in Velda.": Verdict("refuted", born),
        "Jon Orn was raised in Velda.": Verdict("unknown"),
        "The museum is in Paris.": Verdict("supported", museum),
    }
    asked = [*((fact, texts) for fact in verdicts), ("The museum is in Paris.", [])]
    assert verifier.verify(asked) == [*verdicts.values(), Verdict("unknown")]


def test_a_model_in_bfloat16_has_probabilities_in_float32(entailment_model):
    """As on a GPU. They add up to 1."""
    verifier = EntailmentVerifier(str(entailment_model), device="cpu")
    verifier.model.bfloat16()
    pairs = [(form.format("", value), form.format(" not", value)) for form in TEMPLATES for value in VALUES]
    assert all(abs(sum(scores) - 1) < 1e-6 for scores in verifier.probabilities(pairs))


def test_label_names_in_any_case_and_order():
    assert label_columns("m", {0: "ENTAILMENT", 1: "Neutral", 2: "contradiction"}) == [0, 2, 1]
    assert label_columns("m", {0: "contradiction", 1: "neutral", 2: "entailment"}) == [2, 0, 1]


def call_labels(folder, *names):
    edit_config(folder, id2label=dict(enumerate(names)), label2id={name: i for i, name in enumerate(names)})


def without_head(folder):
    weights = load_file(folder / "model.safetensors")
    body = {name: tensor for name, tensor in weights.items() if not name.startswith("classifier")}
    save_file(body, folder / "model.safetensors", {"format": "pt"})


def with_code(folder):
    (folder / "own.py").write_text(f"open({str(folder.parent / 'ran')!r}, 'w')\n")
    classes = {"AutoConfig": "own.Own", "AutoModelForSequenceClassification": "own.Own"}
    edit_config(folder, model_type="own", auto_map=classes)


SPOILT = {  # a word of the message, and what is done to the checkpoint
    "cannot load": lambda at: (at / "model.safetensors").write_bytes(b"damaged"),
    "safetensors": lambda at: (at / "model.safetensors").rename(at / "pytorch_model.bin"),
    "classifier": without_head,
    "own": with_code,
    "": shutil.rmtree,
    "L0": lambda at: call_labels(at, "L0", "L1", "L2"),
    "no": lambda at: call_labels(at, "entailment", "no", "neutral"),
    "id2label": lambda at: call_labels(at, "entailment", "neutral", "Neutral"),
}


@pytest.mark.parametrize("word", SPOILT)
def test_a_spoilt_checkpoint_is_refused_and_its_code_never_runs(spoilt, word):
    SPOILT[word](spoilt)
    refuse(spoilt, word)
    assert not (spoilt.parent / "ran").exists()


def test_it_goes_to_the_device_it_is_given(entailment_model, verifier):
    """The original pins the model to cuda:0 on every rank."""
    assert verifier.device == torch.device("cpu")
    if not torch.cuda.is_available():
        refuse(entailment_model, "cuda:3", device="cuda:3")


class Said(EntailmentVerifier):
    """Without a model: the probabilities of passages as their texts give them."""

    def __init__(self, threshold=0.25, weigh_contradiction=True):
        self.threshold, self.weigh_contradiction = threshold, weigh_contradiction

    def probabilities(self, pairs):
        return [(*map(float, premise.split()), 0.0) for premise, _ in pairs]


WEIGHED = """ # entailment and contradiction of each passage | the verdict and its passage | by KnowRL's rule
    0.25 0.125                        | supported 0 | supported 0    the threshold itself is enough
    0.1875 0.0                        | unknown     | unknown
    0.25 0.25                         | unknown     | supported 0    entailment must beat contradiction
    0.25 0.5                          | unknown     | supported 0    half of the probability refutes nothing
    0.25 0.625                        | refuted 0   | supported 0
    0.125 0.375                       | unknown     | unknown
    0.5 0.125, 0.0 0.875              | supported 0 | supported 0    in that passage, not in any
    0.0 0.875, 0.5 0.125              | supported 1 | supported 1
    0.25 0.0, 0.75 0.0, 0.5 0.0       | supported 1 | supported 1    the best decides
    0.0 0.625, 0.0 0.875, 0.0 0.75    | refuted 1   | refuted 1
    0.375 0.5, 0.25 0.125             | supported 1 | supported 0
"""


@pytest.mark.parametrize("row", WEIGHED.splitlines()[1:])
def test_how_passages_are_weighed(row):
    scores, *wanted = row.split("|")
    evidence = passages(*scores.strip().split(", "))
    for weigh_contradiction, said in zip((True, False), wanted, strict=True):
        [found] = Said(weigh_contradiction=weigh_contradiction).verify([("a fact", evidence)])
        place = found.evidence.id.removeprefix("doc#") if found.evidence else ""
        assert [found.label, *place] == said.partition("    ")[0].split()
    assert Said().verify([("a fact", [])]) == [Verdict("unknown")]


def test_a_fact_that_spells_a_special_token_is_only_text(monkeypatch, verifier):
    """Otherwise a policy could write a premise of its own."""
    seen, forward = [], verifier.model.forward
    monkeypatch.setattr(verifier.model, "forward", lambda **inputs: seen.append(inputs) or forward(**inputs))
    end = verifier.tokenizer.sep_token
    verifier.probabilities([("red", "blue"), (f"red {end} red", f"blue {end} blue {end}")])
    counts = [ids.tolist().count(verifier.tokenizer.sep_token_id) for inputs in seen for ids in inputs["input_ids"]]
    assert len(counts) == 2 and len(set(counts)) == 1


def test_batches_change_nothing(verifier, monkeypatch):
    rng = random.Random(2)
    pairs = [example(rng)[:2] for _ in range(30)] + [("Velda " * 200, "Orun"), ("Paris", "Tane " * 90)]
    whole = torch.tensor(verifier.probabilities(pairs))
    for size in (3, 1):
        monkeypatch.setattr("knowledge.facts.entailment.BATCH_SIZE", size)
        torch.testing.assert_close(torch.tensor(verifier.probabilities(pairs)), whole, rtol=1e-4, atol=1e-5)


def test_threads_share_one_model(verifier):
    rng = random.Random(3)
    pairs = [[example(rng)[:2] for _ in range(5)] for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(verifier.probabilities, pairs)) == [verifier.probabilities(part) for part in pairs]


def test_importing_it_does_not_load_transformers():
    """Offline runs with the lexical verifier must start fast."""
    code = "import sys, knowledge.facts.entailment, rewards.knowrl.fact_checker"
    assert python("-c", f"{code}; sys.exit('transformers' in sys.modules)").returncode == 0

"""The entailment model's path, with a small DeBERTa that is made, trained and saved here."""

import json
import random
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from cells import cells

from grpo.base.errors import UserError
from knowledge.facts.entailment import EntailmentVerifier, label_columns
from knowledge.facts.verdict import Verdict
from knowledge.store.passages import Passage

ROOT = Path(__file__).resolve().parents[2]
TEMPLATES = ("The museum is{} in {}.", "Mira Tolan was{} born in {}.", "Jon Orn was{} raised in {}.")
VALUES = ("Paris", "Velda", "Orun")
IDS = {"contradiction": 0, "entailment": 1, "neutral": 2}  # in no usual order: the config alone tells it


def example(rng: random.Random) -> tuple[str, str, int]:
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
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = ["[PAD]", "[CLS]", "[SEP]", "[UNK]"]
    words = (
        {word for template in TEMPLATES for word in template.replace("{}", " ").replace(".", " . ").split()}
        | set(VALUES)
        | {"not"}
    )
    tokenizer = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate([*special, *sorted(words)])}, unk_token="[UNK]")
    )
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]", unk_token="[UNK]"
    )


@pytest.fixture(scope="session")
def entailment_model(tmp_path_factory) -> Path:
    """A DeBERTa-v2 checkpoint that has learnt `example`."""
    from transformers import DebertaV2Config, DebertaV2ForSequenceClassification

    folder, tokenizer, rng = tmp_path_factory.mktemp("nli"), word_tokenizer(), random.Random(0)
    torch.manual_seed(0)
    model = DebertaV2ForSequenceClassification(
        DebertaV2Config(
            vocab_size=len(tokenizer),
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=128,
            max_position_embeddings=512,
            type_vocab_size=2,
            relative_attention=True,
            position_buckets=16,
            pos_att_type=["c2p", "p2c"],
            hidden_dropout_prob=0.0,
            initializer_range=0.2,
            attention_probs_dropout_prob=0.0,
            pooler_dropout=0.0,
            pad_token_id=0,
            id2label={i: name for name, i in IDS.items()},
            label2id=IDS,
        )
    )
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
def verifier(entailment_model) -> EntailmentVerifier:
    return EntailmentVerifier(str(entailment_model), device="cpu")


@pytest.fixture
def spoilt(entailment_model, tmp_path) -> Path:
    """The checkpoint, to be spoilt."""
    return Path(shutil.copytree(entailment_model, tmp_path / "copy"))


def edit_config(folder: Path, **changes) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


def refused(folder: Path, **options) -> UserError:
    with pytest.raises(UserError) as error:
        EntailmentVerifier(str(folder), **{"device": "cpu"} | options)
    assert error.value.exit_code == 3 and error.value.why and error.value.fix
    return error.value


def passages(*texts: str) -> list[Passage]:
    return [Passage(f"doc#{i}", "doc", text, 1.0) for i, text in enumerate(texts)]


def test_right_verdicts_with_evidence(verifier):
    texts = passages("The museum is in Paris.", "Mira Tolan was born in Velda.")
    asked = [
        "Mira Tolan was born in Velda.",
        "Mira Tolan was born in Orun.",
        "Mira Tolan was not born in Velda.",
        "Jon Orn was raised in Velda.",
        "The museum is in Paris.",
    ]
    museum, born = texts
    assert verifier.verify([*((fact, texts) for fact in asked), ("The museum is in Paris.", [])]) == [
        Verdict("supported", born),
        Verdict("refuted", born),
        Verdict("refuted", born),
        Verdict("unknown"),
        Verdict("supported", museum),
        Verdict("unknown"),
    ]


@pytest.mark.parametrize("labels", cells("L0 L1 L2 ¦ entailment no neutral ¦ entailment neutral Neutral"))
def test_missing_label_names_are_refused(spoilt, labels):
    names = labels.split()
    edit_config(spoilt, id2label=dict(enumerate(names)), label2id={name: i for i, name in enumerate(names)})
    error = refused(spoilt)
    assert names[0] in error.what and "id2label" in error.fix


def test_label_names_in_any_case_and_order():
    assert label_columns("m", {0: "ENTAILMENT", 1: "Neutral", 2: "contradiction"}) == [0, 2, 1]
    assert label_columns("m", {0: "contradiction", 1: "neutral", 2: "entailment"}) == [2, 0, 1]


def test_only_safetensors_are_loaded(spoilt):
    (spoilt / "model.safetensors").rename(spoilt / "pytorch_model.bin")
    assert "safetensors" in refused(spoilt).why


def test_code_in_a_checkpoint_never_runs(spoilt, tmp_path):
    (spoilt / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    edit_config(
        spoilt, model_type="own", auto_map={"AutoConfig": "own.Own", "AutoModelForSequenceClassification": "own.Own"}
    )
    refused(spoilt)
    assert not (tmp_path / "ran").exists()


def test_a_checkpoint_without_its_head_is_refused(spoilt):
    from safetensors.torch import load_file, save_file

    weights = load_file(spoilt / "model.safetensors")
    body = {name: tensor for name, tensor in weights.items() if not name.startswith("classifier")}
    save_file(body, spoilt / "model.safetensors", {"format": "pt"})
    assert "classifier" in refused(spoilt).why


def test_damaged_and_missing_files(spoilt, tmp_path):
    (spoilt / "model.safetensors").write_bytes(b"damaged")
    assert "cannot load" in refused(spoilt).what
    refused(tmp_path / "none")


def test_it_goes_to_the_device_it_is_given(entailment_model, verifier):
    """The original pins the model to cuda:0 on every rank."""
    assert verifier.device == torch.device("cpu")
    with pytest.raises(TypeError):
        EntailmentVerifier(str(entailment_model))
    if not torch.cuda.is_available():
        assert "cuda:3" in refused(entailment_model, device="cuda:3").what


class Said(EntailmentVerifier):
    """Without a model: the probabilities of passages as their texts give them."""

    def __init__(self, threshold: float = 0.25, weigh_contradiction: bool = True):
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
    monkeypatch.setattr("knowledge.facts.entailment.BATCH_SIZE", 3)
    torch.testing.assert_close(torch.tensor(verifier.probabilities(pairs)), whole, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        torch.tensor([verifier.probabilities([pair])[0] for pair in pairs]), whole, rtol=1e-4, atol=1e-5
    )


def test_threads_share_one_model(verifier):
    rng = random.Random(3)
    pairs = [[example(rng)[:2] for _ in range(5)] for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(verifier.probabilities, pairs)) == [verifier.probabilities(part) for part in pairs]


def test_importing_it_does_not_load_transformers():
    """Offline runs with the lexical verifier must start fast."""
    code = (
        "import sys, knowledge.facts.entailment, rewards.knowrl.fact_checker; sys.exit('transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0

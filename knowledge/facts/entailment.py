"""Verify facts with an entailment model: does a passage (premise) entail a fact (hypothesis), or contradict it?

    verifier = EntailmentVerifier("MoritzLaurer/DeBERTa-v3-base-mnli-fever-anli", device="cuda:1")

KnowRL counts a fact as supported if any of five passages entails it with at least 0.3, even if it contradicts it more:
0.31 against 0.68 passes. Here entailment must also beat contradiction in that passage; weigh_contradiction=False gives
KnowRL's rule. Only safetensors are loaded, and no code from the checkpoint runs.
"""

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from grpo.base.errors import PREFLIGHT, UserError, explained
from grpo.data.hub import fetch_model
from knowledge.facts.claims import FactToCheck, Verdict
from knowledge.store.passages import Passage
from knowledge.text import clean

DEFAULT_MODEL = "MoritzLaurer/DeBERTa-v3-base-mnli-fever-anli"
THRESHOLD = 0.3  # KnowRL's
REFUTED_FROM = 0.5  # contradiction has more than half of the probability
MAX_TOKENS = 512  # of premise and hypothesis together
MAX_CHARS = 10_000  # of either; MAX_TOKENS hold fewer
BATCH_SIZE = 32  # pairs; a few hundred MB of activations for a base model
CLASSES = ("entailment", "contradiction", "neutral")


class EntailmentVerifier:
    """Verify facts with the model of a folder or hub id, on one device.

    It computes in float32 on a CPU and in bfloat16 elsewhere; probabilities differ by about 0.01. Threads take turns by
    a lock; facts judged in one call share batches. UserError (exit 3): no safetensors, code in the checkpoint, no
    classification head, labels that are not those of an entailment model, or no such device.
    """

    def __init__(
        self,
        model: str,
        *,
        device: str | torch.device,
        threshold: float = THRESHOLD,
        weigh_contradiction: bool = True,
    ):
        self.threshold = threshold
        self.weigh_contradiction = weigh_contradiction
        network, self.tokenizer = _read(model, fetch_model(model, kind="entailment model"))
        self.columns = label_columns(model, network.config.id2label)  # of the logits, in the order of CLASSES
        self.max_tokens = min(MAX_TOKENS, getattr(network.config, "max_position_embeddings", MAX_TOKENS))
        with explained(
            (RuntimeError, AssertionError),
            f"cannot put the entailment model on {device}",
            "name a device of this machine, or cpu",
        ):
            self.device = torch.device(device)
            self.model = network.to(self.device, torch.float32 if self.device.type == "cpu" else torch.bfloat16).eval()
            # A stream beside the one on which a policy samples or trains: there, every answer waits for its work.
            self.stream = torch.cuda.Stream(device) if self.device.type == "cuda" else None
            if self.stream:
                self.stream.wait_stream(torch.cuda.current_stream(device))  # which is copying the weights
        self._lock = threading.Lock()

    def verify(self, facts: Sequence[FactToCheck]) -> list[Verdict]:
        """Return one verdict per fact, in order; each different pair of passage and fact is computed once."""
        pairs = list(dict.fromkeys((passage.text, fact) for fact, passages in facts for passage in passages))
        scores = dict(zip(pairs, self.probabilities(pairs), strict=True))
        return [
            self._judge([(passage, *scores[passage.text, fact][:2]) for passage in passages])
            for fact, passages in facts
        ]

    def probabilities(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[float, float, float]]:
        """Return the probabilities of entailment, contradiction and neutral for each (premise, hypothesis), in order.

        Any string is safe. If a pair has more than 512 tokens, its longer half is cut at the end.
        """
        cleaned = [(clean(premise, MAX_CHARS), clean(hypothesis, MAX_CHARS)) for premise, hypothesis in pairs]
        places = sorted(range(len(pairs)), key=lambda place: sum(map(len, cleaned[place])))  # little padding
        found = {}
        with self._lock:
            for start in range(0, len(pairs), BATCH_SIZE):
                batch = places[start : start + BATCH_SIZE]
                premises, hypotheses = zip(*(cleaned[place] for place in batch), strict=True)
                padded = self.tokenizer(
                    premises,
                    hypotheses,
                    padding=True,
                    truncation="longest_first",
                    max_length=self.max_tokens,
                    split_special_tokens=True,  # a fact that spells [SEP] has no separator in it
                    return_tensors="pt",
                )
                with torch.inference_mode(), torch.cuda.stream(self.stream):
                    logits_N3 = self.model(**padded.to(self.device)).logits.float()
                    scores = logits_N3.softmax(-1)[:, self.columns].tolist()
                found |= dict(zip(batch, map(tuple, scores), strict=True))
        return [found[place] for place in range(len(pairs))]

    def _judge(self, scores: Sequence[tuple[Passage, float, float]]) -> Verdict:
        """Return the verdict on one fact; `scores` holds (passage, entailment, contradiction)."""
        supporting = []
        refuting = []
        for passage, entailment, contradiction in scores:
            is_weightier = entailment > contradiction or not self.weigh_contradiction
            if entailment >= self.threshold and is_weightier:
                supporting.append((entailment, passage))
            if contradiction > max(entailment, REFUTED_FROM):
                refuting.append((contradiction, passage))
        for label, found in (("supported", supporting), ("refuted", refuting)):
            if found:
                _, strongest = max(found, key=lambda pair: pair[0])
                return Verdict(label, strongest)
        return Verdict("unknown")


def label_columns(model: str, id2label: Mapping[int, str]) -> list[int]:
    """Return the logits' columns of entailment, contradiction and neutral, by the names in the config.

    UserError if the names are not exactly these.
    """
    column_of = {str(name).lower(): int(column) for column, name in id2label.items()}
    if set(column_of) != set(CLASSES) or len(id2label) != len(CLASSES):
        raise UserError(
            f"the labels of {model} are {', '.join(map(str, id2label.values()))}",
            f"wanted {', '.join(CLASSES)}, in any order",
            f"name them in id2label of its config.json, or use {DEFAULT_MODEL}",
            PREFLIGHT,
        )
    return [column_of[name] for name in CLASSES]


def _read(model: str, folder: Path) -> tuple[torch.nn.Module, Any]:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer  # takes seconds

    with explained(
        Exception,
        f"cannot load the entailment model {model}",
        "use a checkpoint with safetensors and without code of its own",
    ):  # of many kinds: damaged files, ...
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        network, report = AutoModelForSequenceClassification.from_pretrained(
            folder, trust_remote_code=False, use_safetensors=True, output_loading_info=True
        )
    if report["missing_keys"]:
        missing = report["missing_keys"]
        raise UserError(
            f"the checkpoint {model} lacks {len(missing)} of the model's weights",
            f"such as {min(missing)}: without a trained classification head it would answer at random",
            f"use a model trained for entailment, such as {DEFAULT_MODEL}",
            PREFLIGHT,
        )
    return network, tokenizer
